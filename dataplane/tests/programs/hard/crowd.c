/*
 * Many connections that share their queues: a server that answers messages, and clients that open many connections,
 * reach the limit of descriptors, or measure round trips.
 */
#include "common.h"

#include <poll.h>
#include <signal.h>

enum { CONNS_MAX = 2000 };

enum state { UNUSED, OPENING, OPEN, ENDED, FAILED };

struct conn {
	struct rdma_cm_id *id;
	enum state state;
	/* Sends that have not completed. */
	unsigned sending;
	uint32_t number, answered;
};

static struct conn conns[CONNS_MAX];
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_comp_channel *completions;
static struct ibv_mr *received_mr, *sent_mr;
static uint8_t *received, *sent;
static unsigned depth, established, failed, most, ended, answers, wrong;
static char why[200];
static volatile sig_atomic_t stopped;

#define FAIL(...) (snprintf(why, sizeof(why), __VA_ARGS__), -1)

static void post_received(uint64_t buffer)
{
	struct ibv_sge sge = { (uintptr_t)(received + buffer * size), (uint32_t)size, received_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = buffer, .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

/* The queues: room for `depth` messages received, and as many to send. */
static int make_queues(struct ibv_context *verbs)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = depth, .max_sge = 1 } };

	if (cq)
		return 0;
	received = memory(depth * size);
	sent = memory(depth * size);
	if (!(pd = ibv_alloc_pd(verbs)) || !(completions = ibv_create_comp_channel(verbs)) ||
	    !(cq = ibv_create_cq(verbs, 4 * (int)depth, NULL, completions, 0)) || !(srq = ibv_create_srq(pd, &init)) ||
	    !(received_mr = ibv_reg_mr(pd, received, depth * size, IBV_ACCESS_LOCAL_WRITE)) ||
	    !(sent_mr = ibv_reg_mr(pd, sent, depth * size, 0)))
		return FAIL("no queues: %m");
	make_nonblocking(completions->fd);
	NEED(ibv_req_notify_cq(cq, 0) == 0);
	for (unsigned buffer = 0; buffer < depth; buffer++)
		post_received(buffer);
	return 0;
}

static int make_qp(struct conn *conn)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 64, .max_send_sge = 1 },
	};

	if (rdma_create_qp(conn->id, pd, &init))
		return FAIL("rdma_create_qp: %m");
	conn->id->context = conn;
	return 0;
}

static struct conn *conn_of(uint32_t qp_num)
{
	for (struct conn *conn = conns; conn < conns + CONNS_MAX; conn++)
		if (conn->state != UNUSED && conn->id && conn->id->qp && conn->id->qp->qp_num == qp_num)
			return conn;
	return NULL;
}

static void forget(struct conn *conn)
{
	if (conn->state == OPEN)
		established--;
	if (conn->id) {
		if (conn->id->qp)
			rdma_destroy_qp(conn->id);
		NEED(rdma_destroy_id(conn->id) == 0);
	}
	*conn = (struct conn){ .state = UNUSED };
}

static void send_from(struct conn *conn, uint64_t buffer, uint32_t tag, uint32_t number)
{
	struct ibv_sge sge = { (uintptr_t)(sent + buffer * size), (uint32_t)size, sent_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = buffer | 1ull << 32, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad;

	make_message(sent + buffer * size, tag, number);
	if (ibv_post_send(conn->id->qp, &wr, &bad) == 0)
		conn->sending++;
	else
		wr.wr_id = 0;
}

/* A message has come to a server: the answer is sent from the buffer of the same number. */
static void answer(struct conn *conn, struct ibv_wc *wc)
{
	unsigned before = conn ? conn->sending : 0;
	struct head head;

	if (!is_message(received + wc->wr_id * size, wc->byte_len, &head))
		wrong++;
	/* It may come before the event of the connection. */
	else if (conn && conn->state != ENDED)
		send_from(conn, wc->wr_id, head.tag | ANSWER, head.number);
	if (!conn || conn->sending == before)
		post_received(wc->wr_id);
}

/* An answer has come to a client. */
static void take_answer(struct conn *conn, struct ibv_wc *wc)
{
	struct head head;

	if (!conn || !is_message(received + wc->wr_id * size, wc->byte_len, &head) ||
	    head.tag != (ANSWER | (uint32_t)(conn - conns)) || head.number != conn->number) {
		wrong++;
	} else {
		conn->answered = head.number;
		answers++;
	}
	post_received(wc->wr_id);
}

static void handle_completions(int is_server)
{
	struct ibv_wc wc[16];
	int count;

	while ((count = ibv_poll_cq(cq, 16, wc)) > 0) {
		for (struct ibv_wc *one = wc; one < wc + count; one++) {
			struct conn *conn = conn_of(one->qp_num);
			int is_send = one->wr_id >> 32 != 0;

			one->wr_id &= UINT32_MAX;
			if (is_send) {
				if (conn)
					conn->sending--;
				if (is_server)
					post_received(one->wr_id);
			} else if (one->status != IBV_WC_SUCCESS) {
				post_received(one->wr_id);
			} else if (is_server) {
				answer(conn, one);
			} else {
				take_answer(conn, one);
			}
		}
	}
	NEED(count == 0);
}

/* Waits for a connection event or a completion, and handles completions. Returns 1 with a connection event. */
static int step(struct event *event, int ms, int is_server)
{
	struct pollfd fds[2] = { { .fd = channel->fd, .events = POLLIN },
				 { .fd = completions ? completions->fd : -1, .events = POLLIN } };

	poll(fds, 2, ms);
	if (completions && fds[1].revents & POLLIN) {
		take_cq_events(completions);
		NEED(ibv_req_notify_cq(cq, 0) == 0);
		handle_completions(is_server);
	}
	return fds[0].revents & POLLIN && next_event(event, 0);
}

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

static void accept_one(struct event *event)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct conn *conn = conns;

	while (conn < conns + CONNS_MAX && conn->state != UNUSED)
		conn++;
	NEED(conn < conns + CONNS_MAX);
	*conn = (struct conn){ .id = event->id, .state = OPENING };
	if (make_qp(conn) || rdma_accept(conn->id, &param)) {
		fprintf(stderr, "a connection is not accepted: %s %m\n", why);
		rdma_reject(conn->id, NULL, 0);
		forget(conn);
	}
}

/* Forgets connections that have ended, once their Sends have completed. */
static void forget_ended(void)
{
	for (struct conn *conn = conns; conn < conns + CONNS_MAX; conn++)
		if (conn->state == ENDED && !conn->sending)
			forget(conn);
}

int echo(char **arguments)
{
	struct rdma_cm_id *listener = listening();
	struct event event;

	depth = number_of(arguments[0]);
	signal(SIGTERM, stop);
	NEED(make_queues(listener->verbs) == 0);
	while (!stopped) {
		if (step(&event, 1000, 1)) {
			struct conn *conn = event.id == listener ? NULL : event.id->context;

			if (event.kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
				accept_one(&event);
			} else if (event.kind == RDMA_CM_EVENT_ESTABLISHED) {
				conn->state = OPEN;
				most = ++established > most ? established : most;
			} else if (conn && conn->state != ENDED) {
				established -= conn->state == OPEN;
				conn->state = ENDED;
				rdma_disconnect(conn->id);
				handle_completions(1);
			}
		}
		forget_ended();
	}
	printf("at most %u connections, %u wrong\n", most, wrong);
	return wrong != 0;
}

static int begin(struct conn *conn)
{
	*conn = (struct conn){ .state = OPENING };
	if (rdma_create_id(channel, &conn->id, conn, RDMA_PS_TCP)) {
		conn->state = FAILED;
		return FAIL("rdma_create_id: %m");
	}
	if (rdma_resolve_addr(conn->id, NULL, (struct sockaddr *)&address, 2000)) {
		conn->state = FAILED;
		return FAIL("rdma_resolve_addr: %m");
	}
	return 0;
}

/* The next step of a connection after an event. */
static int advance(struct conn *conn, const struct event *event)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

	switch (event->kind) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		return rdma_resolve_route(conn->id, 2000) ? FAIL("rdma_resolve_route: %m") : 0;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (make_queues(conn->id->verbs) || make_qp(conn))
			return -1;
		return rdma_connect(conn->id, &param) ? FAIL("rdma_connect: %m") : 0;
	case RDMA_CM_EVENT_ESTABLISHED:
		conn->state = OPEN;
		established++;
		return 0;
	case RDMA_CM_EVENT_DISCONNECTED:
		if (conn->state == OPEN) {
			established--;
			ended++;
			conn->state = ENDED;
			return 0;
		}
		__attribute__((fallthrough));
	default:
		return FAIL("%s, %d", rdma_event_str(event->kind), event->status);
	}
}

static void handle(const struct event *event)
{
	struct conn *conn = event->id->context;

	if (advance(conn, event)) {
		conn->state = FAILED;
		failed++;
	}
}

/* Opens a connection; fails with a reason, but must not take long. */
static int open_conn(struct conn *conn)
{
	double until = now() + PATIENCE_MS / 1e3;
	struct event event;

	if (begin(conn) == 0)
		while (conn->state == OPENING) {
			NEED(now() < until);
			if (step(&event, PATIENCE_MS, 0))
				handle(&event);
		}
	if (conn->state == OPEN)
		return 0;
	forget(conn);
	return -1;
}

static void request(struct conn *conn)
{
	send_from(conn, (uint64_t)(conn - conns), (uint32_t)(conn - conns), ++conn->number);
	NEED(conn->sending);
}

static void step_until(unsigned *counter, unsigned wanted)
{
	double until = now() + 2 * PATIENCE_MS / 1e3;
	struct event event;

	failed = 0;
	while (*counter + failed < wanted && now() < until)
		if (step(&event, 1000, 0))
			handle(&event);
	if (*counter < wanted) {
		fprintf(stderr, "%u of %u, %u have failed: %s\n", *counter, wanted, failed, why);
		exit(1);
	}
	NEED(wrong == 0);
}

/* A round trip on each open connection, all at once. */
static void request_all(void)
{
	unsigned wanted = answers;

	for (struct conn *conn = conns; conn < conns + CONNS_MAX; conn++)
		if (conn->state == OPEN) {
			request(conn);
			wanted++;
		}
	step_until(&answers, wanted);
}

static void close_some(struct conn *first, struct conn *last)
{
	unsigned wanted = ended;

	for (struct conn *conn = first; conn < last; conn++)
		if (conn->state == OPEN) {
			NEED(rdma_disconnect(conn->id) == 0);
			wanted++;
		}
	step_until(&ended, wanted);
	for (struct conn *conn = first; conn < last; conn++)
		if (conn->state != UNUSED)
			forget(conn);
}

/* Prints the memory that the process has. */
static void print_resident(const char *when)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[200];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, "VmRSS:", 6))
			printf("%s: %s", when, line);
	fflush(stdout);
	if (file)
		fclose(file);
}

int crowd(char **arguments)
{
	unsigned count = number_of(arguments[0]);
	double start = now();

	depth = count;
	open_channel();
	for (unsigned at = 0; at < count; at++)
		NEED(begin(&conns[at]) == 0);
	step_until(&established, count);
	printf("%u connections after %.2f s\n", established, now() - start);
	request_all();
	request_all();
	printf("two round trips on each after %.2f s\n", now() - start);
	print_resident("client");
	puts("open");
	fflush(stdout);
	sleep(1);
	NEED(established == count);
	close_some(conns, conns + count);
	printf("closed after %.2f s\n", now() - start);
	return 0;
}

int fill_up(char **arguments)
{
	unsigned count = 0, anew = 0, tries = 0;
	double start = now();

	depth = CONNS_MAX;
	open_channel();
	while (count < 100 && open_conn(&conns[count]) == 0)
		count++;
	printf("%u connections after %.2f s; then %s\n", count, now() - start, why);
	NEED(count >= 40 && count < 64);
	request_all();
	puts("full");
	fflush(stdout);
	sleep(number_of(arguments[0]));
	NEED(established == count);
	request_all();
	close_some(conns, conns + 5);
	for (; anew < 5 && tries < 100; tries++)
		if (open_conn(&conns[anew]) == 0)
			anew++;
		else
			usleep(20000);
	printf("%u of 5 anew after %u tries\n", anew, tries);
	NEED(anew == 5);
	request_all();
	close_some(conns, conns + count);
	return 0;
}

int ping(char **arguments)
{
	double until = now() + number_of(arguments[0]), start, longest = 0;
	unsigned count = 0;

	depth = 8;
	open_channel();
	if (open_conn(conns)) {
		fprintf(stderr, "no connection: %s\n", why);
		return 1;
	}
	do {
		start = now();
		request_all();
		longest = now() - start > longest ? now() - start : longest;
		count++;
	} while (now() < until);
	close_some(conns, conns + 1);
	printf("%u round trips, the longest %.1f ms\n", count, longest * 1e3);
	return 0;
}
