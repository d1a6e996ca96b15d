/*
 * Ping-pong: both ends alternate with every operation that siw supports: RDMA Writes, RDMA Reads and the four
 * Sends, each checked byte for byte. Our end is `lab turns`, in dataplane/lab.
 *
 * The connecting end sends the parameters in its private data. In each of `slots` slots, the connecting end
 * takes turn 0, the listening end turn 1, and so on. A turn is an RDMA Write into the sink that the peer's last
 * message named (from turn 1 on) and a Send. The kind of the Send depends on (turn / 2 + slot): bit 0 requests
 * a solicited event, bit 1 invalidates that sink's STag (from turn 1 on). The receiver checks the message and
 * its sink, reads the sender's source by RDMA Read and checks it, and takes the next turn; its Send is fenced.
 * The listening end takes the last turn. The connecting end then disconnects, or, if so agreed, writes to an
 * STag that it has invalidated, which the peer must refuse.
 *
 * All integers are big-endian. The bytes of each buffer are the pattern (region.h) of turns_draw.
 */
#ifndef TURNS_H
#define TURNS_H

#include "conn.h"

enum {
	TURNS_TERMS_LEN = 24,
	TURNS_HEADER_LEN = 40,
	TURNS_SLOTS_MAX = 256,
	TURNS_BYTES_MAX = 1 << 20,
};

/* 0 "TRN1", 4 slots, 6 flags, 7 zero, 8 turns, 12 bytes, 16 seed */
struct turns_terms {
	uint16_t slots;     /* at a time */
	bool connector_reads;
	bool listener_reads;
	bool trespass;      /* the end is a Write to an STag that was invalidated */
	uint32_t turns;     /* of each slot; even */
	uint32_t bytes;     /* a source, a sink, and what follows a message's header: at most this many */
	uint64_t seed;
};

struct turns_result {
	char detail[256]; /* what was done, or what went wrong */
	uint64_t sends, writes, reads, invalidated, bytes;
};

void turns_terms_encode(const struct turns_terms *terms, uint8_t out[TURNS_TERMS_LEN]);
/* False if the bytes are no terms, or terms out of range. */
bool turns_terms_decode(const uint8_t *data, size_t len, struct turns_terms *terms);

/* What the queue pair of one end needs. */
uint32_t turns_sends(const struct turns_terms *terms);
uint32_t turns_receives(const struct turns_terms *terms);

struct turns; /* one end of one connection */

/*
 * Makes memory and posts receives: before the connection is established. conn has its queue pair. NULL, with conn's
 * error set, on failure.
 */
struct turns *turns_new(struct conn *conn, const struct turns_terms *terms, bool connector);
/* Runs all turns to the agreed end. */
bool turns_run(struct turns *turns, struct turns_result *result);
void turns_free(struct turns *turns);

#endif
