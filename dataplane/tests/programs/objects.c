/*
 * Memory windows of type 2, shared receive queues and asynchronous events, through <infiniband/verbs.h> as any program
 * uses them. Both ends of the connection are in this process.
 *
 *   objects ADDRESS         windows, limits of shared receive queues, events
 *   objects ADDRESS link    prints the state of the port, and again after each event of it
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define NEED(condition)                                                                                              \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			fprintf(stderr, "line %d: %s: %m\n", __LINE__, #condition);                                  \
			exit(1);                                                                                     \
		}                                                                                                    \
	} while (0)

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

static void connect_both(struct sockaddr *address)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = BUFFERS, .max_sge = 1 } };

	NEED(rdma_create_id(channel, &client, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(client, NULL, address, 2000) == 0);
	NEED(cm_event(RDMA_CM_EVENT_ADDR_RESOLVED) == client);
	NEED(rdma_resolve_route(client, 2000) == 0);
	NEED(cm_event(RDMA_CM_EVENT_ROUTE_RESOLVED) == client);
	NEED((client_cq = ibv_create_cq(client->verbs, 64, NULL, NULL, 0)));
	NEED((server_cq = ibv_create_cq(client->verbs, 64, NULL, NULL, 0)));
	NEED((srq = ibv_create_srq(client->pd, &shared)));
	create_qp(client, client_cq, NULL);
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
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode };

	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)received + 4096;
	wr.wr.rdma.rkey = rkey;
	return post(client, client_cq, &wr);
}

static void limits(void)
{
	struct ibv_srq_attr attr = { .srq_limit = 4 };
	struct ibv_async_event event;

	post_buffers(BUFFERS);
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

/* A write through a window arrives, and one through the window that the peer has invalidated ends the connection. */
static void windows(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(server->pd, IBV_MW_TYPE_2);
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW };
	struct ibv_wc wc;
	int last_wqe = 0, access = 0, fatal = 0;

	NEED(mw && mw->type == IBV_MW_TYPE_2);
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	bind.bind_mw.bind_info.mr = remote;
	bind.bind_mw.bind_info.addr = (uintptr_t)received + 4096;
	bind.bind_mw.bind_info.length = 100;
	bind.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	NEED(post(server, server_cq, &bind) == IBV_WC_SUCCESS);
	strcpy(sent, "through the window");
	NEED(send_from_client(IBV_WR_RDMA_WRITE, bind.bind_mw.rkey, 100) == IBV_WC_SUCCESS);
	NEED(send_from_client(IBV_WR_SEND_WITH_INV, bind.bind_mw.rkey, 8) == IBV_WC_SUCCESS);
	wc = completion(server_cq);
	NEED(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_WITH_INV);
	NEED(wc.invalidated_rkey == bind.bind_mw.rkey);
	NEED(strcmp(received + 4096, sent) == 0);

	memset(sent, 'x', BYTES);
	send_from_client(IBV_WR_RDMA_WRITE, bind.bind_mw.rkey, 100);
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
	NEED(received[4096] == 't');
	cm_event(RDMA_CM_EVENT_DISCONNECTED);
	cm_event(RDMA_CM_EVENT_DISCONNECTED);
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

	NEED(argc > 1 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	NEED((channel = rdma_create_event_channel()));
	NEED(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	if (argc > 2) {
		follow_link(listener->verbs);
		return 0;
	}
	NEED(rdma_listen(listener, 4) == 0);
	connect_both((struct sockaddr *)&address);
	NEED((local = ibv_reg_mr(client->pd, sent, BYTES, IBV_ACCESS_LOCAL_WRITE)));
	NEED((remote = ibv_reg_mr(server->pd, received, BYTES, access)));
	limits();
	windows();
	disconnect_both();
	NEED(ibv_dereg_mr(local) == 0 && ibv_dereg_mr(remote) == 0);
	NEED(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	puts("windows, limits and events: as expected");
	return 0;
}
