/*
 * wait.c: maps a region of iwarpd by its name and waits for a peer's write.
 *
 *   cc -std=gnu11 -O2 -o wait wait.c
 *   ./wait lab 0 4096 >received      waits until the last of the 4096 bytes at offset 0 changes, then prints all
 *
 * The program asks the daemon for the region's memory over the control socket: one line of JSON
 * (docs/control-socket.md), whose reply carries a descriptor. From then on it reads the memory itself. The end of a
 * peer's RDMA Write is placed after the rest (placement.last_segment), so the byte that is polled is the last one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SOCKET "/run/iwarpd/control.sock"
#define REPLY_MAX 65536

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "wait: %s: %s\n", what, why);
	exit(1);
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(address.sun_path))
		fail(path, "longer than the name of a socket may be");
	strcpy(address.sun_path, path);
	if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof(address)) < 0)
		fail(path, strerror(errno));
	return sock;
}

/* Receives up to `size` bytes, and the descriptor that comes with the first of them. */
static ssize_t receive(int sock, char *bytes, size_t size, int *fd)
{
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr header; } control;
	struct iovec part = { .iov_base = bytes, .iov_len = size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;

	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(header), sizeof(int));
	return got;
}

/* Asks the daemon for a region: returns a descriptor of its memory, and its size in bytes. */
static int attach(const char *socket_path, const char *name, unsigned long long *bytes)
{
	static char line[REPLY_MAX];
	size_t length = 0;
	int fd = -1, sock = connect_to(socket_path);
	char *found;

	if (strpbrk(name, "\"\\"))
		fail(name, "this example does not encode quotation marks and backslashes");
	length = (size_t)snprintf(line, sizeof(line),
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"region.attach\",\"params\":{\"name\":\"%s\"}}\n", name);
	if (length >= sizeof(line) || send(sock, line, length, MSG_NOSIGNAL) != (ssize_t)length)
		fail(socket_path, "the request was not sent");
	length = 0;
	memset(line, 0, sizeof(line));
	while (!memchr(line, '\n', length) && length < sizeof(line) - 1) {
		ssize_t got = receive(sock, line + length, sizeof(line) - 1 - length, &fd);

		if (got <= 0)
			fail(socket_path, "the daemon closed the connection");
		length += (size_t)got;
	}
	close(sock);
	found = strstr(line, "\"bytes\":");
	if (fd < 0 || !found)
		fail(name, line);
	*bytes = strtoull(found + strlen("\"bytes\":"), NULL, 10);
	return fd;
}

int main(int argc, char **argv)
{
	const char *socket_path = getenv("IWARPCTL_SOCKET");
	unsigned long long bytes, offset, length;
	const unsigned char *memory, *last;
	struct stat file;
	unsigned char before;
	int fd;

	if (argc != 4) {
		fprintf(stderr, "usage: %s REGION OFFSET LENGTH\n", argv[0]);
		return 2;
	}
	offset = strtoull(argv[2], NULL, 0);
	length = strtoull(argv[3], NULL, 0);
	fd = attach(socket_path ? socket_path : SOCKET, argv[1], &bytes);
	if (length == 0 || offset > bytes || length > bytes - offset)
		fail(argv[1], "the bytes are not inside the region");
	if (fstat(fd, &file) < 0 || (unsigned long long)file.st_size < bytes)
		fail(argv[1], "the memory is shorter than the region");
	/* The whole file: its size is a multiple of the pages, which may be of 2 MiB. */
	memory = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail(argv[1], strerror(errno));
	last = memory + offset + length - 1;
	before = __atomic_load_n(last, __ATOMIC_ACQUIRE);
	fprintf(stderr, "mapped %s, %llu bytes\n", argv[1], bytes);
	while (__atomic_load_n(last, __ATOMIC_ACQUIRE) == before)
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	return fwrite(memory + offset, 1, length, stdout) == length && fflush(stdout) == 0 ? 0 : 1;
}
