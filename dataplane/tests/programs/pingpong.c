/*
 * pingpong HOW [ADDRESS]: Sends of 64 bytes there and back, and prints half of the median round trip, in microseconds.
 * Without an address it is the server, at port 7181. HOW the program waits for a message: `block` in
 * `ibv_get_cq_event`, or `epoll` of its own, in which the channel is, non-blocking. Every message is compared.
 *
 *   ROUNDS   round trips (default 10000)
 */
#include "need.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

enum { BYTES = 64, DEPTH = 4, WARMUP = 100 };

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t memory[2][BYTES] __attribute__((aligned(4096)));
static int own = -1;

static double now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static struct rdma_cm_id *event(struct rdma_event_channel *events, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	NEED(!rdma_get_cm_event(events, &event));
	NEED(event->event == type);
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static void receive(struct ibv_qp *qp)
{
	struct ibv_sge list = { .addr = (uintptr_t)memory[0], .length = BYTES, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &list, .num_sge = 1 }, *bad;

	NEED(!ibv_post_recv(qp, &wr, &bad));
}

/* Objects of one end of a connection. Requests to send complete without a completion. */
static void prepare(struct rdma_cm_id *id, int polls)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 2 * DEPTH, .max_recv_wr = DEPTH,
									 .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	NEED(pd && (channel = ibv_create_comp_channel(id->verbs)));
	NEED(cq = ibv_create_cq(id->verbs, 4 * DEPTH, NULL, channel, 0));
	NEED(mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	attr.send_cq = attr.recv_cq = cq;
	NEED(!rdma_create_qp(id, pd, &attr));
	if (polls) {
		struct epoll_event interest = { .events = EPOLLIN };

		NEED(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
		NEED((own = epoll_create1(0)) >= 0 && !epoll_ctl(own, EPOLL_CTL_ADD, channel->fd, &interest));
	}
	receive(id->qp);
}

/* Waits for a message with this byte, and posts the buffer again. */
static void take(struct rdma_cm_id *id, uint8_t byte)
{
	static int received;
	int is_armed = 0;
	struct ibv_cq *of;
	struct ibv_wc wc;
	void *context;

	for (;;) {
		while (ibv_poll_cq(cq, 1, &wc) == 1) {
			NEED(wc.status == IBV_WC_SUCCESS);
			received += wc.opcode & IBV_WC_RECV ? 1 : 0;
		}
		if (received)
			break;
		if (!is_armed) {
			/* A message may have come before. */
			NEED(!ibv_req_notify_cq(cq, 0));
			is_armed = 1;
			continue;
		}
		if (own >= 0) {
			struct epoll_event found;

			NEED(epoll_wait(own, &found, 1, 10000) == 1);
		}
		NEED(!ibv_get_cq_event(channel, &of, &context));
		ibv_ack_cq_events(cq, 1);
		is_armed = 0;
	}
	received--;
	for (int at = 0; at < BYTES; at++)
		NEED(memory[0][at] == byte);
	receive(id->qp);
}

static void send_one(struct rdma_cm_id *id, uint8_t byte, int signaled)
{
	struct ibv_sge list = { .addr = (uintptr_t)memory[1], .length = BYTES, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &list, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
	memset(memory[1], byte, BYTES);
	NEED(!ibv_post_send(id->qp, &wr, &bad));
}

static int ascending(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv)
{
	int rounds = getenv("ROUNDS") ? atoi(getenv("ROUNDS")) : 10000, all = rounds + WARMUP;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7181) };
	struct rdma_event_channel *events = rdma_create_event_channel();
	double *times = calloc(all, sizeof(*times));
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *id, *listener;

	NEED(argc > 1 && events && times && !rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	if (argc > 2) {
		NEED(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
		NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
		event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
		NEED(!rdma_resolve_route(id, 2000));
		event(events, RDMA_CM_EVENT_ROUTE_RESOLVED);
		prepare(id, !strcmp(argv[1], "epoll"));
		NEED(!rdma_connect(id, &param));
	} else {
		listener = id;
		NEED(!rdma_bind_addr(listener, (struct sockaddr *)&at) && !rdma_listen(listener, 1));
		id = event(events, RDMA_CM_EVENT_CONNECT_REQUEST);
		prepare(id, !strcmp(argv[1], "epoll"));
		NEED(!rdma_accept(id, &param));
	}
	event(events, RDMA_CM_EVENT_ESTABLISHED);
	for (int round = 0; round < all; round++) {
		double begin = now_us();

		if (argc > 2)
			send_one(id, (uint8_t)round, round % DEPTH == 0);
		take(id, argc > 2 ? (uint8_t)~round : (uint8_t)round);
		if (argc <= 2)
			send_one(id, (uint8_t)~round, round % DEPTH == 0);
		times[round] = now_us() - begin;
	}
	qsort(times + WARMUP, rounds, sizeof(*times), ascending);
	if (argc > 2)
		printf("%.2f\n", times[WARMUP + rounds / 2] / 2);
	rdma_disconnect(id);
	return 0;
}
