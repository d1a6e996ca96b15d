#include "turns.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PAGE = 4096,
	GUARD = 64, /* bytes after a sink that must stay unchanged */
	POISON = 0xa5,
	DOWN_MS = 20000,
};

/* Purpose of a random draw. */
enum what { SOURCE, WRITTEN, FILLER };

/* Kind of a work request: the low bits of its id. */
enum tag { TAG_READ, TAG_WRITE, TAG_SEND, TAG_RECEIVE, TAGS };

enum { FLAG_TRESPASS = 1, FLAG_CONNECTOR_READS = 2, FLAG_LISTENER_READS = 4 };

struct header {
	uint32_t turn, slot, source_stag, sink_stag;
	uint64_t source, sink;
	uint32_t invalidates; /* the STag that the Send itself names; 0: none */
	uint32_t filler;
};

/* Each buffer begins a page, so that siw's short Writes and Read Responses cross none. */
struct slot {
	uint8_t *source; /* for the peer to read */
	uint8_t *sink;   /* for the peer to write */
	uint8_t *out;    /* source of our Writes */
	uint8_t *got;    /* sink of our Reads */
	uint8_t *message;
	struct ibv_mr *sink_mr; /* valid for as long as the peer has not invalidated it */
	struct header peer;     /* what its last message said */
	uint32_t turn;          /* of the last message, sent or received */
	uint32_t awaited;       /* the turn of the next message that is received */
	uint32_t revoked;       /* an STag of the peer that we have invalidated; 0: none */
	uint64_t revoked_at;
	bool reading, sent_last;
};

struct turns {
	struct conn *conn;
	struct turns_terms terms;
	bool connector, reads;
	size_t span, message_span;
	uint8_t *arena, *receives;
	size_t arena_len;
	struct ibv_mr *arena_mr, *receives_mr;
	struct slot *slots;
	uint32_t done; /* slots that have finished their last turn */
	struct turns_result *result;
};

void turns_terms_encode(const struct turns_terms *terms, uint8_t out[TURNS_TERMS_LEN])
{
	uint16_t slots = htobe16(terms->slots);
	uint32_t turns = htobe32(terms->turns), bytes = htobe32(terms->bytes);
	uint64_t seed = htobe64(terms->seed);

	memcpy(out, "TRN1", 4);
	memcpy(out + 4, &slots, 2);
	out[6] = (uint8_t)((terms->trespass ? FLAG_TRESPASS : 0) |
			   (terms->connector_reads ? FLAG_CONNECTOR_READS : 0) |
			   (terms->listener_reads ? FLAG_LISTENER_READS : 0));
	out[7] = 0;
	memcpy(out + 8, &turns, 4);
	memcpy(out + 12, &bytes, 4);
	memcpy(out + 16, &seed, 8);
}

bool turns_terms_decode(const uint8_t *data, size_t len, struct turns_terms *terms)
{
	uint16_t slots;
	uint32_t turns, bytes;
	uint64_t seed;

	if (len != TURNS_TERMS_LEN || memcmp(data, "TRN1", 4) != 0 || data[6] > 7 || data[7] != 0)
		return false;
	memcpy(&slots, data + 4, 2);
	memcpy(&turns, data + 8, 4);
	memcpy(&bytes, data + 12, 4);
	memcpy(&seed, data + 16, 8);
	*terms = (struct turns_terms){
		.slots = be16toh(slots),
		.trespass = data[6] & FLAG_TRESPASS,
		.connector_reads = data[6] & FLAG_CONNECTOR_READS,
		.listener_reads = data[6] & FLAG_LISTENER_READS,
		.turns = be32toh(turns),
		.bytes = be32toh(bytes),
		.seed = be64toh(seed),
	};
	return terms->slots >= 1 && terms->slots <= TURNS_SLOTS_MAX && terms->turns >= 2 && terms->turns % 2 == 0 &&
	       terms->bytes >= 1 && terms->bytes <= TURNS_BYTES_MAX;
}

uint32_t turns_sends(const struct turns_terms *terms)
{
	/* A Write, a Send and a Read each, and as many whose completions are behind. */
	return 6u * terms->slots + 2;
}

uint32_t turns_receives(const struct turns_terms *terms)
{
	return 2u * terms->slots;
}

/* Returns a random number that is unique for turn, slot and purpose. */
static uint64_t draw(const struct turns *turns, uint32_t turn, uint32_t slot, enum what what)
{
	uint64_t state = turns->terms.seed * 0xd1342543de82ef95u + ((uint64_t)turn << 24 | slot << 4 | what);

	return random_next(&state);
}

static uint64_t seed_of(const struct turns *turns, uint32_t turn, uint32_t slot, enum what what)
{
	return draw(turns, turn, slot, what) | 1;
}

/* Returns a length of 1 to terms.bytes; each power of two is equally likely. */
static uint32_t length_of(const struct turns *turns, uint32_t turn, uint32_t slot, enum what what)
{
	uint64_t random = draw(turns, turn, slot, what);
	uint32_t len = 1u << (random >> 8) % 21;

	while (len > turns->terms.bytes)
		len /= 2;
	len += (uint32_t)(random >> 16) % len;
	return len < turns->terms.bytes ? len : turns->terms.bytes;
}

static bool solicited(uint32_t turn, uint32_t slot)
{
	return (turn / 2 + slot) & 1;
}

static bool invalidates(uint32_t turn, uint32_t slot)
{
	return turn > 0 && ((turn / 2 + slot) & 2);
}

__attribute__((format(printf, 2, 3))) static bool fail(struct turns *turns, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(turns->result->detail, sizeof(turns->result->detail), format, arguments);
	va_end(arguments);
	return false;
}

static void header_encode(const struct header *header, uint8_t *out)
{
	uint32_t words[4] = { htobe32(header->turn), htobe32(header->slot), htobe32(header->source_stag),
			      htobe32(header->sink_stag) };
	uint64_t places[2] = { htobe64(header->source), htobe64(header->sink) };
	uint32_t rest[2] = { htobe32(header->invalidates), htobe32(header->filler) };

	memcpy(out, words, 16);
	memcpy(out + 16, places, 16);
	memcpy(out + 32, rest, 8);
}

static struct header header_decode(const uint8_t *data)
{
	uint32_t words[4], rest[2];
	uint64_t places[2];

	memcpy(words, data, 16);
	memcpy(places, data + 16, 16);
	memcpy(rest, data + 32, 8);
	return (struct header){
		.turn = be32toh(words[0]),
		.slot = be32toh(words[1]),
		.source_stag = be32toh(words[2]),
		.sink_stag = be32toh(words[3]),
		.source = be64toh(places[0]),
		.sink = be64toh(places[1]),
		.invalidates = be32toh(rest[0]),
		.filler = be32toh(rest[1]),
	};
}

static bool post(struct turns *turns, uint32_t slot, enum tag tag, struct ibv_send_wr *wr, uint8_t *data, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = len, .lkey = turns->arena_mr->lkey };
	struct ibv_send_wr *bad;

	wr->wr_id = (uint64_t)slot * TAGS + tag;
	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_SIGNALED;
	turns->result->bytes += len;
	return ibv_post_send(turns->conn->id->qp, wr, &bad) == 0 || fail(turns, "ibv_post_send: no room");
}

static bool post_receive(struct turns *turns, uint32_t index)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)(turns->receives + index * turns->message_span),
		.length = TURNS_HEADER_LEN + turns->terms.bytes,
		.lkey = turns->receives_mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)index * TAGS + TAG_RECEIVE, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	return ibv_post_recv(turns->conn->id->qp, &wr, &bad) == 0;
}

/* Registers the sink for the peer, with a new STag if it has invalidated the last one. */
static bool renew_sink(struct turns *turns, struct slot *slot, bool invalidated)
{
	if (invalidated) {
		ibv_dereg_mr(slot->sink_mr);
		slot->sink_mr = ibv_reg_mr(turns->conn->pd, slot->sink, turns->span,
					   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	}
	memset(slot->sink, POISON, turns->span);
	return slot->sink_mr || fail(turns, "ibv_reg_mr of a sink");
}

static bool write_sink(struct turns *turns, uint32_t slot, uint32_t turn)
{
	struct slot *it = &turns->slots[slot];
	uint32_t len = length_of(turns, turn, slot, WRITTEN);
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = it->peer.sink, .rkey = it->peer.sink_stag },
	};

	pattern_fill(it->out, seed_of(turns, turn, slot, WRITTEN), 0, len);
	turns->result->writes++;
	return post(turns, slot, TAG_WRITE, &wr, it->out, len);
}

static bool send_message(struct turns *turns, uint32_t slot, uint32_t turn)
{
	struct slot *it = &turns->slots[slot];
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = turn > 0 && turns->reads ? IBV_SEND_FENCE : 0 };
	struct header header = {
		.turn = turn,
		.slot = slot,
		.source_stag = turns->arena_mr->rkey,
		.sink_stag = it->sink_mr->rkey,
		.source = (uintptr_t)it->source,
		.sink = (uintptr_t)it->sink,
		.filler = length_of(turns, turn, slot, FILLER) - 1,
	};

	if (solicited(turn, slot))
		wr.send_flags |= IBV_SEND_SOLICITED;
	if (invalidates(turn, slot)) {
		wr.opcode = IBV_WR_SEND_WITH_INV;
		/* The verb's field, and the one that siw's library reads. */
		wr.invalidate_rkey = it->peer.sink_stag;
		wr.wr.rdma.rkey = it->peer.sink_stag;
		header.invalidates = it->peer.sink_stag;
		it->revoked = it->peer.sink_stag;
		it->revoked_at = it->peer.sink;
	}
	header_encode(&header, it->message);
	pattern_fill(it->message + TURNS_HEADER_LEN, seed_of(turns, turn, slot, FILLER), 0, header.filler);
	it->turn = turn;
	turns->result->sends++;
	return post(turns, slot, TAG_SEND, &wr, it->message, TURNS_HEADER_LEN + header.filler);
}

static bool take_turn(struct turns *turns, uint32_t slot, uint32_t turn)
{
	struct slot *it = &turns->slots[slot];

	pattern_fill(it->source, seed_of(turns, turn, slot, SOURCE), 0, length_of(turns, turn, slot, SOURCE));
	return (turn == 0 || write_sink(turns, slot, turn)) && send_message(turns, slot, turn);
}

static bool check_pattern(struct turns *turns, const uint8_t *data, uint32_t turn, uint32_t slot, enum what what,
			  uint32_t len)
{
	static const char *const names[] = { "source that was read", "sink", "message" };
	size_t same = pattern_compare(data, seed_of(turns, turn, slot, what), 0, len);

	return same == len || fail(turns, "slot %u turn %u: byte %zu of %u of the %s is wrong", slot, turn, same, len,
				   names[what]);
}

/* Checks the data that the peer has written in this turn, and the bytes after it. */
static bool check_sink(struct turns *turns, uint32_t slot, uint32_t turn)
{
	const uint8_t *sink = turns->slots[slot].sink;
	uint32_t len = turn == 0 ? 0 : length_of(turns, turn, slot, WRITTEN);

	if (!check_pattern(turns, sink, turn, slot, WRITTEN, len))
		return false;
	for (size_t i = len; i < len + GUARD; i++)
		if (sink[i] != POISON)
			return fail(turns, "slot %u turn %u: byte %zu behind the %u written has changed", slot, turn,
				    i - len, len);
	return true;
}

static bool read_source(struct turns *turns, uint32_t slot)
{
	struct slot *it = &turns->slots[slot];
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = { .remote_addr = it->peer.source, .rkey = it->peer.source_stag },
	};

	memset(it->got, POISON, turns->span);
	it->reading = true;
	turns->result->reads++;
	return post(turns, slot, TAG_READ, &wr, it->got, length_of(turns, it->turn, slot, SOURCE));
}

static bool check_message(struct turns *turns, const struct header *header, uint32_t len)
{
	struct slot *it;
	uint32_t turn = header->turn;

	if (len < TURNS_HEADER_LEN || header->slot >= turns->terms.slots || len != TURNS_HEADER_LEN + header->filler)
		return fail(turns, "a message of %u bytes for slot %u", len, header->slot);
	it = &turns->slots[header->slot];
	if (turn >= turns->terms.turns || turn != it->awaited ||
	    header->filler != length_of(turns, turn, header->slot, FILLER) - 1)
		return fail(turns, "slot %u: turn %u, not turn %u", header->slot, turn, it->awaited);
	if (header->invalidates != (invalidates(turn, header->slot) ? it->sink_mr->rkey : 0))
		return fail(turns, "slot %u turn %u: STag %#x invalidated", header->slot, turn, header->invalidates);
	return true;
}

static bool on_message(struct turns *turns, uint32_t index, uint32_t len)
{
	uint8_t *message = turns->receives + index * turns->message_span;
	struct header header = header_decode(message);
	uint32_t slot = header.slot;
	struct slot *it;

	if (!check_message(turns, &header, len) ||
	    !check_pattern(turns, message + TURNS_HEADER_LEN, header.turn, slot, FILLER, header.filler) ||
	    !check_sink(turns, slot, header.turn))
		return false;
	it = &turns->slots[slot];
	if (it->reading)
		return fail(turns, "slot %u turn %u: overtook the Read that it follows", slot, header.turn);
	it->peer = header;
	it->turn = header.turn;
	it->awaited += 2;
	turns->result->invalidated += header.invalidates != 0;
	if (!renew_sink(turns, it, header.invalidates != 0))
		return false;
	if (!post_receive(turns, index))
		return fail(turns, "ibv_post_recv");
	if (turns->reads && !read_source(turns, slot))
		return false;
	if (header.turn + 1 < turns->terms.turns)
		return take_turn(turns, slot, header.turn + 1);
	turns->done += !it->reading;
	return true;
}

/* True if this slot's last turn is the listening end's, and is in flight. */
static bool is_last_send(const struct turns *turns, uint32_t slot)
{
	const struct slot *it = &turns->slots[slot];

	return !turns->connector && it->turn + 1 == turns->terms.turns && !it->sent_last;
}

/* Handles a completion. */
static bool on_completion(struct turns *turns, const struct ibv_wc *wc)
{
	enum tag tag = (enum tag)(wc->wr_id % TAGS);
	uint32_t index = (uint32_t)(wc->wr_id / TAGS), turn;
	struct slot *it;

	/* The peer may receive the last message and disconnect before siw completes it: that is an error. */
	if (wc->status != IBV_WC_SUCCESS && !(tag == TAG_SEND && is_last_send(turns, index)))
		return fail(turns, "work request %llu: %s", (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
	if (tag == TAG_RECEIVE)
		return on_message(turns, index, wc->byte_len);
	it = &turns->slots[index];
	if (tag == TAG_READ) {
		it->reading = false;
		/* The turn of what was read: the peer's last. */
		turn = it->peer.turn;
		if (!check_pattern(turns, it->got, turn, index, SOURCE, length_of(turns, turn, index, SOURCE)))
			return false;
		turns->done += turn + 1 == turns->terms.turns;
	} else if (tag == TAG_SEND && is_last_send(turns, index)) {
		it->sent_last = true;
		turns->done++;
	}
	return true;
}

/* The connecting end writes to an invalidated STag: the peer must end the stream. */
static bool trespass(struct turns *turns)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	uint32_t slot = 0;

	while (slot < turns->terms.slots && turns->slots[slot].revoked == 0)
		slot++;
	if (slot == turns->terms.slots)
		return fail(turns, "no STag was invalidated: too few turns");
	wr.wr.rdma.remote_addr = turns->slots[slot].revoked_at;
	wr.wr.rdma.rkey = turns->slots[slot].revoked;
	if (!post(turns, slot, TAG_WRITE, &wr, turns->slots[slot].out, 1))
		return false;
	return conn_wait_down(turns->conn, DOWN_MS) || fail(turns, "a Write to an invalidated STag was not refused");
}

/* The listening end waits for the end and checks that its sinks are unchanged. */
static bool await_end(struct turns *turns)
{
	if (!conn_wait_down(turns->conn, DOWN_MS))
		return fail(turns, "the peer does not go");
	for (uint32_t slot = 0; slot < turns->terms.slots; slot++)
		for (size_t i = 0; i < turns->span; i++)
			if (turns->slots[slot].sink[i] != POISON)
				return fail(turns, "slot %u: byte %zu of the sink changed after the last turn", slot, i);
	return true;
}

bool turns_run(struct turns *turns, struct turns_result *result)
{
	int64_t started = now_ms();
	struct ibv_wc wc;

	memset(result, 0, sizeof(*result));
	turns->result = result;
	for (uint32_t slot = 0; turns->connector && slot < turns->terms.slots; slot++)
		if (!take_turn(turns, slot, 0))
			return false;
	while (turns->done < turns->terms.slots) {
		if (conn_next(turns->conn, &wc) != 1)
			return fail(turns, "%s", turns->conn->error);
		if (!on_completion(turns, &wc))
			return false;
	}
	if (!turns->connector ? !await_end(turns) : turns->terms.trespass && !trespass(turns))
		return false;
	snprintf(result->detail, sizeof(result->detail),
		 "sends=%llu writes=%llu reads=%llu invalidated=%llu bytes=%llu ms=%lld",
		 (unsigned long long)result->sends, (unsigned long long)result->writes,
		 (unsigned long long)result->reads, (unsigned long long)result->invalidated,
		 (unsigned long long)result->bytes, (long long)(now_ms() - started));
	return true;
}

static bool lay_out(struct turns *turns)
{
	size_t slots = turns->terms.slots, each = 4 * turns->span + turns->message_span;
	uint8_t *at;

	turns->arena_len = slots * each;
	turns->arena = aligned_alloc(PAGE, turns->arena_len);
	turns->receives = aligned_alloc(PAGE, 2 * slots * turns->message_span);
	turns->slots = calloc(slots, sizeof(*turns->slots));
	if (!turns->arena || !turns->receives || !turns->slots)
		return false;
	at = turns->arena;
	for (size_t i = 0; i < slots; i++, at += each) {
		struct slot *slot = &turns->slots[i];

		slot->awaited = turns->connector ? 1 : 0;
		slot->source = at;
		slot->sink = at + turns->span;
		slot->out = at + 2 * turns->span;
		slot->got = at + 3 * turns->span;
		slot->message = at + 4 * turns->span;
		memset(slot->sink, POISON, turns->span);
		slot->sink_mr = ibv_reg_mr(turns->conn->pd, slot->sink, turns->span,
					   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		if (!slot->sink_mr)
			return false;
	}
	turns->arena_mr = ibv_reg_mr(turns->conn->pd, turns->arena, turns->arena_len,
				     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	turns->receives_mr = conn_register(turns->conn, turns->receives, 2 * slots * turns->message_span);
	return turns->arena_mr && turns->receives_mr;
}

struct turns *turns_new(struct conn *conn, const struct turns_terms *terms, bool connector)
{
	struct turns *turns = calloc(1, sizeof(*turns));
	bool ok = turns != NULL;

	if (!ok)
		return NULL;
	turns->conn = conn;
	turns->terms = *terms;
	turns->connector = connector;
	turns->reads = connector ? terms->connector_reads : terms->listener_reads;
	turns->span = (terms->bytes + GUARD + PAGE - 1) / PAGE * PAGE;
	turns->message_span = (TURNS_HEADER_LEN + terms->bytes + PAGE - 1) / PAGE * PAGE;
	ok = lay_out(turns);
	for (uint32_t i = 0; ok && i < turns_receives(terms); i++)
		ok = post_receive(turns, i);
	if (ok)
		return turns;
	snprintf(conn->error, sizeof(conn->error), "no memory for the turns, or none that can be registered");
	turns_free(turns);
	return NULL;
}

void turns_free(struct turns *turns)
{
	/* Registered memory must not be in use: the queue pair is destroyed first. */
	if (turns->conn->id && turns->conn->id->qp)
		rdma_destroy_qp(turns->conn->id);
	for (uint32_t i = 0; turns->slots && i < turns->terms.slots; i++)
		if (turns->slots[i].sink_mr)
			ibv_dereg_mr(turns->slots[i].sink_mr);
	if (turns->arena_mr)
		ibv_dereg_mr(turns->arena_mr);
	if (turns->receives_mr)
		ibv_dereg_mr(turns->receives_mr);
	free(turns->slots);
	free(turns->arena);
	free(turns->receives);
	free(turns);
}
