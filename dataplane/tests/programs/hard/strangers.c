/* Peers that are none. Those of a listening rsocket that speak iWARP, but not the protocol of rsockets: each is
 * rejected, and keeps none of the server's descriptors. Servers of TCP that do not answer an MPA Request: a client
 * hears what became of it, by the kernel's events (cma_iw_handler). */
#include "common.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

static const struct ibv_qp_init_attr one_each = {
	.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	.qp_type = IBV_QPT_RC,
};

/* Private data: none, too short, another protocol's, and that of an rsocket of a version to come. */
static void connect_stranger(unsigned number)
{
	static const char *const data[] = { "", "x", "not the protocol of rsockets at all", "\x7f\0\0\0\0\0\0\0" };
	struct rdma_conn_param param = { .private_data = data[number % 4], .initiator_depth = 1 };
	struct ibv_qp_init_attr attributes = one_each;
	struct rdma_cm_id *id;

	param.private_data_len = number % 4 == 3 ? 8 : (uint8_t)strlen(data[number % 4]);
	/* A synchronous id: each call waits for its event. */
	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) == 0);
	NEED(rdma_resolve_route(id, 1000) == 0);
	NEED(rdma_create_qp(id, NULL, &attributes) == 0);
	NEED(rdma_connect(id, &param) != 0 && errno == ECONNREFUSED);
	rdma_destroy_qp(id);
	NEED(rdma_destroy_id(id) == 0);
}

int strangers(char **arguments)
{
	unsigned count = number_of(arguments[0]), before;
	struct pollfd entry = { .events = POLLIN };
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);

	NEED(rbind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && rlisten(listener, 8) == 0);
	/* Some, for what the device opens once. */
	for (unsigned number = 0; number < 8; number++)
		connect_stranger(number);
	before = settled_descriptors(0);
	for (unsigned number = 0; number < count; number++)
		connect_stranger(number);
	NEED(settled_descriptors(before) <= before);

	entry.fd = listener;
	NEED(rpoll(&entry, 1, 0) == 0);
	NEED(rclose(listener) == 0);
	printf("%u strangers rejected\n", count);
	return 0;
}

/* A server of TCP that takes one connection, and what its client hears. */
struct server {
	/* A FIN, a reset, another protocol's bytes; or else nothing, until the client gives up. */
	enum { FIN, RESET, GARBAGE, SILENT } how;
	int listener, kind, status;
	double at_least, at_most;
};

static void *serve_one(void *argument)
{
	static const char garbage[] = "220 no MPA Reply Frame at all\r\n";
	struct linger linger = { .l_onoff = 1 };
	const struct server *server = argument;
	char request[256];
	int peer = accept(server->listener, NULL, NULL);

	NEED(peer >= 0 && recv(peer, request, sizeof(request), 0) > 0);
	if (server->how == RESET)
		NEED(setsockopt(peer, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	if (server->how == GARBAGE)
		NEED(send(peer, garbage, sizeof(garbage), MSG_NOSIGNAL) == sizeof(garbage));
	while (server->how >= GARBAGE && recv(peer, request, sizeof(request), 0) > 0)
		;
	NEED(close(peer) == 0);
	return NULL;
}

/* Connects to it. A synchronous id has the error of rdma_connect(3) instead of the event. */
static void connect_to(const struct server *server)
{
	struct rdma_conn_param param = { .initiator_depth = 1 };
	struct ibv_qp_init_attr attributes = one_each;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	double began = now();

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) == 0);
	NEED(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_ack_cm_event(event);
	NEED(rdma_resolve_route(id, 1000) == 0);
	NEED(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	rdma_ack_cm_event(event);
	NEED(rdma_create_qp(id, NULL, &attributes) == 0 && rdma_connect(id, &param) == 0);
	NEED(rdma_get_cm_event(channel, &event) == 0);
	printf("%s, status %d, after %.1f s\n", rdma_event_str(event->event), event->status, now() - began);
	NEED((int)event->event == server->kind && event->status == server->status && event->id == id);
	NEED(event->param.conn.private_data_len == 0);
	NEED(now() - began >= server->at_least && now() - began <= server->at_most);
	rdma_ack_cm_event(event);
	rdma_destroy_qp(id);
	NEED(rdma_destroy_id(id) == 0);
}

int no_answers(char **arguments)
{
	static const struct server servers[] = {
		{ FIN, -1, RDMA_CM_EVENT_REJECTED, -ECONNRESET, 0, 2 },
		{ RESET, -1, RDMA_CM_EVENT_REJECTED, -ECONNRESET, 0, 2 },
		{ GARBAGE, -1, RDMA_CM_EVENT_CONNECT_ERROR, -EPROTO, 0, 2 },
		{ SILENT, -1, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, 9, 12 },
	};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	(void)arguments;
	NEED((channel = rdma_create_event_channel()) != NULL);
	NEED(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	NEED(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 1) == 0);
	for (size_t i = 0; i < sizeof(servers) / sizeof(*servers); i++) {
		struct server server = servers[i];
		pthread_t thread;

		server.listener = listener;
		NEED(pthread_create(&thread, NULL, serve_one, &server) == 0);
		connect_to(&server);
		NEED(pthread_join(thread, NULL) == 0);
	}
	NEED(close(listener) == 0);
	return 0;
}
