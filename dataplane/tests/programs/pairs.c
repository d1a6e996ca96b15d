/*
 * The time until queue pairs are connected. Two processes, which agree by a socket of the kernel's at 127.0.0.1, or at
 * the address in the variable CONTROL.
 *
 *   pairs ADDRESS                  the server, whose device has this address
 *   pairs ADDRESS SERVER COUNT     COUNT queue pairs at once by number, which both ends connect: the time until the
 *                                  last has carried a message each way
 *   pairs ADDRESS SERVER COUNT one-by-one
 *                                  COUNT connections by number and by rdma_cm, by turns: the median times of the client
 *                                  from the call that connects to the completion of a message behind it
 *   pairs ADDRESS SERVER COUNT paused
 *                                  COUNT queue pairs twice. The second time the client prints the number of one of the
 *                                  server's, and both connect once the client gets SIGUSR1
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "need.h"

enum { PORT = 18517, CM_PORT = 18518 };

/* What one end tells the other. */
struct end {
	union ibv_gid gid;
	uint32_t number;
};

/* What the client wants. */
struct wish {
	uint32_t count, one_by_one;
};

static struct sockaddr_in own = { .sin_family = AF_INET }, peer = { .sin_family = AF_INET };
static struct rdma_cm_id *device;
static struct ibv_cq *cq;
static int control;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Returns 0 if the other end has gone instead. */
static int may_hear(void *what, size_t bytes)
{
	return recv(control, what, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static void tell(const void *what, size_t bytes)
{
	NEED(write(control, what, bytes) == (ssize_t)bytes);
}

static void hear(void *what, size_t bytes)
{
	NEED(may_hear(what, bytes));
}

/* Both ends come here. */
static void meet(void)
{
	char byte = 0;

	tell(&byte, 1);
	hear(&byte, 1);
}

static struct ibv_qp_init_attr queues(void)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

static void receive(struct ibv_qp *qp)
{
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;

	NEED(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void send_to(struct ibv_qp *qp)
{
	struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND }, *bad;

	NEED(ibv_post_send(qp, &wr, &bad) == 0);
}

static void completes(unsigned count)
{
	double until = now() + 60;
	struct ibv_wc wc;

	while (count > 0) {
		int got = ibv_poll_cq(cq, 1, &wc);

		NEED(got >= 0 && now() < until);
		if (got && wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "queue pair %#x: %s\n", wc.qp_num, ibv_wc_status_str(wc.status));
		NEED(!got || wc.status == IBV_WC_SUCCESS);
		count -= (unsigned)got;
	}
}

static struct ibv_qp *make(struct end *end)
{
	struct ibv_qp_init_attr init = queues();
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(device->pd, &init);

	NEED(qp != NULL);
	NEED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	NEED(ibv_query_gid(device->verbs, 1, 0, &end->gid) == 0);
	end->number = qp->qp_num;
	receive(qp);
	return qp;
}

static void connect_to(struct ibv_qp *qp, const struct end *to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->number, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = to->gid, .hop_limit = 1 } },
	};

	NEED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	NEED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void pause_at(const struct end *server)
{
	sigset_t awaited;
	int signal;

	NEED(sigemptyset(&awaited) == 0 && sigaddset(&awaited, SIGUSR1) == 0);
	NEED(sigprocmask(SIG_BLOCK, &awaited, NULL) == 0);
	printf("%#x\n", server->number);
	fflush(stdout);
	NEED(sigwait(&awaited, &signal) == 0);
}

/* Connects `count` queue pairs, and prints the time until the last has sent a message and received one. */
static void at_once(unsigned count, int is_paused)
{
	struct end *ends = calloc(count, sizeof(*ends)), *others = calloc(count, sizeof(*others));
	struct ibv_qp **qps = calloc(count, sizeof(*qps));
	double began;

	NEED(ends && others && qps);
	for (unsigned i = 0; i < count; i++)
		qps[i] = make(&ends[i]);
	for (unsigned i = 0; i < count; i++) {
		tell(&ends[i], sizeof(*ends));
		hear(&others[i], sizeof(*others));
	}
	if (is_paused)
		pause_at(&others[0]);
	meet();
	began = now();
	for (unsigned i = 0; i < count; i++) {
		connect_to(qps[i], &others[i]);
		send_to(qps[i]);
	}
	completes(2 * count);
	began = now() - began;
	meet();
	for (unsigned i = 0; i < count; i++)
		NEED(ibv_destroy_qp(qps[i]) == 0);
	free(ends);
	free(others);
	free(qps);
	printf("%u queue pairs in %.3f s\n", count, began);
}

/* As a client, the seconds of a connection by rdma_cm. */
static double by_address(void)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct ibv_qp_init_attr init = queues();
	struct rdma_cm_id *id;
	double began;

	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)&peer, 1000) == 0);
	NEED(rdma_resolve_route(id, 1000) == 0 && rdma_create_qp(id, device->pd, &init) == 0);
	meet();
	began = now();
	NEED(rdma_connect(id, &param) == 0);
	send_to(id->qp);
	completes(1);
	began = now() - began;
	meet();
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	NEED(rdma_destroy_id(id) == 0);
	return began;
}

static void accept_by_address(struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct ibv_qp_init_attr init = queues();
	struct rdma_cm_id *id;

	meet();
	NEED(rdma_get_request(listener, &id) == 0 && rdma_create_qp(id, device->pd, &init) == 0);
	receive(id->qp);
	NEED(rdma_accept(id, &param) == 0);
	completes(1);
	meet();
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	NEED(rdma_destroy_id(id) == 0);
}

static double by_number(int is_client)
{
	struct end end, other;
	struct ibv_qp *qp = make(&end);
	double began;

	tell(&end, sizeof(end));
	hear(&other, sizeof(other));
	began = now();
	connect_to(qp, &other);
	if (is_client)
		send_to(qp);
	completes(1);
	began = now() - began;
	meet();
	NEED(ibv_destroy_qp(qp) == 0);
	return began;
}

static int ascending(const void *a, const void *b)
{
	double difference = *(const double *)a - *(const double *)b;

	return (difference > 0) - (difference < 0);
}

static void one_by_one(unsigned count)
{
	double *numbers = calloc(count, sizeof(double)), *addresses = calloc(count, sizeof(double));

	NEED(numbers && addresses);
	for (unsigned i = 0; i < count; i++) {
		numbers[i] = by_number(1);
		addresses[i] = by_address();
	}
	qsort(numbers, count, sizeof(double), ascending);
	qsort(addresses, count, sizeof(double), ascending);
	printf("by number %.0f, by rdma_cm %.0f us\n", numbers[count / 2] * 1e6, addresses[count / 2] * 1e6);
}

static void serve_one_by_one(unsigned count)
{
	struct rdma_cm_id *listener;

	NEED(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
	own.sin_port = htons(CM_PORT);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&own) == 0 && rdma_listen(listener, 1) == 0);
	for (unsigned i = 0; i < count; i++) {
		by_number(0);
		accept_by_address(listener);
	}
	NEED(rdma_destroy_id(listener) == 0);
}

/* The socket of the kernel's. */
static void agree(int is_client)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int end = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	const char *at = getenv("CONTROL");

	NEED(inet_pton(AF_INET, at ? at : "127.0.0.1", &here.sin_addr) == 1);
	if (is_client) {
		NEED(connect(end, (struct sockaddr *)&here, sizeof(here)) == 0);
		control = end;
		return;
	}
	NEED(setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	NEED(bind(end, (struct sockaddr *)&here, sizeof(here)) == 0 && listen(end, 1) == 0);
	NEED((control = accept(end, NULL, NULL)) >= 0);
	close(end);
}

/* Does what the client wants, as either end. */
static void fulfill(struct wish wish, int is_client, int is_paused)
{
	NEED((cq = ibv_create_cq(device->verbs, 2 * (int)wish.count + 8, NULL, NULL, 0)) != NULL);
	if (!wish.one_by_one)
		at_once(wish.count, is_paused);
	else if (is_client)
		one_by_one(wish.count);
	else
		serve_one_by_one(wish.count);
	NEED(ibv_destroy_cq(cq) == 0);
}

static void ask(struct wish wish, int is_paused)
{
	tell(&wish, sizeof(wish));
	fulfill(wish, 1, is_paused);
}

int main(int argc, char **argv)
{
	const char *how = argc > 4 ? argv[4] : "";
	struct wish wish;

	alarm(90);
	NEED(argc > 1 && inet_pton(AF_INET, argv[1], &own.sin_addr) == 1);
	agree(argc > 3);
	NEED(rdma_create_id(NULL, &device, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(device, (struct sockaddr *)&own) == 0);
	if (argc > 3) {
		NEED(inet_pton(AF_INET, argv[2], &peer.sin_addr) == 1);
		peer.sin_port = htons(CM_PORT);
		wish = (struct wish){ .count = (uint32_t)atoi(argv[3]), .one_by_one = !strcmp(how, "one-by-one") };
		ask(wish, 0);
		if (!strcmp(how, "paused"))
			ask(wish, 1);
	} else {
		while (may_hear(&wish, sizeof(wish)))
			fulfill(wish, 0, 0);
	}
	NEED(rdma_destroy_id(device) == 0);
	return 0;
}
