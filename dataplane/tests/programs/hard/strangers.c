/* Peers of a listening rsocket that speak iWARP, but not the protocol of rsockets: each is rejected, and keeps none of
 * the server's descriptors. */
#include "common.h"

#include <poll.h>

#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

/* Private data: none, too short, another protocol's, and that of an rsocket of a version to come. */
static void connect_stranger(unsigned number)
{
	static const char *const data[] = { "", "x", "not the protocol of rsockets at all", "\x7f\0\0\0\0\0\0\0" };
	struct rdma_conn_param param = { .private_data = data[number % 4], .initiator_depth = 1 };
	struct ibv_qp_init_attr attributes = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
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
