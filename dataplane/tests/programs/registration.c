/*
 * registration BYTES ROUNDS: registers touched memory, accesses it for the first time, deregisters it, compares its
 * contents, and prints the time of each, of the fastest round, in milliseconds.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 0) : 512u << 20;
	int rounds = argc > 2 ? atoi(argv[2]) : 3;
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	/* Not at the start of a page: the first and the last one have other data, too. */
	uint8_t *memory = (uint8_t *)malloc(bytes) + 16;
	double least[4] = { 1e9, 1e9, 1e9, 1e9 };

	if (!pd || !memory)
		return 1;
	bytes -= 16;
	for (size_t at = 0; at < bytes; at++)
		memory[at] = (uint8_t)(at ^ at >> 12);
	for (int round = 0; round < rounds; round++) {
		double begin = now_ms(), registered, accessed, end;
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

		if (!mr) {
			perror("ibv_reg_mr");
			return 1;
		}
		registered = now_ms();
		for (size_t at = 0; at < bytes; at += 4096)
			*(volatile uint8_t *)&memory[at] = memory[at];
		accessed = now_ms();
		if (ibv_dereg_mr(mr))
			return 1;
		end = now_ms();
		if (end - begin < least[3]) {
			least[0] = registered - begin;
			least[1] = accessed - registered;
			least[2] = end - accessed;
			least[3] = end - begin;
		}
	}
	for (size_t at = 0; at < bytes; at++)
		if (memory[at] != (uint8_t)(at ^ at >> 12)) {
			fprintf(stderr, "byte %zu has changed\n", at);
			return 1;
		}
	printf("register %.0f ms, first access %.0f ms, deregister %.0f ms, together %.0f ms\n", least[0], least[1],
	       least[2], least[3]);
	return 0;
}
