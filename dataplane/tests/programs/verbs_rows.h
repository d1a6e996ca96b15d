/* Rows of libibverbs; a part of table.c. */
#include "verbs_objects.h"
#include "verbs_datagrams.h"

/* --- queue pairs */

static enum ibv_qp_state queried_state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	EXPECT(qp->state == attr.qp_state && init.send_cq == qp->send_cq);
	return attr.qp_state;
}

static unsigned queried_access(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_ACCESS_FLAGS, &init));
	return attr.qp_access_flags;
}

static void check_create_qp(void)
{
	struct objects all = create_all(context, 0);
	struct ibv_context *other = ibv_open_device(device);
	struct ibv_cq *foreign = ibv_create_cq(other, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = all.cq, .recv_cq = all.cq, .qp_type = IBV_QPT_UC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	EXPECT(all.qp->state == IBV_QPS_RESET && all.qp->qp_type == IBV_QPT_RC);
	FAILS(0, EOPNOTSUPP, ibv_create_qp(all.pd, &init));
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = 1 << 30;
	FAILS(0, EINVAL, ibv_create_qp(all.pd, &init));
	init.cap.max_send_wr = 1;
	init.cap.max_send_sge = 1000;
	FAILS(0, EINVAL, ibv_create_qp(all.pd, &init));
	init.cap.max_send_sge = 1;
	init.recv_cq = NULL;
	FAILS(0, EINVAL, ibv_create_qp(all.pd, &init));
	/* A completion queue of another context. */
	init.recv_cq = foreign;
	FAILS(0, EINVAL, ibv_create_qp(all.pd, &init));
	RETURNS(0, ibv_destroy_cq(foreign));
	RETURNS(0, ibv_close_device(other));
	EXPECT(ibv_qp_to_qp_ex(all.qp) == NULL);
	destroy_all(&all);
}

static void check_modify_qp(void)
{
	struct objects all = create_all(context, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE };
	int first = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
	/* What an iWARP queue pair does not have. */
	static const int absent[] = {
		IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_QKEY, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT,
		IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_ALT_PATH, IBV_QP_MIN_RNR_TIMER,
		IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_PATH_MIG_STATE, IBV_QP_CAP,
	};
	struct ibv_qp *qp = all.qp;

	EXPECT(queried_state(qp) == IBV_QPS_INIT);
	RETURNS(0, ibv_modify_qp(qp, &attr, first));
	EXPECT(qp->state == IBV_QPS_INIT && queried_access(qp) == (REMOTE | IBV_ACCESS_LOCAL_WRITE));
	attr.port_num = 2;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, first));
	attr.port_num = 1;
	attr.pkey_index = 1;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, first));
	/* Rights: nothing changes with a mask that is refused. */
	attr.qp_access_flags = 0;
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
		RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS | absent[i]));
	RETURNS(EOPNOTSUPP, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS | IBV_QP_RATE_LIMIT));
	RETURNS(EOPNOTSUPP, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS | 1 << 29));
	attr.qp_access_flags = 1 << 15;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
	EXPECT(queried_access(qp) == (REMOTE | IBV_ACCESS_LOCAL_WRITE));
	attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
	EXPECT(queried_access(qp) == (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE));
	RETURNS(0, ibv_modify_qp(qp, &attr, 0));
	destroy_all(&all);
}

/* States of a queue pair without a connection. */
static void check_states(void)
{
	struct objects all = create_all(context, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	/* What a connection by number sets. */
	int by_number = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp *qp = all.qp;

	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
	/* Without a route; the rest is in numbered.c. */
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, by_number));
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN));
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV));
	/* As soft-iWARP: librdmacm does this before it accepts. */
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	EXPECT(queried_state(qp) == IBV_QPS_INIT);
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_SQD;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = 77;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_ERR;
	attr.cur_qp_state = IBV_QPS_RTS;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
	attr.cur_qp_state = IBV_QPS_INIT;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
	EXPECT(queried_state(qp) == IBV_QPS_ERR);
	for (attr.qp_state = IBV_QPS_INIT; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RESET;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	EXPECT(qp->state == IBV_QPS_RESET && queried_state(qp) == IBV_QPS_INIT);
	EXPECT(queried_access(qp) == (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE));
	destroy_all(&all);
}

/* --- memory */

static void check_reg_mr(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	static const int needs_local_write[] = { IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC, REMOTE };
	struct ibv_mr *mr;

	for (size_t i = 0; i < sizeof(needs_local_write) / sizeof(needs_local_write[0]); i++) {
		FAILS(0, EINVAL, ibv_reg_mr(pd, memory, 8, needs_local_write[i]));
		FAILS(0, EINVAL, ibv_reg_mr_iova(pd, memory, 8, 0, needs_local_write[i]));
		FAILS(0, EINVAL, ibv_reg_mr_iova2(pd, memory, 8, 0, needs_local_write[i]));
	}
	FAILS(0, EFAULT, ibv_reg_mr(pd, (void *)4096, 8, IBV_ACCESS_LOCAL_WRITE));
	FAILS(0, EOPNOTSUPP, ibv_reg_mr(pd, memory, 8, 1 << 15));
	EXPECT((mr = ibv_reg_mr(pd, memory, 8, REMOTE | IBV_ACCESS_LOCAL_WRITE)));
	EXPECT(mr->addr == memory && mr->length == 8 && mr->pd == pd && mr->context == context);
	RETURNS(0, ibv_dereg_mr(mr));
	EXPECT((mr = ibv_reg_mr_iova(pd, memory, 8, 64, IBV_ACCESS_REMOTE_READ)));
	RETURNS(0, ibv_dereg_mr(mr));
	EXPECT((mr = ibv_reg_mr_iova2(pd, memory, 8, 64, IBV_ACCESS_RELAXED_ORDERING)));
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_pd(pd));
}

/* A memory region that changes its protection domain uses the new one. */
static void check_rereg_mr(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8, IBV_ACCESS_LOCAL_WRITE);

	EXPECT(pd && other && mr);
	RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0));
	RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 1 << 10, NULL, NULL, 0, 0));
	RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0));
	FAILS(IBV_REREG_MR_ERR_INPUT, EINVAL,
	      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE));
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_dealloc_pd(other));
	EXPECT((other = ibv_alloc_pd(context)));
	RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
	EXPECT(mr->pd == other);
	RETURNS(EBUSY, ibv_dealloc_pd(other));
	RETURNS(0, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ));
	EXPECT(mr->pd == other);
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_pd(other));
}

static void check_mw(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mw *mw;

	FAILS(0, EOPNOTSUPP, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	EXPECT((mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_dealloc_mw(mw));
	RETURNS(0, ibv_dealloc_pd(pd));
}

/* --- devices */

static void check_devices(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);

	EXPECT(list && count > 0 && list[count] == NULL && list[0] == device);
	EXPECT(strcmp(ibv_get_device_name(device), "iwarp0") == 0);
	RETURNS(0, ibv_get_device_index(device));
	EXPECT(ibv_get_device_guid(device) != 0);
	ibv_free_device_list(list);
}

static void check_open_device(void)
{
	struct ibv_context *other = ibv_open_device(device);

	EXPECT(other && other->device == device && other != context && other->num_comp_vectors > 0);
	RETURNS(0, ibv_close_device(other));
}

static void check_query_device(void)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex extended;
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };

	RETURNS(0, ibv_query_device(context, &attr));
	/* A number of our own, in the range that IEEE leaves to everybody. */
	EXPECT(attr.vendor_id == 0x024957 && attr.vendor_id >> 16 & 2);
	EXPECT(attr.phys_port_cnt == 1 && attr.max_qp > 0 && attr.max_ah > 0);
	RETURNS(EINVAL, ibv_query_device_ex(context, &input, &extended));
	input.comp_mask = 0;
	RETURNS(0, ibv_query_device_ex(context, &input, &extended));
	/* Without the padding behind the last field. */
	size_t fields = offsetof(struct ibv_device_attr, phys_port_cnt) + sizeof(attr.phys_port_cnt);
	EXPECT(memcmp(&extended.orig_attr, &attr, fields) == 0 && extended.comp_mask == 0);
}

static void check_query_port(void)
{
	struct ibv_port_attr attr;

	RETURNS(EINVAL, ibv_query_port(context, 0, &attr));
	RETURNS(EINVAL, ibv_query_port(context, 2, &attr));
	RETURNS(0, ibv_query_port(context, 1, &attr));
	EXPECT(attr.state == IBV_PORT_ACTIVE && attr.link_layer == IBV_LINK_LAYER_ETHERNET && attr.gid_tbl_len > 0);
}

static void check_gids(void)
{
	struct ibv_gid_entry entries[64], entry;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int length;

	RETURNS(0, ibv_query_port(context, 1, &port));
	length = port.gid_tbl_len;
	RETURNS(0, ibv_query_gid(context, 1, length - 1, &gid));
	FAILS(-1, EINVAL, ibv_query_gid(context, 1, length, &gid));
	FAILS(-1, EINVAL, ibv_query_gid(context, 1, -1, &gid));
	FAILS(-1, EINVAL, ibv_query_gid(context, 2, 0, &gid));
	RETURNS(0, ibv_query_gid_ex(context, 1, length - 1, &entry, 0));
	EXPECT(memcmp(&entry.gid, &gid, sizeof(gid)) == 0 || length > 1);
	EXPECT(entry.gid_index == (unsigned)length - 1 && entry.port_num == 1);
	RETURNS(EINVAL, ibv_query_gid_ex(context, 1, length, &entry, 0));
	RETURNS(EINVAL, ibv_query_gid_ex(context, 2, 0, &entry, 0));
	RETURNS(EINVAL, ibv_query_gid_ex(context, 1, 0, &entry, 1));
	RETURNS(length, ibv_query_gid_table(context, entries, 64, 0));
	RETURNS(length, ibv_query_gid_table(context, entries, length, 0));
	/* "If there are more valid GID entries than the provided value […] the call will fail." */
	RETURNS(-EINVAL, ibv_query_gid_table(context, entries, length - 1, 0));
	RETURNS(-EINVAL, ibv_query_gid_table(context, entries, 0, 0));
	RETURNS(-EINVAL, ibv_query_gid_table(context, entries, 64, 1));
}

static void check_gid_type(void)
{
	int (*query)(struct ibv_context *, uint8_t, unsigned, int *) =
		(int (*)(struct ibv_context *, uint8_t, unsigned, int *))dlsym(RTLD_DEFAULT, "ibv_query_gid_type");
	int type = -1;

	RETURNS(0, query(context, 1, 0, &type));
	/* `IBV_GID_TYPE_SYSFS_ROCE_V2` */
	RETURNS(1, type);
	FAILS(-1, EINVAL, query(context, 2, 0, &type));
	FAILS(-1, EINVAL, query(context, 1, 1000, &type));
}

static void check_pkeys(void)
{
	__be16 pkey = 0;

	RETURNS(0, ibv_query_pkey(context, 1, 0, &pkey));
	RETURNS(0xffff, pkey);
	FAILS(-1, EINVAL, ibv_query_pkey(context, 1, 1, &pkey));
	FAILS(-1, EINVAL, ibv_query_pkey(context, 2, 0, &pkey));
	RETURNS(0, ibv_get_pkey_index(context, 1, pkey));
	RETURNS(-1, ibv_get_pkey_index(context, 1, 0x1234));
	RETURNS(-1, ibv_get_pkey_index(context, 2, pkey));
}

static void *acknowledge_later(void *event)
{
	poll(NULL, 0, 200);
	ibv_ack_async_event(event);
	return NULL;
}

/* The queue pair is destroyed once the event is acknowledged. */
static void check_async_events(void)
{
	struct objects all = create_all(context, 1);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	struct timespec before, after;
	pthread_t thread;

	RETURNS(0, poll(&fd, 1, 0));
	RETURNS(0, ibv_modify_qp(all.qp, &attr, IBV_QP_STATE));
	RETURNS(1, poll(&fd, 1, 5000));
	RETURNS(0, ibv_get_async_event(context, &event));
	EXPECT(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == all.qp);
	RETURNS(0, pthread_create(&thread, NULL, acknowledge_later, &event));
	clock_gettime(CLOCK_MONOTONIC, &before);
	RETURNS(0, destroy(&all, QP));
	clock_gettime(CLOCK_MONOTONIC, &after);
	EXPECT((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 150);
	RETURNS(0, pthread_join(thread, NULL));
	RETURNS(0, poll(&fd, 1, 0));
	destroy_all(&all);
}

static void check_fork(void)
{
	RETURNS(0, ibv_fork_init());
	/* Children have copies of registered memory as of any other. */
	RETURNS(IBV_FORK_UNNEEDED, ibv_is_fork_initialized());
}

static void check_fork_ranges(void)
{
	int (*dont)(void *, size_t) = (int (*)(void *, size_t))dlsym(RTLD_DEFAULT, "ibv_dontfork_range");
	int (*again)(void *, size_t) = (int (*)(void *, size_t))dlsym(RTLD_DEFAULT, "ibv_dofork_range");

	RETURNS(0, dont(memory, sizeof(memory)));
	RETURNS(0, again(memory, sizeof(memory)));
}

static void check_names(void)
{
	EXPECT(strcmp(ibv_node_type_str(IBV_NODE_RNIC), ibv_node_type_str(IBV_NODE_SWITCH)) != 0);
	EXPECT(strstr(ibv_port_state_str(IBV_PORT_ACTIVE), "active"));
	EXPECT(strstr(ibv_event_type_str(IBV_EVENT_SRQ_LIMIT_REACHED), "SRQ"));
	EXPECT(strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success") == 0);
	/* Numbers without a name have a text. */
	EXPECT(ibv_node_type_str(99) && ibv_port_state_str(99) && ibv_event_type_str(99) && ibv_wc_status_str(99));
}

static void check_create_cq_ex(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;

	init.comp_vector = context->num_comp_vectors;
	FAILS(0, EINVAL, ibv_create_cq_ex(context, &init));
	init.comp_vector = 0;
	init.wc_flags = 1ull << 40;
	FAILS(0, EOPNOTSUPP, ibv_create_cq_ex(context, &init));
	init.wc_flags = IBV_WC_STANDARD_FLAGS;
	EXPECT((cq = ibv_create_cq_ex(context, &init)));
	EXPECT((qp = create_qp(pd, ibv_cq_ex_to_cq(cq), NULL)));
	RETURNS(EBUSY, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	RETURNS(0, ibv_dealloc_pd(pd));
}

static void check_post(void)
{
	struct objects all = create_all(context, 0);
	struct ibv_sge list[2] = {
		{ .addr = (uintptr_t)memory + 64, .length = 8, .lkey = all.mr->lkey },
		{ .addr = (uintptr_t)memory + 64, .length = 8, .lkey = all.mr->lkey },
	};
	struct ibv_recv_wr receive = { .sg_list = list, .num_sge = 2 }, *bad_receive = NULL;
	struct ibv_send_wr send = { .sg_list = list, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
	struct ibv_wc wc;
	int posted = 0;

	/* More elements than the queue pair has; no connection; an operation that iWARP does not have. */
	RETURNS(EINVAL, ibv_post_recv(all.qp, &receive, &bad_receive));
	EXPECT(bad_receive == &receive);
	RETURNS(EINVAL, ibv_post_send(all.qp, &send, &bad));
	EXPECT(bad == &send);
	send.opcode = IBV_WR_SEND_WITH_IMM;
	RETURNS(EOPNOTSUPP, ibv_post_send(all.qp, &send, &bad));
	receive.num_sge = 1;
	while (posted < 1000 && ibv_post_recv(all.qp, &receive, &bad_receive) == 0)
		posted++;
	EXPECT(posted >= 4 && posted < 1000);
	RETURNS(ENOMEM, ibv_post_recv(all.qp, &receive, &bad_receive));
	RETURNS(0, ibv_post_srq_recv(all.srq, &receive, &bad_receive));
	RETURNS(0, ibv_poll_cq(all.cq, 1, &wc));
	destroy_all(&all);
}

static const struct row verbs_rows[] = {
	{ "_ibv_query_gid_ex", check_gids }, { "_ibv_query_gid_table", check_gids },
	{ "ibv_ack_async_event", check_async_events }, { "ibv_ack_cq_events", check_cq_events },
	{ "ibv_alloc_pd", check_pd }, { "ibv_close_device", check_open_device },
	{ "ibv_create_ah", check_datagrams }, { "ibv_create_ah_from_wc", check_datagrams },
	{ "ibv_destroy_ah", check_datagrams }, { "ibv_init_ah_from_wc", check_datagrams },
	{ "ibv_create_comp_channel", check_channel }, { "ibv_create_cq", check_create_cq },
	{ "ibv_create_qp", check_create_qp }, { "ibv_create_srq", check_srq }, { "ibv_dealloc_pd", check_pd },
	{ "ibv_dereg_mr", check_reg_mr }, { "ibv_destroy_comp_channel", check_channel },
	{ "ibv_destroy_cq", check_cq_events }, { "ibv_destroy_qp", check_create_qp }, { "ibv_destroy_srq", check_srq },
	{ "ibv_dofork_range", check_fork_ranges }, { "ibv_dontfork_range", check_fork_ranges },
	{ "ibv_event_type_str", check_names }, { "ibv_fork_init", check_fork },
	{ "ibv_free_device_list", check_devices }, { "ibv_get_async_event", check_async_events },
	{ "ibv_get_cq_event", check_cq_events }, { "ibv_get_device_guid", check_devices },
	{ "ibv_get_device_index", check_devices }, { "ibv_get_device_list", check_devices },
	{ "ibv_get_device_name", check_devices }, { "ibv_get_pkey_index", check_pkeys },
	{ "ibv_is_fork_initialized", check_fork }, { "ibv_modify_qp", check_modify_qp },
	{ "ibv_modify_srq", check_srq }, { "ibv_node_type_str", check_names }, { "ibv_open_device", check_open_device },
	{ "ibv_port_state_str", check_names }, { "ibv_qp_to_qp_ex", check_create_qp },
	{ "ibv_query_device", check_query_device }, { "ibv_query_gid", check_gids },
	{ "ibv_query_gid_type", check_gid_type }, { "ibv_query_pkey", check_pkeys },
	{ "ibv_query_port", check_query_port }, { "ibv_query_qp", check_states }, { "ibv_query_srq", check_srq },
	{ "ibv_reg_mr", check_reg_mr }, { "ibv_reg_mr_iova", check_reg_mr }, { "ibv_reg_mr_iova2", check_reg_mr },
	{ "ibv_rereg_mr", check_rereg_mr }, { "ibv_resize_cq", check_resize_cq }, { "ibv_wc_status_str", check_names },
};

/* Calls that the header makes of pointers in the context. */
static const struct row inline_rows[] = {
	{ "ibv_alloc_mw", check_mw }, { "ibv_create_cq_ex", check_create_cq_ex }, { "ibv_post_recv", check_post },
};
