/* The little of DPDK that cannot be said in Rust: a thread-local, a table of functions, a C stream, structures whose
 * layout depends on the release. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fopencookie */
#endif
#include <errno.h>
#include <stdio.h>
#include <sys/types.h>

#include "wrapper.h"

/* The types that src/field.rs reads these fields with. */
#define FIELD_IS(type, structure, field) \
	_Static_assert(sizeof(((struct structure *)0)->field) == sizeof(type), #structure "." #field " is no " #type)
FIELD_IS(void *, rte_mbuf, buf_addr);
FIELD_IS(uint16_t, rte_mbuf, data_off);
FIELD_IS(uint16_t, rte_mbuf, refcnt);
FIELD_IS(uint16_t, rte_mbuf, nb_segs);
FIELD_IS(uint64_t, rte_mbuf, ol_flags);
FIELD_IS(uint32_t, rte_mbuf, pkt_len);
FIELD_IS(uint16_t, rte_mbuf, data_len);
FIELD_IS(uint16_t, rte_mbuf, buf_len);
FIELD_IS(void *, rte_mbuf, next);
FIELD_IS(uint64_t, rte_mbuf, tx_offload);
FIELD_IS(uint32_t, rte_ring, mask);
FIELD_IS(uint32_t, rte_ring, prod.head);
FIELD_IS(uint32_t, rte_mempool_cache, len);

int dpdk_errno(void)
{
	return rte_errno;
}

unsigned int dpdk_mempool_common_count(const struct rte_mempool *pool)
{
	return rte_mempool_get_ops(pool->ops_index)->get_count(pool);
}

int dpdk_link_get_nowait(uint16_t port, uint8_t *up, uint32_t *megabits_per_second)
{
	struct rte_eth_link link = { 0 };
	int answer = rte_eth_link_get_nowait(port, &link);

	*up = link.link_status == RTE_ETH_LINK_UP;
	*megabits_per_second = link.link_speed;
	return answer;
}

void dpdk_mbuf_tx_lengths(const struct rte_mbuf *mbuf, uint64_t lengths[4])
{
	lengths[0] = mbuf->l2_len;
	lengths[1] = mbuf->l3_len;
	lengths[2] = mbuf->l4_len;
	lengths[3] = mbuf->tso_segsz;
}

/* What rte_pktmbuf_pool_create() passes as the size of an object. */
static unsigned int element_bytes(uint16_t data_room)
{
	return sizeof(struct rte_mbuf) + data_room;
}

size_t dpdk_pktmbuf_pool_bytes(unsigned int count, uint16_t data_room)
{
	uint32_t object = rte_mempool_calc_obj_size(element_bytes(data_room), RTE_MEMPOOL_F_NO_IOVA_CONTIG, NULL);

	return (size_t)count * object;
}

struct rte_mempool *dpdk_pktmbuf_pool_over(const char *name, unsigned int count, unsigned int cache,
					   uint16_t data_room, void *memory, size_t bytes)
{
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = data_room };
	struct rte_mempool *pool;
	int populated;

	pool = rte_mempool_create_empty(name, count, element_bytes(data_room), cache, sizeof(private), SOCKET_ID_ANY,
					RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	if (pool == NULL)
		return NULL;
	populated = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	if (populated == 0) {
		rte_pktmbuf_pool_init(pool, &private);
		populated = rte_mempool_populate_iova(pool, memory, RTE_BAD_IOVA, bytes, NULL, NULL);
	}
	if (populated < 0 || (unsigned int)populated != count) {
		rte_mempool_free(pool);
		rte_errno = populated < 0 ? -populated : ENOMEM;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
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

int dpdk_telemetry_add(struct rte_tel_data *reply, const char *name, uint64_t value)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	return rte_tel_data_add_dict_uint(reply, name, value);
#else
	return rte_tel_data_add_dict_u64(reply, name, value);
#endif
}
