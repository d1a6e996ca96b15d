/* Objects that are destroyed while another thread hands on their events: nobody hears of them afterwards. */
#include "common.h"

#include <pthread.h>

enum { THREADS = 3 };

static struct rdma_cm_id *id;
static unsigned rounds;

/* A queue pair whose end completes a request, and takes the last buffer of its shared receive queue. */
static void destroy_while_told(struct ibv_comp_channel *events)
{
	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, events, 0), *of;
	struct ibv_srq *srq = ibv_create_srq(id->pd, &queue);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .srq = srq,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
	};
	struct ibv_qp *qp;
	void *context;

	NEED(cq && srq);
	NEED((qp = ibv_create_qp(id->pd, &init)) != NULL);
	NEED(ibv_req_notify_cq(cq, 0) == 0);
	NEED(ibv_modify_qp(qp, &failed, IBV_QP_STATE) == 0);
	NEED(ibv_post_send(qp, &wr, &bad) == 0);
	NEED(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
	NEED(ibv_get_cq_event(events, &of, &context) != 0 && errno == EAGAIN);
}

static void *makes_and_destroys(void *unused)
{
	struct ibv_comp_channel *events = ibv_create_comp_channel(id->verbs);

	NEED(events);
	make_nonblocking(events->fd);
	for (unsigned round = 0; round < rounds; round++)
		destroy_while_told(events);
	NEED(ibv_destroy_comp_channel(events) == 0);
	return unused;
}

int destroyed(char **arguments)
{
	struct ibv_async_event event;
	pthread_t threads[THREADS];
	unsigned before;

	NEED((channel = rdma_create_event_channel()) && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (struct sockaddr *)&address) == 0 && id->verbs);
	make_nonblocking(id->verbs->async_fd);
	rounds = 1;
	makes_and_destroys(NULL);
	before = settled_descriptors(0);
	rounds = number_of(arguments[0]);
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, makes_and_destroys, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_join(threads[i], NULL) == 0);
	/* Neither an event of an object that is gone, nor what such an event would keep. */
	NEED(ibv_get_async_event(id->verbs, &event) != 0 && errno == EAGAIN);
	NEED(settled_descriptors(before) <= before);
	NEED(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	printf("%u queue pairs destroyed\n", THREADS * rounds);
	return 0;
}
