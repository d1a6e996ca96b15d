//! Data of a benchmark node: its role, its objects, the peer's regions, and the parameters of a pair.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use dataplane::verbs::Node;
use iwarp_engine::memory::RegionMemory;
use rdma::CrcPolicy;
use rdma::verbs::{AsyncEvent, CqId, MemoryRegion, QpCap, QpNum, RecvWr, RegionId, SendWr, WorkCompletion};
use rdma::wire::Stag;
use serde::{Deserialize, Serialize};

use super::crc;
use super::end::{End, Region};

/// Role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The node that opens connections.
    Initiator,
    /// The node that accepts connections.
    Target,
}

impl Role {
    /// Returns the index of its address and of its CPU: 0 or 1.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Initiator => 0,
            Self::Target => 1,
        }
    }
}

/// A node with its objects and the regions of its peer.
#[derive(Debug)]
pub(super) struct BenchNode {
    pub(super) node: Node,
    pub(super) qps: Vec<QpNum>,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    /// Region that messages come from; nothing else writes to it.
    pub(super) source: MemoryRegion,
    pub(super) source_memory: Arc<RegionMemory>,
    /// Region that messages are placed in.
    pub(super) sink: MemoryRegion,
    pub(super) sink_memory: Arc<RegionMemory>,
    pub(super) sink_region: RegionId,
    pub(super) peer_source: RemoteRegion,
    pub(super) peer_sink: RemoteRegion,
}

impl BenchNode {
    /// Returns the bytes placed in the sink so far.
    pub(super) fn placed(&self) -> u64 {
        self.node.engine().memory().bytes(self.sink_region).placed
    }

    /// Returns the nanoseconds of the node's thread so far: in poll iterations that moved a frame, and in all.
    pub(super) fn spent_ns(&self) -> [u64; 2] {
        let mut spent = [0; 2];
        let [busy, total] = &mut spent;
        self.node.visit_counters(&mut |layer, name, _, value| match (layer, name) {
            ("worker", "busy_ns") => *busy = value,
            ("worker", "total_ns") => *total = value,
            _ => {}
        });
        spent
    }
}

impl End for BenchNode {
    fn queue_pairs(&self) -> usize {
        self.qps.len()
    }

    fn regions(&self) -> [Region; 2] {
        [self.source, self.sink].map(|MemoryRegion { addr, lkey, rkey, length, .. }| Region {
            addr,
            lkey,
            rkey,
            bytes: length,
        })
    }

    fn peer_regions(&self) -> [(u64, Stag); 2] {
        [self.peer_source, self.peer_sink].map(|region| (region.addr, region.rkey()))
    }

    fn post_send(&mut self, qp: usize, requests: &[SendWr<'_>]) -> Result<()> {
        let qp = *self.qps.get(qp).context("the node has no such queue pair")?;
        for request in requests {
            self.node.device_mut().post_send(qp, request)?;
        }
        Ok(())
    }

    fn post_recv(&mut self, qp: usize, buffers: &[RecvWr<'_>]) -> Result<()> {
        let qp = *self.qps.get(qp).context("the node has no such queue pair")?;
        for buffer in buffers {
            self.node.device_mut().post_recv(qp, buffer)?;
        }
        Ok(())
    }

    fn poll_send(&mut self, out: &mut [WorkCompletion]) -> Result<usize> {
        Ok(self.node.device_mut().poll_cq(self.send_cq, out)?)
    }

    fn poll_recv(&mut self, out: &mut [WorkCompletion]) -> Result<usize> {
        Ok(self.node.device_mut().poll_cq(self.recv_cq, out)?)
    }

    fn check_events(&mut self) -> Result<()> {
        match self.node.device_mut().poll_async_event() {
            None | Some(AsyncEvent::SrqLimitReached(_)) => Ok(()),
            Some(event) => bail!("{event:?}"),
        }
    }

    fn step(&mut self) {
        self.node.poll();
    }

    fn write_source(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.source_memory.write(at, bytes)?)
    }

    fn read_source(&self, at: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.source_memory.read(at, out)?)
    }

    fn read_sink(&self, at: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.sink_memory.read(at, out)?)
    }
}

/// Address and key of a region of the peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct RemoteRegion {
    pub(super) addr: u64,
    rkey: u32,
}

impl RemoteRegion {
    /// Describes a local region to the peer.
    pub(super) fn of(region: MemoryRegion) -> Self {
        Self { addr: region.addr, rkey: region.rkey.0 }
    }

    /// Returns the STag to access it with.
    pub(super) fn rkey(self) -> Stag {
        Stag(self.rkey)
    }
}

/// Parameters of a pair of nodes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct PairSetup {
    /// Largest IP packet, bytes.
    pub(super) mtu: u16,
    #[serde(with = "crc")]
    pub(super) crc: CrcPolicy,
    /// Number of connected queue pairs.
    pub(super) qps: u16,
    /// Slots of each send queue.
    pub(super) send_depth: u16,
    /// Slots of each receive queue.
    pub(super) receive_depth: u16,
    /// Largest inline message, bytes.
    pub(super) inline: u16,
    /// True if out-of-order data is placed at once.
    pub(super) out_of_order: bool,
}

impl PairSetup {
    /// Returns the size of each queue pair.
    pub(super) const fn cap(&self) -> QpCap {
        QpCap {
            max_send_wr: self.send_depth,
            max_recv_wr: self.receive_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: self.inline,
        }
    }

    /// Returns the entries that the completion queues of sends and of receives need for all queue pairs.
    pub(super) fn cqe(&self) -> [u32; 2] {
        [self.send_depth, self.receive_depth]
            .map(|depth| u32::from(depth).saturating_mul(u32::from(self.qps)).max(1))
    }
}
