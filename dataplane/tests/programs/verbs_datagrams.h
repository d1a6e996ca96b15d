/* Rows of address handles, and datagrams between queue pairs of this process; a part of table.c. */

enum { GRH_BYTES = 40, QKEY = 0x1111, PAYLOAD = 100, DATAGRAM_BUFFERS = 4 };

/* A queue pair of datagrams with the ibv_wr_* calls, and its memory. */
struct end {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char bytes[2048];
};

/* The way to the device's own address. */
static struct ibv_ah_attr own_address(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };

	RETURNS(0, ibv_query_gid(context, 1, 0, &attr.grh.dgid));
	return attr;
}

static struct ibv_qp *datagram_qp(struct end *end, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_UD, .pd = end->pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = DATAGRAM_BUFFERS, .max_send_sge = 2, .max_recv_sge = 1,
			 .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = operations,
	};

	return ibv_create_qp_ex(context, &init);
}

static void ready(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .sq_psn = 9 };
	int first = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY;

	EXPECT(qp->state == IBV_QPS_RESET && qp->qp_type == IBV_QPT_UD);
	/* No key; an attribute of connections; a state that is not next. */
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, first & ~IBV_QP_QKEY));
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, first | IBV_QP_ACCESS_FLAGS));
	RETURNS(0, ibv_modify_qp(qp, &attr, first));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	attr.qp_state = IBV_QPS_RTR;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN));
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	attr.qkey = 0;
	RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY, &init));
	EXPECT(attr.qp_state == IBV_QPS_RTS && attr.qkey == QKEY && attr.sq_psn == 9);
	EXPECT(init.qp_type == IBV_QPT_UD && qp->state == IBV_QPS_RTS);
}

static void open_end(struct end *end)
{
	EXPECT((end->pd = ibv_alloc_pd(context)) && (end->cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	EXPECT((end->mr = ibv_reg_mr(end->pd, end->bytes, sizeof(end->bytes), IBV_ACCESS_LOCAL_WRITE)));
	FAILS(0, EOPNOTSUPP, datagram_qp(end, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE));
	EXPECT((end->qp = datagram_qp(end, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)));
	if (failures)
		exit(1);
	ready(end->qp);
}

static void close_end(struct end *end)
{
	RETURNS(EBUSY, ibv_dealloc_pd(end->pd));
	RETURNS(0, ibv_destroy_qp(end->qp));
	RETURNS(0, ibv_destroy_cq(end->cq));
	RETURNS(0, ibv_dereg_mr(end->mr));
	RETURNS(0, ibv_dealloc_pd(end->pd));
}

static void receive(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->bytes, GRH_BYTES + PAYLOAD, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;

	RETURNS(0, ibv_post_recv(end->qp, &wr, &bad));
}

/* The next completion, which must be a success. */
static struct ibv_wc completed(struct end *end, enum ibv_wc_opcode opcode)
{
	struct timespec until, now;
	struct ibv_wc wc = { 0 };
	int count;

	clock_gettime(CLOCK_MONOTONIC, &until);
	do {
		count = ibv_poll_cq(end->cq, 1, &wc);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (count == 0 && now.tv_sec < until.tv_sec + 20);
	RETURNS(1, count);
	EXPECT(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode && wc.qp_num == end->qp->qp_num);
	return wc;
}

/* Sends from one end to the other in one of four ways: by a list or inline, with the ibv_wr_* calls or without. */
static void send_to(struct end *from, struct end *to, struct ibv_ah *ah, int way)
{
	int is_inline = way & 1, length = is_inline ? 60 : PAYLOAD, has_imm = way >> 1;
	struct ibv_sge list[2] = {
		{ (uintptr_t)from->bytes + 1024, 10, from->mr->lkey },
		{ (uintptr_t)from->bytes + 1034, length - 10, from->mr->lkey },
	};
	struct ibv_send_wr wr = {
		.wr_id = 8, .sg_list = list, .num_sge = 2, .opcode = has_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | (is_inline ? IBV_SEND_INLINE : 0), .imm_data = htobe32(77),
		.wr.ud = { .ah = ah, .remote_qpn = to->qp->qp_num, .remote_qkey = QKEY },
	}, *bad;
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(from->qp);
	struct ibv_wc wc;
	union ibv_gid gid;

	for (int i = 0; i < length; i++)
		from->bytes[1024 + i] = i * 7 + way;
	receive(to);
	if (way < 4) {
		RETURNS(0, ibv_post_send(from->qp, &wr, &bad));
	} else {
		ibv_wr_start(ex);
		ex->wr_id = 8;
		ex->wr_flags = IBV_SEND_SIGNALED;
		if (has_imm & 1)
			ibv_wr_send_imm(ex, htobe32(77));
		else
			ibv_wr_send(ex);
		ibv_wr_set_ud_addr(ex, ah, to->qp->qp_num, QKEY);
		if (is_inline)
			ibv_wr_set_inline_data(ex, from->bytes + 1024, length);
		else
			ibv_wr_set_sge_list(ex, 2, list);
		RETURNS(0, ibv_wr_complete(ex));
	}
	EXPECT(completed(from, IBV_WC_SEND).wr_id == 8);
	wc = completed(to, IBV_WC_RECV);
	EXPECT(wc.wr_id == 5 && wc.byte_len == (unsigned)(GRH_BYTES + length) && wc.wc_flags & IBV_WC_GRH);
	EXPECT(wc.src_qp == from->qp->qp_num && wc.sl == 0 && wc.slid == 0);
	EXPECT(!(wc.wc_flags & IBV_WC_WITH_IMM) == !(has_imm & 1));
	EXPECT(!(has_imm & 1) || wc.imm_data == htobe32(77));
	EXPECT(memcmp(to->bytes + GRH_BYTES, from->bytes + 1024, length) == 0);
	RETURNS(0, ibv_query_gid(context, 1, 0, &gid));
	EXPECT(memcmp(to->bytes + 8, &gid, 16) == 0 && memcmp(to->bytes + 24, &gid, 16) == 0);
	/* An answer goes to where the datagram came from. */
	struct ibv_ah_attr answer;
	RETURNS(0, ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)to->bytes, &answer));
	EXPECT(answer.is_global && answer.grh.sgid_index == 0 && memcmp(&answer.grh.dgid, &gid, 16) == 0);
	struct ibv_ah *back = ibv_create_ah_from_wc(to->pd, &wc, (struct ibv_grh *)to->bytes, 1);
	EXPECT(back && back->context == context && back->pd == to->pd);
	RETURNS(0, ibv_destroy_ah(back));
}

static void check_datagrams(void)
{
	static struct end a, b;
	struct ibv_ah_attr attr = own_address(), wrong = attr;
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_ah *ah;

	open_end(&a);
	open_end(&b);
	EXPECT((ah = ibv_create_ah(a.pd, &attr)));
	for (int way = 0; way < 8; way++)
		send_to(&a, way % 2 ? &b : &a, ah, way);
	/* An operation of connections, and a datagram to nobody. */
	RETURNS(EINVAL, ibv_post_send(a.qp, &wr, &bad));
	wr.opcode = IBV_WR_SEND;
	RETURNS(EINVAL, ibv_post_send(a.qp, &wr, &bad));
	ibv_wr_start(ibv_qp_to_qp_ex(a.qp));
	ibv_wr_send(ibv_qp_to_qp_ex(a.qp));
	RETURNS(EINVAL, ibv_wr_complete(ibv_qp_to_qp_ex(a.qp)));
	/* No route, another port, no such local address, a group. */
	wrong.is_global = 0;
	FAILS(0, EINVAL, ibv_create_ah(a.pd, &wrong));
	wrong = attr;
	wrong.port_num = 2;
	FAILS(0, EINVAL, ibv_create_ah(a.pd, &wrong));
	wrong = attr;
	wrong.grh.sgid_index = 200;
	FAILS(0, EINVAL, ibv_create_ah(a.pd, &wrong));
	wrong = attr;
	wrong.grh.dgid.raw[12] = 224;
	FAILS(0, EOPNOTSUPP, ibv_create_ah(a.pd, &wrong));
	RETURNS(0, ibv_destroy_ah(ah));
	close_end(&a);
	close_end(&b);
}
