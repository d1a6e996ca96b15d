/* Writes and Reads over a whole region in pieces of 1 byte to 1 MiB, compared byte for byte. */
#ifndef BULK_H
#define BULK_H

#include "conn.h"

enum bulk_op {
	BULK_WRITE, /* the whole span in shuffled pieces, none waited for singly */
	BULK_READ,  /* the whole span in other shuffled pieces, compared with the pattern */
	BULK_MIX,   /* each piece written and read back by the Read posted right behind the Write */
};

struct bulk_result {
	bool ok;
	char detail[192]; /* what went wrong */
	uint64_t bytes;   /* moved, both ways together */
	uint64_t pieces;
	uint64_t odd;     /* pieces at odd offsets */
};

struct bulk; /* one connection with its source image and its sinks; covers one slice of the span */

struct bulk_options {
	uint64_t start;
	uint64_t span; /* bytes from start; 0: to the end of the region */
	uint32_t max_piece;
	bool peer_siw; /* keep Reads of at most 32 bytes off the pages' ends of the peer: siw garbles those */
};

/* Opens connection number index of count. NULL, with detail set, on failure. */
struct bulk *bulk_open(const struct target *target, const struct bulk_options *options, int index, int count,
		       char *detail, size_t detail_len);
void bulk_run(struct bulk *bulk, enum bulk_op op, uint64_t seed, struct bulk_result *result);
void bulk_close(struct bulk *bulk);

#endif
