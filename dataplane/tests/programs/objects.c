/*
 * Extended queues, memory windows of type 2, shared receive queues and asynchronous events, through
 * <infiniband/verbs.h> as any program uses them. Both ends of the connection are in this process.
 *
 *   objects ADDRESS         extended queues, windows, limits of shared receive queues, events
 *   objects ADDRESS link    prints the state of the port, and again after each event of it
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "need.h"

enum { BYTES = 8192, BUFFERS = 8, WAIT_MS = 20000 };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *client, *server;
static struct ibv_cq *client_cq, *server_cq;
static struct ibv_srq *srq;
static struct ibv_mr *local, *remote;
static char sent[BYTES], received[BYTES];

static struct rdma_cm_id *cm_event(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	NEED(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != wanted) {
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(wanted));
		exit(1);
	}
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static void create_qp(struct rdma_cm_id *id, struct ibv_cq *cq, struct ibv_srq *shared)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = shared, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	NEED(rdma_create_qp(id, id->pd, &init) == 0);
}

/* A queue pair with the ibv_wr_* calls. */
static void create_qp_ex(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 1,
			 .max_inline_data = 128 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = id->pd,
	};
	static const uint64_t absent[] = {
		IBV_QP_EX_WITH_TSO, IBV_QP_EX_WITH_ATOMIC_WRITE, 1ull << 40,
	};

	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
		init.send_ops_flags = IBV_QP_EX_WITH_SEND | absent[i];
		errno = 0;
		NEED(ibv_create_qp_ex(id->verbs, &init) == NULL && errno == EOPNOTSUPP);
		NEED(rdma_create_qp_ex(id, &init) == -1 && errno == EOPNOTSUPP);
	}
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
		IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
		IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
	NEED(rdma_create_qp_ex(id, &init) == 0 && ibv_qp_to_qp_ex(id->qp));
	NEED(init.cap.max_send_wr >= 16 && init.cap.max_inline_data >= 128);
}

/* A completion queue with an iterator. */
static struct ibv_cq *create_cq_ex(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 64, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_cq_ex *cq;

	errno = 0;
	NEED(ibv_create_cq_ex(context, &init) == NULL && errno == EOPNOTSUPP);
	init.wc_flags = IBV_WC_STANDARD_FLAGS;
	NEED((cq = ibv_create_cq_ex(context, &init)));
	return ibv_cq_ex_to_cq(cq);
}

/* An id that knows its device, and the way to the address. */
static struct rdma_cm_id *resolved(struct sockaddr *address)
{
	struct rdma_cm_id *id;

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, address, 2000) == 0);
	NEED(cm_event(RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	NEED(rdma_resolve_route(id, 2000) == 0);
	NEED(cm_event(RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
	return id;
}

#include "ids.h"

static void connect_both(struct sockaddr *address)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = BUFFERS, .max_sge = 1 } };

	client = resolved(address);
	client_cq = create_cq_ex(client->verbs);
	NEED((server_cq = ibv_create_cq(client->verbs, 64, NULL, NULL, 0)));
	NEED((srq = ibv_create_srq(client->pd, &shared)));
	create_qp_ex(client, client_cq);
	NEED(rdma_connect(client, &param) == 0);
	server = cm_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	create_qp(server, server_cq, srq);
	NEED(rdma_accept(server, &param) == 0);
	cm_event(RDMA_CM_EVENT_ESTABLISHED);
	cm_event(RDMA_CM_EVENT_ESTABLISHED);
}

static void disconnect_both(void)
{
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	NEED(rdma_destroy_id(client) == 0);
	NEED(rdma_destroy_id(server) == 0);
	NEED(ibv_destroy_srq(srq) == 0);
	NEED(ibv_destroy_cq(client_cq) == 0);
	NEED(ibv_destroy_cq(server_cq) == 0);
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		poll(NULL, 0, 1);
	NEED(count == 1);
	return wc;
}

static struct ibv_async_event async_event(struct ibv_context *context)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	NEED(poll(&fd, 1, WAIT_MS) == 1);
	NEED(ibv_get_async_event(context, &event) == 0);
	ibv_ack_async_event(&event);
	return event;
}

static void post_buffers(int count)
{
	struct ibv_sge sge = { .addr = (uintptr_t)received, .length = 64, .lkey = remote->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	while (count--)
		NEED(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static enum ibv_wc_status post(struct rdma_cm_id *id, struct ibv_cq *cq, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	NEED(ibv_post_send(id->qp, wr, &bad) == 0);
	return completion(cq).status;
}

static enum ibv_wc_status send_from_client(enum ibv_wr_opcode opcode, uint32_t rkey, int length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)sent, .length = length, .lkey = local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };

	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)received + 4096;
	wr.wr.rdma.rkey = rkey;
	return post(client, client_cq, &wr);
}

/* Waits for the next completion of the client by the iterator, and ends the iteration. */
static struct ibv_cq_ex *next_of_client(uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)client_cq;
	struct ibv_poll_cq_attr attr = { };
	int result;

	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		poll(NULL, 0, 1);
	NEED(result == 0 && cq->status == IBV_WC_SUCCESS && cq->wr_id == wr_id);
	NEED(ibv_wc_read_opcode(cq) == opcode && ibv_wc_read_qp_num(cq) == client->qp->qp_num);
	NEED(ibv_wc_read_vendor_err(cq) == 0 && ibv_wc_read_src_qp(cq) == 0 && ibv_wc_read_slid(cq) == 0);
	NEED(ibv_wc_read_sl(cq) == 0 && ibv_wc_read_dlid_path_bits(cq) == 0);
	return cq;
}

static struct ibv_qp_ex *start(uint64_t wr_id)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(client->qp);

	ibv_wr_start(qp);
	qp->wr_id = wr_id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	return qp;
}

/* Three requests of one batch, with lists and inline data; the server receives a Send and Immediate Data. */
static void batch(void)
{
	struct ibv_qp_ex *qp = start(1);
	struct ibv_data_buf buffers[] = { { "in", 2 }, { "line", 5 } };
	struct ibv_sge list[] = {
		{ (uintptr_t)sent + 100, 3, local->lkey }, { (uintptr_t)sent + 200, 4, local->lkey },
	};
	struct ibv_cq_ex *cq;
	struct ibv_wc wc;

	post_buffers(2);
	memcpy(sent + 100, "abc", 3);
	memcpy(sent + 200, "def", 4);
	ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 1000);
	ibv_wr_set_sge_list(qp, 2, list);
	qp->wr_id = 2;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, buffers);
	qp->wr_id = 3;
	ibv_wr_rdma_write_imm(qp, remote->rkey, (uintptr_t)received + 2000, htonl(0x1234));
	ibv_wr_set_inline_data(qp, "imm", 4);
	poll(NULL, 0, 20);
	NEED(ibv_poll_cq(client_cq, 1, &wc) == 0 && ibv_poll_cq(server_cq, 1, &wc) == 0);
	NEED(ibv_wr_complete(qp) == 0);
	/* All of them in one iteration. */
	wc = completion(server_cq);
	NEED(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 7);
	wc = completion(server_cq);
	NEED(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(0x1234));
	cq = next_of_client(1, IBV_WC_RDMA_WRITE);
	for (int i = 2; i < 4; i++) {
		while (ibv_next_poll(cq) == ENOENT)
			poll(NULL, 0, 1);
		NEED(cq->wr_id == (uint64_t)i && cq->status == IBV_WC_SUCCESS);
	}
	NEED(ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);
	NEED(strcmp(received + 1000, "abcdef") == 0 && strcmp(received, "inline") == 0);
	NEED(strcmp(received + 2000, "imm") == 0);
}

/* Operations one by one, with their answers. */
static void operations(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(client->pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = { local, (uintptr_t)sent, 100, IBV_ACCESS_REMOTE_READ };
	uint64_t *word = (uint64_t *)(received + 3000), *answer = (uint64_t *)(sent + 3000);
	struct ibv_qp_ex *qp;
	uint32_t rkey;

	NEED(mw);
	*word = 40;
	qp = start(4);
	ibv_wr_atomic_fetch_add(qp, remote->rkey, (uintptr_t)word, 2);
	ibv_wr_set_sge(qp, local->lkey, (uintptr_t)answer, 8);
	NEED(ibv_wr_complete(qp) == 0);
	ibv_end_poll(next_of_client(4, IBV_WC_FETCH_ADD));
	NEED(*word == 42 && *answer == 40);
	qp = start(5);
	ibv_wr_atomic_cmp_swp(qp, remote->rkey, (uintptr_t)word, 42, 7);
	ibv_wr_set_sge(qp, local->lkey, (uintptr_t)answer, 8);
	NEED(ibv_wr_complete(qp) == 0);
	ibv_end_poll(next_of_client(5, IBV_WC_COMP_SWAP));
	NEED(*word == 7 && *answer == 42);
	qp = start(6);
	ibv_wr_rdma_read(qp, remote->rkey, (uintptr_t)received + 1000);
	ibv_wr_set_sge(qp, local->lkey, (uintptr_t)sent + 1000, 7);
	NEED(ibv_wr_complete(qp) == 0);
	ibv_end_poll(next_of_client(6, IBV_WC_RDMA_READ));
	NEED(strcmp(sent + 1000, "abcdef") == 0);
	qp = start(7);
	rkey = ibv_inc_rkey(mw->rkey);
	ibv_wr_bind_mw(qp, mw, rkey, &info);
	qp->wr_id = 8;
	ibv_wr_local_inv(qp, rkey);
	NEED(ibv_wr_complete(qp) == 0);
	ibv_end_poll(next_of_client(7, IBV_WC_BIND_MW));
	ibv_end_poll(next_of_client(8, IBV_WC_LOCAL_INV));
	NEED(ibv_dealloc_mw(mw) == 0);
}

/* A batch of which one request fails, or that is aborted, posts nothing and leaves the slots free. */
static void nothing_posted(void)
{
	static char large[4096];
	struct ibv_qp_ex *qp;
	struct ibv_wc wc;

	for (int round = 0; round < 40; round++) {
		qp = start(90);
		ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 1000);
		ibv_wr_set_inline_data(qp, "wrong", 6);
		if (round % 2) {
			ibv_wr_abort(qp);
			continue;
		}
		ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 1000);
		ibv_wr_set_inline_data(qp, large, sizeof(large));
		NEED(ibv_wr_complete(qp) == EINVAL);
	}
	qp = start(91);
	for (int i = 0; i < 100; i++) {
		ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 1000);
		ibv_wr_set_inline_data(qp, "wrong", 6);
	}
	NEED(ibv_wr_complete(qp) == ENOMEM);
	qp = start(9);
	ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 5000);
	ibv_wr_set_inline_data(qp, "right", 6);
	NEED(ibv_wr_complete(qp) == 0);
	ibv_end_poll(next_of_client(9, IBV_WC_RDMA_WRITE));
	NEED(strcmp(received + 1000, "abcdef") == 0 && strcmp(received + 5000, "right") == 0);
	NEED(ibv_poll_cq(client_cq, 1, &wc) == 0);
}

/* A queue that becomes smaller and larger, with completions that nobody has polled. */
static void resized(void)
{
	struct ibv_qp_ex *qp = start(10);
	struct ibv_cq_ex *cq;

	ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 5000);
	qp->wr_id = 11;
	ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 5000);
	qp->wr_id = 12;
	ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)received + 5000);
	NEED(ibv_wr_complete(qp) == 0);
	ibv_end_poll(next_of_client(10, IBV_WC_RDMA_WRITE));
	poll(NULL, 0, 200);
	NEED(ibv_resize_cq(client_cq, 1) == EINVAL && client_cq->cqe == 64);
	NEED(ibv_resize_cq(client_cq, 1000) == 0 && client_cq->cqe == 1000);
	NEED(ibv_resize_cq(client_cq, 32) == 0 && client_cq->cqe == 32);
	cq = next_of_client(11, IBV_WC_RDMA_WRITE);
	NEED(ibv_next_poll(cq) == 0 && cq->wr_id == 12);
	NEED(ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);
}

/* A memory region whose rights, memory and protection domain change, with its keys. */
static void registered_anew(void)
{
	static char other[BYTES];
	struct ibv_mr *mr = ibv_reg_mr(server->pd, received, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_pd *pd = ibv_alloc_pd(server->verbs);
	uint32_t rkey;

	NEED(mr && pd);
	rkey = mr->rkey;
	NEED(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 1, 0) == IBV_REREG_MR_ERR_INPUT);
	NEED(mr->rkey == rkey && mr->addr == received);
	NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 100,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) == 0);
	NEED(mr->rkey != rkey && mr->addr == other && mr->length == 100 && mr->pd == server->pd);
	strcpy(sent, "anew");
	start(13);
	ibv_wr_rdma_write(ibv_qp_to_qp_ex(client->qp), mr->rkey, (uintptr_t)other);
	ibv_wr_set_sge(ibv_qp_to_qp_ex(client->qp), local->lkey, (uintptr_t)sent, 5);
	NEED(ibv_wr_complete(ibv_qp_to_qp_ex(client->qp)) == 0);
	ibv_end_poll(next_of_client(13, IBV_WC_RDMA_WRITE));
	/* It has been sent; it is placed soon. */
	for (int wait = 0; wait < 200 && strcmp(other, "anew"); wait++)
		poll(NULL, 0, 10);
	NEED(strcmp(other, "anew") == 0);
	NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) == 0 && mr->pd == pd && mr->addr == other);
	NEED(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void extended(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_device_attr plain;
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	NEED(ibv_query_device_ex(client->verbs, NULL, &attr) == 0 && ibv_query_device(client->verbs, &plain) == 0);
	NEED(attr.orig_attr.node_guid == plain.node_guid && attr.orig_attr.max_srq_sge == plain.max_srq_sge);
	NEED(attr.orig_attr.phys_port_cnt == 1 && attr.phys_port_cnt_ex == 1);
	NEED(attr.device_cap_flags_ex == plain.device_cap_flags && attr.completion_timestamp_mask == 0);
	NEED(ibv_query_rt_values_ex(client->verbs, &values) == EOPNOTSUPP);
	NEED(ibv_qp_to_qp_ex(server->qp) == NULL);
	batch();
	operations();
	nothing_posted();
	resized();
	registered_anew();
}

static void limits(void)
{
	struct ibv_srq_attr attr = { .srq_limit = 4 };
	struct ibv_async_event event;

	post_buffers(BUFFERS);
	NEED(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
	NEED(ibv_modify_srq(srq, &attr, 0) == 0);
	attr.srq_limit = BUFFERS + 1;
	NEED(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	attr.srq_limit = 4;
	NEED(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	NEED(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 4 && attr.max_wr == BUFFERS);
	for (int i = 0; i < BUFFERS - 3; i++) {
		NEED(send_from_client(IBV_WR_SEND, 0, 8) == IBV_WC_SUCCESS);
		NEED(completion(server_cq).status == IBV_WC_SUCCESS);
	}
	event = async_event(client->verbs);
	NEED(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	NEED(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
}

/* Memory with a bound window stays as it is. */
static int errno_of_rereg(void)
{
	uint32_t rkey = remote->rkey;

	NEED(ibv_rereg_mr(remote, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) ==
	     IBV_REREG_MR_ERR_INPUT);
	NEED(remote->rkey == rkey);
	return errno;
}

/* The connection ends with events of both queue pairs: the server's peer has done what it may not. */
static void ended_by_access(void)
{
	int last_wqe = 0, access = 0, fatal = 0;

	while (!(last_wqe && access && fatal)) {
		struct ibv_async_event event = async_event(client->verbs);

		switch (event.event_type) {
		case IBV_EVENT_QP_LAST_WQE_REACHED:
			NEED(event.element.qp == server->qp);
			last_wqe = 1;
			break;
		case IBV_EVENT_QP_ACCESS_ERR:
			NEED(event.element.qp == server->qp);
			access = 1;
			break;
		case IBV_EVENT_QP_FATAL:
			NEED(event.element.qp == client->qp);
			fatal = 1;
			break;
		default:
			fprintf(stderr, "%s\n", ibv_event_type_str(event.event_type));
			exit(1);
		}
	}
	cm_event(RDMA_CM_EVENT_DISCONNECTED);
	cm_event(RDMA_CM_EVENT_DISCONNECTED);
}

/* A right that the server's queue pair denies its peer ends the connection; the memory has all rights. */
static void denied(struct sockaddr *address)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		int right;
	} accesses[] = {
		{ IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE }, { IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ },
	};

	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_access_flags = accesses[i].right };

		connect_both(address);
		memset(sent, 'y', BYTES);
		memset(received, 'z', BYTES);
		NEED(ibv_modify_qp(server->qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
		NEED(send_from_client(accesses[i].opcode, remote->rkey, 100) == IBV_WC_SUCCESS);
		NEED((accesses[i].opcode == IBV_WR_RDMA_READ ? sent[0] : 'z') == 'z');
		memset(received, 'z', BYTES);
		attr.qp_access_flags = accesses[!i].right;
		NEED(ibv_modify_qp(server->qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
		memset(sent, 'y', BYTES);
		send_from_client(accesses[i].opcode, remote->rkey, 100);
		ended_by_access();
		NEED(received[4096] == 'z' && sent[0] == 'y');
		disconnect_both();
	}
}

/* A write through a window arrives, and one through the window that the peer has invalidated ends the connection. */
static void windows(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(server->pd, IBV_MW_TYPE_2);
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW };
	struct ibv_wc wc;

	NEED(mw && mw->type == IBV_MW_TYPE_2);
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	bind.bind_mw.bind_info.mr = remote;
	bind.bind_mw.bind_info.addr = (uintptr_t)received + 4096;
	bind.bind_mw.bind_info.length = 100;
	bind.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	NEED(post(server, server_cq, &bind) == IBV_WC_SUCCESS);
	NEED(ibv_dereg_mr(remote) == EBUSY && errno_of_rereg() == EBUSY);
	strcpy(sent, "through the window");
	NEED(send_from_client(IBV_WR_RDMA_WRITE, bind.bind_mw.rkey, 100) == IBV_WC_SUCCESS);
	NEED(send_from_client(IBV_WR_SEND_WITH_INV, bind.bind_mw.rkey, 8) == IBV_WC_SUCCESS);
	wc = completion(server_cq);
	NEED(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_WITH_INV);
	NEED(wc.invalidated_rkey == bind.bind_mw.rkey);
	NEED(strcmp(received + 4096, sent) == 0);

	memset(sent, 'x', BYTES);
	send_from_client(IBV_WR_RDMA_WRITE, bind.bind_mw.rkey, 100);
	ended_by_access();
	NEED(received[4096] == 't');
	NEED(ibv_dealloc_mw(mw) == 0);
}

static void print_state(struct ibv_context *context)
{
	struct ibv_port_attr attr;

	NEED(ibv_query_port(context, 1, &attr) == 0);
	puts(ibv_port_state_str(attr.state));
	fflush(stdout);
}

static void follow_link(struct ibv_context *context)
{
	print_state(context);
	for (int changes = 0; changes < 2; changes++) {
		struct ibv_async_event event = async_event(context);

		NEED(event.element.port_num == 1);
		NEED(event.event_type == (changes ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR));
		print_state(context);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7174) };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
	int atomics = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	NEED(argc > 1 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	NEED((channel = rdma_create_event_channel()));
	NEED(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	if (argc > 2) {
		follow_link(listener->verbs);
		return 0;
	}
	NEED(rdma_listen(listener, 4) == 0);
	options();
	refused(address);
	one_family(address);
	connect_both((struct sockaddr *)&address);
	queried();
	NEED((local = ibv_reg_mr(client->pd, sent, BYTES, access)));
	NEED((remote = ibv_reg_mr(server->pd, received, BYTES, access | atomics)));
	extended();
	limits();
	windows();
	disconnect_both();
	denied((struct sockaddr *)&address);
	/* That of the ids, which share it. */
	NEED(ibv_dealloc_pd(local->pd) == EBUSY && ibv_close_device(local->context) == -1 && errno == EBUSY);
	NEED(ibv_dereg_mr(local) == 0 && ibv_dereg_mr(remote) == 0);
	NEED(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	puts("extended queues, windows, limits and events: as expected");
	return 0;
}
