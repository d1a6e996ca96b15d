/*
 * Stream sockets as any program uses them, with every byte compared. With -DRSOCKETS the calls are those of
 * <rdma/rsocket.h>; without it they are the system's, for the preload library.
 *
 *   streams serve ADDRESS            echoes, until it is killed; takes a connection each 5 ms only
 *   streams threads ADDRESS N HOW    N threads on one socket, HOW: blocking, poll or select
 *   streams sizes ADDRESS SECONDS    sends of random sizes, and random partial reads
 *   streams whole ADDRESS            receives more than the buffer has at a time, beside a thread that sends
 *   streams crowd ADDRESS            eight threads that connect 25 times each, to a backlog of 5
 *   streams calls ADDRESS            both ends in one thread: what calls return, and their effect
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "need.h"

#ifdef RSOCKETS
#include <rdma/rsocket.h>
#define socket rsocket
#define bind rbind
#define listen rlisten
#define accept raccept
#define connect rconnect
#define shutdown rshutdown
#define close rclose
#define recv rrecv
#define send rsend
#define poll rpoll
#define select rselect
#define getsockname rgetsockname
#define setsockopt rsetsockopt
#define getsockopt rgetsockopt
#define fcntl rfcntl
#endif

enum { PORT = 7300, OWN_PORT = 7301, TOTAL = 1 << 20, CHUNK = 70000 };

static struct sockaddr_in address = { .sin_family = AF_INET };
static const char *how;
static atomic_long sent, received;
static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER, receiving = PTHREAD_MUTEX_INITIALIZER;
static int shared;

static unsigned char pattern(long at)
{
	return (at * 2654435761u) >> 13;
}

static int connected(int port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_port = htons(port);
	NEED(fd >= 0);
	NEED(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	return fd;
}

static int listening(int port, int backlog)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_port = htons(port);
	NEED(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, backlog) == 0);
	return fd;
}

/* --- the server */

static void *echo(void *of)
{
	int fd = (int)(long)of;
	char *bytes = malloc(CHUNK);
	ssize_t got, put;

	while ((got = recv(fd, bytes, CHUNK, 0)) > 0)
		for (ssize_t done = 0; done < got; done += put)
			if ((put = send(fd, bytes + done, got - done, MSG_NOSIGNAL)) <= 0)
				goto end;
end:
	close(fd);
	free(bytes);
	return NULL;
}

static void serve(void)
{
	int fd = listening(PORT, 5);

	puts("listens");
	fflush(stdout);
	for (;;) {
		int peer = accept(fd, NULL, NULL);
		pthread_t thread;

		NEED(peer >= 0);
		NEED(pthread_create(&thread, NULL, echo, (void *)(long)peer) == 0);
		pthread_detach(thread);
		usleep(5000);
	}
}

/* --- threads on one socket */

/* Waits until the socket can be read or written; another thread may be faster, then. */
static void wait_for(short events)
{
	if (how[0] == 'p') {
		struct pollfd fd = { .fd = shared, .events = events };

		NEED(poll(&fd, 1, 20000) == 1);
		NEED(fd.revents & events);
	} else {
		struct timeval time = { .tv_sec = 20 };
		fd_set set;

		FD_ZERO(&set);
		FD_SET(shared, &set);
		NEED(select(shared + 1, events == POLLIN ? &set : NULL, events == POLLOUT ? &set : NULL, NULL, &time) == 1);
	}
}

static void send_some(int flags)
{
	unsigned char bytes[5000];
	size_t count = 0;
	ssize_t put;

	pthread_mutex_lock(&sending);
	for (; count < sizeof(bytes) && sent + (long)count < TOTAL; count++)
		bytes[count] = pattern(sent + count);
	put = count ? send(shared, bytes, count, flags) : 0;
	NEED(put >= 0 || errno == EAGAIN);
	sent += put > 0 ? put : 0;
	pthread_mutex_unlock(&sending);
}

static void receive_some(int flags)
{
	unsigned char bytes[3333];
	ssize_t got = 0;

	pthread_mutex_lock(&receiving);
	if (received < TOTAL) {
		got = recv(shared, bytes, sizeof(bytes), flags);
		NEED(got > 0 || errno == EAGAIN);
	}
	for (ssize_t i = 0; i < got; i++)
		NEED(bytes[i] == pattern(received + i));
	received += got > 0 ? got : 0;
	/* Those who still wait for data learn of the end. */
	if (got > 0 && received == TOTAL)
		NEED(shutdown(shared, SHUT_WR) == 0);
	pthread_mutex_unlock(&receiving);
}

static void *work(void *of)
{
	long role = (long)of; /* 1: sends, 2: receives, 3: both */
	int flags = how[0] == 'b' && role != 3 ? 0 : MSG_DONTWAIT;

	while ((role & 1 && sent < TOTAL) || (role & 2 && received < TOTAL)) {
		if (role & 1 && sent < TOTAL) {
			/* One that receives, too, waits only if it has nothing to receive. */
			if (how[0] != 'b' && (role == 1 || received == sent))
				wait_for(POLLOUT);
			send_some(flags);
		}
		if (role & 2 && received < TOTAL) {
			if (how[0] != 'b' && role == 2)
				wait_for(POLLIN);
			receive_some(flags);
		}
	}
	return NULL;
}

static void threads(int count)
{
	pthread_t all[8];

	NEED(count >= 1 && count <= 8);
	alarm(50);
	shared = connected(PORT);
	for (long i = 0; i < count; i++)
		NEED(pthread_create(&all[i], NULL, work, (void *)(count == 1 ? 3 : i % 2 + 1)) == 0);
	for (int i = 0; i < count; i++)
		NEED(pthread_join(all[i], NULL) == 0);
	NEED(sent == TOTAL && received == TOTAL && close(shared) == 0);
}

/* --- random sizes */

static void *send_sizes(void *until)
{
	unsigned seed = 1;
	unsigned char *bytes = malloc(300000);

	while (time(NULL) < *(time_t *)until) {
		/* As many short ones as long ones. */
		ssize_t count = 1 + rand_r(&seed) % (1 << rand_r(&seed) % 18), put;

		for (ssize_t i = 0; i < count; i++)
			bytes[i] = pattern(sent + i);
		put = send(shared, bytes, count, 0);
		NEED(put == count);
		sent += put;
	}
	NEED(shutdown(shared, SHUT_WR) == 0);
	free(bytes);
	return NULL;
}

static void sizes(int seconds)
{
	unsigned char *bytes = malloc(300000);
	time_t until = time(NULL) + seconds;
	unsigned seed = 2;
	pthread_t thread;
	ssize_t got;

	alarm(seconds + 60);
	shared = connected(PORT);
	NEED(pthread_create(&thread, NULL, send_sizes, &until) == 0);
	for (;;) {
		size_t room = 1 + rand_r(&seed) % (1 << rand_r(&seed) % 18);
		int flags = rand_r(&seed) % 4 ? 0 : rand_r(&seed) % 2 ? MSG_PEEK : MSG_WAITALL;

		got = recv(shared, bytes, room, flags);
		if (got <= 0)
			break;
		NEED(!(flags & MSG_WAITALL) || got == (ssize_t)room || sent > received);
		for (ssize_t i = 0; i < got; i++)
			NEED(bytes[i] == pattern(received + i));
		received += flags & MSG_PEEK ? 0 : got;
	}
	NEED(got == 0);
	NEED(pthread_join(thread, NULL) == 0);
	NEED(sent == received && sent > 0);
	printf("%ld bytes\n", (long)sent);
	NEED(close(shared) == 0);
}

/* --- more than the buffer has, at a time */

static void *send_all(void *of)
{
	unsigned char bytes[5000];

	(void)of;
	while (sent < 64 * TOTAL) {
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = pattern(sent + i);
		NEED(send(shared, bytes, sizeof(bytes), 0) == sizeof(bytes));
		sent += sizeof(bytes);
	}
	NEED(shutdown(shared, SHUT_WR) == 0);
	return NULL;
}

static void whole(void)
{
	ssize_t got, room = 300000;
	unsigned char *bytes = malloc(room);
	pthread_t thread;

	alarm(50);
	shared = connected(PORT);
	NEED(pthread_create(&thread, NULL, send_all, NULL) == 0);
	do {
		NEED((got = recv(shared, bytes, room, MSG_WAITALL)) >= 0);
		for (ssize_t i = 0; i < got; i++)
			NEED(bytes[i] == pattern(received + i));
		received += got;
	} while (got == room);
	NEED(pthread_join(thread, NULL) == 0);
	NEED(sent == received && close(shared) == 0);
	free(bytes);
}

/* --- many clients */

static void *come(void *of)
{
	(void)of;
	for (int i = 0; i < 25; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		char text[8] = "", wanted[8] = "a crowd";

		NEED(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
		NEED(send(fd, wanted, sizeof(wanted), 0) == sizeof(wanted));
		NEED(recv(fd, text, sizeof(text), MSG_WAITALL) == sizeof(text) && !memcmp(text, wanted, sizeof(text)));
		NEED(close(fd) == 0);
	}
	return NULL;
}

static void crowd(void)
{
	pthread_t all[8];

	alarm(50);
	address.sin_port = htons(PORT);
	for (int i = 0; i < 8; i++)
		NEED(pthread_create(&all[i], NULL, come, NULL) == 0);
	for (int i = 0; i < 8; i++)
		NEED(pthread_join(all[i], NULL) == 0);
}

/* --- calls */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static volatile sig_atomic_t signals;

/* What differs from a value that is refused is refused, or comes back. */
static void options(int fd)
{
	struct { int level, name, value, error, then; } table[] = {
		{ SOL_SOCKET, SO_REUSEADDR, 1, 0, 1 },	     { SOL_SOCKET, SO_KEEPALIVE, 1, 0, 1 },
		{ SOL_SOCKET, SO_REUSEPORT, 1, ENOPROTOOPT, 0 }, { SOL_SOCKET, SO_REUSEPORT, 0, 0, 0 },
		{ IPPROTO_IP, IP_TOS, 0x10, ENOPROTOOPT, 0 },    { IPPROTO_IP, IP_TOS, 0, 0, 0 },
		{ IPPROTO_TCP, TCP_NODELAY, 1, 0, 1 },
	};
	struct linger linger = { .l_onoff = 1, .l_linger = 5 }, is = { 0 };
	struct timeval time = { .tv_usec = 300000 }, kept = { 0 };
	socklen_t size;
	int value = 1000;

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		int result = setsockopt(fd, table[i].level, table[i].name, &table[i].value, sizeof(int)), is = -1;

		if (result != (table[i].error ? -1 : 0) || (result && errno != table[i].error)) {
			fprintf(stderr, "option %zu: %d, %m\n", i, result);
			exit(1);
		}
		size = sizeof(is);
		NEED(getsockopt(fd, table[i].level, table[i].name, &is, &size) == 0 && is == table[i].then);
	}
	NEED(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, sizeof(value)) == -1 && errno == ENOPROTOOPT);
	NEED(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof(value)) == -1 && errno == ENOPROTOOPT);
	NEED(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == -1 && errno == ENOPROTOOPT);
	NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	size = sizeof(is);
	NEED(getsockopt(fd, SOL_SOCKET, SO_LINGER, &is, &size) == 0 && size == sizeof(is));
	NEED(is.l_onoff == 1 && is.l_linger == 5);
	NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) == 0);
	size = sizeof(kept);
	NEED(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kept, &size) == 0 && kept.tv_usec == 300000 && !kept.tv_sec);
	NEED(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)) == 0);
	time.tv_usec = 1000000;
	NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) == -1 && errno == EDOM);
}

#ifndef RSOCKETS
static void count_signal(int number)
{
	(void)number;
	signals++;
}

/* Calls that librdmacm does not have, at a connection with `far` as its other end. */
static void preloaded(int fd, int far)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	struct timespec short_time = { .tv_nsec = 200000000 };
	struct epoll_event event = { .events = EPOLLIN };
	struct sigaction action = { .sa_handler = count_signal };
	char text[64] = "", path[] = "/tmp/streams.XXXXXX";
	struct iovec vectors[2] = { { "one ", 4 }, { "two", 3 } };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = &vectors[0], .msg_iovlen = 1 } },
				       { .msg_hdr = { .msg_iov = &vectors[1], .msg_iovlen = 1 } } };
	int file = mkstemp(path), on = 1, off = 0, bytes = -1, pipes[2], set = epoll_create1(0);
	sigset_t none, alarms, before;
	off_t at = 1;
	double begin;
	fd_set read_set;

	NEED(file >= 0 && unlink(path) == 0 && write(file, "0123456789", 10) == 10 && pipe(pipes) == 0);
	NEED(ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 0);
	NEED(ioctl(fd, FIONBIO, &on) == 0 && fcntl(fd, F_GETFL) & O_NONBLOCK);
	NEED(recv(fd, text, sizeof(text), 0) == -1 && errno == EAGAIN);
	NEED(ioctl(fd, FIONBIO, &off) == 0 && !(fcntl(fd, F_GETFL) & O_NONBLOCK));
	NEED(ioctl(fd, TIOCGWINSZ, text) == -1 && errno == ENOTTY && !isatty(fd));
	/* Idle: nobody says that it can be read. */
	begin = now();
	FD_ZERO(&read_set);
	FD_SET(fd, &read_set);
	NEED(pselect(fd + 1, &read_set, NULL, NULL, &short_time, NULL) == 0 && now() - begin > 0.19);
	begin = now();
	NEED(ppoll(&entry, 1, &short_time, NULL) == 0 && now() - begin > 0.19);
	/* A signal that came before ends a wait that lets it through. */
	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGUSR1);
	NEED(pthread_sigmask(SIG_BLOCK, &alarms, &before) == 0 && raise(SIGUSR1) == 0 && signals == 0);
	sigemptyset(&none);
	NEED(ppoll(&entry, 1, NULL, &none) == -1 && errno == EINTR && signals == 1);
	NEED(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	NEED(sendfile(far, file, &at, 5) == 5 && at == 6 && recv(fd, text, 5, MSG_WAITALL) == 5);
	NEED(!memcmp(text, "12345", 5) && lseek(file, 0, SEEK_CUR) == 10 && lseek(file, 7, SEEK_SET) == 7);
	NEED(sendfile(far, file, NULL, 100) == 3 && recv(fd, text, 3, MSG_WAITALL) == 3 && !memcmp(text, "789", 3));
	NEED(lseek(file, 0, SEEK_CUR) == 10);
	NEED(sendmmsg(far, messages, 2, 0) == 2 && messages[0].msg_len == 4 && messages[1].msg_len == 3);
	NEED(recv(fd, text, 7, MSG_WAITALL) == 7 && !memcmp(text, "one two", 7));
	NEED(write(pipes[1], "x", 1) == 1 && splice(pipes[0], NULL, far, NULL, 1, 0) == -1 && errno == EINVAL);
	NEED(fdopen(fd, "r") == NULL && errno == EOPNOTSUPP && dup(fd) == -1 && errno == EOPNOTSUPP);
	NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == -1 && errno == EPERM);
	NEED(send(far, "four", 4, 0) == 4 && poll(&entry, 1, 5000) == 1);
	usleep(100000);
	NEED(ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 4 && recv(fd, text, 4, 0) == 4);
	NEED(sigaction(SIGPIPE, &action, NULL) == 0);
	close(set), close(file), close(pipes[0]), close(pipes[1]);
}
#endif

static void calls(void)
{
	struct timeval patient = { .tv_sec = 20 };
	struct linger reset = { .l_onoff = 1 };
	struct sockaddr_in own = { 0 };
	socklen_t size = sizeof(own);
	char text[8];
	int listener = listening(OWN_PORT, 2), fd, far, broken;
	double begin;

	alarm(50);
	/* Nobody accepts yet. */
	fd = connected(OWN_PORT);
	NEED(getsockname(fd, (struct sockaddr *)&own, &size) == 0);
	NEED(own.sin_port != 0 && own.sin_addr.s_addr == address.sin_addr.s_addr);
	NEED(send(fd, "early", 5, 0) == 5);
	size = sizeof(own);
	far = accept(listener, (struct sockaddr *)&own, &size);
	NEED(far >= 0 && recv(far, text, 5, MSG_WAITALL) == 5 && !memcmp(text, "early", 5));
	size = sizeof(own);
	NEED(getsockname(fd, (struct sockaddr *)&own, &size) == 0);
	options(fd);
	begin = now();
	NEED(recv(fd, text, 1, 0) == -1 && errno == EAGAIN && now() - begin > 0.29 && now() - begin < 5);
	NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patient, sizeof(patient)) == 0);
	NEED(send(fd, "x", 1, MSG_OOB) == -1 && errno == EOPNOTSUPP);
#ifndef RSOCKETS
	preloaded(fd, far);
	signals = 0;
#endif
	/* Each direction ends by itself. */
	NEED(shutdown(fd, SHUT_WR) == 0);
	NEED(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
	NEED(signals == 0);
#ifndef RSOCKETS
	NEED(send(fd, "x", 1, 0) == -1 && errno == EPIPE && signals == 1);
	NEED(write(fd, "x", 1) == -1 && errno == EPIPE && signals == 2);
#endif
	NEED(recv(far, text, 1, 0) == 0 && send(far, "y", 1, 0) == 1 && recv(fd, text, 1, 0) == 1);
	NEED(close(far) == 0 && recv(fd, text, 1, 0) == 0 && close(fd) == 0);
	/* A connection that ends without its peer's word is no end of file. */
	broken = connected(OWN_PORT);
	far = accept(listener, NULL, NULL);
	NEED(far >= 0 && setsockopt(broken, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0 && close(broken) == 0);
	NEED(recv(far, text, 1, 0) == -1 && errno == ECONNRESET && close(far) == 0);
	NEED(shutdown(listener, SHUT_RDWR) == 0 && accept(listener, NULL, NULL) == -1 && errno == EINVAL);
	NEED(close(listener) == 0);
}

int main(int argc, char **argv)
{
	NEED(argc >= 3 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
	how = argc > 4 ? argv[4] : "";
	if (!strcmp(argv[1], "serve"))
		serve();
	else if (!strcmp(argv[1], "threads"))
		threads(atoi(argv[3]));
	else if (!strcmp(argv[1], "sizes"))
		sizes(atoi(argv[3]));
	else if (!strcmp(argv[1], "whole"))
		whole();
	else if (!strcmp(argv[1], "crowd"))
		crowd();
	else
		calls();
	return 0;
}
