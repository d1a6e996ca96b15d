/* Calls of a process that has few descriptors left: each works, or fails for want of them. None succeeds and does
 * nothing. The process gets one more descriptor at a time. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

static atomic_int is_over;

static int is_for_want(int error)
{
	return error == EMFILE || error == ENOMEM;
}

static rlim_t limit(void)
{
	struct rlimit now;

	NEED(getrlimit(RLIMIT_NOFILE, &now) == 0);
	return now.rlim_cur;
}

static void set_limit(rlim_t most)
{
	struct rlimit now;

	NEED(getrlimit(RLIMIT_NOFILE, &now) == 0);
	now.rlim_cur = most;
	NEED(setrlimit(RLIMIT_NOFILE, &now) == 0);
}

/* Leaves the process no descriptor but those that it has. */
static void leave_none(void)
{
	int next = dup(0);

	NEED(next >= 0 && close(next) == 0);
	set_limit((rlim_t)next);
}

static void *adds_descriptors(void *unused)
{
	while (!is_over) {
		usleep(20000);
		set_limit(limit() + 1);
	}
	return unused;
}

/* A peer that connects until it is accepted, and sends a byte. */
static pid_t peer_of_stream(void)
{
	pid_t child = fork();
	char byte = 5;
	int end;

	NEED(child >= 0);
	if (child)
		return child;
	alarm(20);
	for (;;) {
		end = rsocket(AF_INET, SOCK_STREAM, 0);
		if (rconnect(end, (struct sockaddr *)&address, sizeof(address)) == 0 && rsend(end, &byte, 1, 0) == 1)
			break;
		rclose(end);
		usleep(10000);
	}
	rrecv(end, &byte, 1, 0);
	_exit(byte == 6 ? 0 : 1);
}

static unsigned few_for_stream(void)
{
	pid_t child = peer_of_stream();
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), end, status = -1;
	rlim_t before = limit();
	unsigned refused = 0;
	char byte = 0;

	NEED(rbind(listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	leave_none();
	while (rlisten(listener, 4) != 0) {
		NEED(is_for_want(errno));
		refused++;
		set_limit(limit() + 1);
	}
	set_limit(before);
	NEED((end = raccept(listener, NULL, NULL)) >= 0);
	NEED(rrecv(end, &byte, 1, 0) == 1 && byte == 5);
	byte = 6;
	NEED(rsend(end, &byte, 1, 0) == 1);
	NEED(waitpid(child, &status, 0) == child && status == 0);
	NEED(rclose(end) == 0 && rclose(listener) == 0);
	return refused;
}

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
}

static struct rdma_cm_id *endpoint(int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr init = attributes();
	struct rdma_cm_id *id = NULL;

	NEED(rdma_getaddrinfo((char *)address_text, (char *)port_text, &hints, &found) == 0);
	if (rdma_create_ep(&id, found, NULL, &init) != 0)
		id = NULL;
	rdma_freeaddrinfo(found);
	return id;
}

static pid_t peer_of_endpoint(void)
{
	pid_t child = fork();
	struct rdma_cm_id *id;

	NEED(child >= 0);
	if (child)
		return child;
	alarm(20);
	for (;;) {
		id = endpoint(0);
		if (id && rdma_connect(id, NULL) == 0)
			_exit(0);
		if (id)
			rdma_destroy_ep(id);
		usleep(10000);
	}
}

static unsigned few_for_endpoint(void)
{
	pid_t child = peer_of_endpoint();
	struct rdma_cm_id *listener = endpoint(RAI_PASSIVE), *id;
	rlim_t before = limit();
	unsigned refused = 0;
	pthread_t thread;
	int status = -1;

	NEED(listener && rdma_listen(listener, 4) == 0);
	NEED(pthread_create(&thread, NULL, adds_descriptors, NULL) == 0);
	leave_none();
	while (rdma_get_request(listener, &id) != 0) {
		NEED(is_for_want(errno));
		refused++;
	}
	is_over = 1;
	NEED(pthread_join(thread, NULL) == 0);
	set_limit(before);
	/* A synchronous id: the call waits for its event. */
	NEED(rdma_accept(id, NULL) == 0);
	NEED(waitpid(child, &status, 0) == child && status == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	return refused;
}

int few_descriptors(char **arguments)
{
	unsigned streams, endpoints;

	(void)arguments;
	/* Peers have a device of their own. */
	streams = few_for_stream();
	endpoints = few_for_endpoint();
	printf("%u calls of rlisten and %u of rdma_get_request failed for want of descriptors\n", streams, endpoints);
	return 0;
}
