/*
 * iwpeer: ping-pong (turns.h) with another iWARP implementation, in either role.
 *
 *   iwpeer --connect ADDRESS --port PORT [--qps N] [--slots N] [--turns N] [--bytes N] [--seed N]
 *          [--ird N] [--ord N] [--trespass] [--timeout SECONDS]
 *   iwpeer --listen ADDRESS --port PORT [--qps N] [--timeout SECONDS]
 *
 * Prints LISTENING when it listens, then one line for each of its --qps connections, `RESULT turns ok|FAIL detail`;
 * the exit code is as iwclient's. An end reads only if both depths allow it: an end with depth 0 does not.
 */
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "turns.h"

enum { MAX_QPS = 64, BACKLOG = 64 };

struct options {
	const char *connect, *listen, *port;
	int qps, ird, ord, timeout_ms;
	struct turns_terms terms;
	struct sockaddr_storage address;
};

struct worker {
	pthread_t thread;
	const struct options *options;
	struct conn conn;
	struct turns_terms terms;
	struct rdma_conn_param param; /* listening: what is accepted */
	bool ok;
	struct turns_result result;
};

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "iwpeer: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
	exit(2);
}

/* An RDMA Read is an error here if the other end accepts none. */
static bool establish(struct worker *worker)
{
	struct conn *conn = &worker->conn;
	uint8_t private_data[TURNS_TERMS_LEN];
	struct rdma_conn_param param = {
		.responder_resources = (uint8_t)worker->options->ird,
		.initiator_depth = (uint8_t)worker->options->ord,
		.private_data = private_data,
		.private_data_len = sizeof(private_data),
	};

	if (!worker->options->connect)
		return rdma_accept(conn->id, &worker->param) == 0 && conn_await(conn, RDMA_CM_EVENT_ESTABLISHED);
	turns_terms_encode(&worker->terms, private_data);
	return rdma_connect(conn->id, &param) == 0 && conn_await(conn, RDMA_CM_EVENT_ESTABLISHED);
}

static void *run_worker(void *argument)
{
	struct worker *worker = argument;
	const struct options *options = worker->options;
	struct conn *conn = &worker->conn;
	struct turns *turns = NULL;

	conn->timeout_ms = options->timeout_ms;
	if ((!options->connect || conn_resolve(conn, &options->address)) &&
	    conn_make_qp(conn, turns_sends(&worker->terms), turns_receives(&worker->terms)))
		turns = turns_new(conn, &worker->terms, options->connect != NULL);
	if (turns && establish(worker)) {
		conn->established = true;
		worker->ok = turns_run(turns, &worker->result);
	} else {
		snprintf(worker->result.detail, sizeof(worker->result.detail), "%s", conn->error);
	}
	if (conn->established) {
		rdma_disconnect(conn->id);
		conn_wait_down(conn, 3000);
		conn->established = false;
	}
	if (turns)
		turns_free(turns);
	conn_drop(conn);
	return NULL;
}

static void start(struct worker *worker)
{
	errno = pthread_create(&worker->thread, NULL, run_worker, worker);
	if (errno)
		die("pthread_create");
}

/* Accepts a connection request with the parameters in its private data. False if they are invalid. */
static bool take(struct worker *worker, struct rdma_cm_event *event)
{
	const struct rdma_conn_param *asked = &event->param.conn;

	worker->conn.id = event->id;
	/* The peer's IRD is our ORD, and its ORD our IRD. */
	worker->param.responder_resources = asked->responder_resources;
	worker->param.initiator_depth = asked->initiator_depth;
	if (!turns_terms_decode(asked->private_data, asked->private_data_len, &worker->terms))
		return false;
	worker->conn.events = rdma_create_event_channel();
	return worker->conn.events && rdma_migrate_id(event->id, worker->conn.events) == 0;
}

/* Listens, and starts a worker for each connection. */
static void serve(const struct options *options, struct worker *workers)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;
	int count = 0;

	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)(uintptr_t)&options->address) || rdma_listen(listener, BACKLOG))
		die("listen");
	puts("LISTENING");
	fflush(stdout);
	while (count < options->qps) {
		struct worker *worker = &workers[count];
		bool usable;

		if (rdma_get_cm_event(channel, &event))
			die("rdma_get_cm_event");
		if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
			fprintf(stderr, "iwpeer: %s\n", rdma_event_str(event->event));
			rdma_ack_cm_event(event);
			continue;
		}
		usable = take(worker, event);
		if (!usable)
			rdma_reject(event->id, NULL, 0);
		rdma_ack_cm_event(event);
		if (!usable)
			continue;
		start(worker);
		count++;
	}
}

static uint64_t number(const char *text, uint64_t max)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 0);

	if (end == text || *end || value > max)
		die("a number is out of range");
	return value;
}

static const struct option keys[] = {
	{ "connect", required_argument, NULL, 'c' }, { "listen", required_argument, NULL, 'l' },
	{ "port", required_argument, NULL, 'p' },    { "qps", required_argument, NULL, 'q' },
	{ "slots", required_argument, NULL, 's' },   { "turns", required_argument, NULL, 't' },
	{ "bytes", required_argument, NULL, 'b' },   { "seed", required_argument, NULL, 'e' },
	{ "ird", required_argument, NULL, 'i' },     { "ord", required_argument, NULL, 'o' },
	{ "trespass", no_argument, NULL, 'x' },	     { "timeout", required_argument, NULL, 'w' },
	{ NULL, 0, NULL, 0 },
};

static void set(struct options *options, int key, const char *value)
{
	switch (key) {
	case 'c': options->connect = value; break;
	case 'l': options->listen = value; break;
	case 'p': options->port = value; break;
	case 'q': options->qps = (int)number(value, MAX_QPS); break;
	case 's': options->terms.slots = (uint16_t)number(value, TURNS_SLOTS_MAX); break;
	case 't': options->terms.turns = (uint32_t)number(value, UINT32_MAX); break;
	case 'b': options->terms.bytes = (uint32_t)number(value, TURNS_BYTES_MAX); break;
	case 'e': options->terms.seed = number(value, UINT64_MAX); break;
	case 'i': options->ird = (int)number(value, CONN_READS_MAX); break;
	case 'o': options->ord = (int)number(value, CONN_READS_MAX); break;
	case 'x': options->terms.trespass = true; break;
	case 'w': options->timeout_ms = (int)number(value, 3600) * 1000; break;
	default: die("see the head of peer.c for the options");
	}
}

static void resolve(struct options *options)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	const char *host = options->connect ? options->connect : options->listen;

	if (!host || (options->connect && options->listen) || !options->port || options->qps < 1 ||
	    getaddrinfo(host, options->port, &hints, &found))
		die("--connect or --listen with a numeric address, and --port, are needed");
	memcpy(&options->address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
}

int main(int argc, char **argv)
{
	static struct options options = {
		.qps = 1,
		.ird = 16,
		.ord = 16,
		.timeout_ms = 30000,
		.terms = { .slots = 4, .turns = 64, .bytes = 65536, .seed = 1 },
	};
	static struct worker workers[MAX_QPS];
	uint8_t checked[TURNS_TERMS_LEN];
	int key, failed = 0;

	while ((key = getopt_long(argc, argv, "", keys, NULL)) != -1)
		set(&options, key, optarg);
	errno = 0;
	resolve(&options);
	options.terms.connector_reads = options.ord > 0;
	options.terms.listener_reads = options.ird > 0;
	turns_terms_encode(&options.terms, checked);
	if (optind != argc || !turns_terms_decode(checked, sizeof(checked), &options.terms))
		die("see the head of peer.c for the options");
	for (int i = 0; i < options.qps; i++)
		workers[i] = (struct worker){ .options = &options, .terms = options.terms };
	if (options.listen)
		serve(&options, workers);
	else
		for (int i = 0; i < options.qps; i++)
			start(&workers[i]);
	for (int i = 0; i < options.qps; i++) {
		pthread_join(workers[i].thread, NULL);
		printf("RESULT turns %s %s\n", workers[i].ok ? "ok" : "FAIL", workers[i].result.detail);
		failed += !workers[i].ok;
	}
	return failed ? 1 : 0;
}
