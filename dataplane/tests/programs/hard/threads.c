/* Four threads that send and receive at once, on queue pairs of their own, and on one that they share. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include <rdma/rdma_verbs.h>

enum { THREADS = 4, SHARED_TAG = 100 };

static struct rdma_cm_id *shared;
static uint8_t *shared_memory;
static struct ibv_mr *shared_mr;
static atomic_uint shared_answered[THREADS], shared_wrong;
static unsigned rounds;

/* An id of its own queues, connected. */
static struct rdma_cm_id *endpoint(unsigned entries)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = entries, .max_recv_wr = entries, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_cm_id *id;

	NEED(rdma_getaddrinfo(address_text, port_text, &hints, &found) == 0);
	NEED(rdma_create_ep(&id, found, NULL, &init) == 0);
	rdma_freeaddrinfo(found);
	return id;
}

static void *own_queues(void *argument)
{
	uint32_t tag = (uint32_t)(long)argument;
	struct rdma_cm_id *id = endpoint(4);
	uint8_t *out = memory(size), *in = memory(size);
	struct ibv_mr *out_mr = rdma_reg_msgs(id, out, size), *in_mr = rdma_reg_msgs(id, in, size);
	struct head head;
	struct ibv_wc wc;

	NEED(out_mr && in_mr && rdma_post_recv(id, NULL, in, size, in_mr) == 0 && rdma_connect(id, NULL) == 0);
	for (uint32_t number = 0; number < rounds; number++) {
		make_message(out, tag, number);
		NEED(rdma_post_send(id, NULL, out, size, out_mr, 0) == 0);
		NEED(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		NEED(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		NEED(is_message(in, wc.byte_len, &head) && head.tag == (tag | ANSWER) && head.number == number);
		memset(in, 0, size);
		NEED(rdma_post_recv(id, NULL, in, size, in_mr) == 0);
	}
	NEED(rdma_disconnect(id) == 0);
	rdma_dereg_mr(in_mr);
	rdma_dereg_mr(out_mr);
	rdma_destroy_ep(id);
	return NULL;
}

/* Polls the queues that all threads share, for any of them. */
static void poll_shared(void)
{
	struct ibv_wc wc;
	struct head head;

	if (ibv_poll_cq(shared->send_cq, 1, &wc) == 1)
		shared_wrong += wc.status != IBV_WC_SUCCESS;
	if (ibv_poll_cq(shared->recv_cq, 1, &wc) == 1) {
		uint8_t *in = (uint8_t *)(uintptr_t)wc.wr_id;

		if (wc.status != IBV_WC_SUCCESS || !is_message(in, wc.byte_len, &head) ||
		    (head.tag & ~ANSWER) - SHARED_TAG >= THREADS) {
			shared_wrong++;
			return;
		}
		NEED(rdma_post_recv(shared, in, in, size, shared_mr) == 0);
		atomic_store(&shared_answered[(head.tag & ~ANSWER) - SHARED_TAG], head.number);
	}
}

static void *shared_queues(void *argument)
{
	long thread = (long)argument;
	uint8_t *out = shared_memory + (size_t)thread * size;

	for (uint32_t number = 1; number <= rounds; number++) {
		make_message(out, SHARED_TAG + (uint32_t)thread, number);
		NEED(rdma_post_send(shared, NULL, out, size, shared_mr, 0) == 0);
		while (atomic_load(&shared_answered[thread]) != number) {
			poll_shared();
			NEED(!shared_wrong);
			sched_yield();
		}
	}
	return NULL;
}

static void run_threads(void *(*work)(void *))
{
	pthread_t all[THREADS];

	for (long thread = 0; thread < THREADS; thread++)
		NEED(pthread_create(&all[thread], NULL, work, (void *)thread) == 0);
	for (int thread = 0; thread < THREADS; thread++)
		NEED(pthread_join(all[thread], NULL) == 0);
}

int threads(char **arguments)
{
	double start = now();

	rounds = number_of(arguments[0]);
	run_threads(own_queues);
	printf("own queue pairs: %.2f s\n", now() - start);
	start = now();
	shared_memory = memory(3 * THREADS * size);
	shared = endpoint(4 * THREADS);
	NEED((shared_mr = rdma_reg_msgs(shared, shared_memory, 3 * THREADS * size)));
	for (uint8_t *in = shared_memory + THREADS * size; in < shared_memory + 3 * THREADS * size; in += size)
		NEED(rdma_post_recv(shared, in, in, size, shared_mr) == 0);
	NEED(rdma_connect(shared, NULL) == 0);
	run_threads(shared_queues);
	NEED(rdma_disconnect(shared) == 0 && !shared_wrong);
	rdma_dereg_mr(shared_mr);
	rdma_destroy_ep(shared);
	printf("a shared queue pair: %.2f s\n", now() - start);
	return 0;
}
