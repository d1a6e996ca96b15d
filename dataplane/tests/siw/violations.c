#include "violations.h"

#include <stdio.h>
#include <string.h>

enum { BUFFER = 4096, DOWN_MS = 15000, DRAIN_MS = 200 };

/* Position of the access in the region. */
enum place { FIRST_BYTE, LAST_BYTE, END, BEFORE, FAR, WRAP };

enum stag { OWN, OTHER_INDEX, OTHER_KEY, OTHER_STREAM, CLOSED_STREAM };

struct violation {
	const char *name;
	enum conn_op op;
	enum place place;
	uint32_t len;
	enum stag stag;
};

/* A Write is kept within one segment: segments of a longer one that lie in bounds are rightly placed. */
static const struct violation violations[] = {
	{ "write-past-end", OP_WRITE, LAST_BYTE, 2, OWN },
	{ "write-at-end", OP_WRITE, END, 1, OWN },
	{ "write-before", OP_WRITE, BEFORE, 2, OWN },
	{ "write-far", OP_WRITE, FAR, 64, OWN },
	{ "write-wrap", OP_WRITE, WRAP, 2, OWN },
	{ "read-past-end", OP_READ, LAST_BYTE, 4096, OWN },
	{ "read-at-end", OP_READ, END, 1, OWN },
	{ "read-before", OP_READ, BEFORE, 2, OWN },
	{ "read-far", OP_READ, FAR, 64, OWN },
	{ "read-wrap", OP_READ, WRAP, 2, OWN },
	{ "forbidden-write", OP_WRITE, FIRST_BYTE, 64, OWN },
	{ "forbidden-read", OP_READ, FIRST_BYTE, 64, OWN },
	{ "bad-stag-write", OP_WRITE, FIRST_BYTE, 64, OTHER_INDEX },
	{ "bad-stag-read", OP_READ, FIRST_BYTE, 64, OTHER_INDEX },
	{ "bad-key-write", OP_WRITE, FIRST_BYTE, 64, OTHER_KEY },
	{ "bad-key-read", OP_READ, FIRST_BYTE, 64, OTHER_KEY },
	{ "other-stream-write", OP_WRITE, FIRST_BYTE, 64, OTHER_STREAM },
	{ "other-stream-read", OP_READ, FIRST_BYTE, 64, OTHER_STREAM },
	{ "closed-stream-write", OP_WRITE, FIRST_BYTE, 64, CLOSED_STREAM },
	{ "closed-stream-read", OP_READ, FIRST_BYTE, 64, CLOSED_STREAM },
};

static const struct violation *find(const char *name)
{
	for (size_t i = 0; i < sizeof(violations) / sizeof(violations[0]); i++)
		if (strcmp(violations[i].name, name) == 0)
			return &violations[i];
	return NULL;
}

bool violation_exists(const char *name)
{
	return find(name) != NULL;
}

static uint64_t place_offset(const struct conn *conn, enum place place)
{
	switch (place) {
	case FIRST_BYTE:
		return conn_at(conn, 0);
	case LAST_BYTE:
		return conn_at(conn, conn->grant.length - 1);
	case END:
		return conn_at(conn, conn->grant.length);
	case BEFORE:
		return conn_at(conn, 0) - 1;
	case FAR:
		return conn_at(conn, conn->grant.length) + ((uint64_t)1 << 40);
	case WRAP:
		break;
	}
	return UINT64_MAX;
}

/*
 * Posts work and checks that the peer refuses it: the connection must end and no Read may have succeeded.
 * A Write completes locally when it is handed to TCP, so a Read of one byte behind it, which is allowed,
 * is the witness. siw completes what it flushes with an error, but never completes what is posted after it
 * has seen the Terminate, so that the connection is waited for, not the completion.
 */
static bool refused(struct conn *conn, const struct work *work, char *detail, size_t detail_len)
{
	struct work witness = *work;
	bool succeeded = false, down;
	struct ibv_wc wc;

	witness.op = OP_READ;
	witness.id = work->id + 1;
	witness.len = 1;
	witness.stag = conn->grant.stag;
	witness.offset = conn_at(conn, 0);
	snprintf(detail, detail_len, "ended without a completion");
	if (conn_post(conn, work) && work->op == OP_WRITE && (conn->grant.access & ACCESS_READ))
		conn_post(conn, &witness);
	down = conn_wait_down(conn, DOWN_MS);
	conn->timeout_ms = DRAIN_MS;
	while (conn_next(conn, &wc) == 1) {
		if (wc.status != IBV_WC_SUCCESS)
			snprintf(detail, detail_len, "ended; completion: %s", ibv_wc_status_str(wc.status));
		else if (work->op == OP_READ || wc.wr_id == witness.id)
			succeeded = true;
	}
	if (succeeded)
		snprintf(detail, detail_len, "a Read succeeded that must not");
	else if (!down)
		snprintf(detail, detail_len, "the connection stayed up: %s", conn->error);
	return down && !succeeded;
}

static bool open_or_say(struct conn *conn, const struct target *target, char *detail, size_t detail_len)
{
	enum conn_result result = conn_open(conn, target);

	if (result == CONN_ESTABLISHED)
		return true;
	if (result == CONN_REJECTED)
		snprintf(detail, detail_len, "rejected with status %u", conn->grant.status);
	else
		snprintf(detail, detail_len, "%s", conn->error);
	return false;
}

/* A Read of one byte by which a connection shows that it is untouched by what another did. */
static bool still_serves(struct conn *conn)
{
	static uint8_t byte[64];
	struct work work = { .op = OP_READ, .id = 7, .local = byte, .len = 1 };
	bool ok;

	work.stag = conn->grant.stag;
	work.offset = conn_at(conn, 0);
	work.mr = conn_register(conn, byte, sizeof(byte));
	ok = work.mr && conn_do(conn, &work);
	if (work.mr)
		ibv_dereg_mr(work.mr);
	return ok;
}

static bool violate(struct conn *conn, const struct violation *violation, uint32_t stag, char *detail,
		    size_t detail_len)
{
	static uint8_t data[BUFFER] __attribute__((aligned(4096)));
	struct work work = { .op = violation->op, .id = 1, .local = data, .len = violation->len, .stag = stag };
	bool ok;

	memset(data, 0x5a, sizeof(data));
	work.offset = place_offset(conn, violation->place);
	work.mr = conn_register(conn, data, sizeof(data));
	if (!work.mr) {
		snprintf(detail, detail_len, "%s", conn->error);
		return false;
	}
	ok = refused(conn, &work, detail, detail_len);
	for (size_t i = 0; ok && i < sizeof(data); i++) {
		/* The witness may not have landed either. */
		if (data[i] != 0x5a) {
			snprintf(detail, detail_len, "refused, but local memory changed at %zu", i);
			ok = false;
		}
	}
	ibv_dereg_mr(work.mr);
	return ok;
}

bool violation_run(const char *name, const struct target *target, char *detail, size_t detail_len)
{
	const struct violation *violation = find(name);
	struct conn first = { 0 }, conn = { 0 };
	bool second = violation && (violation->stag == OTHER_STREAM || violation->stag == CLOSED_STREAM);
	uint32_t stag;
	bool ok = false;

	if (!violation) {
		snprintf(detail, detail_len, "no such violation");
		return false;
	}
	if (second && !open_or_say(&first, target, detail, detail_len))
		goto out;
	stag = first.grant.stag;
	if (violation->stag == CLOSED_STREAM)
		conn_close(&first);
	if (!open_or_say(&conn, target, detail, detail_len))
		goto out;
	if (!second)
		stag = conn.grant.stag;
	if (violation->stag == OTHER_INDEX)
		stag += 0x100;
	if (violation->stag == OTHER_KEY)
		stag ^= 1;
	ok = violate(&conn, violation, stag, detail, detail_len);
	if (ok && violation->stag == OTHER_STREAM && !still_serves(&first)) {
		snprintf(detail, detail_len, "refused, but the other stream broke: %s", first.error);
		ok = false;
	}
out:
	conn_close(&conn);
	conn_close(&first);
	return ok;
}

/* A Write (where granted) and a Read (where granted) of the region's first bytes. */
static bool hold_prove(struct conn *conn, struct work *work, uint64_t seed)
{
	if (conn->grant.access & ACCESS_WRITE) {
		pattern_fill(work->local, seed, 0, work->len);
		work->op = OP_WRITE;
		work->id = 1;
		if (!conn_do(conn, work))
			return false;
	}
	if (conn->grant.access & ACCESS_READ) {
		work->op = OP_READ;
		work->id = 2;
		return conn_do(conn, work);
	}
	return true;
}

bool hold_run(enum conn_op op, const struct target *target, uint64_t seed, char *detail, size_t detail_len)
{
	static uint8_t data[BUFFER] __attribute__((aligned(4096)));
	struct work work = { .local = data, .len = 64 };
	struct conn conn = { 0 };
	char line[64];
	bool ok = false;

	if (!open_or_say(&conn, target, detail, detail_len))
		goto out;
	work.stag = conn.grant.stag;
	work.offset = conn_at(&conn, 0);
	work.mr = conn_register(&conn, data, sizeof(data));
	if (!work.mr || !hold_prove(&conn, &work, seed)) {
		snprintf(detail, detail_len, "before: %s", conn.error);
		goto out;
	}
	puts("HOLDING");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin)) {
		snprintf(detail, detail_len, "no line on standard input");
		goto out;
	}
	memset(data, 0x5a, sizeof(data));
	work.op = op;
	work.id = 3;
	ok = refused(&conn, &work, detail, detail_len);
out:
	if (work.mr)
		ibv_dereg_mr(work.mr);
	conn_close(&conn);
	return ok;
}
