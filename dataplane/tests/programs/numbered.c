/*
 * Queue pairs that a program connects by number, both ends in this process: attributes, messages with compared bytes,
 * waits for receive buffers, statuses, states, and queue pairs that are used again.
 *
 *   numbered [PAIRS]     PAIRS (default 100): queue pairs that connect at once
 *   numbered place       makes a queue pair that may be connected by number, and stays for some seconds; fails if it
 *                        may not
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "need.h"

enum {
	BYTES = 1 << 16,
	HALF = BYTES / 2,
	REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory;
static union ibv_gid gid;

struct end {
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
};

static const int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
static const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
static const int to_rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	IBV_QP_MAX_QP_RD_ATOMIC;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static struct ibv_qp_attr rtr(const struct ibv_qp *peer)
{
	return (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = 77,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } },
	};
}

static const struct ibv_qp_attr rts = {
	.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 77, .max_rd_atomic = 4,
};

static struct end end_with(int has_srq)
{
	struct end end = { .cq = ibv_create_cq(context, 256, NULL, NULL, 0) };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	NEED(end.cq != NULL);
	if (has_srq)
		NEED((end.srq = ibv_create_srq(pd, &srq)) != NULL);
	init.send_cq = init.recv_cq = end.cq;
	init.srq = end.srq;
	NEED((end.qp = ibv_create_qp(pd, &init)) != NULL);
	return end;
}

static void init(struct end *end, unsigned rights)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rights };

	NEED(ibv_modify_qp(end->qp, &attr, to_init) == 0);
}

static void connect_to(struct end *end, const struct end *peer, struct ibv_qp_attr send)
{
	struct ibv_qp_attr attr = rtr(peer->qp);

	NEED(ibv_modify_qp(end->qp, &attr, to_rtr) == 0 && end->qp->state == IBV_QPS_RTR);
	NEED(ibv_modify_qp(end->qp, &send, to_rts) == 0 && end->qp->state == IBV_QPS_RTS);
}

static void connect_pair(struct end *a, struct end *b)
{
	init(a, REMOTE);
	init(b, REMOTE);
	connect_to(a, b, rts);
	connect_to(b, a, rts);
}

static void destroy(struct end *end)
{
	NEED(ibv_destroy_qp(end->qp) == 0);
	NEED(!end->srq || ibv_destroy_srq(end->srq) == 0);
	NEED(ibv_destroy_cq(end->cq) == 0);
}

/* The next completion, within a time; returns 0 if there is none. */
static int completion(struct end *end, struct ibv_wc *wc, double seconds)
{
	double until = now() + seconds;

	while (ibv_poll_cq(end->cq, 1, wc) == 0)
		if (now() > until)
			return 0;
	return 1;
}

static void completes(struct end *end, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	NEED(completion(end, &wc, 20));
	if (wc.wr_id != wr_id || wc.status != status)
		fprintf(stderr, "%llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	NEED(wc.wr_id == wr_id && wc.status == status && wc.qp_num == end->qp->qp_num);
}

static void quiet(struct end *end, double seconds)
{
	struct ibv_wc wc;

	NEED(completion(end, &wc, seconds) == 0);
}

static int post(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, uint32_t bytes)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = bytes, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .imm_data = 0x04030201,
		.wr.rdma = { .remote_addr = (uintptr_t)memory + HALF, .rkey = mr->rkey },
	}, *bad;

	return ibv_post_send(end->qp, &wr, &bad);
}

static void receive(struct end *end, uint64_t wr_id, uint32_t bytes)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + HALF, .length = bytes, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED((end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad)) == 0);
}

static void change_bytes(void)
{
	static uint8_t next;

	memset(memory, ++next, HALF);
	memset(memory + HALF, 0, HALF);
}

static int arrived(uint32_t bytes)
{
	return memcmp(memory, memory + HALF, bytes) == 0 && (bytes == HALF || memory[HALF + bytes] == 0);
}

/* Each attribute that a transition needs, and those that name no peer. */
static void attributes(void)
{
	struct end a = end_with(0), b = end_with(0);
	struct ibv_qp_attr good = rtr(b.qp), attr, send = rts;
	struct ibv_qp_init_attr created;

	NEED(ibv_modify_qp(a.qp, &good, to_rtr & ~IBV_QP_DEST_QPN) == EINVAL);
	init(&a, IBV_ACCESS_REMOTE_WRITE);
	for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
		if (to_rtr & bit && bit != IBV_QP_STATE)
			NEED(ibv_modify_qp(a.qp, &good, to_rtr & ~bit) == EINVAL);
	NEED(ibv_modify_qp(a.qp, &good, to_rtr | IBV_QP_TIMEOUT) == EINVAL);
#define WRONG(change)                                                                                                \
	do {                                                                                                         \
		attr = good;                                                                                         \
		attr.change;                                                                                         \
		NEED(ibv_modify_qp(a.qp, &attr, to_rtr) == EINVAL);                                                  \
	} while (0)
	WRONG(ah_attr.is_global = 0);
	WRONG(ah_attr.port_num = 2);
	WRONG(ah_attr.grh.sgid_index = 99);
	WRONG(ah_attr.grh.dgid.raw[0] = 0xff);
	WRONG(dest_qp_num = 1 << 24);
	WRONG(rq_psn = 1 << 24);
	WRONG(path_mtu = 0);
	WRONG(path_mtu = 6);
	WRONG(qp_state = IBV_QPS_RTS);
	NEED(ibv_modify_qp(a.qp, &send, to_rts) == EINVAL);
	NEED(ibv_modify_qp(a.qp, &good, to_rtr) == 0);
	NEED(post(&a, 1, IBV_WR_SEND, 1) == EINVAL);
	NEED(ibv_modify_qp(a.qp, &good, to_rtr) == EINVAL);
	for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
		if (to_rts & bit && bit != IBV_QP_STATE)
			NEED(ibv_modify_qp(a.qp, &send, to_rts & ~bit) == EINVAL);
	NEED(ibv_modify_qp(a.qp, &send, to_rts) == 0);
	NEED(ibv_query_qp(a.qp, &attr, to_rtr | to_rts, &created) == 0);
	NEED(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == b.qp->qp_num && attr.rq_psn == 77 && attr.sq_psn == 77);
	NEED(attr.path_mtu == IBV_MTU_1024 && attr.min_rnr_timer == 12 && attr.timeout == 14 && attr.retry_cnt == 7);
	NEED(attr.rnr_retry == 7 && attr.max_rd_atomic == 4 && attr.max_dest_rd_atomic == 4);
	NEED(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof(gid)) == 0 && attr.ah_attr.is_global == 1);
	NEED(attr.qp_access_flags == (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD };
	NEED(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == EINVAL);
	attr = (struct ibv_qp_attr){ .min_rnr_timer = 3, .cur_qp_state = IBV_QPS_RTS };
	NEED(ibv_modify_qp(a.qp, &attr, IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE) == 0);
	attr.cur_qp_state = IBV_QPS_RTR;
	NEED(ibv_modify_qp(a.qp, &attr, IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE) == EINVAL);
	destroy(&a);
	destroy(&b);
}

/* Every operation, both ways; the length behind Immediate Data. */
static void messages(void)
{
	struct end a = end_with(0), b = end_with(0), *ends[] = { &a, &b };
	struct ibv_wc wc;

	connect_pair(&a, &b);
	for (int i = 0; i < 20; i++) {
		struct end *from = ends[i % 2], *to = ends[(i + 1) % 2];
		uint32_t bytes = (uint32_t)(i * i * 60 + 1);

		change_bytes();
		receive(to, 1, HALF);
		NEED(post(from, 2, IBV_WR_SEND, bytes) == 0);
		completes(from, 2, IBV_WC_SUCCESS);
		/* It has completed, so it is there. */
		NEED(arrived(bytes));
		NEED(completion(to, &wc, 5) && wc.byte_len == bytes && !(wc.wc_flags & IBV_WC_WITH_IMM));
		change_bytes();
		NEED(post(from, 3, IBV_WR_RDMA_WRITE, bytes) == 0);
		completes(from, 3, IBV_WC_SUCCESS);
		NEED(arrived(bytes));
		NEED(post(from, 4, IBV_WR_RDMA_READ, bytes) == 0);
		completes(from, 4, IBV_WC_SUCCESS);
		receive(to, 5, HALF);
		NEED(post(from, 6, IBV_WR_SEND_WITH_IMM, bytes) == 0);
		completes(from, 6, IBV_WC_SUCCESS);
		NEED(completion(to, &wc, 5) && wc.byte_len == bytes && wc.opcode == IBV_WC_RECV);
		NEED(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x04030201);
		receive(to, 7, 0);
		NEED(post(from, 8, IBV_WR_RDMA_WRITE_WITH_IMM, bytes) == 0);
		completes(from, 8, IBV_WC_SUCCESS);
		NEED(completion(to, &wc, 5) && wc.byte_len == bytes && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
		NEED(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x04030201);
	}
	destroy(&a);
	destroy(&b);
}

/* Without a receive buffer: a message waits, or the sender gives up. Buffers of a queue of their own, and shared. */
static void waits(void)
{
	for (int shared = 0; shared < 2; shared++) {
		struct end a = end_with(0), b = end_with(shared);
		struct ibv_qp_attr few = rts, reset = { .qp_state = IBV_QPS_RESET };

		connect_pair(&a, &b);
		change_bytes();
		for (uint64_t i = 0; i < 4; i++)
			NEED(post(&a, i, IBV_WR_SEND, 100) == 0);
		quiet(&a, 1.2);
		for (uint64_t i = 0; i < 4; i++) {
			receive(&b, 10 + i, 100);
			completes(&b, 10 + i, IBV_WC_SUCCESS);
			completes(&a, i, IBV_WC_SUCCESS);
		}
		NEED(arrived(100));
		destroy(&a);
		a = end_with(0);
		init(&a, REMOTE);
		NEED(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE) == 0);
		init(&b, REMOTE);
		few.rnr_retry = 1;
		connect_to(&a, &b, few);
		connect_to(&b, &a, rts);
		NEED(post(&a, 1, IBV_WR_SEND, 100) == 0 && post(&a, 2, IBV_WR_SEND, 100) == 0);
		completes(&a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
		completes(&a, 2, IBV_WC_WR_FLUSH_ERR);
		destroy(&a);
		destroy(&b);
	}
}

/* What the peer does not permit. The receiver of the refused message hears of it, the sender by the status alone. */
static void statuses(void)
{
	static const struct {
		unsigned rights;
		enum ibv_wr_opcode opcode;
		enum ibv_wc_status status;
		enum ibv_event_type event;
	} rows[] = {
		{ 0, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
		{ IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
		{ REMOTE, IBV_WR_SEND, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
	};
	struct ibv_async_event event;
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct end a = end_with(0), b = end_with(0);

		init(&a, REMOTE);
		init(&b, rows[i].rights);
		connect_to(&a, &b, rts);
		connect_to(&b, &a, rts);
		receive(&b, 5, 10);
		receive(&b, 6, 10);
		NEED(post(&a, 1, IBV_WR_SEND, 10) == 0 && post(&a, 2, rows[i].opcode, 100) == 0);
		NEED(post(&a, 3, IBV_WR_SEND, 10) == 0);
		completes(&a, 1, IBV_WC_SUCCESS);
		completes(&a, 2, rows[i].status);
		completes(&a, 3, IBV_WC_WR_FLUSH_ERR);
		NEED(poll(&fd, 1, 5000) == 1 && ibv_get_async_event(context, &event) == 0);
		NEED(event.event_type == rows[i].event && event.element.qp == b.qp);
		ibv_ack_async_event(&event);
		NEED(poll(&fd, 1, 100) == 0);
		destroy(&a);
		destroy(&b);
	}
}

/* A queue pair that is connected with itself, and a pair that is used again and again, either end first. */
static void again(void)
{
	struct end a = end_with(0), b = end_with(0), *ends[] = { &a, &b };
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	init(&a, REMOTE);
	connect_to(&a, &a, rts);
	for (uint64_t i = 0; i < 50; i++) {
		change_bytes();
		NEED(post(&a, i, IBV_WR_SEND, 5000) == 0);
		receive(&a, 100 + i, 5000);
		completes(&a, 100 + i, IBV_WC_SUCCESS);
		completes(&a, i, IBV_WC_SUCCESS);
		NEED(arrived(5000));
		NEED(post(&a, i, IBV_WR_RDMA_WRITE, HALF) == 0);
		completes(&a, i, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 60; i++) {
		for (int first = 0; first < 2; first++) {
			struct end *end = ends[(i + first) % 2], *peer = ends[(i + first + 1) % 2];

			NEED(ibv_modify_qp(end->qp, &reset, IBV_QP_STATE) == 0 && end->qp->state == IBV_QPS_RESET);
			NEED(ibv_modify_qp(end->qp, &reset, IBV_QP_STATE) == 0);
			init(end, REMOTE);
			receive(end, 1, 200);
			connect_to(end, peer, rts);
		}
		change_bytes();
		NEED(post(&a, 2, IBV_WR_SEND, 200) == 0 && post(&b, 2, IBV_WR_SEND, 200) == 0);
		for (int end = 0; end < 2; end++) {
			struct ibv_wc wc[2];

			NEED(completion(ends[end], &wc[0], 10) && completion(ends[end], &wc[1], 10));
			NEED(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS);
		}
		NEED(arrived(200));
	}
	destroy(&a);
	destroy(&b);
}

/* A peer that goes: nothing, and an error within the time once there is work. */
static void orphans(void)
{
	struct end a = end_with(1), b = end_with(0);
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	double began;

	connect_pair(&a, &b);
	receive(&a, 9, 10);
	NEED(post(&b, 1, IBV_WR_SEND, 10) == 0);
	completes(&b, 1, IBV_WC_SUCCESS);
	completes(&a, 9, IBV_WC_SUCCESS);
	destroy(&b);
	quiet(&a, 0.5);
	NEED(poll(&fd, 1, 0) == 0);
	began = now();
	NEED(post(&a, 1, IBV_WR_SEND, 10) == 0 && post(&a, 2, IBV_WR_SEND, 10) == 0);
	completes(&a, 1, IBV_WC_RETRY_EXC_ERR);
	NEED(now() - began > 4 && now() - began < 6.5);
	completes(&a, 2, IBV_WC_WR_FLUSH_ERR);
	NEED(poll(&fd, 1, 5000) == 1 && ibv_get_async_event(context, &event) == 0);
	NEED(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == a.qp);
	ibv_ack_async_event(&event);
	NEED(poll(&fd, 1, 0) == 0);
	destroy(&a);
}

/* Many at once, from both sides. */
static void many(int pairs)
{
	struct end *ends = calloc((size_t)pairs * 2, sizeof(*ends));
	double began;

	NEED(ends != NULL);
	for (int i = 0; i < 2 * pairs; i++)
		ends[i] = end_with(0);
	began = now();
	for (int i = 0; i < 2 * pairs; i++) {
		init(&ends[i], REMOTE);
		receive(&ends[i], 1, 10);
		connect_to(&ends[i], &ends[2 * pairs - 1 - i], rts);
		NEED(post(&ends[i], 2, IBV_WR_SEND, 10) == 0);
	}
	for (int i = 0; i < 2 * pairs; i++) {
		struct ibv_wc wc[2];

		NEED(completion(&ends[i], &wc[0], 20) && completion(&ends[i], &wc[1], 20));
		NEED(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS);
	}
	printf("%d pairs connected, with a message in each direction: %.2f s\n", pairs, now() - began);
	for (int i = 0; i < 2 * pairs; i++)
		destroy(&ends[i]);
	free(ends);
}

static int place(void)
{
	struct end a = end_with(0);
	struct ibv_qp_attr attr = rtr(a.qp);
	int error;

	init(&a, REMOTE);
	/* All programs have their numbers before the first one ends. */
	sleep(4);
	error = ibv_modify_qp(a.qp, &attr, to_rtr);
	NEED(error == 0 || error == ENOMEM);
	destroy(&a);
	return error != 0;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	alarm(120);
	NEED(list && list[0] && (context = ibv_open_device(list[0])) != NULL);
	ibv_free_device_list(list);
	NEED(ibv_query_gid(context, 1, 0, &gid) == 0);
	NEED((pd = ibv_alloc_pd(context)) != NULL);
	NEED((memory = calloc(1, BYTES)) != NULL);
	mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | REMOTE);
	NEED(mr != NULL);
	if (argc > 1 && !strcmp(argv[1], "place"))
		return place();
	attributes();
	messages();
	waits();
	statuses();
	again();
	orphans();
	many(argc > 1 ? atoi(argv[1]) : 100);
	NEED(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	free(memory);
	return 0;
}
