/* Rows of the table, and what they share; a part of ids.c. */

static int wrong, rows;

/* One row: the call must return `wanted`, and set errno to `number` if that is not 0. */
#define ROW(call, wanted, number)                                                                                    \
	do {                                                                                                         \
		long is_;                                                                                            \
		errno = 0;                                                                                           \
		is_ = (long)(call);                                                                                  \
		row(__LINE__, #call, is_, (long)(wanted), errno, number);                                            \
	} while (0)
#define HOLDS(condition) row(__LINE__, #condition, !!(condition), 1, 0, 0)

static void row(int line, const char *call, long is, long wanted, int error, int number)
{
	rows++;
	if (is == wanted && (!number || error == number))
		return;
	wrong++;
	fprintf(stderr, "line %d: %s is %ld, not %ld; errno %d, not %d\n", line, call, is, wanted, error, number);
}

static struct rdma_event_channel *channel;
static struct sockaddr_in address;

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

/* The next event: its type, and what it says of its id and status. */
static int event_of(struct rdma_cm_id **id, int *status)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int kind;

	if (poll(&fd, 1, 8000) != 1 || rdma_get_cm_event(channel, &event))
		return -1;
	kind = event->event;
	if (id)
		*id = event->id;
	if (status)
		*status = event->status;
	rdma_ack_cm_event(event);
	return kind;
}

static int event(void)
{
	return event_of(NULL, NULL);
}

static int no_event(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, 50) == 0;
}

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id = NULL;

	ROW(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0, 0);
	if (!id)
		exit(1);
	return id;
}

static struct sockaddr *at(uint16_t port)
{
	address.sin_port = htons(port);
	return (struct sockaddr *)&address;
}

static uint16_t src_port(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

static struct rdma_cm_id *resolved(uint16_t port)
{
	struct rdma_cm_id *id = new_id();

	ROW(rdma_resolve_addr(id, NULL, at(port), 2000), 0, 0);
	ROW(event(), RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	ROW(rdma_resolve_route(id, 2000), 0, 0);
	ROW(event(), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return id;
}

static struct ibv_qp_init_attr sizes(void)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = sizes();

	ROW(rdma_create_qp(id, NULL, &init), 0, 0);
}
