/*
 * Programs in hard conditions, for a device inside the process. Every byte that moves is compared.
 *
 *   hard echo ADDRESS PORT SIZE DEPTH       answers the messages of all connections, until SIGTERM
 *   hard ping ADDRESS PORT SIZE SECONDS     a connection of round trips; prints the longest one
 *   hard crowd ADDRESS PORT SIZE COUNT      COUNT connections at once, a round trip on each, all open meanwhile
 *   hard fill ADDRESS PORT SIZE SECONDS     connections until one fails; idle for SECONDS; then five anew
 *   hard threads ADDRESS PORT SIZE COUNT    round trips of four threads, on their own queue pairs, then on one
 *   hard raw ADDRESS PORT SIZE HOW          a peer that is slow, stops, resets or half-closes
 *
 *   hard rewritten-server ADDRESS PORT SECONDS
 *   hard rewritten ADDRESS PORT SECONDS     both ends rewrite a region, and read that of the other
 *   hard vanish-server ADDRESS PORT HOW     takes registered memory away. HOW: unmap, protect or truncate
 *   hard vanish ADDRESS PORT WHAT           while the client writes to it or reads it, or the server sends from it,
 *                                           receives to it, or fetches to it by RDMA Reads. WHAT: write, read, send,
 *                                           receive or fetch
 *   hard stream-server ADDRESS PORT COUNT   takes or makes COUNT streams of RDMA Writes, each with a Send
 *   hard stream ADDRESS PORT COUNT SEED     COUNT processes of such a stream, each killed, or ended by exit
 *   hard fork ADDRESS PORT COUNT HOW        COUNT children beside a stream; then the end, by exit or kill, which a
 *                                           child survives
 *
 *   hard canceled ADDRESS PORT COUNT        threads that are canceled, COUNT in each call that waits
 *   hard canceled-sockets ADDRESS PORT COUNT
 *                                           the same, of plain sockets
 *   hard destroyed ADDRESS PORT COUNT       objects destroyed while their events come, COUNT by each thread
 *   hard strangers ADDRESS PORT COUNT       peers of an rsocket that are none
 *   hard no-answers ADDRESS PORT            servers of TCP that do not answer as iWARP peers do
 *   hard few-descriptors ADDRESS PORT       calls of a process that has hardly a descriptor left
 *
 *   hard fault ADDRESS                      opens a device, and dereferences a null pointer
 *   hard filtered NAME… -- PROGRAM…         runs a program without the system calls that container profiles refuse,
 *                                           and without others by name
 *
 * HARD_LIMIT: seconds after which a program ends (default 60).
 */
#include "common.h"

#include <arpa/inet.h>

/* A subcommand; `arguments` is the number after ADDRESS PORT. */
struct command {
	const char *name;
	int arguments, has_size;
	int (*run)(char **arguments);
};

static const struct command commands[] = {
	{ "echo", 2, 1, echo },
	{ "ping", 2, 1, ping },
	{ "crowd", 2, 1, crowd },
	{ "fill", 2, 1, fill_up },
	{ "threads", 2, 1, threads },
	{ "raw", 2, 1, raw },
	{ "rewritten-server", 1, 0, rewritten_server },
	{ "rewritten", 1, 0, rewritten },
	{ "vanish-server", 1, 0, vanish_server },
	{ "vanish", 1, 0, vanish },
	{ "stream-server", 1, 0, stream_server },
	{ "stream", 2, 0, stream },
	{ "fork", 2, 0, fork_beside },
	{ "canceled", 1, 0, canceled },
	{ "canceled-sockets", 1, 0, canceled_sockets },
	{ "destroyed", 1, 0, destroyed },
	{ "strangers", 1, 0, strangers },
	{ "no-answers", 0, 0, no_answers },
	{ "few-descriptors", 0, 0, few_descriptors },
	{ 0 },
};

int main(int argc, char **argv)
{
	const char *limit = getenv("HARD_LIMIT");

	if (argc > 3 && !strcmp(argv[1], "filtered"))
		return filtered(argv + 2);
	alarm(limit ? number_of(limit) : 60);
	NEED(argc > 2 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
	if (!strcmp(argv[1], "fault"))
		return fault(argv + 3);
	for (const struct command *command = commands; command->name; command++) {
		if (strcmp(argv[1], command->name) || argc != 4 + command->arguments)
			continue;
		address.sin_port = htons((uint16_t)number_of(argv[3]));
		address_text = argv[2];
		port_text = argv[3];
		if (command->has_size) {
			size = number_of(argv[4]);
			NEED(size > sizeof(struct head));
		}
		return command->run(argv + 4 + command->has_size);
	}
	fprintf(stderr, "hard: no such subcommand with these arguments: %s\n", argv[1]);
	return 2;
}
