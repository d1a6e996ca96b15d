/*
 * Memory that is unmapped, protected or truncated while it is registered and in use: the connection that uses it ends,
 * another one of the same process goes on. And a fault of the program itself.
 */
#include "link.h"

#include <sys/mman.h>

enum { VANISH_BYTES = 2 * NOTES * NOTE, PIECE = VANISH_BYTES / 4, WINDOW = 4, BEFORE = 200, AFTER = 300 };
enum what { WRITE, READ, SEND, RECEIVE, FETCH };

static const char *const whats[] = { "write", "read", "send", "receive", "fetch" };
static int vanish_file = -1;

/* Memory that is smaller than what the library maps: nothing takes its place. */
static uint8_t *vanishing(const char *how)
{
	uint8_t *at;

	if (strcmp(how, "truncate"))
		return memory(VANISH_BYTES);
	vanish_file = memfd_create("vanishing", MFD_CLOEXEC);
	NEED(vanish_file >= 0 && ftruncate(vanish_file, VANISH_BYTES) == 0);
	at = mmap(NULL, VANISH_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, vanish_file, 0);
	NEED(at != MAP_FAILED);
	return at;
}

static void vanish_now(uint8_t *region, const char *how)
{
	if (!strcmp(how, "unmap"))
		NEED(munmap(region, VANISH_BYTES) == 0);
	else if (!strcmp(how, "protect"))
		NEED(mprotect(region, VANISH_BYTES, PROT_NONE) == 0);
	else
		NEED(ftruncate(vanish_file, 0) == 0);
}

/* The connection whose memory goes, at either end. */
struct victim {
	struct link link;
	unsigned long posted, done;
	int failed, is_gone;
};

static void victim_post(struct victim *victim, enum ibv_wr_opcode opcode, uint32_t bytes)
{
	struct link *link = &victim->link;

	while (!victim->failed && !link->ended && victim->posted - victim->done < WINDOW) {
		uint64_t offset = victim->posted % WINDOW * PIECE;
		struct ibv_sge sge = { (uintptr_t)(link->region + offset), bytes, link->mr->lkey };

		if (link_post(link, opcode, victim->posted, sge, offset, IBV_SEND_SIGNALED))
			victim->failed = 1;
		else
			victim->posted++;
	}
}

/* Takes what has completed, and compares what has come as long as there is memory. */
static void victim_take(struct victim *victim, enum what what)
{
	struct link *link = &victim->link;
	struct ibv_wc wc;

	while (link_completion(link, &wc, 0) == 1) {
		if (wc.status != IBV_WC_SUCCESS) {
			victim->failed = 1;
		} else if (wc.opcode & IBV_WC_RECV) {
			if (what == SEND)
				NEED(is_filled(link->notes[wc.wr_id], NOTE, 3, 0));
			if (what == SEND)
				link_post_note(link, wc.wr_id);
			else if (!victim->is_gone)
				link_take(link, &wc);
		} else {
			if (wc.opcode == IBV_WC_RDMA_READ && !victim->is_gone)
				NEED(is_filled(link->region + wc.wr_id % WINDOW * PIECE, PIECE, 3, 0));
			victim->done++;
		}
	}
}

static void fill_pieces(uint8_t *region)
{
	for (int piece = 0; piece < WINDOW; piece++)
		fill(region + piece * PIECE, PIECE, 3, 0);
}

static int are_pieces_filled(const uint8_t *region)
{
	int filled = 1;

	for (int piece = 0; piece < WINDOW; piece++)
		filled &= is_filled(region + piece * PIECE, PIECE, 3, 0);
	return filled;
}

/* The end whose memory goes. It works on whenever the other connection, the witness, has brought a note. */
int vanish_server(char **arguments)
{
	const char *how = arguments[0];
	struct victim victim = { 0 };
	struct link witness = { 0 };
	uint8_t *region = vanishing(how);
	unsigned notes = 0;
	struct ibv_wc wc;
	enum what what;
	int got;

	listening();
	link_await(&victim.link);
	what = victim.link.far.what;
	if (what == RECEIVE)
		victim.link.notes = (uint8_t(*)[NOTE])region;
	else if (what == READ || what == SEND)
		fill_pieces(region);
	link_accept(&victim.link, region, VANISH_BYTES);
	link_await(&witness);
	link_accept(&witness, memory(4096), 4096);
	while ((got = link_completion(&witness, &wc, PATIENCE_MS)) == 1) {
		if (wc.status != IBV_WC_SUCCESS || !(wc.opcode & IBV_WC_RECV))
			continue;
		if (what == SEND || what == FETCH)
			victim_post(&victim, what == SEND ? IBV_WR_SEND : IBV_WR_RDMA_READ,
				    what == SEND ? NOTE : PIECE);
		if (++notes == BEFORE) {
			NEED(!victim.failed && !victim.link.ended);
			NEED(what == RECEIVE || are_pieces_filled(region));
			vanish_now(region, how);
			victim.is_gone = 1;
		}
		NEED(link_note(&witness, link_take(&witness, &wc)) == 0);
		victim_take(&victim, what);
	}
	printf("%s, %s: %u notes; the connection %s, %s\n", how, whats[what], notes,
	       victim.link.ended ? "has ended" : "goes on", victim.failed ? "a request failed" : "no request failed");
	NEED(got == 0 && victim.is_gone && (victim.link.ended || victim.failed));
	NEED(ibv_dereg_mr(victim.link.mr) == 0);
	return 0;
}

static void victim_request(struct victim *victim, enum what what)
{
	if (what == WRITE || what == READ)
		victim_post(victim, what == WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, PIECE);
	while (what == RECEIVE && !victim->failed && !victim->link.ended && victim->posted - victim->done < WINDOW)
		if (link_note(&victim->link, (struct head){ .tag = 4, .number = (uint32_t)victim->posted++ }))
			victim->failed = 1;
}

int vanish(char **arguments)
{
	struct victim victim = { 0 };
	struct link witness = { 0 };
	uint8_t *local = memory(VANISH_BYTES);
	unsigned after = 0;
	double until = now() + 2 * PATIENCE_MS / 1e3;
	enum what what = WRITE;
	struct ibv_wc wc;

	while (strcmp(whats[what], arguments[0]))
		what++;
	open_channel();
	if (what == WRITE || what == FETCH)
		fill_pieces(local);
	link_connect(&victim.link, local, VANISH_BYTES, (struct offer){ .what = (uint16_t)what });
	link_connect(&witness, memory(4096), 4096, (struct offer){ 0 });
	for (uint32_t number = 1; after < AFTER; number++) {
		victim_request(&victim, what);
		NEED(link_note(&witness, (struct head){ .tag = 9, .number = number }) == 0);
		do
			NEED(link_completion(&witness, &wc, PATIENCE_MS) == 1 && wc.status == IBV_WC_SUCCESS);
		while (!(wc.opcode & IBV_WC_RECV));
		NEED(link_take(&witness, &wc).number == number);
		victim_take(&victim, what);
		after += victim.failed || victim.link.ended;
		NEED(now() < until);
	}
	printf("%s: %lu requests completed; then %u round trips of the other connection\n", whats[what],
	       victim.done, after);
	NEED(rdma_disconnect(witness.id) == 0);
	return 0;
}

/* A fault of the program itself, which ends it as without a device. */
int fault(char **arguments)
{
	struct rdma_cm_id *id;

	(void)arguments;
	open_channel();
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (struct sockaddr *)&address) == 0 && id->verbs);
	*(volatile int *)NULL = 1;
	return 0;
}
