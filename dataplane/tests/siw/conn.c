#include "conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { STEP_MS = 20000, CLOSE_MS = 3000 };

static bool fail(struct conn *conn, const char *what)
{
	snprintf(conn->error, sizeof(conn->error), "%s: %s", what, strerror(errno));
	return false;
}

bool conn_make_qp(struct conn *conn, uint32_t sends, uint32_t receives)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 0,
	};

	conn->pd = ibv_alloc_pd(conn->id->verbs);
	if (!conn->pd)
		return fail(conn, "ibv_alloc_pd");
	conn->channel = ibv_create_comp_channel(conn->id->verbs);
	if (!conn->channel)
		return fail(conn, "ibv_create_comp_channel");
	fcntl(conn->channel->fd, F_SETFL, fcntl(conn->channel->fd, F_GETFL) | O_NONBLOCK);
	conn->cq = ibv_create_cq(conn->id->verbs, (int)(sends + receives + 2), NULL, conn->channel, 0);
	if (!conn->cq)
		return fail(conn, "ibv_create_cq");
	attr.send_cq = conn->cq;
	attr.recv_cq = conn->cq;
	if (rdma_create_qp(conn->id, conn->pd, &attr))
		return fail(conn, "rdma_create_qp");
	return true;
}

/* Waits for the next connection event. Unlike the library's synchronous calls, it gives up after ms. */
static struct rdma_cm_event *next_event(struct conn *conn, int ms)
{
	struct pollfd waiting = { .fd = conn->events->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&waiting, 1, ms) <= 0) {
		snprintf(conn->error, sizeof(conn->error), "no connection event in %d ms", ms);
		return NULL;
	}
	if (rdma_get_cm_event(conn->events, &event)) {
		fail(conn, "rdma_get_cm_event");
		return NULL;
	}
	return event;
}

bool conn_await(struct conn *conn, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next_event(conn, STEP_MS);
	bool ok;

	if (!event)
		return false;
	ok = event->event == wanted;
	if (!ok)
		snprintf(conn->error, sizeof(conn->error), "%s (status %d)", rdma_event_str(event->event),
			 event->status);
	rdma_ack_cm_event(event);
	return ok;
}

/* Reads the region service's reply out of the event that answers rdma_connect. */
static enum conn_result judge_answer(struct conn *conn, const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *param = &event->param.conn;

	conn->established = event->event == RDMA_CM_EVENT_ESTABLISHED;
	if (!param->private_data ||
	    !region_reply_decode(param->private_data, param->private_data_len, &conn->grant)) {
		snprintf(conn->error, sizeof(conn->error), "%s (status %d), %u bytes of private data, no reply",
			 rdma_event_str(event->event), event->status, param->private_data_len);
		return CONN_FAILED;
	}
	if (event->event == RDMA_CM_EVENT_REJECTED && conn->grant.status != STATUS_OK)
		return CONN_REJECTED;
	if (conn->established && conn->grant.status == STATUS_OK)
		return CONN_ESTABLISHED;
	snprintf(conn->error, sizeof(conn->error), "%s with status %u in the reply",
		 rdma_event_str(event->event), conn->grant.status);
	return CONN_FAILED;
}

bool conn_resolve(struct conn *conn, const struct sockaddr_storage *address)
{
	conn->events = rdma_create_event_channel();
	if (!conn->events)
		return fail(conn, "rdma_create_event_channel");
	if (rdma_create_id(conn->events, &conn->id, NULL, RDMA_PS_TCP))
		return fail(conn, "rdma_create_id");
	if (rdma_resolve_addr(conn->id, NULL, (struct sockaddr *)(uintptr_t)address, STEP_MS))
		return fail(conn, "rdma_resolve_addr");
	if (!conn_await(conn, RDMA_CM_EVENT_ADDR_RESOLVED))
		return false;
	if (rdma_resolve_route(conn->id, STEP_MS))
		return fail(conn, "rdma_resolve_route");
	return conn_await(conn, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static enum conn_result open_once(struct conn *conn, const struct target *target)
{
	uint8_t private_data[REGION_REQUEST_MAX];
	struct rdma_conn_param param = {
		.responder_resources = (uint8_t)target->ird,
		.initiator_depth = (uint8_t)target->ord,
		.private_data = private_data,
	};
	uint32_t sends = target->sends > 0 ? (uint32_t)target->sends : CONN_SENDS;
	struct rdma_cm_event *answer;
	enum conn_result result;

	memset(conn, 0, sizeof(*conn));
	conn->timeout_ms = target->timeout_ms;
	if (!conn_resolve(conn, &target->address) || !conn_make_qp(conn, sends, 1))
		return CONN_FAILED;
	if (target->raw_private) {
		param.private_data = target->raw_private;
		param.private_data_len = (uint8_t)target->raw_private_len;
	} else {
		param.private_data_len = (uint8_t)region_request_encode(&target->request, private_data);
	}
	if (rdma_connect(conn->id, &param)) {
		conn->port_waits = errno == EADDRNOTAVAIL;
		fail(conn, "rdma_connect");
		return CONN_FAILED;
	}
	answer = next_event(conn, target->timeout_ms);
	if (!answer)
		return CONN_FAILED;
	result = judge_answer(conn, answer);
	rdma_ack_cm_event(answer);
	if (result == CONN_ESTABLISHED && target->settle_ms > 0)
		sleep_ms(target->settle_ms);
	return result;
}

enum conn_result conn_open(struct conn *conn, const struct target *target)
{
	enum conn_result result;
	int tries = 0;

	/* The port that the kernel drew may be one whose last connection with this peer is in TIME-WAIT: nothing was sent. */
	while ((result = open_once(conn, target)) == CONN_FAILED && conn->port_waits && ++tries < 4)
		conn_close(conn);
	return result;
}

void conn_close(struct conn *conn)
{
	if (conn->established) {
		rdma_disconnect(conn->id);
		conn_wait_down(conn, CLOSE_MS);
	}
	conn_drop(conn);
}

void conn_drop(struct conn *conn)
{
	if (conn->id && conn->id->qp)
		rdma_destroy_qp(conn->id);
	if (conn->cq)
		ibv_destroy_cq(conn->cq);
	if (conn->channel)
		ibv_destroy_comp_channel(conn->channel);
	if (conn->pd)
		ibv_dealloc_pd(conn->pd);
	if (conn->id)
		rdma_destroy_id(conn->id);
	if (conn->events)
		rdma_destroy_event_channel(conn->events);
	memset(conn, 0, sizeof(*conn));
}

struct ibv_mr *conn_register(struct conn *conn, void *data, size_t len)
{
	struct ibv_mr *mr = ibv_reg_mr(conn->pd, data, len, IBV_ACCESS_LOCAL_WRITE);

	if (!mr)
		fail(conn, "ibv_reg_mr");
	return mr;
}

bool conn_post(struct conn *conn, const struct work *work)
{
	struct ibv_sge sge = { .addr = (uintptr_t)work->local, .length = work->len, .lkey = work->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = work->id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = work->op == OP_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
		.send_flags = work->unsignaled ? 0 : IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = work->offset, .rkey = work->stag },
	};
	struct ibv_send_wr *bad;
	int error = ibv_post_send(conn->id->qp, &wr, &bad);

	if (error == 0)
		return true;
	errno = error;
	return fail(conn, "ibv_post_send");
}

int conn_next(struct conn *conn, struct ibv_wc *wc)
{
	int64_t deadline = now_ms() + conn->timeout_ms;

	for (;;) {
		struct pollfd waiting = { .fd = conn->channel->fd, .events = POLLIN };
		struct ibv_cq *cq;
		void *context;
		int64_t left;
		int got = ibv_poll_cq(conn->cq, 1, wc);

		if (got == 0) {
			/* Armed before the second look: a completion in between is not missed. */
			ibv_req_notify_cq(conn->cq, 0);
			got = ibv_poll_cq(conn->cq, 1, wc);
		}
		if (got < 0) {
			fail(conn, "ibv_poll_cq");
			return -1;
		}
		if (got > 0)
			return 1;
		left = deadline - now_ms();
		if (left <= 0) {
			snprintf(conn->error, sizeof(conn->error), "no completion in %d ms", conn->timeout_ms);
			return 0;
		}
		if (poll(&waiting, 1, (int)left) > 0 && ibv_get_cq_event(conn->channel, &cq, &context) == 0)
			ibv_ack_cq_events(cq, 1);
	}
}

bool conn_do(struct conn *conn, const struct work *work)
{
	struct ibv_wc wc;

	if (!conn_post(conn, work) || conn_next(conn, &wc) != 1)
		return false;
	if (wc.status == IBV_WC_SUCCESS && wc.wr_id == work->id)
		return true;
	snprintf(conn->error, sizeof(conn->error), "completion %llu: %s", (unsigned long long)wc.wr_id,
		 ibv_wc_status_str(wc.status));
	return false;
}

bool conn_wait_down(struct conn *conn, int ms)
{
	struct rdma_cm_event *event = next_event(conn, ms);
	bool down;

	if (!event)
		return false;
	down = event->event == RDMA_CM_EVENT_DISCONNECTED;
	rdma_ack_cm_event(event);
	if (down)
		conn->established = false;
	return down;
}

uint64_t conn_at(const struct conn *conn, uint64_t offset)
{
	return conn->grant.base + offset;
}
