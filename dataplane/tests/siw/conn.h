/* One connection to the region service through librdmacm, with work posted and completions awaited. */
#ifndef CONN_H
#define CONN_H

#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>

#include "region.h"

enum {
	CONN_DEPTH = 32,     /* work requests of the bulk operations that may be outstanding */
	/*
	 * Default limit of outstanding work requests. libsiw treats a queue mapped at offset 0x90000, page 144 of a
	 * process's mappings, as one without a mapping (SIW_INVAL_UOBJ_KEY), and then fails to create the queue pair
	 * without an errno: the queues of 16 connections must end before that page.
	 */
	CONN_SENDS = 64,
	CONN_READS_MAX = 128 /* siw's own bound of IRD and ORD */
};

/* Address and parameters of a connection. */
struct target {
	struct sockaddr_storage address;
	struct region_request request;
	const uint8_t *raw_private; /* sent instead of the request if not NULL */
	size_t raw_private_len;
	int ird;        /* Reads that the peer may have outstanding */
	int ord;        /* Reads that this side may have outstanding */
	int sends;      /* work requests that may be outstanding; 0 for CONN_SENDS */
	int settle_ms;  /* pause after the connection is up, before the first work request */
	int timeout_ms; /* for one completion */
};

struct conn {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct region_reply grant; /* valid if established or rejected with a well-formed reply */
	bool established;
	bool port_waits; /* rdma_connect: the local port may not be used now */
	int timeout_ms;
	char error[160]; /* why the last call failed */
};

enum conn_result {
	CONN_ESTABLISHED,
	CONN_REJECTED, /* grant.status says why */
	CONN_FAILED,   /* error says why: anything that is neither of the above */
};

/* Opens the connection. conn_close must be called whatever the result; it may be called twice. */
enum conn_result conn_open(struct conn *conn, const struct target *target);
/* Ends it in order and waits for the peer's answer. */
void conn_close(struct conn *conn);
/* Takes everything away at once, as the end of a process would. */
void conn_drop(struct conn *conn);

/* The steps of conn_open, for who speaks another protocol. False, with error set, on failure. */
bool conn_resolve(struct conn *conn, const struct sockaddr_storage *address);
bool conn_make_qp(struct conn *conn, uint32_t sends, uint32_t receives);
/* Waits for the event that says that a step succeeded. */
bool conn_await(struct conn *conn, enum rdma_cm_event_type wanted);

enum conn_op { OP_WRITE, OP_READ };

struct work {
	enum conn_op op;
	uint64_t id;
	struct ibv_mr *mr;
	uint8_t *local;
	uint32_t len;
	uint32_t stag;
	uint64_t offset; /* tagged offset */
	bool unsignaled;
};

/* Registers local memory; NULL (and error set) on failure. */
struct ibv_mr *conn_register(struct conn *conn, void *data, size_t len);
bool conn_post(struct conn *conn, const struct work *work);
/* Waits for the next completion: 1 got one (whatever its status), 0 timeout, -1 failure. */
int conn_next(struct conn *conn, struct ibv_wc *wc);
/* Posts one signaled work request and waits for its good completion; only with nothing outstanding. */
bool conn_do(struct conn *conn, const struct work *work);
/* True if the peer ends the connection within ms. */
bool conn_wait_down(struct conn *conn, int ms);
/* A tagged offset inside the grant. */
uint64_t conn_at(const struct conn *conn, uint64_t offset);

#endif
