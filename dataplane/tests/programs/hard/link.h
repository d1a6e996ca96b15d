/* Connections whose ends reach memory of one another, and send short notes. */
#pragma once
#include <stdatomic.h>

#include "common.h"

enum { NOTES = 64, NOTE = 512 };

struct link {
	struct rdma_cm_id *id;
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *notes_mr;
	uint8_t *region;
	uint8_t (*notes)[NOTE];
	struct offer far;
	int ended;
};

/* Set before another thread ends the process: what calls return from then on does not matter. */
extern atomic_int exiting;

void link_post_note(struct link *link, uint64_t at);
/* A connection to the server, or one that has come to it, with a region that the peer may reach. */
void link_connect(struct link *link, uint8_t *region, size_t bytes, struct offer offer);
void link_await(struct link *link);
void link_accept(struct link *link, uint8_t *region, size_t bytes);
/* The next completion. Returns 0 once the connection has ended and all completions are taken, -1 after the time. */
int link_completion(struct link *link, struct ibv_wc *wc, int ms);
/* Posts a request; the offset is one in the region of the peer. */
int link_post(struct link *link, enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge sge, uint64_t offset,
	      int flags);
/* Sends a note: a head, and bytes that follow from it. */
int link_note(struct link *link, struct head head);
/* Reads a note that has come, and posts its buffer again. */
struct head link_take(struct link *link, const struct ibv_wc *wc);
void link_close(struct link *link);
