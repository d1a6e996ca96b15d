/* Checks of ids and their options, and of what a connected queue pair says of itself; a part of objects.c. */

/* Nobody listens at the port: a rejection, as of the kernel's CM. */
static void refused(struct sockaddr_in address)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	address.sin_port = htons(7175);
	id = resolved((struct sockaddr *)&address);
	create_qp(id, NULL, NULL);
	NEED(rdma_connect(id, &param) == 0);
	NEED(rdma_get_cm_event(channel, &event) == 0);
	NEED(event->event == RDMA_CM_EVENT_REJECTED && event->status == -ECONNREFUSED && event->id == id);
	NEED(event->param.conn.private_data_len == 0);
	rdma_ack_cm_event(event);
	rdma_destroy_qp(id);
	NEED(rdma_destroy_id(id) == 0);
	/* An id without a channel waits for the event. */
	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	create_qp(id, NULL, NULL);
	NEED(rdma_connect(id, &param) == -1 && errno == ECONNREFUSED);
	rdma_destroy_qp(id);
	NEED(rdma_destroy_id(id) == 0);
}

/* What an option cannot change, it refuses. */
static void options(void)
{
	uint8_t byte = 0, many = 0x28;
	struct rdma_cm_id *id;
	int off = 0, on = 1;

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1) == 0);
	NEED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 4) == -1 && errno == EINVAL);
	NEED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &many, 1) == 0);
	NEED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &many, 1) == 0);
	NEED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)) == 0);
	NEED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &off, sizeof(off)) == 0);
	NEED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == 0);
	NEED(rdma_set_option(id, RDMA_OPTION_IB, 1, &on, sizeof(on)) == -1 && errno == ENOSYS);
	NEED(rdma_destroy_id(id) == 0);
	/* It listens already. */
	NEED(rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == -1);
	NEED(errno == EINVAL);
}

/* A client that comes by IPv4 is refused where a listener of IPv6 alone is; then, one of both families hears of it. */
static void one_family(struct sockaddr_in address)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(7176), .sin6_addr = IN6ADDR_ANY_INIT };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_id *of, *id, *other;

	address.sin_port = htons(7176);
	for (int only = 1; only >= 0; only--) {
		NEED(rdma_create_id(channel, &of, NULL, RDMA_PS_TCP) == 0);
		NEED(rdma_set_option(of, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)) == 0);
		NEED(rdma_bind_addr(of, (struct sockaddr *)&any) == 0 && rdma_listen(of, 4) == 0);
		id = resolved((struct sockaddr *)&address);
		create_qp(id, NULL, NULL);
		NEED(rdma_connect(id, &param) == 0);
		if (only) {
			NEED(cm_event(RDMA_CM_EVENT_REJECTED) == id);
		} else {
			other = cm_event(RDMA_CM_EVENT_CONNECT_REQUEST);
			NEED(rdma_reject(other, NULL, 0) == 0 && rdma_destroy_id(other) == 0);
			NEED(cm_event(RDMA_CM_EVENT_REJECTED) == id);
		}
		NEED(poll(&fd, 1, 0) == 0);
		rdma_destroy_qp(id);
		NEED(rdma_destroy_id(id) == 0 && rdma_destroy_id(of) == 0);
	}
}

/* What ibv_query_qp says of a queue pair that is connected, with one read at a time in either direction. */
static void queried(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	NEED(ibv_query_port(client->verbs, 1, &port) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = i ? client->qp : server->qp;

		memset(&attr, 0xff, sizeof(attr));
		NEED(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init) == 0);
		NEED(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS && attr.port_num == 1);
		NEED(attr.path_mtu == port.active_mtu && (attr.qp_access_flags & rights) == (unsigned)rights);
		NEED(attr.max_rd_atomic == 1 && attr.max_dest_rd_atomic == 1);
		NEED(attr.cap.max_send_wr >= 16 && attr.cap.max_send_sge >= 1 && attr.cap.max_inline_data >= 64);
		NEED(init.send_cq == qp->send_cq && init.recv_cq == qp->recv_cq && init.srq == qp->srq);
		NEED(init.qp_type == IBV_QPT_RC && memcmp(&init.cap, &attr.cap, sizeof(attr.cap)) == 0);
	}
}
