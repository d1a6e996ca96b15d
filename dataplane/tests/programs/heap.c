/* A library that a test preloads into a process: each SIGUSR2 has it write the bytes that the process's allocator has
 * given out to the file $HEAP. Resident memory does not tell them: the allocator keeps what is freed. */
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static sigset_t asked;

static void *tells(void *path)
{
    char part[4096];
    int signal;

    snprintf(part, sizeof part, "%s.part", (const char *)path);
    while (sigwait(&asked, &signal) == 0) {
        struct mallinfo2 heap = mallinfo2();
        FILE *file = fopen(part, "w");

        if (file == NULL)
            continue;
        fprintf(file, "%zu\n", heap.uordblks + heap.hblkhd);
        fclose(file);
        rename(part, path);
    }
    return NULL;
}

/* Before main, so that every thread of the program blocks the signal. */
__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;

    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &asked, NULL);
    if (getenv("HEAP") == NULL || pthread_create(&thread, NULL, tells, getenv("HEAP")) != 0)
        abort();
}
