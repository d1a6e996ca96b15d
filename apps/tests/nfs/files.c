/* What a shell cannot do to files: shared mappings and record locks.
 *
 *   files map-copy SOURCE TARGET       copies through shared mappings of both files, then msync
 *   files map-flip FILE STEP           inverts every STEPth byte in a shared writable mapping, then msync
 *   files lock FILE START LENGTH r|w   locks a range (0 bytes: to the end) and holds it until a signal ends it
 *   files try FILE START LENGTH r|w    succeeds if the range can be locked now; a lock of another one is exit code 3
 *
 * A length or a start is in bytes. `lock` prints LOCKED when it has the lock, which it does not wait for.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCKED_BY_ANOTHER = 3 };

static void fail(const char *what)
{
    fprintf(stderr, "files: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int open_file(const char *path, int flags)
{
    int fd = open(path, flags, 0644);
    if (fd < 0)
        fail(path);
    return fd;
}

static off_t length_of(int fd)
{
    struct stat found;
    if (fstat(fd, &found) != 0)
        fail("fstat");
    return found.st_size;
}

static unsigned char *map(int fd, off_t length, int rights)
{
    void *mapped = mmap(NULL, (size_t)length, rights, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        fail("mmap");
    return mapped;
}

/* Writes the mapping back, and removes it. */
static void finish(unsigned char *mapped, off_t length, int fd)
{
    if (msync(mapped, (size_t)length, MS_SYNC) != 0)
        fail("msync");
    if (munmap(mapped, (size_t)length) != 0)
        fail("munmap");
    if (close(fd) != 0)
        fail("close");
}

static void map_copy(const char *source, const char *target)
{
    int from = open_file(source, O_RDONLY), to = open_file(target, O_RDWR | O_CREAT | O_TRUNC);
    off_t length = length_of(from);
    if (ftruncate(to, length) != 0)
        fail("ftruncate");
    unsigned char *read = map(from, length, PROT_READ), *written = map(to, length, PROT_READ | PROT_WRITE);
    memcpy(written, read, (size_t)length);
    finish(written, length, to);
}

static void map_flip(const char *path, long step)
{
    int fd = open_file(path, O_RDWR);
    off_t length = length_of(fd);
    unsigned char *mapped = map(fd, length, PROT_READ | PROT_WRITE);
    if (step <= 0) {
        errno = EINVAL;
        fail("the step");
    }
    for (off_t at = 0; at < length; at += step)
        mapped[at] = (unsigned char)~mapped[at];
    finish(mapped, length, fd);
}

/* Locks a range of an open file, or exits. */
static void lock(int fd, char **range)
{
    struct flock wanted = {
        .l_type = range[2][0] == 'w' ? F_WRLCK : F_RDLCK,
        .l_whence = SEEK_SET,
        .l_start = atoll(range[0]),
        .l_len = atoll(range[1]),
    };
    if (fcntl(fd, F_SETLK, &wanted) == 0)
        return;
    if (errno == EAGAIN || errno == EACCES)
        exit(LOCKED_BY_ANOTHER);
    fail("fcntl");
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    if (argc == 4 && strcmp(command, "map-copy") == 0) {
        map_copy(argv[2], argv[3]);
    } else if (argc == 4 && strcmp(command, "map-flip") == 0) {
        map_flip(argv[2], atol(argv[3]));
    } else if (argc == 6 && (strcmp(command, "lock") == 0 || strcmp(command, "try") == 0)) {
        lock(open_file(argv[2], O_RDWR), argv + 3);
        if (strcmp(command, "lock") == 0) {
            puts("LOCKED");
            fflush(stdout);
            pause();
        }
    } else {
        fprintf(stderr, "usage: files map-copy|map-flip|lock|try ...; see the head of files.c\n");
        return 2;
    }
    return 0;
}
