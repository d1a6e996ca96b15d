#include "bulk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PAGE = 4096,
	SMALL = 32, /* siw sends Writes of at most this many bytes by a path of its own */
	SMALL_SLOT = 64,
	SMALL_SLOTS = PAGE / SMALL_SLOT,
	GUARD = 64, /* bytes on either side of a sink that must stay unchanged */
	SINKS = 8,
	POISON = 0xa5,
	IMAGE_SHIFT = 13, /* the source image is deliberately misaligned */
};

struct piece {
	uint64_t offset;
	uint32_t len;
};

struct bulk {
	struct conn conn;
	struct bulk_options options;
	uint64_t start, len; /* the slice */
	uint8_t *memory;
	uint8_t *image;      /* in memory; what the slice should hold: source of every Write */
	uint8_t *small;      /* slots for short Writes whose source would cross a page */
	uint8_t *sinks;
	size_t sink_len;
	struct ibv_mr *image_mr, *small_mr, *sinks_mr;
	struct piece *pieces;
	size_t piece_count, piece_space;
	bool written; /* TCP may still have to resend from the image */
};

static bool crosses_page(uint64_t offset, uint32_t len)
{
	return offset / PAGE != (offset + len - 1) / PAGE;
}

static uint32_t piece_len(const struct bulk *bulk, size_t index, uint64_t offset, uint64_t left, uint64_t *rng)
{
	uint64_t random = random_next(rng);
	uint64_t len = (uint64_t)1 << (random % 21); /* each power of two up to 1 MiB is as likely */
	uint64_t max = bulk->options.max_piece;

	len += (random >> 8) % len;
	if (max > bulk->len / 4 + 1)
		max = bulk->len / 4 + 1; /* a small slice is cut up too */
	if (index == 0)
		len = 1; /* so that the largest follows at an odd offset */
	if (index == 1 || len > max)
		len = max;
	if (len > left)
		len = left;
	if (bulk->options.peer_siw && len <= SMALL && crosses_page(offset, (uint32_t)len))
		len = PAGE - offset % PAGE;
	return (uint32_t)len;
}

/* Cuts the slice into pieces and shuffles them. */
static bool plan(struct bulk *bulk, uint64_t rng)
{
	uint64_t offset = bulk->start, end = bulk->start + bulk->len;

	bulk->piece_count = 0;
	while (offset < end) {
		uint32_t len = piece_len(bulk, bulk->piece_count, offset, end - offset, &rng);

		if (bulk->piece_count == bulk->piece_space) {
			size_t space = bulk->piece_space ? 2 * bulk->piece_space : 256;
			struct piece *grown = realloc(bulk->pieces, space * sizeof(*grown));

			if (!grown)
				return false;
			bulk->pieces = grown;
			bulk->piece_space = space;
		}
		bulk->pieces[bulk->piece_count++] = (struct piece){ offset, len };
		offset += len;
	}
	for (size_t i = bulk->piece_count; i > 1; i--) {
		size_t j = random_next(&rng) % i;
		struct piece swap = bulk->pieces[i - 1];

		bulk->pieces[i - 1] = bulk->pieces[j];
		bulk->pieces[j] = swap;
	}
	return true;
}

static bool problem(struct bulk_result *result, const char *what)
{
	snprintf(result->detail, sizeof(result->detail), "%s", what);
	return false;
}

static struct work write_work(struct bulk *bulk, size_t index, uint64_t id)
{
	const struct piece *piece = &bulk->pieces[index];
	uint8_t *source = bulk->image + (piece->offset - bulk->start);
	struct work work = {
		.op = OP_WRITE,
		.id = id,
		.mr = bulk->image_mr,
		.local = source,
		.len = piece->len,
		.stag = bulk->conn.grant.stag,
		.offset = conn_at(&bulk->conn, piece->offset),
	};

	if (piece->len <= SMALL && crosses_page((uintptr_t)source, piece->len)) {
		work.mr = bulk->small_mr;
		work.local = bulk->small + index % SMALL_SLOTS * SMALL_SLOT;
		memcpy(work.local, source, piece->len);
	}
	return work;
}

static uint8_t *sink_of(struct bulk *bulk, size_t index)
{
	/* A different misalignment for each piece. */
	return bulk->sinks + index % SINKS * bulk->sink_len + GUARD + index * 7 % 61;
}

static struct work read_work(struct bulk *bulk, size_t index, uint64_t id)
{
	const struct piece *piece = &bulk->pieces[index];
	uint8_t *sink = sink_of(bulk, index);

	memset(sink - GUARD, POISON, piece->len + 2 * GUARD);
	return (struct work){
		.op = OP_READ,
		.id = id,
		.mr = bulk->sinks_mr,
		.local = sink,
		.len = piece->len,
		.stag = bulk->conn.grant.stag,
		.offset = conn_at(&bulk->conn, piece->offset),
	};
}

/* Checks the data of a Read. */
static bool check_read(struct bulk *bulk, size_t index, uint64_t seed, struct bulk_result *result)
{
	const struct piece *piece = &bulk->pieces[index];
	const uint8_t *sink = sink_of(bulk, index);
	size_t same = pattern_compare(sink, seed, piece->offset, piece->len);

	if (same != piece->len) {
		uint8_t want;

		pattern_fill(&want, seed, piece->offset + same, 1);
		snprintf(result->detail, sizeof(result->detail),
			 "offset %llu (byte %zu of a Read of %u at %llu) is %02x, not %02x",
			 (unsigned long long)(piece->offset + same), same, piece->len,
			 (unsigned long long)piece->offset, sink[same], want);
		return false;
	}
	for (size_t i = 0; i < GUARD; i++)
		if (sink[(ptrdiff_t)i - GUARD] != POISON || sink[piece->len + i] != POISON)
			return problem(result, "a Read wrote outside its sink");
	return true;
}

/* The id of the next completion, which must be good; -1 if it is not. */
static int64_t next_good(struct bulk *bulk, struct bulk_result *result)
{
	struct ibv_wc wc;

	if (conn_next(&bulk->conn, &wc) != 1) {
		problem(result, bulk->conn.error);
		return -1;
	}
	if (wc.status != IBV_WC_SUCCESS) {
		snprintf(result->detail, sizeof(result->detail), "work request %llu: %s",
			 (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		return -1;
	}
	return (int64_t)wc.wr_id;
}

/* Posts a Read after all Writes: its completion proves that they are placed, and that TCP resends nothing. */
static bool fence(struct bulk *bulk, struct bulk_result *result)
{
	struct work work = {
		.op = OP_READ,
		.id = UINT32_MAX,
		.mr = bulk->sinks_mr,
		.local = bulk->sinks,
		.len = 1,
		.stag = bulk->conn.grant.stag,
		.offset = conn_at(&bulk->conn, bulk->start),
	};

	if (!(bulk->conn.grant.access & ACCESS_READ))
		return true;
	if (!conn_do(&bulk->conn, &work))
		return problem(result, bulk->conn.error);
	bulk->written = false;
	return true;
}

/* Prepares the image for a new seed. */
static bool renew_image(struct bulk *bulk, uint64_t seed, struct bulk_result *result)
{
	if (bulk->written)
		return problem(result, "a second round of Writes needs the right to read");
	pattern_fill(bulk->image, seed, bulk->start, bulk->len);
	return true;
}

/* Waits for a Write beyond *done: Writes complete in order, one completion speaks for all before it. */
static bool next_write(struct bulk *bulk, int64_t *done, struct bulk_result *result)
{
	int64_t id = next_good(bulk, result);

	if (id >= 0 && id <= *done)
		return problem(result, "completions out of order");
	*done = id;
	return id >= 0;
}

static bool run_write(struct bulk *bulk, uint64_t seed, struct bulk_result *result)
{
	size_t count = bulk->piece_count;
	int64_t done = -1;

	if (!renew_image(bulk, seed, result))
		return false;
	bulk->written = true;
	for (size_t i = 0; i < count; i++) {
		struct work work;

		while ((int64_t)i - done > CONN_DEPTH)
			if (!next_write(bulk, &done, result))
				return false;
		work = write_work(bulk, i, i);
		/* siw sends unsignaled Writes without copying them: the test uses both kinds. */
		work.unsignaled = i % 2 == 1 && i + 1 != count;
		if (!conn_post(&bulk->conn, &work))
			return problem(result, bulk->conn.error);
	}
	while (done != (int64_t)count - 1)
		if (!next_write(bulk, &done, result))
			return false;
	return fence(bulk, result);
}

/* Reads every piece; with a Write in front of each if mixed. */
static bool run_read(struct bulk *bulk, uint64_t seed, bool mixed, struct bulk_result *result)
{
	size_t posted = 0, checked = 0;
	int64_t last[2] = { -1, -1 }; /* of the Writes, of the Reads: siw completes a Write before an earlier Read */

	if (mixed && !renew_image(bulk, seed, result))
		return false;
	bulk->written = mixed;
	while (checked < bulk->piece_count) {
		struct work work;
		int64_t id;

		if (posted < bulk->piece_count && posted - checked < SINKS) {
			if (mixed) {
				work = write_work(bulk, posted, 2 * posted);
				if (!conn_post(&bulk->conn, &work))
					return problem(result, bulk->conn.error);
			}
			work = read_work(bulk, posted, 2 * posted + 1);
			if (!conn_post(&bulk->conn, &work))
				return problem(result, bulk->conn.error);
			posted++;
			continue;
		}
		id = next_good(bulk, result);
		if (id < 0)
			return false;
		if (id <= last[id % 2])
			return problem(result, "completions out of order");
		last[id % 2] = id;
		if (id % 2 == 0)
			continue;
		if ((size_t)id / 2 != checked)
			return problem(result, "a Read completed out of turn");
		if (!check_read(bulk, checked, seed, result))
			return false;
		checked++;
	}
	bulk->written = false;
	return true;
}

void bulk_run(struct bulk *bulk, enum bulk_op op, uint64_t seed, struct bulk_result *result)
{
	memset(result, 0, sizeof(*result));
	if (!plan(bulk, seed * 31 + (uint64_t)op * 7 + bulk->start)) {
		problem(result, "out of memory");
		return;
	}
	if (op == BULK_WRITE)
		result->ok = run_write(bulk, seed, result);
	else
		result->ok = run_read(bulk, seed, op == BULK_MIX, result);
	result->bytes = op == BULK_MIX ? 2 * bulk->len : bulk->len;
	result->pieces = bulk->piece_count;
	for (size_t i = 0; i < bulk->piece_count; i++)
		result->odd += bulk->pieces[i].offset % 2;
}

static bool allocate(struct bulk *bulk)
{
	size_t image_len = bulk->len + PAGE;

	bulk->sink_len = (bulk->options.max_piece + 2 * GUARD + 64 + PAGE) / PAGE * PAGE;
	bulk->memory = aligned_alloc(PAGE, (image_len + PAGE - 1) / PAGE * PAGE);
	bulk->small = aligned_alloc(PAGE, PAGE);
	bulk->sinks = aligned_alloc(PAGE, SINKS * bulk->sink_len);
	if (!bulk->memory || !bulk->small || !bulk->sinks)
		return false;
	bulk->image = bulk->memory + IMAGE_SHIFT;
	bulk->image_mr = conn_register(&bulk->conn, bulk->memory, image_len);
	bulk->small_mr = conn_register(&bulk->conn, bulk->small, PAGE);
	bulk->sinks_mr = conn_register(&bulk->conn, bulk->sinks, SINKS * bulk->sink_len);
	return bulk->image_mr && bulk->small_mr && bulk->sinks_mr;
}

struct bulk *bulk_open(const struct target *target, const struct bulk_options *options, int index, int count,
		       char *detail, size_t detail_len)
{
	struct bulk *bulk = calloc(1, sizeof(*bulk));
	enum conn_result result;
	uint64_t span, slice;

	if (!bulk)
		return NULL;
	bulk->options = *options;
	result = conn_open(&bulk->conn, target);
	if (result == CONN_REJECTED)
		snprintf(detail, detail_len, "rejected with status %u", bulk->conn.grant.status);
	else
		snprintf(detail, detail_len, "%s", bulk->conn.error);
	if (result != CONN_ESTABLISHED)
		goto failed;
	if (bulk->conn.grant.access != target->request.access || options->start >= bulk->conn.grant.length) {
		snprintf(detail, detail_len, "granted access %u, length %llu", bulk->conn.grant.access,
			 (unsigned long long)bulk->conn.grant.length);
		goto failed;
	}
	span = bulk->conn.grant.length - options->start;
	if (options->span > 0 && options->span < span)
		span = options->span;
	/* Slices meet at odd offsets, inside pages that two connections then share. */
	slice = (span / (uint64_t)count) | 1;
	bulk->start = options->start + (uint64_t)index * slice;
	bulk->len = index + 1 == count ? options->start + span - bulk->start : slice;
	if (!allocate(bulk)) {
		snprintf(detail, detail_len, "no memory for the buffers %s", bulk->conn.error);
		goto failed;
	}
	return bulk;
failed:
	bulk_close(bulk);
	return NULL;
}

void bulk_close(struct bulk *bulk)
{
	if (bulk->image_mr)
		ibv_dereg_mr(bulk->image_mr);
	if (bulk->small_mr)
		ibv_dereg_mr(bulk->small_mr);
	if (bulk->sinks_mr)
		ibv_dereg_mr(bulk->sinks_mr);
	conn_close(&bulk->conn);
	free(bulk->memory);
	free(bulk->small);
	free(bulk->sinks);
	free(bulk->pieces);
	free(bulk);
}
