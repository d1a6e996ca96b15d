/* Threads that are canceled while a call waits, or is about to: the call ends, and what it waited for stays usable.
 * Meanwhile peers come and go: a thread that waits runs the device, which closes their sockets. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

static struct rdma_event_channel *events;
static struct ibv_comp_channel *completions;
static struct ibv_context *device;
static int streams[2], listener, fresh = -1;
static atomic_int is_over;

static void *takes_completion(void *unused)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(completions, &cq, &context);
	return unused;
}

static void *takes_asynchronous(void *unused)
{
	struct ibv_async_event event;

	ibv_get_async_event(device, &event);
	return unused;
}

static void *takes_connection(void *unused)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(events, &event);
	return unused;
}

static void *reads_stream(void *unused)
{
	char byte;

	rrecv(streams[1], &byte, 1, 0);
	return unused;
}

static void *polls_stream(void *unused)
{
	struct pollfd entry = { .fd = streams[1], .events = POLLIN };

	rpoll(&entry, 1, -1);
	return unused;
}

/* Canceled before it does anything: what the call makes before it waits is whole. */
static void *connects_stream(void *unused)
{
	fresh = rsocket(AF_INET, SOCK_STREAM, 0);
	pthread_cancel(pthread_self());
	rconnect(fresh, (struct sockaddr *)&address, sizeof(address));
	rrecv(fresh, &fresh, 1, 0);
	return unused;
}

static void *calls_accept(void *unused)
{
	streams[0] = raccept(listener, NULL, NULL);
	return unused;
}

static void *comes_and_goes(void *unused)
{
	while (!is_over) {
		int peer = socket(AF_INET, SOCK_STREAM, 0);

		NEED(peer >= 0 && connect(peer, (struct sockaddr *)&address, sizeof(address)) == 0);
		usleep(200);
		close(peer);
	}
	return unused;
}

/* Two ends of a stream in this process. */
static void open_streams(void)
{
	pthread_t thread;

	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(rbind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && rlisten(listener, 1) == 0);
	NEED(pthread_create(&thread, NULL, calls_accept, NULL) == 0);
	streams[1] = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(rconnect(streams[1], (struct sockaddr *)&address, sizeof(address)) == 0);
	NEED(pthread_join(thread, NULL) == 0 && streams[0] >= 0);
}

static void close_streams(void)
{
	NEED(rclose(streams[0]) == 0 && rclose(streams[1]) == 0 && rclose(listener) == 0);
}

/* What a device opens once, it keeps, and so does a thread: the counter on which it sleeps. */
static void open_what_stays(void)
{
	struct pollfd entry;

	open_streams();
	entry = (struct pollfd){ .fd = streams[1], .events = POLLIN };
	NEED(rpoll(&entry, 1, 1) == 0);
	close_streams();
}

static void cancel(void *(*call)(void *), unsigned after_us)
{
	pthread_t thread;
	void *result;

	NEED(pthread_create(&thread, NULL, call, NULL) == 0);
	usleep(after_us);
	NEED(pthread_cancel(thread) == 0);
	NEED(pthread_join(thread, &result) == 0);
	NEED(result == PTHREAD_CANCELED);
	NEED(call != connects_stream || rclose(fresh) == 0);
}

int canceled(char **arguments)
{
	static void *(*const calls[])(void *) = {
		takes_completion, takes_asynchronous, takes_connection, reads_stream, polls_stream, connects_stream,
	};
	unsigned rounds = number_of(arguments[0]), descriptors;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_cq *cq, *of;
	pthread_t peers;
	char byte = 7;
	void *context;

	NEED((events = rdma_create_event_channel()));
	NEED(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
	device = id->verbs;
	NEED(device && (completions = ibv_create_comp_channel(device)));
	NEED((cq = ibv_create_cq(device, 4, NULL, completions, 0)));
	open_what_stays();
	descriptors = settled_descriptors(0);
	open_streams();
	NEED(pthread_create(&peers, NULL, comes_and_goes, NULL) == 0);
	for (unsigned round = 0; round < rounds; round++)
		for (size_t call = 0; call < sizeof(calls) / sizeof(*calls); call++)
			/* Before the call, while it begins, and when it sleeps. */
			cancel(calls[call], (round * 37 + (unsigned)call) % 300 * (round % 4));

	is_over = 1;
	NEED(pthread_join(peers, NULL) == 0);

	/* Each of them works still. */
	NEED(rsend(streams[0], &byte, 1, 0) == 1);
	byte = 0;
	NEED(rrecv(streams[1], &byte, 1, 0) == 1 && byte == 7);
	close_streams();
	/* Calls that were canceled keep none of the descriptors with which they waited. */
	NEED(settled_descriptors(descriptors) <= descriptors);
	NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) == 0);
	NEED(rdma_get_cm_event(events, &event) == 0 && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_ack_cm_event(event);
	make_nonblocking(completions->fd);
	NEED(ibv_get_cq_event(completions, &of, &context) != 0 && errno == EAGAIN);
	NEED(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(completions) == 0);
	NEED(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(events);
	printf("%u threads canceled\n", rounds * (unsigned)(sizeof(calls) / sizeof(*calls)));
	return 0;
}
