/*
 * iwclient: a librdmacm client of the region service, the initiator of the interoperability tests.
 *
 *   iwclient --host ADDRESS --port PORT --region NAME [--access rwa] [--token TEXT]
 *            [--ops OP,OP,...] [--qps N] [--rounds N] [--seed N] [--start N] [--size N]
 *            [--max-piece N] [--ird N] [--ord N] [--cycles N] [--timeout SECONDS] [--settle MS]
 *            [--peer-siw]
 *   iwclient ... --expect-reject STATUS [--malformed KIND]
 *
 * Each operation prints one line, `RESULT name ok|FAIL detail`; the exit code is 0 if all were ok, 1 if
 * one was not, 2 on a usage error.
 *
 *   write read mix          over the whole region (or --start, --size), on --qps connections at once
 *   cycle                   --cycles connections, --qps at a time, each ended in one of the ways of cycle.c
 *   depth                   after the line HOLDING was answered on standard input: more Reads at once than may be
 *   hold-write hold-read    access after the line HOLDING was answered on standard input: must be refused
 *   write-past-end ...      the violations of violations.c: must be refused
 */
#include <getopt.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bulk.h"
#include "cycle.h"
#include "violations.h"

enum { MAX_QPS = 32, DETAIL = 256 };

struct options {
	const char *host, *port, *malformed;
	char *ops;
	int qps, rounds, cycles, expect_reject;
	uint64_t seed;
	struct bulk_options bulk;
	struct target target;
};

struct worker {
	pthread_t thread;
	const struct options *options;
	int index;
	struct bulk *bulk;
	enum bulk_op op;
	uint64_t seed;
	struct bulk_result result;
	char detail[DETAIL];
};

static struct worker workers[MAX_QPS];

__attribute__((noreturn)) static void usage(const char *what, const char *value)
{
	fprintf(stderr, "iwclient: %s%s%s\n", what, value ? " " : "", value ? value : "");
	exit(2);
}

static bool report(const char *name, bool ok, const char *detail)
{
	printf("RESULT %s %s %s\n", name, ok ? "ok" : "FAIL", detail);
	fflush(stdout);
	return ok;
}

static void *open_worker(void *argument)
{
	struct worker *worker = argument;

	worker->bulk = bulk_open(&worker->options->target, &worker->options->bulk, worker->index,
				 worker->options->qps, worker->detail, sizeof(worker->detail));
	return NULL;
}

static void *run_worker(void *argument)
{
	struct worker *worker = argument;

	bulk_run(worker->bulk, worker->op, worker->seed, &worker->result);
	return NULL;
}

static void on_all_workers(int count, void *(*body)(void *))
{
	for (int i = 0; i < count; i++)
		if (pthread_create(&workers[i].thread, NULL, body, &workers[i]))
			usage("cannot start a thread", NULL);
	for (int i = 0; i < count; i++)
		pthread_join(workers[i].thread, NULL);
}

static void close_workers(const struct options *options)
{
	for (int i = 0; i < options->qps; i++) {
		if (workers[i].bulk)
			bulk_close(workers[i].bulk);
		workers[i].bulk = NULL;
	}
}

/* Opens the connections of the bulk operations unless they are open. */
static bool open_workers(const struct options *options, const char *name)
{
	char detail[DETAIL + 32];

	if (workers[0].bulk)
		return true;
	for (int i = 0; i < options->qps; i++)
		workers[i] = (struct worker){ .options = options, .index = i };
	on_all_workers(options->qps, open_worker);
	for (int i = 0; i < options->qps; i++) {
		if (workers[i].bulk)
			continue;
		snprintf(detail, sizeof(detail), "connection %d: %s", i, workers[i].detail);
		close_workers(options);
		return report(name, false, detail);
	}
	return true;
}

static bool run_bulk(const struct options *options, const char *name, enum bulk_op op, uint64_t seed)
{
	uint64_t bytes = 0, pieces = 0, odd = 0;
	int64_t started, took;
	char detail[DETAIL + 32];

	if (!open_workers(options, name))
		return false;
	for (int i = 0; i < options->qps; i++) {
		workers[i].op = op;
		workers[i].seed = seed;
	}
	started = now_ms();
	on_all_workers(options->qps, run_worker);
	took = now_ms() - started;
	for (int i = 0; i < options->qps; i++) {
		const struct bulk_result *result = &workers[i].result;

		if (!result->ok) {
			snprintf(detail, sizeof(detail), "seed=%llu connection %d: %s",
				 (unsigned long long)seed, i, result->detail);
			close_workers(options);
			return report(name, false, detail);
		}
		bytes += result->bytes;
		pieces += result->pieces;
		odd += result->odd;
	}
	snprintf(detail, sizeof(detail), "seed=%llu qps=%d bytes=%llu pieces=%llu odd=%llu ms=%lld MB/s=%.1f",
		 (unsigned long long)seed, options->qps, (unsigned long long)bytes,
		 (unsigned long long)pieces, (unsigned long long)odd, (long long)took,
		 (double)bytes / 1000.0 / (double)(took > 0 ? took : 1));
	return report(name, true, detail);
}

static int bulk_op_of(const char *name)
{
	static const char *const names[] = { [BULK_WRITE] = "write", [BULK_READ] = "read", [BULK_MIX] = "mix" };

	for (int i = 0; i < 3; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return -1;
}

static bool run_op(const struct options *options, const char *name, uint64_t seed)
{
	char detail[DETAIL] = "";
	int bulk_op = bulk_op_of(name);
	bool ok;

	if (bulk_op >= 0)
		return run_bulk(options, name, (enum bulk_op)bulk_op, seed);
	if (strcmp(name, "cycle") == 0)
		ok = cycle_run(&options->target, options->cycles, options->qps, detail, sizeof(detail));
	else if (strcmp(name, "depth") == 0)
		ok = depth_run(&options->target, seed, detail, sizeof(detail));
	else if (strcmp(name, "hold-write") == 0)
		ok = hold_run(OP_WRITE, &options->target, seed, detail, sizeof(detail));
	else if (strcmp(name, "hold-read") == 0)
		ok = hold_run(OP_READ, &options->target, seed, detail, sizeof(detail));
	else
		ok = violation_run(name, &options->target, detail, sizeof(detail));
	return report(name, ok, detail);
}

static bool run_ops(const struct options *options)
{
	bool ok = true;

	for (int round = 0; round < options->rounds; round++) {
		char *ops = strdup(options->ops), *rest = ops;

		for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ","))
			/* Seed 0 is the pattern of a fresh region and stays that. */
			ok &= run_op(options, name, options->seed ? options->seed + (uint64_t)round : 0);
		free(ops);
	}
	close_workers(options);
	return ok;
}

/* Builds a malformed request; returns the length of the private data, 0 for an unknown kind. */
static size_t malform(const char *kind, const struct region_request *request, uint8_t out[REGION_REQUEST_MAX])
{
	size_t len = region_request_encode(request, out);

	if (strcmp(kind, "magic") == 0)
		out[3] = '0';
	else if (strcmp(kind, "short") == 0)
		len = 7;
	else if (strcmp(kind, "truncated") == 0)
		len--;
	else if (strcmp(kind, "empty-name") == 0)
		out[5] = 0;
	else if (strcmp(kind, "long-name") == 0)
		out[5] = 64;
	else if (strcmp(kind, "long-token") == 0)
		out[6] = 33;
	else
		len = 0;
	return len;
}

static bool run_reject(struct options *options)
{
	uint8_t private_data[REGION_REQUEST_MAX];
	char name[32], detail[DETAIL];
	struct conn conn;
	enum conn_result result;
	bool ok;

	if (options->malformed) {
		options->target.raw_private_len =
			malform(options->malformed, &options->target.request, private_data);
		options->target.raw_private = private_data;
		if (options->target.raw_private_len == 0)
			usage("unknown --malformed", options->malformed);
	}
	snprintf(name, sizeof(name), "reject-%d", options->expect_reject);
	result = conn_open(&conn, &options->target);
	if (result == CONN_FAILED)
		snprintf(detail, sizeof(detail), "%s", conn.error);
	else
		snprintf(detail, sizeof(detail), "%s, status %u, stag %#x",
			 result == CONN_REJECTED ? "rejected" : "established", conn.grant.status,
			 conn.grant.stag);
	ok = result == CONN_REJECTED && conn.grant.status == options->expect_reject && conn.grant.stag == 0;
	conn_close(&conn);
	return report(name, ok, detail);
}

static uint64_t number(const char *name, const char *text, uint64_t max)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 0);

	if (end == text || *end || value > max)
		usage("bad value for", name);
	return value;
}

enum key {
	HOST = 1, PORT, REGION, TOKEN, ACCESS, OPS, QPS, ROUNDS, SEED, START, SIZE, MAX_PIECE, IRD, ORD, CYCLES, TIMEOUT,
	SETTLE, PEER_SIW, EXPECT_REJECT, MALFORMED
};

static const struct option keys[] = {
	{ "host", required_argument, NULL, HOST },
	{ "port", required_argument, NULL, PORT },
	{ "region", required_argument, NULL, REGION },
	{ "token", required_argument, NULL, TOKEN },
	{ "access", required_argument, NULL, ACCESS },
	{ "ops", required_argument, NULL, OPS },
	{ "qps", required_argument, NULL, QPS },
	{ "rounds", required_argument, NULL, ROUNDS },
	{ "seed", required_argument, NULL, SEED },
	{ "start", required_argument, NULL, START },
	{ "size", required_argument, NULL, SIZE },
	{ "max-piece", required_argument, NULL, MAX_PIECE },
	{ "ird", required_argument, NULL, IRD },
	{ "ord", required_argument, NULL, ORD },
	{ "cycles", required_argument, NULL, CYCLES },
	{ "timeout", required_argument, NULL, TIMEOUT },
	{ "settle", required_argument, NULL, SETTLE },
	{ "peer-siw", no_argument, NULL, PEER_SIW },
	{ "expect-reject", required_argument, NULL, EXPECT_REJECT },
	{ "malformed", required_argument, NULL, MALFORMED },
	{ NULL, 0, NULL, 0 },
};

/* Parses an option of the request. False if the key is another one. */
static bool set_request(struct options *options, int key, const char *value)
{
	struct region_request *request = &options->target.request;
	size_t len = value ? strlen(value) : 0;
	int access;

	if (key == REGION) {
		if (len == 0 || len > REGION_NAME_MAX)
			usage("bad value for", "region");
		request->name_len = (uint8_t)len;
		memcpy(request->name, value, len);
	} else if (key == TOKEN) {
		if (len > REGION_TOKEN_MAX)
			usage("bad value for", "token");
		request->token_len = (uint8_t)len;
		memcpy(request->token, value, len);
	} else if (key == ACCESS) {
		access = region_access_parse(value);
		if (access < 0)
			usage("bad value for", "access");
		request->access = (uint8_t)access;
	} else {
		return false;
	}
	return true;
}

static void set(struct options *options, int key, const char *name, const char *value)
{
	switch (key) {
	case HOST: options->host = value; break;
	case PORT: options->port = value; break;
	case OPS: options->ops = (char *)(uintptr_t)value; break;
	case QPS: options->qps = (int)number(name, value, MAX_QPS); break;
	case ROUNDS: options->rounds = (int)number(name, value, 1000000); break;
	case SEED: options->seed = number(name, value, UINT64_MAX); break;
	case START: options->bulk.start = number(name, value, UINT64_MAX); break;
	case SIZE: options->bulk.span = number(name, value, UINT64_MAX); break;
	case MAX_PIECE: options->bulk.max_piece = (uint32_t)number(name, value, 1u << 30); break;
	case IRD: options->target.ird = (int)number(name, value, CONN_READS_MAX); break;
	case ORD: options->target.ord = (int)number(name, value, CONN_READS_MAX); break;
	case CYCLES: options->cycles = (int)number(name, value, 1000000); break;
	case TIMEOUT: options->target.timeout_ms = (int)number(name, value, 3600) * 1000; break;
	case SETTLE: options->target.settle_ms = (int)number(name, value, 60000); break;
	case PEER_SIW: options->bulk.peer_siw = true; break;
	case EXPECT_REJECT: options->expect_reject = (int)number(name, value, 255); break;
	case MALFORMED: options->malformed = value; break;
	default: usage("see the head of client.c for the options", NULL);
	}
}

static bool op_exists(const char *name)
{
	static const char *const others[] = { "cycle", "depth", "hold-write", "hold-read" };

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (strcmp(others[i], name) == 0)
			return true;
	return bulk_op_of(name) >= 0 || violation_exists(name);
}

static void check_ops(const struct options *options)
{
	char *ops = strdup(options->ops), *rest = ops;

	for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ","))
		if (!op_exists(name))
			usage("unknown operation", name);
	free(ops);
}

static void resolve(struct options *options)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;

	if (!options->host || !options->port || options->target.request.name_len == 0)
		usage("--host, --port and --region are needed", NULL);
	if (getaddrinfo(options->host, options->port, &hints, &found))
		usage("not a numeric address and port:", options->host);
	memcpy(&options->target.address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
}

int main(int argc, char **argv)
{
	static struct options options = {
		.ops = (char *)(uintptr_t)"write,read",
		.qps = 1,
		.rounds = 1,
		.cycles = 1,
		.seed = 1,
		.bulk = { .max_piece = 1 << 20 },
		.target = { .request.access = ACCESS_READ | ACCESS_WRITE, .ird = 16, .ord = 16, .timeout_ms = 30000 },
	};
	int key, index = 0;

	while ((key = getopt_long(argc, argv, "", keys, &index)) != -1)
		if (!set_request(&options, key, optarg))
			set(&options, key, keys[index].name, optarg);
	if (optind != argc || options.qps < 1 || options.bulk.max_piece < 1)
		usage("see the head of client.c for the options", NULL);
	resolve(&options);
	if (options.expect_reject)
		return run_reject(&options) ? 0 : 1;
	check_ops(&options);
	return run_ops(&options) ? 0 : 1;
}
