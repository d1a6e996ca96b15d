/*
 * The region service as it is spoken in MPA private data, and what the client and the server share:
 * the deterministic pattern of a region's bytes, a generator of random numbers, and clocks.
 */
#ifndef REGION_H
#define REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum region_access {
	ACCESS_READ = 1,
	ACCESS_WRITE = 2,
	ACCESS_ATOMIC = 4,
};

enum region_status {
	STATUS_OK = 0,
	STATUS_NO_SUCH_REGION = 1,
	STATUS_NOT_PERMITTED = 2,
	STATUS_NO_RESOURCES = 3,
	STATUS_MALFORMED = 4,
};

enum {
	REGION_NAME_MAX = 63,
	REGION_TOKEN_MAX = 32,
	REGION_REQUEST_MAX = 8 + REGION_NAME_MAX + REGION_TOKEN_MAX,
	REGION_REPLY_LEN = 32,
};

struct region_request {
	uint8_t access;
	uint8_t name_len;
	uint8_t token_len;
	char name[REGION_NAME_MAX + 1];
	uint8_t token[REGION_TOKEN_MAX];
};

struct region_reply {
	uint8_t status;
	uint8_t access;
	uint32_t stag;
	uint64_t base;   /* tagged offset of the region's first byte */
	uint64_t length; /* bytes */
};

/* Returns the number of bytes written to out. */
size_t region_request_encode(const struct region_request *request, uint8_t out[REGION_REQUEST_MAX]);
/* False if the bytes are no request. siw hands over exactly what was sent, so trailing bytes are refused. */
bool region_request_decode(const uint8_t *data, size_t len, struct region_request *request);
void region_reply_encode(const struct region_reply *reply, uint8_t out[REGION_REPLY_LEN]);
/* False unless the bytes are exactly one reply with its reserved bytes zero. */
bool region_reply_decode(const uint8_t *data, size_t len, struct region_reply *reply);
/* Parses a combination of the letters r, w and a; -1 if there is another letter or none. */
int region_access_parse(const char *text);

/* splitmix64: the next value of a generator whose state is *state. */
uint64_t random_next(uint64_t *state);
/*
 * Writes the pattern of seed for the bytes [offset, offset + len) of a region. Seed 0 is the pattern of
 * a fresh region: zeros.
 */
void pattern_fill(uint8_t *out, uint64_t seed, uint64_t offset, size_t len);
/* Index of the first byte that differs from the pattern, or len. */
size_t pattern_compare(const uint8_t *data, uint64_t seed, uint64_t offset, size_t len);

int64_t now_ms(void);
void sleep_ms(int ms);

#endif
