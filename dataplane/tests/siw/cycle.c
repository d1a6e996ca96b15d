#include "cycle.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	AT_ONCE_MAX = 64,
	PAGE = 4096,
	READS = 8,         /* in flight when a connection is dropped */
	READ_LEN = 16384,  /* of each */
	DEPTH_READS = 200, /* more than any depth */
	DOWN_MS = 15000,
};

/* The way in which a connection of a cycle ends. */
enum way {
	WORK,     /* a Write and a Read, then a disconnect */
	IDLE,     /* a disconnect at once */
	REFUSED,  /* by the service: no such region */
	DROPPED,  /* the queue pair is destroyed without a disconnect */
	BUSY,     /* the same with Reads in flight */
	TRESPASS, /* the peer ends it with a Terminate */
	MALFORMED, /* refused: no request of the service */
	DEAF,     /* the port has no listener */
	WAYS,
};

static const char *const way_names[WAYS] = { "work", "idle", "refused", "dropped", "busy", "trespass",
					     "malformed", "deaf" };

struct crew {
	const struct target *target;
	int cycles;
	atomic_int next, failed;
	atomic_int of_way[WAYS];
	pthread_mutex_t lock; /* of first */
	char first[224];      /* message of the first error */
};

static void complain(struct crew *crew, int cycle, enum way way, const char *what)
{
	if (atomic_fetch_add(&crew->failed, 1) > 0)
		return;
	pthread_mutex_lock(&crew->lock);
	snprintf(crew->first, sizeof(crew->first), "cycle %d (%s): %s", cycle, way_names[way], what);
	pthread_mutex_unlock(&crew->lock);
}

static bool work_and_leave(struct conn *conn, struct work *work)
{
	work->op = OP_WRITE;
	work->id = 1;
	if (!conn_do(conn, work))
		return false;
	work->op = OP_READ;
	work->id = 2;
	return conn_do(conn, work);
}

static bool leave_with_reads(struct conn *conn, struct work *work)
{
	work->op = OP_READ;
	work->len = READ_LEN;
	for (work->id = 1; work->id <= READS; work->id++)
		if (!conn_post(conn, work))
			return false;
	return true;
}

/* A Read of the byte behind the region: the peer must end the connection. */
static bool trespass(struct conn *conn, struct work *work)
{
	work->op = OP_READ;
	work->id = 1;
	work->len = 1;
	work->offset = conn_at(conn, conn->grant.length);
	if (!conn_post(conn, work))
		return false;
	if (conn_wait_down(conn, DOWN_MS))
		return true;
	snprintf(conn->error, sizeof(conn->error), "the connection stayed up");
	return false;
}

/* Runs one connection that was granted its region. */
static bool use(struct conn *conn, enum way way)
{
	uint8_t *memory = aligned_alloc(PAGE, READ_LEN);
	struct work work = { .local = memory, .len = 64, .stag = conn->grant.stag, .offset = conn_at(conn, 0) };
	bool ok;

	memset(memory, 0x33, READ_LEN);
	work.mr = conn_register(conn, memory, READ_LEN);
	ok = work.mr != NULL;
	if (ok && way == WORK)
		ok = work_and_leave(conn, &work);
	else if (ok && way == BUSY)
		ok = leave_with_reads(conn, &work);
	else if (ok && way == TRESPASS)
		ok = trespass(conn, &work);
	if (way == DROPPED || way == BUSY) {
		/* The registration must not outlive its protection domain, nor end before what uses it. */
		rdma_destroy_qp(conn->id);
	}
	if (work.mr)
		ibv_dereg_mr(work.mr);
	free(memory);
	return ok;
}

static void run_cycle(struct crew *crew, int cycle)
{
	enum way way = (enum way)(cycle % WAYS);
	struct target target = *crew->target;
	enum conn_result result, wanted = CONN_ESTABLISHED;
	struct conn conn;

	if (way == REFUSED) {
		target.request.name[0] ^= 1;
		wanted = CONN_REJECTED;
	} else if (way == MALFORMED) {
		target.raw_private = (const uint8_t *)"no request";
		target.raw_private_len = 10;
		wanted = CONN_REJECTED;
	} else if (way == DEAF) {
		/* The port is at the same place in both families. */
		((struct sockaddr_in *)&target.address)->sin_port = htons(9);
		wanted = CONN_FAILED;
	}
	result = conn_open(&conn, &target);
	if (result != wanted)
		complain(crew, cycle, way, result == CONN_FAILED ? conn.error : "another answer");
	else if (result == CONN_ESTABLISHED && !use(&conn, way))
		complain(crew, cycle, way, conn.error);
	else
		atomic_fetch_add(&crew->of_way[way], 1);
	if (way == DROPPED || way == BUSY)
		conn_drop(&conn);
	else
		conn_close(&conn);
}

static void *run_share(void *argument)
{
	struct crew *crew = argument;
	int cycle;

	while ((cycle = atomic_fetch_add(&crew->next, 1)) < crew->cycles && atomic_load(&crew->failed) == 0)
		run_cycle(crew, cycle);
	return NULL;
}

bool cycle_run(const struct target *target, int cycles, int at_once, char *detail, size_t detail_len)
{
	struct crew crew = { .target = target, .cycles = cycles, .lock = PTHREAD_MUTEX_INITIALIZER };
	pthread_t threads[AT_ONCE_MAX];
	int64_t started = now_ms();
	int count = 0;
	size_t len;

	while (count < at_once && count < AT_ONCE_MAX && pthread_create(&threads[count], NULL, run_share, &crew) == 0)
		count++;
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	if (atomic_load(&crew.failed) > 0 || count < at_once) {
		snprintf(detail, detail_len, "%s", count < at_once ? "no thread" : crew.first);
		return false;
	}
	len = (size_t)snprintf(detail, detail_len, "cycles=%d ms=%lld", cycles, (long long)(now_ms() - started));
	for (int way = 0; way < WAYS && len < detail_len; way++)
		len += (size_t)snprintf(detail + len, detail_len - len, " %s=%d", way_names[way],
					atomic_load(&crew.of_way[way]));
	return true;
}

/* The Read of this index: its length and place differ from those of its neighbors. */
static void aim(struct work *work, const struct conn *conn, uint8_t *sinks, int index)
{
	work->op = OP_READ;
	work->id = (uint64_t)index;
	work->len = 1 + (uint32_t)index * 37 % 2000;
	work->local = sinks + (size_t)index * PAGE;
	work->offset = conn_at(conn, (uint64_t)index * 1237);
}

static bool read_at_depth(struct conn *conn, struct work *work, uint8_t *sinks, uint64_t seed)
{
	struct ibv_wc wc;

	for (int i = 0; i < DEPTH_READS; i++) {
		aim(work, conn, sinks, i);
		if (!conn_post(conn, work))
			return false;
	}
	for (int i = 0; i < DEPTH_READS; i++) {
		if (conn_next(conn, &wc) != 1)
			return false;
		aim(work, conn, sinks, i);
		if (wc.status != IBV_WC_SUCCESS || wc.wr_id != work->id ||
		    pattern_compare(work->local, seed, work->offset - conn_at(conn, 0), work->len) != work->len) {
			snprintf(conn->error, sizeof(conn->error), "Read %d: %s, or wrong bytes", i,
				 ibv_wc_status_str(wc.status));
			return false;
		}
	}
	return true;
}

bool depth_run(const struct target *target, uint64_t seed, char *detail, size_t detail_len)
{
	size_t len = (size_t)DEPTH_READS * PAGE;
	uint8_t *sinks = aligned_alloc(PAGE, len);
	struct target deep = *target;
	struct work work = { 0 };
	struct conn conn = { 0 };
	char line[64];
	bool ok;

	deep.sends = DEPTH_READS;
	ok = sinks && conn_open(&conn, &deep) == CONN_ESTABLISHED;
	if (!ok) {
		snprintf(detail, detail_len, "%s", conn.error);
		goto out;
	}
	puts("HOLDING");
	fflush(stdout);
	work.stag = conn.grant.stag;
	work.mr = conn_register(&conn, sinks, len);
	ok = work.mr && fgets(line, sizeof(line), stdin);
	if (ok && target->ord > 0) {
		ok = read_at_depth(&conn, &work, sinks, seed);
	} else if (ok) {
		/* Nothing that could be read tells whether it arrived, but that the connection ends well. */
		aim(&work, &conn, sinks, 0);
		work.op = OP_WRITE;
		pattern_fill(sinks, seed, 0, work.len);
		ok = conn_do(&conn, &work);
	}
	snprintf(detail, detail_len, "%s", ok ? "" : conn.error);
out:
	if (work.mr)
		ibv_dereg_mr(work.mr);
	conn_close(&conn);
	free(sinks);
	return ok;
}
