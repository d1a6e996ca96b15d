/*
 * iwserver: a region service on librdmacm, the responder of the tests of an initiator.
 *
 *   iwserver --listen ADDRESS --port PORT --region NAME:BYTES:ACCESS[:TOKEN] [--region ...]
 *
 * Every connection has its own protection domain and its own registration of the region with the rights
 * granted, so that an STag is valid on its stream only. Prints LISTENING when it is ready, then runs the
 * commands on standard input, each answered by `RESULT command ok|FAIL detail`:
 *
 *   fill NAME SEED      fills the region with the pattern
 *   check NAME SEED     compares the region with the pattern
 *   deregister NAME     revokes all grants; later requests find no such region
 *   quit
 */
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "region.h"

enum { MAX_REGIONS = 16, BACKLOG = 64, QUEUE = 4 };

struct region {
	char name[REGION_NAME_MAX + 1];
	uint8_t token[REGION_TOKEN_MAX];
	uint8_t token_len;
	uint8_t access;
	uint64_t length;
	uint8_t *data;
	bool registered;
};

struct grant {
	struct rdma_cm_id *id;
	struct region *region;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct grant *next;
};

static struct region regions[MAX_REGIONS];
static size_t region_count;
static struct grant *grants;

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "iwserver: %s: %s\n", what, errno ? strerror(errno) : "bad argument");
	exit(1);
}

static struct region *find_region(const char *name)
{
	for (size_t i = 0; i < region_count; i++)
		if (regions[i].registered && strcmp(regions[i].name, name) == 0)
			return &regions[i];
	return NULL;
}

/* Parses NAME:BYTES:ACCESS[:TOKEN] and allocates the region. */
static void add_region(char *spec)
{
	struct region *region = &regions[region_count];
	char *name = strsep(&spec, ":"), *bytes = strsep(&spec, ":"), *access = strsep(&spec, ":");
	size_t token_len = spec ? strlen(spec) : 0;
	int bits = access ? region_access_parse(access) : -1;

	errno = 0;
	if (region_count == MAX_REGIONS || !bytes || bits < 0 || strlen(name) > REGION_NAME_MAX ||
	    token_len > REGION_TOKEN_MAX)
		die("--region");
	strcpy(region->name, name);
	region->length = strtoull(bytes, NULL, 0);
	region->access = (uint8_t)bits;
	region->token_len = (uint8_t)token_len;
	if (spec)
		memcpy(region->token, spec, token_len);
	region->data = mmap(NULL, region->length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (region->data == MAP_FAILED)
		die(region->name);
	region->registered = true;
	region_count++;
}

static bool token_matches(const struct region *region, const struct region_request *request)
{
	uint8_t difference = region->token_len ^ request->token_len;

	/* Both arrays are zero after their tokens. */
	for (size_t i = 0; i < REGION_TOKEN_MAX; i++)
		difference |= region->token[i] ^ request->token[i];
	return region->token_len == 0 || difference == 0;
}

static void release(struct grant *grant)
{
	for (struct grant **link = &grants; *link; link = &(*link)->next) {
		if (*link == grant) {
			*link = grant->next;
			break;
		}
	}
	if (grant->id->qp)
		rdma_destroy_qp(grant->id);
	if (grant->mr)
		ibv_dereg_mr(grant->mr);
	if (grant->cq)
		ibv_destroy_cq(grant->cq);
	if (grant->pd)
		ibv_dealloc_pd(grant->pd);
	free(grant);
}

/* Creates the queue pair and the registration of a grant; NULL on failure. */
static struct grant *make_grant(struct rdma_cm_id *id, struct region *region, uint8_t access)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct grant *grant = calloc(1, sizeof(*grant));
	int flags = 0;

	if (!grant)
		return NULL;
	if (access & ACCESS_READ)
		flags |= IBV_ACCESS_REMOTE_READ;
	if (access & ACCESS_WRITE)
		flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
	if (access & ACCESS_ATOMIC)
		flags |= IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE;
	grant->id = id;
	grant->region = region;
	grant->pd = ibv_alloc_pd(id->verbs);
	grant->cq = ibv_create_cq(id->verbs, 4 * QUEUE, NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = grant->cq;
	if (grant->pd)
		grant->mr = ibv_reg_mr(grant->pd, region->data, region->length, flags);
	grant->next = grants;
	grants = grant;
	if (grant->mr && grant->cq && rdma_create_qp(id, grant->pd, &attr) == 0)
		return grant;
	release(grant);
	return NULL;
}

static struct grant *decide(struct rdma_cm_event *event, struct region_reply *reply)
{
	const struct rdma_conn_param *param = &event->param.conn;
	struct region_request request;
	struct region *region;
	struct grant *grant;

	memset(reply, 0, sizeof(*reply));
	reply->status = STATUS_MALFORMED;
	if (!param->private_data ||
	    !region_request_decode(param->private_data, param->private_data_len, &request))
		return NULL;
	region = find_region(request.name);
	reply->status = STATUS_NO_SUCH_REGION;
	if (!region)
		return NULL;
	reply->status = STATUS_NOT_PERMITTED;
	if (!token_matches(region, &request) || (request.access & ~region->access))
		return NULL;
	reply->status = STATUS_NO_RESOURCES;
	grant = make_grant(event->id, region, request.access);
	if (!grant)
		return NULL;
	*reply = (struct region_reply){
		.access = request.access,
		.stag = grant->mr->rkey,
		.base = (uintptr_t)region->data,
		.length = region->length,
	};
	return grant;
}

static void on_request(struct rdma_cm_event *event)
{
	uint8_t bytes[REGION_REPLY_LEN];
	struct region_reply reply;
	struct rdma_conn_param param = {
		.private_data = bytes,
		.private_data_len = sizeof(bytes),
		.responder_resources = event->param.conn.responder_resources,
		.initiator_depth = event->param.conn.initiator_depth,
	};
	struct rdma_cm_id *id = event->id;
	struct grant *grant = decide(event, &reply);

	region_reply_encode(&reply, bytes);
	id->context = grant;
	if (grant && rdma_accept(id, &param) == 0)
		return;
	if (grant)
		release(grant);
	else
		rdma_reject(id, bytes, sizeof(bytes));
	id->context = NULL;
}

static void on_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *gone = NULL;

	if (rdma_get_cm_event(channel, &event))
		die("rdma_get_cm_event");
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		on_request(event);
		if (!event->id->context)
			gone = event->id;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		gone = event->id;
		break;
	default:
		break;
	}
	rdma_ack_cm_event(event);
	if (!gone)
		return;
	if (gone->context) {
		rdma_disconnect(gone);
		release(gone->context);
	}
	rdma_destroy_id(gone);
}

static void deregister(struct region *region)
{
	region->registered = false;
	for (struct grant *grant = grants; grant; grant = grant->next) {
		if (grant->region == region && grant->mr) {
			ibv_dereg_mr(grant->mr);
			grant->mr = NULL;
		}
	}
}

/* Runs a command; false if it is the last. */
static bool on_line(char *line)
{
	char *command = strsep(&line, " \n"), *name = strsep(&line, " \n"), *seed_text = strsep(&line, " \n");
	struct region *region = name ? find_region(name) : NULL;
	uint64_t seed = seed_text ? strtoull(seed_text, NULL, 0) : 0;
	size_t same;

	if (strcmp(command, "quit") == 0)
		return false;
	if (!region) {
		printf("RESULT %s FAIL no such region\n", command);
	} else if (strcmp(command, "fill") == 0) {
		pattern_fill(region->data, seed, 0, region->length);
		printf("RESULT fill ok\n");
	} else if (strcmp(command, "check") == 0) {
		same = pattern_compare(region->data, seed, 0, region->length);
		printf("RESULT check %s first difference at %zu of %llu\n", same == region->length ? "ok" : "FAIL",
		       same, (unsigned long long)region->length);
	} else if (strcmp(command, "deregister") == 0) {
		deregister(region);
		printf("RESULT deregister ok\n");
	} else {
		printf("RESULT %s FAIL unknown command\n", command);
	}
	fflush(stdout);
	return true;
}

static void listen_at(struct rdma_event_channel *channel, const char *address, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
				  .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	struct rdma_cm_id *listener;

	errno = 0;
	if (!address || !port || getaddrinfo(address, port, &hints, &found))
		die("--listen and --port");
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, found->ai_addr) ||
	    rdma_listen(listener, BACKLOG))
		die("listen");
	freeaddrinfo(found);
	puts("LISTENING");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const struct option keys[] = {
		{ "listen", required_argument, NULL, 'l' },
		{ "port", required_argument, NULL, 'p' },
		{ "region", required_argument, NULL, 'r' },
		{ NULL, 0, NULL, 0 },
	};
	const char *address = NULL, *port = NULL;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	char line[256];
	int key;

	if (!channel)
		die("rdma_create_event_channel");
	while ((key = getopt_long(argc, argv, "", keys, NULL)) != -1) {
		if (key == 'l')
			address = optarg;
		else if (key == 'p')
			port = optarg;
		else if (key == 'r')
			add_region(optarg);
		else
			return 2;
	}
	/* A line left in a buffer would not wake poll. */
	setvbuf(stdin, NULL, _IONBF, 0);
	listen_at(channel, address, port);
	for (;;) {
		struct pollfd waiting[2] = {
			{ .fd = channel->fd, .events = POLLIN },
			{ .fd = STDIN_FILENO, .events = POLLIN },
		};

		if (poll(waiting, 2, -1) < 0)
			die("poll");
		if (waiting[0].revents)
			on_event(channel);
		if (waiting[1].revents && (!fgets(line, sizeof(line), stdin) || !on_line(line)))
			return 0;
	}
}
