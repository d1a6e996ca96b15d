/* Threads that are canceled while a call for sockets waits, as `canceled.c`, in a program of plain sockets: those of
 * the kernel, and those that the preload library makes rsockets. */
#include "common.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* The socket of which all calls wait for a byte, and a listener. */
static int waiting, listener;
static int cleaned;

static void clean(void *unused)
{
	(void)unused;
	cleaned++;
}

static fd_set only_waiting(void)
{
	fd_set set;

	FD_ZERO(&set);
	FD_SET(waiting, &set);
	return set;
}

static void call(int which)
{
	char bytes[4];
	struct iovec vector = { bytes, sizeof(bytes) };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &vector, .msg_iovlen = 1 } };
	struct pollfd entry = { .fd = waiting, .events = POLLIN };
	fd_set set = only_waiting();
	sigset_t none;
	ssize_t got = 0;

	sigemptyset(&none);
	switch (which) {
	case 0: got = read(waiting, bytes, sizeof(bytes)); break;
	case 1: got = recv(waiting, bytes, sizeof(bytes), 0); break;
	case 2: got = recvfrom(waiting, bytes, sizeof(bytes), 0, NULL, NULL); break;
	case 3: got = recvmsg(waiting, &message.msg_hdr, 0); break;
	case 4: got = recvmmsg(waiting, &message, 1, 0, NULL); break;
	case 5: got = readv(waiting, &vector, 1); break;
	case 6: got = poll(&entry, 1, -1); break;
	case 7: got = ppoll(&entry, 1, NULL, &none); break;
	case 8: got = select(waiting + 1, &set, NULL, NULL, NULL); break;
	case 9: got = pselect(waiting + 1, &set, NULL, NULL, NULL, &none); break;
	case 10: got = accept(listener, NULL, NULL); break;
	case 11: got = accept4(listener, NULL, NULL, SOCK_CLOEXEC); break;
	default: NEED(0);
	}
	fprintf(stderr, "call %d returns %zd\n", which, got);
}
enum { CALLS = 12 };

static void *waits(void *which)
{
	pthread_cleanup_push(clean, NULL);
	call((int)(intptr_t)which);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel(int which, unsigned after_us)
{
	int before = cleaned;
	pthread_t thread;
	void *result;

	NEED(pthread_create(&thread, NULL, waits, (void *)(intptr_t)which) == 0);
	usleep(after_us);
	NEED(pthread_cancel(thread) == 0);
	NEED(pthread_join(thread, &result) == 0);
	/* One that is canceled before it begins has nothing to clean. */
	NEED(result == PTHREAD_CANCELED && cleaned - before <= 1);
}

static void *connects(void *unused)
{
	int end = socket(AF_INET, SOCK_STREAM, 0);

	(void)unused;
	NEED(end >= 0 && connect(end, (struct sockaddr *)&address, sizeof(address)) == 0);
	return (void *)(intptr_t)end;
}

int canceled_sockets(char **arguments)
{
	unsigned rounds = number_of(arguments[0]), descriptors;
	int pair[2], streams[2];
	struct pollfd entry = { .events = POLLIN };
	pthread_t thread;
	void *end;
	char byte = 0;

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	NEED((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	NEED(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 4) == 0);
	NEED(pthread_create(&thread, NULL, connects, NULL) == 0);
	NEED((streams[0] = accept(listener, NULL, NULL)) >= 0);
	NEED(pthread_join(thread, &end) == 0);
	streams[1] = (int)(intptr_t)end;
	/* A thread keeps the counter on which it sleeps. */
	entry.fd = streams[0];
	NEED(poll(&entry, 1, 1) == 0);
	descriptors = settled_descriptors(0);
	for (unsigned round = 0; round < rounds; round++)
		for (int which = 0; which < 2 * CALLS; which++) {
			waiting = which < CALLS ? pair[0] : streams[0];
			cancel(which % CALLS, (round * 37 + (unsigned)which) % 300 * (round % 4));
		}

	/* Each of them works still, and nothing is left. */
	NEED(write(pair[1], "a", 1) == 1 && read(pair[0], &byte, 1) == 1 && byte == 'a');
	NEED(send(streams[1], "b", 1, 0) == 1 && recv(streams[0], &byte, 1, 0) == 1 && byte == 'b');
	NEED(settled_descriptors(descriptors) <= descriptors);
	printf("%u threads canceled\n", rounds * 2 * CALLS);
	return 0;
}
