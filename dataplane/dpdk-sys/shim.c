/* The little of DPDK that cannot be said in Rust: a thread-local, a table of functions, a C stream. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fopencookie */
#endif
#include <errno.h>
#include <stdio.h>
#include <sys/types.h>

#include "wrapper.h"

int dpdk_errno(void)
{
	return rte_errno;
}

unsigned int dpdk_mempool_common_count(const struct rte_mempool *pool)
{
	return rte_mempool_get_ops(pool->ops_index)->get_count(pool);
}

static dpdk_log_sink log_sink;

static ssize_t log_write(void *cookie, const char *text, size_t bytes)
{
	int level = rte_log_cur_msg_loglevel();

	(void)cookie;
	log_sink(level < 0 ? RTE_LOG_INFO : (uint32_t)level, text, bytes);
	return (ssize_t)bytes;
}

int dpdk_log_to(dpdk_log_sink sink)
{
	cookie_io_functions_t functions = { .write = log_write };
	FILE *stream = fopencookie(NULL, "w", functions);

	if (stream == NULL)
		return errno;
	log_sink = sink;
	return rte_openlog_stream(stream) == 0 ? 0 : EINVAL;
}
