/*
 * Streams of RDMA Writes, each with a Send, whose ends are killed or exit: what arrives is a right prefix, and the peer
 * receives the end of the connection.
 */
#include "endings.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static const char *const endings[] = { "kill", "exit", "exit-beside", "kill-receiver" };
static const enum ending turns[] = { KILLED, EXITS_BESIDE, EXITS, KILLED_RECEIVER, EXITS_BESIDE };

void stream_send(struct link *link, uint32_t tag, unsigned seed, struct progress *progress)
{
	uint8_t *from = memory(SLOTS * BLOCK);
	struct ibv_mr *mr = ibv_reg_mr(link->id->pd, from, SLOTS * BLOCK, 0);
	unsigned long posted = 0, arrived = 0;
	uint32_t sizes[NOTES];
	struct ibv_wc wc;

	NEED(mr);
	while (arrived < progress->last) {
		for (; posted - arrived < SLOTS && posted < progress->last; posted++) {
			uint32_t bytes = 1 + (uint32_t)rand_r(&seed) % BLOCK, number = (uint32_t)posted;
			uint64_t offset = posted % SLOTS * BLOCK;
			struct ibv_sge sge = { (uintptr_t)(from + offset), bytes, mr->lkey };

			fill(from + offset, bytes, tag, number);
			sizes[posted % NOTES] = bytes + NOTE;
			/* Fails once the peer has gone. */
			if (link_post(link, IBV_WR_RDMA_WRITE, 0, sge, offset, 0) == 0)
				link_note(link, (struct head){ .tag = tag, .number = number, .bytes = bytes });
			if (posted == progress->exit_at)
				exit(0);
		}
		int got = link_completion(link, &wc, PATIENCE_MS);

		NEED(got >= 0);
		if (got == 0)
			break;
		if (wc.status != IBV_WC_SUCCESS)
			continue;
		if (wc.opcode & IBV_WC_RECV) {
			NEED(link_take(link, &wc).number == arrived);
			arrived++;
		} else {
			progress->bytes += sizes[progress->completed % NOTES];
			progress->completed++;
		}
	}
	ibv_dereg_mr(mr);
	munmap(from, SLOTS * BLOCK);
}

/* Compares blocks until the connection ends, and returns their number. */
static unsigned long stream_receive(struct link *link, uint32_t tag, unsigned long *bytes)
{
	unsigned long count = 0;
	struct ibv_wc wc;
	int got;

	while ((got = link_completion(link, &wc, PATIENCE_MS)) != 0) {
		if (got < 0)
			fprintf(stderr, "stream %u: nothing comes after block %lu, and no end\n", tag, count);
		NEED(got == 1);
		if (wc.status != IBV_WC_SUCCESS || !(wc.opcode & IBV_WC_RECV))
			continue;

		struct head head = link_take(link, &wc);

		NEED(head.tag == tag && head.number == count && head.bytes <= BLOCK);
		NEED(is_filled(link->region + count % SLOTS * BLOCK, head.bytes, tag, head.number));
		*bytes += head.bytes + NOTE;
		count++;
		/* Fails once the peer has gone. */
		link_note(link, (struct head){ .tag = tag, .number = head.number });
	}
	return count;
}

int stream_server(char **arguments)
{
	unsigned count = number_of(arguments[0]);
	uint8_t *region = memory(SLOTS * BLOCK);

	listening();
	for (unsigned at = 0; at < count; at++) {
		struct progress progress = { .last = ULONG_MAX, .exit_at = ULONG_MAX };
		unsigned long blocks = 0, bytes = 0;
		struct link link = { 0 };

		link_await(&link);
		link_accept(&link, region, SLOTS * BLOCK);
		if (link.far.what == KILLED_RECEIVER)
			stream_send(&link, link.far.tag, at, &progress);
		else
			blocks = stream_receive(&link, link.far.tag, &bytes);
		printf("%u %lu %lu\n", link.far.tag, blocks, bytes);
		fflush(stdout);
		link_close(&link);
	}
	return 0;
}

static void *exit_later(void *microseconds)
{
	usleep((unsigned)(long)microseconds);
	exiting = 1;
	exit(0);
}

static void stream_child(uint16_t tag, enum ending ending, unsigned seed, struct progress *progress)
{
	unsigned long bytes = 0;
	struct link link = { 0 };
	pthread_t thread;

	alarm(20);
	open_channel();
	link_connect(&link, memory(SLOTS * BLOCK), SLOTS * BLOCK,
		     (struct offer){ .what = (uint16_t)ending, .tag = tag });
	if (ending == EXITS)
		progress->exit_at = (unsigned)rand_r(&seed) % 300;
	if (ending == EXITS_BESIDE)
		NEED(pthread_create(&thread, NULL, exit_later, (void *)(long)(rand_r(&seed) % 80000)) == 0);
	progress->started = 1;
	if (ending == KILLED_RECEIVER)
		stream_receive(&link, tag, &bytes);
	else
		stream_send(&link, tag, seed, progress);
	while (exiting)
		pause();
	fprintf(stderr, "stream %u has ended by itself\n", tag);
	exit(1);
}

struct progress *make_progress(void)
{
	struct progress *at = mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NEED(at != MAP_FAILED);
	atomic_store(&at->last, ULONG_MAX);
	atomic_store(&at->exit_at, ULONG_MAX);
	return at;
}

int stream(char **arguments)
{
	unsigned count = number_of(arguments[0]), seed = number_of(arguments[1]);

	for (unsigned at = 0; at < count; at++) {
		struct progress *progress = make_progress();
		enum ending ending = turns[at % (sizeof(turns) / sizeof(*turns))];
		double start = now();
		pid_t child = fork();
		int status = -1;

		NEED(child >= 0);
		if (child == 0)
			stream_child((uint16_t)at, ending, seed + at, progress);
		while (!progress->started && now() - start < 10)
			usleep(1000);
		NEED(progress->started);
		if (ending == KILLED || ending == KILLED_RECEIVER) {
			usleep((unsigned)rand_r(&seed) % 80000);
			kill(child, SIGKILL);
		}
		NEED(waitpid(child, &status, 0) == child);
		printf("%u %s %lu %lu %.2f\n", at, endings[ending], progress->completed, progress->bytes,
		       now() - start);
		fflush(stdout);
		NEED(ending == EXITS || ending == EXITS_BESIDE ? status == 0 : WIFSIGNALED(status));
	}
	return 0;
}
