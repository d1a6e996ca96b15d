/*
 * A table of the calls of librdmacm: each row makes a call, with a bad argument, in a wrong state or on an object in
 * use, and compares what it returns, errno and its effect with the manual page. Where the page is silent, the kernel's
 * CM decides. Both ends of the connections are in this process.
 *
 *   ids ADDRESS SILENT UNROUTABLE     the table: an address of the device, one in its network that nobody has, and one
 *                                     that no gateway leads to
 *   ids ADDRESS class CLASS           connects to port 7177 of ADDRESS, where nobody listens, with this traffic class
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "row.h"

/* Channels and ids. */
static void ids(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *id, *sync;

	ROW(rdma_create_id(channel, &id, NULL, 0x7777), -1, EINVAL);
	ROW(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), -1, EOPNOTSUPP);
	ROW(rdma_create_id(channel, &id, NULL, RDMA_PS_IPOIB), -1, EOPNOTSUPP);
	ROW(rdma_create_id(channel, &id, &wrong, RDMA_PS_TCP), 0, 0);
	HOLDS(id->context == &wrong && id->channel == channel && id->ps == RDMA_PS_TCP && !id->verbs && !id->qp);
	ROW(src_port(id), 0, 0);
	ROW(rdma_get_dst_port(id), 0, 0);
	ROW(rdma_migrate_id(id, other), 0, 0);
	HOLDS(id->channel == other);
	ROW(rdma_migrate_id(id, channel), 0, 0);
	ROW(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP), 0, 0);
	HOLDS(sync->channel && sync->channel != channel);
	ROW(rdma_migrate_id(sync, channel), 0, 0);
	ROW(rdma_destroy_id(sync), 0, 0);
	ROW(rdma_destroy_id(id), 0, 0);
	rdma_destroy_event_channel(other);
	HOLDS(!strcmp(rdma_event_str(RDMA_CM_EVENT_ADDR_ERROR), "RDMA_CM_EVENT_ADDR_ERROR"));
	HOLDS(!strcmp(rdma_event_str(99), "UNKNOWN EVENT"));
}

/* What is not of this state fails, and changes nothing. */
static void new_ids(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_qp_init_attr init = sizes();
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct rdma_cm_id *id = new_id(), *request;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_join_mc_attr_ex group = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS, .addr = at(0) };
	struct ibv_qp_init_attr_ex init_ex = { .qp_type = IBV_QPT_RC, .cap = init.cap };
	struct ibv_srq_init_attr_ex srq_ex = { .attr = srq.attr };
	struct rdma_cm_event *event;
	struct ibv_ece ece = { 0 };
	int mask = 0;

	ROW(rdma_resolve_route(id, 100), -1, EINVAL);
	ROW(rdma_connect(id, &param), -1, EINVAL);
	ROW(rdma_accept(id, &param), -1, EINVAL);
	ROW(rdma_reject(id, NULL, 0), -1, EINVAL);
	ROW(rdma_disconnect(id), -1, EINVAL);
	ROW(rdma_establish(id), -1, EINVAL);
	ROW(rdma_notify(id, IBV_EVENT_COMM_EST), -1, EINVAL);
	ROW(rdma_create_qp(id, NULL, &init), -1, EINVAL);
	ROW(rdma_create_srq(id, NULL, &srq), -1, EINVAL);
	ROW(rdma_get_request(id, &request), -1, EINVAL);
	ROW(rdma_init_qp_attr(id, &attr, NULL), -1, EINVAL);
	ROW(rdma_init_qp_attr(id, &attr, &mask), 0, 0);
	HOLDS(mask & IBV_QP_STATE);
	ROW(rdma_join_multicast(id, at(0), NULL), -1, EOPNOTSUPP);
	ROW(rdma_join_multicast_ex(id, &group, NULL), -1, EOPNOTSUPP);
	ROW(rdma_leave_multicast(id, at(0)), -1, EOPNOTSUPP);
	ROW(rdma_set_local_ece(id, &ece), -1, EOPNOTSUPP);
	ROW(rdma_get_remote_ece(id, &ece), -1, EOPNOTSUPP);
	ROW(rdma_reject_ece(id, NULL, 0), -1, EOPNOTSUPP);
	ROW(rdma_create_qp_ex(id, &init_ex), -1, EINVAL);
	ROW(rdma_create_srq_ex(id, &srq_ex), -1, EINVAL);
	srq_ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	srq_ex.srq_type = IBV_SRQT_XRC;
	ROW(rdma_create_srq_ex(id, &srq_ex), -1, EOPNOTSUPP);
	HOLDS(no_event());
	/* Without a manual page: what a program passes by mistake. */
	ROW(rdma_bind_addr(id, NULL), -1, EINVAL);
	ROW(rdma_resolve_addr(id, NULL, NULL, 100), -1, EINVAL);
	ROW(rdma_bind_addr(id, &(struct sockaddr){ .sa_family = AF_UNIX }), -1, EINVAL);
	ROW(rdma_destroy_id(id), 0, 0);
	/* A channel that is not blocking has no event. */
	HOLDS(no_event());
	ROW(rdma_get_cm_event(NULL, &event), -1, EINVAL);
	ROW(rdma_ack_cm_event(NULL), -1, EINVAL);
}

/* rdma_set_option(3). */
static void options(void)
{
	struct rdma_cm_id *id = new_id();
	uint8_t class = 0x28, timeout = 14;
	int on = 1, off = 0;

	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &class, 1), 0, 0);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, 4), -1, EINVAL);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), 0, 0);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &on, 4), -1, EINVAL);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 1), -1, EINVAL);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 4), 0, 0);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, 1), -1, EINVAL);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, 4), 0, 0);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, 99, &on, 4), -1, ENOSYS);
	ROW(rdma_set_option(id, 99, 0, &on, 4), -1, ENOSYS);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), -1, EINVAL);
	ROW(rdma_bind_addr(id, at(0)), 0, 0);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &off, 4), 0, 0);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &off, 4), -1, EINVAL);
	ROW(rdma_listen(id, 1), 0, 0);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, 4), -1, EINVAL);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 4), -1, EINVAL);
	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &class, 1), 0, 0);
	ROW(rdma_destroy_id(id), 0, 0);
}

/* An address and a port are given once; what is given stays. */
static void addresses(struct sockaddr *unroutable)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct sockaddr_in6 loopback = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct rdma_cm_id *id = new_id(), *listener = new_id(), *other, *of, *of_event = NULL;
	struct sockaddr_in source = address;
	uint16_t port;

	ROW(rdma_bind_addr(id, unroutable), -1, EADDRNOTAVAIL);
	ROW(rdma_bind_addr(id, at(7181)), 0, 0);
	HOLDS(id->verbs && id->port_num == 1);
	ROW(src_port(id), 7181, 0);
	ROW(rdma_bind_addr(id, at(7182)), -1, EINVAL);
	ROW(src_port(id), 7181, 0);
	/* The other family than the id's. */
	ROW(rdma_resolve_addr(id, NULL, (struct sockaddr *)&loopback, 100), -1, EINVAL);
	/* The source of an id that has one does not count. */
	source.sin_port = htons(7183);
	ROW(rdma_resolve_addr(id, (struct sockaddr *)&source, at(7174), 1000), 0, 0);
	ROW(event_of(&of, NULL), RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	HOLDS(of == id);
	ROW(src_port(id), 7181, 0);
	ROW(ntohs(rdma_get_dst_port(id)), 7174, 0);
	ROW(rdma_resolve_addr(id, NULL, at(7174), 1000), -1, EINVAL);
	ROW(rdma_bind_addr(id, at(0)), -1, EINVAL);
	ROW(rdma_listen(id, 1), -1, EINVAL);
	ROW(rdma_connect(id, &param), -1, EINVAL);
	ROW(rdma_resolve_route(id, 1000), 0, 0);
	ROW(event(), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	ROW(rdma_resolve_route(id, 1000), -1, EINVAL);
	ROW(rdma_destroy_id(id), 0, 0);
	/* One without a port gets one, and connects from it. */
	ROW(rdma_bind_addr(listener, at(7184)), 0, 0);
	ROW(rdma_listen(listener, 4), 0, 0);
	for (int given = 0; given < 3; given++) {
		id = new_id();
		source.sin_port = given == 2 ? htons(7185) : 0;
		ROW(rdma_resolve_addr(id, given ? (struct sockaddr *)&source : NULL, at(7184), 1000), 0, 0);
		ROW(event(), RDMA_CM_EVENT_ADDR_RESOLVED, 0);
		port = src_port(id);
		HOLDS(given == 2 ? port == 7185 : port != 0);
		ROW(rdma_resolve_route(id, 1000), 0, 0);
		ROW(event(), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		create_qp(id);
		ROW(rdma_connect(id, &param), 0, 0);
		ROW(src_port(id), port, 0);
		ROW(event_of(&of, NULL), RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		ROW(ntohs(rdma_get_dst_port(of)), port, 0);
		ROW(rdma_reject(of, "no", 2), 0, 0);
		ROW(event(), RDMA_CM_EVENT_REJECTED, 0);
		ROW(rdma_reject(of, NULL, 0), -1, EINVAL);
		ROW(rdma_accept(of, &param), -1, EINVAL);
		ROW(rdma_destroy_id(of), 0, 0);
		rdma_destroy_qp(id);
		ROW(rdma_destroy_id(id), 0, 0);
	}
	/* A port that the library has chosen, and that somebody listens at since, is replaced. */
	id = new_id();
	other = new_id();
	ROW(rdma_bind_addr(id, at(0)), 0, 0);
	port = src_port(id);
	ROW(rdma_bind_addr(other, at(port)), 0, 0);
	ROW(rdma_listen(other, 1), 0, 0);
	ROW(rdma_resolve_addr(id, NULL, at(7184), 1000), 0, 0);
	ROW(event(), RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	ROW(src_port(id), port, 0);
	ROW(rdma_resolve_route(id, 1000), 0, 0);
	ROW(event(), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	create_qp(id);
	ROW(rdma_connect(id, &param), 0, 0);
	HOLDS(src_port(id) != 0 && src_port(id) != port);
	ROW(event_of(&of, NULL), RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	ROW(ntohs(rdma_get_dst_port(of)), src_port(id), 0);
	/* A queue pair may be destroyed without its id, whose events still come. */
	ROW(ibv_destroy_qp(id->qp), 0, 0);
	HOLDS(id->qp == NULL);
	ROW(event_of(&of_event, NULL), RDMA_CM_EVENT_CONNECT_ERROR, 0);
	HOLDS(of_event == id);
	/* A request that has ended before its answer has no event; accepting it fails. */
	HOLDS(no_event());
	create_qp(of);
	ROW(rdma_accept(of, &param), -1, 0);
	HOLDS(no_event());
	rdma_destroy_qp(of);
	ROW(rdma_destroy_id(of), 0, 0);
	ROW(rdma_destroy_id(id), 0, 0);
	ROW(rdma_destroy_id(other), 0, 0);
	ROW(rdma_destroy_id(listener), 0, 0);
}

/* rdma_resolve_addr(3): within the time limit, the event says what became of the address. */
static void resolution(struct sockaddr *silent, struct sockaddr *unroutable)
{
	struct rdma_cm_id *id = new_id(), *sync, *of = NULL;
	int status = 0;
	double began = now();

	ROW(rdma_resolve_addr(id, NULL, unroutable, 5000), 0, 0);
	ROW(event_of(&of, &status), RDMA_CM_EVENT_ADDR_ERROR, 0);
	HOLDS(of == id && status == -ENETUNREACH && now() - began < 2);
	began = now();
	/* The id may try again. */
	ROW(rdma_resolve_addr(id, NULL, silent, 1200), 0, 0);
	HOLDS(now() - began < 0.5);
	ROW(rdma_resolve_addr(id, NULL, silent, 1200), -1, EINVAL);
	ROW(rdma_resolve_route(id, 100), -1, EINVAL);
	ROW(event_of(&of, &status), RDMA_CM_EVENT_ADDR_ERROR, 0);
	HOLDS(of == id && status == -ETIMEDOUT && now() - began > 1.1 && now() - began < 2.5);
	ROW(rdma_resolve_addr(id, NULL, at(7174), 1200), 0, 0);
	ROW(event_of(&of, &status), RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	HOLDS(of == id && status == 0);
	ROW(rdma_destroy_id(id), 0, 0);
	/* An id that is destroyed meanwhile reports nothing. */
	id = new_id();
	ROW(rdma_resolve_addr(id, NULL, silent, 300), 0, 0);
	ROW(rdma_destroy_id(id), 0, 0);
	poll(NULL, 0, 400);
	HOLDS(no_event());
	/* Without a channel the call waits. */
	ROW(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP), 0, 0);
	began = now();
	ROW(rdma_resolve_addr(sync, NULL, silent, 700), -1, ETIMEDOUT);
	HOLDS(now() - began > 0.6 && now() - began < 2);
	ROW(rdma_resolve_addr(sync, NULL, unroutable, 700), -1, ENETUNREACH);
	ROW(rdma_resolve_addr(sync, NULL, at(7174), 700), 0, 0);
	ROW(rdma_resolve_route(sync, 700), 0, 0);
	ROW(rdma_destroy_id(sync), 0, 0);
}

/* Listeners. */
static void listeners(void)
{
	struct rdma_cm_id *id = new_id(), *other = new_id();
	struct rdma_conn_param param = { 0 };

	ROW(rdma_listen(id, 0), 0, 0);
	HOLDS(src_port(id) != 0 && !id->verbs);
	ROW(rdma_listen(id, 0), -1, EINVAL);
	ROW(rdma_bind_addr(id, at(0)), -1, EINVAL);
	ROW(rdma_resolve_addr(id, NULL, at(7174), 100), -1, EINVAL);
	ROW(rdma_accept(id, &param), -1, EINVAL);
	ROW(rdma_reject(id, NULL, 0), -1, EINVAL);
	ROW(rdma_disconnect(id), -1, EINVAL);
	ROW(rdma_notify(id, IBV_EVENT_COMM_EST), -1, EINVAL);
	ROW(rdma_bind_addr(other, at(src_port(id))), 0, 0);
	ROW(rdma_listen(other, 1), -1, EADDRINUSE);
	ROW(rdma_destroy_id(id), 0, 0);
	ROW(rdma_listen(other, 1), 0, 0);
	ROW(rdma_destroy_id(other), 0, 0);
}

static struct rdma_cm_id *bound(int family, uint16_t port, int one_family)
{
	struct sockaddr_in6 any = { .sin6_family = family, .sin6_port = htons(port) };
	struct rdma_cm_id *id = new_id();

	ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one_family, 4), 0, 0);
	ROW(rdma_bind_addr(id, (struct sockaddr *)&any), 0, 0);
	return id;
}

/* Listeners of one port: of each family one, or one of both (RDMA_OPTION_ID_AFONLY, rdma_set_option(3)). */
static void one_port(void)
{
	static const int orders[][2] = { { AF_INET, AF_INET6 }, { AF_INET6, AF_INET } };

	for (int order = 0; order < 2; order++) {
		struct rdma_cm_id *first = bound(orders[order][0], 7190, 1), *second = bound(orders[order][1], 7190, 1);
		struct rdma_cm_id *both = bound(AF_INET6, 7190, 0), *one = new_id();

		ROW(rdma_listen(first, 0), 0, 0);
		ROW(rdma_listen(second, 0), 0, 0);
		ROW(rdma_listen(both, 0), -1, EADDRINUSE);
		ROW(rdma_destroy_id(second), 0, 0);
		ROW(rdma_listen(both, 0), -1, EADDRINUSE);
		ROW(rdma_bind_addr(one, at(7190)), 0, 0);
		ROW(rdma_listen(one, 0), orders[order][0] == AF_INET ? -1 : 0,
		    orders[order][0] == AF_INET ? EADDRINUSE : 0);
		ROW(rdma_destroy_id(first), 0, 0);
		ROW(rdma_destroy_id(one), 0, 0);
		ROW(rdma_listen(both, 0), 0, 0);
		one = resolved(7190);
		create_qp(one);
		ROW(rdma_connect(one, NULL), 0, 0);
		/* The listener of both families has IPv4, too. */
		ROW(event_of(&first, NULL), RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		/* A request that is destroyed is rejected, by the kernel's CM, too. */
		ROW(rdma_destroy_id(first), 0, 0);
		ROW(event(), RDMA_CM_EVENT_REJECTED, 0);
		rdma_destroy_qp(one);
		ROW(rdma_destroy_id(one), 0, 0);
		ROW(rdma_destroy_id(both), 0, 0);
	}
}

/* The backlog counts requests that the program has not fetched from the channel; the others are rejected. */
static void backlog(void)
{
	struct rdma_event_channel *apart = rdma_create_event_channel();
	struct rdma_cm_id *listener = new_id(), *ids[5];
	struct rdma_cm_event *request;

	ROW(rdma_migrate_id(listener, apart), 0, 0);
	ROW(rdma_bind_addr(listener, at(7191)), 0, 0);
	ROW(rdma_listen(listener, 3), 0, 0);
	for (int at_id = 0; at_id < 5; at_id++) {
		ids[at_id] = resolved(7191);
		create_qp(ids[at_id]);
	}
	for (int at_id = 0; at_id < 4; at_id++)
		ROW(rdma_connect(ids[at_id], NULL), 0, 0);
	ROW(event(), RDMA_CM_EVENT_REJECTED, 0);
	HOLDS(no_event());
	/* Fetched, and not answered: there is room for another one. */
	ROW(rdma_get_cm_event(apart, &request), 0, 0);
	ROW(rdma_ack_cm_event(request), 0, 0);
	ROW(rdma_connect(ids[4], NULL), 0, 0);
	HOLDS(no_event());
	for (int at_id = 0; at_id < 5; at_id++) {
		rdma_destroy_qp(ids[at_id]);
		ROW(rdma_destroy_id(ids[at_id]), 0, 0);
	}
	ROW(rdma_destroy_id(listener), 0, 0);
	rdma_destroy_event_channel(apart);
}

/* A connection: its calls, in order and out of order; and a queue pair that the id does not have. */
static void connections(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 }, none = param;
	struct rdma_cm_id *listener = new_id(), *id, *of;
	struct ibv_qp_init_attr init = sizes();
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };

	ROW(rdma_bind_addr(listener, at(7186)), 0, 0);
	ROW(rdma_listen(listener, 4), 0, 0);
	id = resolved(7186);
	none.qp_num = 0xffffff;
	ROW(rdma_connect(id, &none), -1, EINVAL);
	create_qp(id);
	ROW(rdma_create_qp(id, NULL, &init), -1, EINVAL);
	ROW(rdma_create_srq(id, NULL, &srq), 0, 0);
	rdma_destroy_srq(id);
	HOLDS(!id->srq);
	ROW(rdma_connect(id, &param), 0, 0);
	ROW(rdma_connect(id, &param), -1, EINVAL);
	ROW(event_of(&of, NULL), RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	HOLDS(of != listener && of->verbs && !of->qp);
	ROW(rdma_connect(of, &param), -1, EINVAL);
	ROW(rdma_resolve_addr(of, NULL, at(7186), 100), -1, EINVAL);
	ROW(rdma_listen(of, 1), -1, EINVAL);
	ROW(rdma_accept(of, &none), -1, EINVAL);
	ROW(rdma_accept(id, &param), -1, EINVAL);
	create_qp(of);
	ROW(rdma_accept(of, &param), 0, 0);
	ROW(event(), RDMA_CM_EVENT_ESTABLISHED, 0);
	ROW(event(), RDMA_CM_EVENT_ESTABLISHED, 0);
	ROW(rdma_accept(of, &param), -1, EINVAL);
	ROW(rdma_reject(of, NULL, 0), -1, EINVAL);
	ROW(rdma_listen(id, 1), -1, EINVAL);
	ROW(rdma_bind_addr(id, at(0)), -1, EINVAL);
	ROW(rdma_establish(id), -1, EINVAL);
	ROW(rdma_notify(id, IBV_EVENT_COMM_EST), 0, 0);
	HOLDS(no_event());
	ROW(rdma_disconnect(id), 0, 0);
	ROW(event(), RDMA_CM_EVENT_DISCONNECTED, 0);
	ROW(event(), RDMA_CM_EVENT_DISCONNECTED, 0);
	ROW(rdma_disconnect(id), 0, 0);
	ROW(rdma_disconnect(of), 0, 0);
	HOLDS(no_event());
	rdma_destroy_qp(id);
	rdma_destroy_qp(id);
	rdma_destroy_qp(of);
	HOLDS(!id->qp && !of->qp);
	ROW(rdma_destroy_id(id), 0, 0);
	ROW(rdma_destroy_id(of), 0, 0);
	ROW(rdma_destroy_id(listener), 0, 0);
}

/* A queue pair of a context that the program has opened, by its number. */
static void foreign_qps(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *listener = new_id(), *id, *of;
	struct ibv_qp_init_attr init = sizes();
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp *qp[2];

	HOLDS(context && pd && (init.send_cq = init.recv_cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	ROW(rdma_bind_addr(listener, at(7187)), 0, 0);
	ROW(rdma_listen(listener, 4), 0, 0);
	id = resolved(7187);
	ROW(rdma_create_qp(id, pd, &init), -1, EINVAL);
	for (int i = 0; i < 2; i++)
		HOLDS(qp[i] = ibv_create_qp(pd, &init));
	if (qp[0] && qp[1]) {
		param.qp_num = qp[0]->qp_num;
		ROW(rdma_connect(id, &param), 0, 0);
		ROW(event_of(&of, NULL), RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		param.qp_num = qp[1]->qp_num;
		ROW(rdma_accept(of, &param), 0, 0);
		ROW(event(), RDMA_CM_EVENT_ESTABLISHED, 0);
		ROW(event(), RDMA_CM_EVENT_ESTABLISHED, 0);
		for (int i = 0; i < 2; i++) {
			struct ibv_qp_attr attr;

			ROW(ibv_query_qp(qp[i], &attr, IBV_QP_STATE, &init), 0, 0);
			ROW(attr.qp_state, IBV_QPS_RTS, 0);
		}
		ROW(rdma_disconnect(id), 0, 0);
		ROW(event(), RDMA_CM_EVENT_DISCONNECTED, 0);
		ROW(event(), RDMA_CM_EVENT_DISCONNECTED, 0);
		ROW(rdma_destroy_id(of), 0, 0);
	}
	ROW(rdma_destroy_id(id), 0, 0);
	for (int i = 0; i < 2; i++)
		ROW(ibv_destroy_qp(qp[i]), 0, 0);
	ROW(ibv_destroy_cq(init.send_cq), 0, 0);
	ROW(ibv_dealloc_pd(pd), 0, 0);
	ROW(ibv_close_device(context), 0, 0);
	ibv_free_device_list(list);
	/* The id's context is another, and stays. */
	id = resolved(7187);
	create_qp(id);
	rdma_destroy_qp(id);
	ROW(rdma_destroy_id(id), 0, 0);
	ROW(rdma_destroy_id(listener), 0, 0);
}

/* rdma_getaddrinfo(3), and endpoints. */
static void names(char *node)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *info = NULL;
	struct servent *echo = getservbyname("echo", "tcp");
	struct sockaddr_in *found;
	struct rdma_cm_id *id;

	ROW(rdma_getaddrinfo(node, "7174", &hints, &info), 0, 0);
	found = (struct sockaddr_in *)info->ai_dst_addr;
	HOLDS(found && found->sin_port == htons(7174) && found->sin_addr.s_addr == address.sin_addr.s_addr);
	HOLDS(!info->ai_src_addr && info->ai_family == AF_INET && info->ai_qp_type == IBV_QPT_RC);
	rdma_freeaddrinfo(info);
	if (echo) {
		ROW(rdma_getaddrinfo(node, "echo", &hints, &info), 0, 0);
		found = (struct sockaddr_in *)info->ai_dst_addr;
		HOLDS(found && found->sin_port == (uint16_t)echo->s_port);
		rdma_freeaddrinfo(info);
	}
	ROW(rdma_getaddrinfo(node, "no-such-service", &hints, &info), -1, EINVAL);
	ROW(rdma_getaddrinfo(node, "70000", &hints, &info), -1, EINVAL);
	ROW(rdma_getaddrinfo("no.such.host.invalid", "1", &hints, &info), -1, EINVAL);
	ROW(rdma_getaddrinfo(NULL, NULL, NULL, &info), -1, EINVAL);
	hints.ai_flags = RAI_PASSIVE;
	ROW(rdma_getaddrinfo(NULL, "7188", &hints, &info), 0, 0);
	found = (struct sockaddr_in *)info->ai_src_addr;
	HOLDS(found && found->sin_port == htons(7188) && found->sin_addr.s_addr == INADDR_ANY && !info->ai_dst_addr);
	ROW(rdma_create_ep(NULL, info, NULL, NULL), -1, EINVAL);
	ROW(rdma_create_ep(&id, NULL, NULL, NULL), -1, EINVAL);
	ROW(rdma_create_ep(&id, info, NULL, NULL), 0, 0);
	ROW(src_port(id), 7188, 0);
	ROW(rdma_listen(id, 1), 0, 0);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
	hints.ai_flags = RAI_FAMILY | RAI_NUMERICHOST | RAI_NOROUTE;
	hints.ai_family = AF_INET6;
	ROW(rdma_getaddrinfo("::1", "1", &hints, &info), 0, 0);
	ROW(info->ai_family, AF_INET6, 0);
	rdma_freeaddrinfo(info);
	ROW(rdma_getaddrinfo(node, "1", &hints, &info), -1, ENODEV);
	hints = (struct rdma_addrinfo){ .ai_qp_type = IBV_QPT_UD, .ai_port_space = RDMA_PS_UDP };
	ROW(rdma_getaddrinfo(node, "1", &hints, &info), -1, EOPNOTSUPP);
	rdma_freeaddrinfo(NULL);
}

/* Endpoints without a channel of the program: calls wait for their event, and keep it. */
static void endpoints(char *node)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *listener, *client, *server = NULL;
	struct ibv_qp_init_attr init = sizes();

	ROW(rdma_getaddrinfo(node, "7189", &hints, &info), 0, 0);
	ROW(rdma_create_ep(&listener, info, NULL, &init), 0, 0);
	rdma_freeaddrinfo(info);
	ROW(rdma_get_request(listener, NULL), -1, EINVAL);
	ROW(rdma_listen(listener, 2), 0, 0);
	client = resolved(7189);
	create_qp(client);
	ROW(rdma_connect(client, &param), 0, 0);
	ROW(rdma_get_request(listener, &server), 0, 0);
	HOLDS(server && server->qp && server->event && server->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	ROW(rdma_accept(server, &param), 0, 0);
	HOLDS(server->event->event == RDMA_CM_EVENT_ESTABLISHED);
	ROW(event(), RDMA_CM_EVENT_ESTABLISHED, 0);
	ROW(rdma_disconnect(client), 0, 0);
	ROW(event(), RDMA_CM_EVENT_DISCONNECTED, 0);
	ROW(rdma_disconnect(server), 0, 0);
	HOLDS(server->event->event == RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(server);
	rdma_destroy_ep(listener);
	rdma_destroy_qp(client);
	ROW(rdma_destroy_id(client), 0, 0);
	hints.ai_flags = RAI_NUMERICHOST;
	ROW(rdma_getaddrinfo(node, "7189", &hints, &info), 0, 0);
	init = sizes();
	ROW(rdma_create_ep(&client, info, NULL, &init), 0, 0);
	HOLDS(client->qp && src_port(client) != 0);
	ROW(rdma_connect(client, &param), -1, ECONNREFUSED);
	rdma_destroy_ep(client);
	rdma_freeaddrinfo(info);
}

static void devices(void)
{
	int count = 0;
	struct ibv_context **list = rdma_get_devices(&count);

	HOLDS(list && count >= 1 && list[0] && !list[count]);
	rdma_free_devices(list);
}

int main(int argc, char **argv)
{
	struct sockaddr_in silent = { .sin_family = AF_INET, .sin_port = htons(7174) }, unroutable = silent;
	struct rdma_conn_param param = { 0 };

	address.sin_family = AF_INET;
	if (argc != 4 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
		return 2;
	channel = rdma_create_event_channel();
	if (!strcmp(argv[2], "class")) {
		uint8_t class = strtoul(argv[3], NULL, 0);
		struct rdma_cm_id *id = resolved(7177);

		ROW(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &class, 1), 0, 0);
		create_qp(id);
		ROW(rdma_connect(id, &param), 0, 0);
		ROW(event(), RDMA_CM_EVENT_REJECTED, 0);
		return wrong != 0;
	}
	if (inet_pton(AF_INET, argv[2], &silent.sin_addr) != 1 || inet_pton(AF_INET, argv[3], &unroutable.sin_addr) != 1)
		return 2;
	ids();
	new_ids();
	options();
	addresses((struct sockaddr *)&unroutable);
	resolution((struct sockaddr *)&silent, (struct sockaddr *)&unroutable);
	listeners();
	one_port();
	backlog();
	connections();
	foreign_qps();
	names(argv[1]);
	endpoints(argv[1]);
	devices();
	HOLDS(no_event());
	rdma_destroy_event_channel(channel);
	printf("%d rows, %d wrong\n", rows, wrong);
	return wrong != 0;
}
