/* Patterns of bytes, messages, and connection events, for all files of this program. */
#include "common.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>

struct sockaddr_in address = { .sin_family = AF_INET };
const char *address_text, *port_text;
struct rdma_event_channel *channel;
size_t size;

double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

unsigned number_of(const char *text)
{
	return (unsigned)atoi(text);
}

void *memory(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(at != MAP_FAILED);
	return at;
}

void make_nonblocking(int fd)
{
	NEED(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

static unsigned descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	unsigned count = 0;

	NEED(all);
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

static void list_descriptors(void)
{
	char link[32], target[128];

	for (int fd = 0; fd < 1024; fd++) {
		ssize_t length;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		length = readlink(link, target, sizeof(target));
		if (length > 0)
			fprintf(stderr, "descriptor %d: %.*s\n", fd, (int)length, target);
	}
}

unsigned settled_descriptors(unsigned expected)
{
	unsigned count = descriptors(), last;

	for (unsigned unchanged = 0; count > expected && unchanged < 100; unchanged = count == last ? unchanged + 1 : 0) {
		usleep(10000);
		last = count;
		count = descriptors();
	}
	if (expected && count > expected)
		list_descriptors();
	return count;
}

static uint8_t pattern(uint32_t tag, uint32_t number, size_t at)
{
	uint32_t word = (tag * 2654435761u ^ number * 40503u) + (uint32_t)(at / 4) * 2246822519u;

	return (uint8_t)((word ^ word >> 15) >> at % 4 * 8);
}

void fill(uint8_t *bytes, size_t count, uint32_t tag, uint32_t number)
{
	for (size_t at = 0; at < count; at++)
		bytes[at] = pattern(tag, number, at);
}

int is_filled(const uint8_t *bytes, size_t count, uint32_t tag, uint32_t number)
{
	size_t wrong = 0;

	for (size_t at = 0; at < count; at++)
		wrong += bytes[at] != pattern(tag, number, at);
	if (wrong)
		fprintf(stderr, "%zu of %zu bytes of message %u of %#x are wrong\n", wrong, count, number, tag);
	return !wrong;
}

void make_message(uint8_t *message, uint32_t tag, uint32_t number)
{
	struct head head = { .tag = tag, .number = number, .bytes = (uint32_t)size };

	memcpy(message, &head, sizeof(head));
	fill(message + sizeof(head), size - sizeof(head), tag, number);
}

int is_message(const uint8_t *message, size_t bytes, struct head *head)
{
	if (bytes < sizeof(*head))
		return 0;
	memcpy(head, message, sizeof(*head));
	bytes -= sizeof(*head);
	return head->bytes == bytes + sizeof(*head) &&
	       is_filled(message + sizeof(*head), bytes, head->tag, head->number);
}

void open_channel(void)
{
	NEED((channel = rdma_create_event_channel()));
	make_nonblocking(channel->fd);
}

struct rdma_cm_id *listening(void)
{
	struct rdma_cm_id *listener;

	open_channel();
	NEED(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	NEED(rdma_listen(listener, 1024) == 0);
	puts("listens");
	fflush(stdout);
	return listener;
}

int next_event(struct event *event, int ms)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	double until = now() + ms / 1e3;
	struct rdma_cm_event *got;

	while (poll(&fd, 1, ms) >= 0 && rdma_get_cm_event(channel, &got)) {
		NEED(errno == EAGAIN || errno == EINTR);
		if (now() >= until)
			return 0;
	}
	*event = (struct event){ .kind = got->event, .status = got->status, .id = got->id };
	if (got->param.conn.private_data && got->param.conn.private_data_len >= sizeof(event->offer))
		memcpy(&event->offer, got->param.conn.private_data, sizeof(event->offer));
	rdma_ack_cm_event(got);
	return 1;
}

void take_cq_events(struct ibv_comp_channel *of)
{
	struct ibv_cq *cq;
	void *context;

	while (ibv_get_cq_event(of, &cq, &context) == 0)
		ibv_ack_cq_events(cq, 1);
}
