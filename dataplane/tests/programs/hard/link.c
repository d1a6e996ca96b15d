/* Connections whose ends reach memory of one another, and send short notes. */
#include "link.h"

#include <poll.h>
#include <sys/mman.h>

enum { PENDING = 64 };

atomic_int exiting;
/* Connect requests that nobody has awaited yet. */
static struct event pending[PENDING];
static int pending_first, pending_count;

void link_post_note(struct link *link, uint64_t at)
{
	struct ibv_sge sge = { (uintptr_t)link->notes[at], NOTE, link->notes_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 }, *bad;

	ibv_post_recv(link->id->qp, &wr, &bad);
}

/* Queues, notes, and a region that the peer may reach. */
static void link_make(struct link *link, uint8_t *region, size_t bytes)
{
	struct ibv_context *verbs = link->id->verbs;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 2 * NOTES, .max_recv_wr = NOTES, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	NEED((link->comp = ibv_create_comp_channel(verbs)));
	NEED((link->cq = ibv_create_cq(verbs, 4 * NOTES, NULL, link->comp, 0)));
	make_nonblocking(link->comp->fd);
	init.send_cq = init.recv_cq = link->cq;
	NEED(rdma_create_qp(link->id, link->id->pd, &init) == 0);
	link->region = region;
	if (!link->notes)
		link->notes = memory(2 * NOTES * NOTE);
	NEED((link->notes_mr = ibv_reg_mr(link->id->pd, link->notes, 2 * NOTES * NOTE, IBV_ACCESS_LOCAL_WRITE)));
	NEED((link->mr = ibv_reg_mr(link->id->pd, region, bytes, rights)));
	for (uint64_t at = 0; at < NOTES; at++)
		link_post_note(link, at);
	link->id->context = link;
}

static struct rdma_conn_param link_param(const struct link *link, struct offer *offer)
{
	offer->address = (uintptr_t)link->region;
	offer->key = link->mr->rkey;
	return (struct rdma_conn_param){ .private_data = offer, .private_data_len = sizeof(*offer),
					 .responder_resources = 8, .initiator_depth = 8 };
}

/* Handles one connection event, whichever link it is for. */
static void link_event(const struct event *event)
{
	struct link *link = event->id->context;

	if (event->kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
		NEED(pending_count < PENDING);
		pending[(pending_first + pending_count++) % PENDING] = *event;
	} else if (link && event->kind != RDMA_CM_EVENT_ESTABLISHED) {
		link->ended = 1;
	}
}

static void link_expect(int kind, struct event *event)
{
	NEED(next_event(event, PATIENCE_MS));
	if (event->kind != kind) {
		fprintf(stderr, "%s, %d instead of %s\n", rdma_event_str(event->kind), event->status,
			rdma_event_str(kind));
		exit(1);
	}
}

void link_connect(struct link *link, uint8_t *region, size_t bytes, struct offer offer)
{
	struct rdma_conn_param param;
	struct event event;

	NEED(rdma_create_id(channel, &link->id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(link->id, NULL, (struct sockaddr *)&address, 2000) == 0);
	link_expect(RDMA_CM_EVENT_ADDR_RESOLVED, &event);
	NEED(rdma_resolve_route(link->id, 2000) == 0);
	link_expect(RDMA_CM_EVENT_ROUTE_RESOLVED, &event);
	link_make(link, region, bytes);
	param = link_param(link, &offer);
	NEED(rdma_connect(link->id, &param) == 0);
	link_expect(RDMA_CM_EVENT_ESTABLISHED, &event);
	link->far = event.offer;
}

/* Waits for a connect request. */
void link_await(struct link *link)
{
	struct event event;

	while (!pending_count)
		if (next_event(&event, 1000))
			link_event(&event);
	event = pending[pending_first];
	pending_first = (pending_first + 1) % PENDING;
	pending_count--;
	link->id = event.id;
	link->far = event.offer;
}

void link_accept(struct link *link, uint8_t *region, size_t bytes)
{
	struct rdma_conn_param param;
	struct offer offer = { 0 };

	link_make(link, region, bytes);
	param = link_param(link, &offer);
	NEED(rdma_accept(link->id, &param) == 0);
}

int link_completion(struct link *link, struct ibv_wc *wc, int ms)
{
	struct pollfd fds[2] = { { .fd = channel->fd, .events = POLLIN }, { .fd = link->comp->fd, .events = POLLIN } };
	double until = now() + ms / 1e3;
	struct event event;

	for (;;) {
		if (ibv_poll_cq(link->cq, 1, wc) == 1)
			return 1;
		if (link->ended)
			return 0;
		if (ibv_req_notify_cq(link->cq, 0)) {
			NEED(exiting);
			pause();
		}
		if (ibv_poll_cq(link->cq, 1, wc) == 1)
			return 1;
		if (ms == 0 || now() >= until)
			return -1;
		poll(fds, 2, ms);
		take_cq_events(link->comp);
		while (next_event(&event, 0))
			link_event(&event);
	}
}

int link_post(struct link *link, enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge sge, uint64_t offset,
	      int flags)
{
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = (unsigned)flags,
		.wr.rdma = { .remote_addr = link->far.address + offset, .rkey = link->far.key },
	}, *bad;

	return ibv_post_send(link->id->qp, &wr, &bad);
}

int link_note(struct link *link, struct head head)
{
	uint64_t at = NOTES + head.number % NOTES;
	struct ibv_sge sge = { (uintptr_t)link->notes[at], NOTE, link->notes_mr->lkey };

	memcpy(link->notes[at], &head, sizeof(head));
	fill(link->notes[at] + sizeof(head), NOTE - sizeof(head), head.tag, head.number);
	return link_post(link, IBV_WR_SEND, at, sge, 0, IBV_SEND_SIGNALED);
}

struct head link_take(struct link *link, const struct ibv_wc *wc)
{
	struct head head;

	NEED(wc->byte_len == NOTE);
	memcpy(&head, link->notes[wc->wr_id], sizeof(head));
	NEED(is_filled(link->notes[wc->wr_id] + sizeof(head), NOTE - sizeof(head), head.tag, head.number));
	link_post_note(link, wc->wr_id);
	return head;
}

void link_close(struct link *link)
{
	rdma_disconnect(link->id);
	rdma_destroy_qp(link->id);
	NEED(ibv_dereg_mr(link->mr) == 0 && ibv_dereg_mr(link->notes_mr) == 0);
	NEED(ibv_destroy_cq(link->cq) == 0 && ibv_destroy_comp_channel(link->comp) == 0);
	NEED(rdma_destroy_id(link->id) == 0);
	munmap(link->notes, 2 * NOTES * NOTE);
}
