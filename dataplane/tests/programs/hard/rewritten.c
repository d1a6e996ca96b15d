/*
 * RDMA Reads of a region that its program rewrites meanwhile. Each byte that arrives is one that the program wrote at
 * this place; words of 8 bytes arrive whole by Reads of up to 128 bytes, and may be torn by longer ones.
 */
#include "link.h"

#include <pthread.h>

/* The region is counters, which short Reads read, and then bytes for long ones. */
enum { REGION = 1 << 18, COUNTERS = 1 << 16, LONGEST = 1 << 16, SHORTEST = 129, READS = 4, LINE = 64 };

/* Short Reads: of which bytes, and how far behind the begin of a line of the cache. */
static const struct { uint32_t bytes, behind; } shorts[] = {
	{ 8, 0 }, { 8, 8 }, { 8, 56 }, { 64, 0 }, { 64, 8 }, { 64, 56 }, { 128, 0 }, { 128, 8 }, { 128, 56 },
};

struct reading {
	uint64_t offset;
	uint32_t bytes;
	int is_short;
};

struct reader {
	struct link link;
	uint8_t *into;
	struct ibv_mr *mr;
	struct reading readings[READS];
	unsigned long posted, done, wrong_words, wrong_bytes;
	/* Short and long Reads, and long ones with bytes of more than one round. */
	unsigned long short_ones, long_ones, mixed;
	/* The latest round of a counter, and how many counters were of a later round than all before. */
	uint64_t latest, advances;
};

static uint64_t *region;
static atomic_int is_enough;
static atomic_ulong rounds_done;

static uint64_t mix(uint64_t bits)
{
	bits *= 0x9e3779b97f4a7c15;
	return (bits ^ bits >> 29) * 0xff51afd7ed558ccd;
}

/* A counter: the round, and bits that follow from it and from the place. */
static uint64_t counter(uint64_t round, uint64_t index)
{
	return round << 32 | mix(round << 32 ^ (index + 1)) >> 32;
}

/* Eight bytes of the rest: the upper half of each follows from the place, the lower half is of the round. */
static uint64_t eight_bytes(uint64_t round, uint64_t index)
{
	return (mix(index + 1) & 0xf0f0f0f0f0f0f0f0) | (round & 0xf) * 0x0101010101010101;
}

static void write_round(uint64_t round)
{
	for (uint64_t index = 0; index < REGION / 8; index++) {
		uint64_t word = index < COUNTERS / 8 ? counter(round, index) : eight_bytes(round, index);

		__atomic_store_n(&region[index], word, __ATOMIC_RELAXED);
	}
}

static void *rewrite(void *argument)
{
	(void)argument;
	for (uint64_t round = 1; !is_enough; round++) {
		write_round(round);
		atomic_store(&rounds_done, round);
	}
	return NULL;
}

static void compare_words(struct reader *reader, const struct reading *reading, const uint64_t *words)
{
	for (uint32_t at = 0; at < reading->bytes / 8; at++) {
		uint64_t round = words[at] >> 32, index = reading->offset / 8 + at;

		if (words[at] != counter(round, index)) {
			if (!reader->wrong_words++)
				fprintf(stderr, "word %u of a Read of %u bytes at offset %lu is %#lx\n", at,
					reading->bytes, reading->offset, words[at]);
		} else if (round > reader->latest) {
			reader->latest = round;
			reader->advances++;
		}
	}
	reader->short_ones++;
}

static void compare_bytes(struct reader *reader, const struct reading *reading, const uint8_t *bytes)
{
	unsigned rounds = 0;

	for (uint32_t at = 0; at < reading->bytes; at++) {
		uint64_t place = reading->offset + at;
		uint8_t wanted = (uint8_t)(eight_bytes(0, place / 8) >> place % 8 * 8);

		if ((bytes[at] & 0xf0) != wanted && !reader->wrong_bytes++)
			fprintf(stderr, "byte %u of a Read of %u bytes at offset %lu is %#x\n", at, reading->bytes,
				reading->offset, bytes[at]);
		rounds |= 1u << (bytes[at] & 0xf);
	}
	reader->mixed += (rounds & (rounds - 1)) != 0;
	reader->long_ones++;
}

/* Posts a Read: one of four is long, of any bytes at any address. */
static void post_read(struct reader *reader)
{
	unsigned long number = reader->posted++, slot = number % READS;
	struct reading *reading = &reader->readings[slot];
	uint64_t chosen = mix(number + 1) >> 32;
	struct ibv_sge sge = { (uintptr_t)(reader->into + slot * LONGEST), 0, reader->mr->lkey };

	reading->is_short = number % 4 != 0;
	if (reading->is_short) {
		unsigned long kind = (number - number / 4 - 1) % (sizeof(shorts) / sizeof(*shorts));

		reading->bytes = shorts[kind].bytes;
		reading->offset = chosen % (COUNTERS / LINE - 3) * LINE + shorts[kind].behind;
	} else {
		reading->bytes = SHORTEST + (uint32_t)(chosen % (LONGEST - SHORTEST + 1));
		reading->offset = COUNTERS + (chosen >> 4) % (REGION - COUNTERS - LONGEST + 1);
	}
	sge.length = reading->bytes;
	/* No byte of an earlier Read may count. */
	memset(reader->into + slot * LONGEST, 0xff, reading->bytes);
	NEED(link_post(&reader->link, IBV_WR_RDMA_READ, slot, sge, reading->offset, IBV_SEND_SIGNALED) == 0);
}

/* Takes a completion. Returns 1 if it is of a note, sent or received. */
static int take(struct reader *reader)
{
	const struct reading *reading;
	const uint8_t *bytes;
	struct ibv_wc wc;

	NEED(link_completion(&reader->link, &wc, PATIENCE_MS) == 1);
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "a request has failed: %s\n", ibv_wc_status_str(wc.status));
	NEED(wc.status == IBV_WC_SUCCESS);
	if (wc.opcode & IBV_WC_RECV)
		link_take(&reader->link, &wc);
	if (wc.opcode != IBV_WC_RDMA_READ)
		return 1;
	reading = &reader->readings[wc.wr_id];
	bytes = reader->into + wc.wr_id * LONGEST;
	NEED(wc.byte_len == 0 || wc.byte_len == reading->bytes);
	if (reading->is_short)
		compare_words(reader, reading, (const uint64_t *)bytes);
	else
		compare_bytes(reader, reading, bytes);
	reader->done++;
	return 0;
}

static int read_rewritten(unsigned seconds, int is_server)
{
	struct reader reader = { .into = memory(READS * LONGEST) };
	pthread_t thread;
	double until;
	int notes = 0;

	region = memory(REGION);
	write_round(0);
	NEED(pthread_create(&thread, NULL, rewrite, NULL) == 0);
	if (is_server) {
		listening();
		link_await(&reader.link);
		link_accept(&reader.link, (uint8_t *)region, REGION);
	} else {
		open_channel();
		link_connect(&reader.link, (uint8_t *)region, REGION, (struct offer){ 0 });
	}
	NEED((reader.mr = ibv_reg_mr(reader.link.id->pd, reader.into, READS * LONGEST, IBV_ACCESS_LOCAL_WRITE)));
	until = now() + seconds;
	while (now() < until || reader.done < reader.posted) {
		while (now() < until && reader.posted - reader.done < READS)
			post_read(&reader);
		notes += take(&reader);
	}
	/* Each end goes on answering until the other has read, too. */
	NEED(link_note(&reader.link, (struct head){ .tag = 1, .number = 1 }) == 0);
	while (notes < 2)
		notes += take(&reader);
	is_enough = 1;
	pthread_join(thread, NULL);
	printf("%lu short and %lu long Reads, %lu of these of several rounds; ", reader.short_ones, reader.long_ones,
	       reader.mixed);
	printf("%lu rounds here, up to %lu there; %lu short words torn, %lu bytes wrong\n", rounds_done, reader.latest,
	       reader.wrong_words, reader.wrong_bytes);
	usleep(200000);
	return reader.wrong_words || reader.wrong_bytes || reader.advances < 2 || reader.short_ones < 100 ||
	       !reader.mixed;
}

int rewritten_server(char **arguments)
{
	return read_rewritten(number_of(arguments[0]), 1);
}

int rewritten(char **arguments)
{
	return read_rewritten(number_of(arguments[0]), 0);
}
