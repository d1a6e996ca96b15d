/* What the bindings are made of: the headers, and the constants that reach Rust only as typed constants. */
#ifndef IWARP_DPDK_WRAPPER_H
#define IWARP_DPDK_WRAPPER_H

#include <stddef.h>
#include <stdint.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_telemetry.h>
#include <rte_version.h>

/* RTE_BIT64() macros do not survive the generator; these do, with the type that the fields have. */
static const uint64_t DPDK_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t DPDK_RX_OFFLOAD_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t DPDK_RX_OFFLOAD_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t DPDK_RX_OFFLOAD_VLAN_FILTER = RTE_ETH_RX_OFFLOAD_VLAN_FILTER;
static const uint64_t DPDK_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t DPDK_RX_OFFLOAD_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t DPDK_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t DPDK_TX_OFFLOAD_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t DPDK_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t DPDK_TX_OFFLOAD_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t DPDK_RSS_IPV4 = RTE_ETH_RSS_IPV4;
static const uint64_t DPDK_RSS_IPV6 = RTE_ETH_RSS_IPV6;
static const uint64_t DPDK_RSS_NONFRAG_IPV4_UDP = RTE_ETH_RSS_NONFRAG_IPV4_UDP;
static const uint64_t DPDK_RSS_NONFRAG_IPV6_UDP = RTE_ETH_RSS_NONFRAG_IPV6_UDP;
static const uint64_t DPDK_RSS_NONFRAG_IPV4_TCP = RTE_ETH_RSS_NONFRAG_IPV4_TCP;
static const uint64_t DPDK_RSS_NONFRAG_IPV6_TCP = RTE_ETH_RSS_NONFRAG_IPV6_TCP;
static const uint32_t DPDK_MQ_RX_RSS = RTE_ETH_MQ_RX_RSS;

static const uint64_t DPDK_MBUF_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t DPDK_MBUF_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t DPDK_MBUF_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t DPDK_MBUF_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t DPDK_MBUF_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t DPDK_MBUF_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t DPDK_MBUF_EXTERNAL = RTE_MBUF_F_EXTERNAL;
static const uint64_t DPDK_MBUF_INDIRECT = RTE_MBUF_F_INDIRECT;
static const uint64_t DPDK_MBUF_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t DPDK_MBUF_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t DPDK_MBUF_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t DPDK_MBUF_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t DPDK_MBUF_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;

static const uint32_t DPDK_LOG_ERR = RTE_LOG_ERR;
static const uint32_t DPDK_LOG_WARNING = RTE_LOG_WARNING;
static const uint32_t DPDK_LOG_NOTICE = RTE_LOG_NOTICE;
static const uint32_t DPDK_LOG_INFO = RTE_LOG_INFO;

static const int32_t DPDK_SOCKET_ID_ANY = SOCKET_ID_ANY;
static const uint32_t DPDK_PKTMBUF_HEADROOM = RTE_PKTMBUF_HEADROOM;
static const uint32_t DPDK_LCORE_ID_ANY = LCORE_ID_ANY;
static const uint32_t DPDK_RING_F_SP_ENQ = RING_F_SP_ENQ;
static const uint32_t DPDK_RING_F_SC_DEQ = RING_F_SC_DEQ;

/* Where the fields lie that src/field.rs reaches. Releases of DPDK move fields into anonymous unions, which changes
 * their path in the bindings; `offsetof` finds them in all releases. */
static const size_t DPDK_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr);
static const size_t DPDK_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off);
static const size_t DPDK_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt);
static const size_t DPDK_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs);
static const size_t DPDK_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags);
static const size_t DPDK_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len);
static const size_t DPDK_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len);
static const size_t DPDK_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len);
static const size_t DPDK_MBUF_NEXT = offsetof(struct rte_mbuf, next);
static const size_t DPDK_MBUF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload);
static const size_t DPDK_RING_MASK = offsetof(struct rte_ring, mask);
static const size_t DPDK_RING_PRODUCER_HEAD = offsetof(struct rte_ring, prod.head);
static const size_t DPDK_RING_CONSUMER = offsetof(struct rte_ring, cons);
static const size_t DPDK_MEMPOOL_CACHE_LEN = offsetof(struct rte_mempool_cache, len);

/* rte_errno of the calling thread: a thread-local, which only C reads correctly. */
int dpdk_errno(void);

/* Objects in the part of a pool that all threads share, the threads' caches left out. DPDK has it, but does
 * not export it. */
unsigned int dpdk_mempool_common_count(const struct rte_mempool *pool);

/* State of a port's link, as its driver last saw it: whether it is up (0 or 1), and its speed in Mb/s. Returns 0, or a
 * negative errno value. */
int dpdk_link_get_nowait(uint16_t port, uint8_t *up, uint32_t *megabits_per_second);

/* The lengths in bytes of the link, network and transport headers of a frame, and of the payload of each segment that
 * the port makes of it. */
void dpdk_mbuf_tx_lengths(const struct rte_mbuf *mbuf, uint64_t lengths[4]);

/* Bytes that a pool of `count` packet buffers takes when its objects lie one after the other, across pages too. */
size_t dpdk_pktmbuf_pool_bytes(unsigned int count, uint16_t data_room);

/* Makes a pool of packet buffers in the caller's memory, `bytes` as dpdk_pktmbuf_pool_bytes() says: one piece without
 * gaps, no address of which means anything to a device that does DMA. Answers NULL and sets rte_errno if it cannot.
 * The memory stays the caller's, who keeps it until the pool is freed. */
struct rte_mempool *dpdk_pktmbuf_pool_over(const char *name, unsigned int count, unsigned int cache,
					   uint16_t data_room, void *memory, size_t bytes);

/* Takes DPDK's log: `sink(level, text, bytes)` is called for each message, on the thread that logs it.
 * Answers 0, or an errno value. */
typedef void (*dpdk_log_sink)(uint32_t level, const char *text, size_t bytes);
int dpdk_log_to(dpdk_log_sink sink);

/* Adds a number to a dictionary of a telemetry reply; the function's name differs between DPDK releases. Returns 0, or
 * a negative errno value. */
int dpdk_telemetry_add(struct rte_tel_data *reply, const char *name, uint64_t value);

#endif
