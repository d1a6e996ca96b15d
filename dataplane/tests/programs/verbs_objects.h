/* Objects of libibverbs, in every order of destruction, and the rows of what they are made of; a part of table.c. */
#include <poll.h>
#include <pthread.h>
#include <time.h>

#include <infiniband/verbs.h>

static struct ibv_device *device;
static struct ibv_context *context;
static char memory[4096];

enum { REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	EXPECT(list && list[0]);
	device = list[0];
	ibv_free_device_list(list);
	EXPECT((context = ibv_open_device(device)));
	if (failures)
		exit(1);
}

/* --- objects, and those that use them */

enum object { PD, CHANNEL, CQ, SRQ, QP, MR, MW, OBJECTS };

static const int used_by[OBJECTS] = {
	[PD] = 1 << SRQ | 1 << QP | 1 << MR | 1 << MW, [CHANNEL] = 1 << CQ, [CQ] = 1 << QP, [SRQ] = 1 << QP,
};

struct objects {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	/* A bit for each that exists. */
	int alive;
};

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp(pd, &init);
}

static struct ibv_srq *create_srq(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };

	return ibv_create_srq(pd, &init);
}

static struct objects create_all(struct ibv_context *of, int with_srq)
{
	struct objects all = { .alive = (1 << OBJECTS) - 1 };
	int before = failures;

	EXPECT((all.pd = ibv_alloc_pd(of)));
	EXPECT((all.channel = ibv_create_comp_channel(of)));
	EXPECT((all.cq = ibv_create_cq(of, 8, NULL, all.channel, 0)));
	EXPECT((all.srq = create_srq(all.pd)));
	EXPECT((all.qp = create_qp(all.pd, all.cq, with_srq ? all.srq : NULL)));
	EXPECT((all.mr = ibv_reg_mr(all.pd, memory + 64, 64, IBV_ACCESS_LOCAL_WRITE)));
	EXPECT((all.mw = ibv_alloc_mw(all.pd, IBV_MW_TYPE_2)));
	if (failures > before)
		exit(1);
	return all;
}

static int destroy(struct objects *all, enum object which)
{
	int result = 0;

	switch (which) {
	case PD: result = ibv_dealloc_pd(all->pd); break;
	case CHANNEL: result = ibv_destroy_comp_channel(all->channel); break;
	case CQ: result = ibv_destroy_cq(all->cq); break;
	case SRQ: result = ibv_destroy_srq(all->srq); break;
	case QP: result = ibv_destroy_qp(all->qp); break;
	case MR: result = ibv_dereg_mr(all->mr); break;
	case MW: result = ibv_dealloc_mw(all->mw); break;
	default: break;
	}
	if (result == 0)
		all->alive &= ~(1 << which);
	return result;
}

/* An object is destroyed if nothing uses it, and is EBUSY otherwise. */
static void destroy_in_order(struct objects *all, const enum object *order)
{
	while (all->alive) {
		int before = all->alive;

		for (int i = 0; i < OBJECTS; i++) {
			if (all->alive & 1 << order[i])
				RETURNS(used_by[order[i]] & all->alive ? EBUSY : 0, destroy(all, order[i]));
		}
		if (all->alive == before) {
			EXPECT(!"nothing can be destroyed");
			return;
		}
	}
}

static void destroy_all(struct objects *all)
{
	static const enum object order[] = { MW, MR, QP, SRQ, CQ, CHANNEL, PD };

	destroy_in_order(all, order);
}

/* Each `step`-th order of seven objects. */
static void every_order(int step)
{
	for (int number = 0; number < 5040 && failures < 20; number += step) {
		enum object order[OBJECTS], left[OBJECTS] = { PD, CHANNEL, CQ, SRQ, QP, MR, MW };
		struct objects all = create_all(context, 1);

		for (int i = 0, rest = number; i < OBJECTS; i++) {
			int at = rest % (OBJECTS - i);

			rest /= OBJECTS - i;
			order[i] = left[at];
			memmove(left + at, left + at + 1, (OBJECTS - 1 - at) * sizeof(left[0]));
		}
		destroy_in_order(&all, order);
	}
}

/* A device that is closed while it has objects: they are destroyed later. */
static void close_with_objects(void)
{
	static const enum object order[] = { PD, CHANNEL, CQ, SRQ, QP, MR, MW };
	struct ibv_context *other = ibv_open_device(device);
	struct objects all;
	struct ibv_wc wc;

	EXPECT(other);
	all = create_all(other, 1);
	RETURNS(0, ibv_close_device(other));
	RETURNS(0, ibv_poll_cq(all.cq, 1, &wc));
	destroy_in_order(&all, order);
	RETURNS(0, ibv_close_device(context));
}

static void check_pd(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_mr *mr;

	EXPECT(pd && other && pd != other && pd->context == context);
	EXPECT((mr = ibv_reg_mr(pd, memory, 8, 0)));
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_dealloc_pd(other));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_pd(pd));
}

static void check_channel(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, channel, 0);

	EXPECT(channel && cq && channel->context == context && cq->channel == channel);
	RETURNS(0, poll(&fd, 1, 0));
	RETURNS(EBUSY, ibv_destroy_comp_channel(channel));
	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_destroy_comp_channel(channel));
}

static void check_create_cq(void)
{
	struct ibv_cq *cq;

	FAILS(0, EINVAL, ibv_create_cq(context, 0, NULL, NULL, 0));
	FAILS(0, EINVAL, ibv_create_cq(context, -1, NULL, NULL, 0));
	FAILS(0, EINVAL, ibv_create_cq(context, 1 << 30, NULL, NULL, 0));
	FAILS(0, EINVAL, ibv_create_cq(context, 1, NULL, NULL, -1));
	FAILS(0, EINVAL, ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors));
	EXPECT((cq = ibv_create_cq(context, 5, memory, NULL, context->num_comp_vectors - 1)));
	EXPECT(cq->cqe >= 5 && cq->cq_context == memory && cq->channel == NULL);
	RETURNS(0, ibv_destroy_cq(cq));
}

static void check_resize_cq(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 5, NULL, NULL, 0);

	RETURNS(EINVAL, ibv_resize_cq(cq, 0));
	RETURNS(EINVAL, ibv_resize_cq(cq, -1));
	RETURNS(EINVAL, ibv_resize_cq(cq, 1 << 30));
	RETURNS(0, ibv_resize_cq(cq, 50));
	EXPECT(cq->cqe >= 50);
	RETURNS(0, ibv_destroy_cq(cq));
}

/* An event that is not acknowledged: a queue in use is EBUSY at once, and one without users waits. */
static void check_cq_events(void)
{
	struct objects all = create_all(context, 0);
	struct ibv_sge sge = { .addr = (uintptr_t)memory + 64, .length = 8, .lkey = all.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_cq *cq = NULL;
	struct ibv_wc wc;
	void *cq_context = memory;

	RETURNS(0, ibv_req_notify_cq(all.cq, 0));
	RETURNS(0, ibv_post_recv(all.qp, &wr, &bad));
	RETURNS(0, ibv_modify_qp(all.qp, &attr, IBV_QP_STATE));
	RETURNS(0, ibv_get_cq_event(all.channel, &cq, &cq_context));
	EXPECT(cq == all.cq && cq_context == NULL);
	RETURNS(EBUSY, ibv_destroy_cq(all.cq));
	RETURNS(1, ibv_poll_cq(all.cq, 1, &wc));
	EXPECT(wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR);
	RETURNS(EBUSY, ibv_destroy_cq(all.cq));
	ibv_ack_cq_events(all.cq, 1);
	destroy_all(&all);
}

static void check_srq(void)
{
	struct objects all = create_all(context, 1);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 10000 } };
	struct ibv_srq_attr attr = { .srq_limit = 5 };

	FAILS(0, EINVAL, ibv_create_srq(all.pd, &init));
	init = (struct ibv_srq_init_attr) { .attr = { .max_wr = 1 << 30, .max_sge = 1 } };
	FAILS(0, EINVAL, ibv_create_srq(all.pd, &init));
	RETURNS(EINVAL, ibv_modify_srq(all.srq, &attr, IBV_SRQ_LIMIT));
	RETURNS(EOPNOTSUPP, ibv_modify_srq(all.srq, &attr, IBV_SRQ_MAX_WR));
	RETURNS(EINVAL, ibv_modify_srq(all.srq, &attr, 1 << 20));
	RETURNS(0, ibv_query_srq(all.srq, &attr));
	EXPECT(attr.max_wr >= 4 && attr.max_sge >= 1 && attr.srq_limit == 0);
	RETURNS(EBUSY, ibv_destroy_srq(all.srq));
	destroy_all(&all);
}
