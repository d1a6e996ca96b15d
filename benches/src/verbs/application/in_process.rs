//! Both ends in this thread: two nodes that are connected by rings.

use anyhow::Result;
use rdma::verbs::{MemoryRegion, RecvWr, SendWr, WorkCompletion};

use super::super::node::BenchNode;
use super::work::{Ends, Region, Side};

/// The nodes of initiator and target.
pub(super) struct InProcess(pub(super) [BenchNode; 2]);

impl InProcess {
    fn node(&mut self, side: Side) -> &mut BenchNode {
        let [initiator, target] = &mut self.0;
        if side == Side::Initiator { initiator } else { target }
    }

    fn get(&self, side: Side) -> &BenchNode {
        let [initiator, target] = &self.0;
        if side == Side::Initiator { initiator } else { target }
    }
}

impl Ends for InProcess {
    fn post_send(&mut self, side: Side, requests: &[SendWr<'_>]) -> Result<()> {
        let BenchNode { node, qps, .. } = self.node(side);
        for (wr, qp) in requests.iter().zip(qps.iter().cycle()) {
            node.device_mut().post_send(*qp, wr)?;
        }
        Ok(())
    }

    fn post_recv(&mut self, side: Side, buffers: &[RecvWr<'_>]) -> Result<()> {
        let BenchNode { node, qps, .. } = self.node(side);
        for (wr, qp) in buffers.iter().zip(qps.iter().cycle()) {
            node.device_mut().post_recv(*qp, wr)?;
        }
        Ok(())
    }

    fn poll_send(&mut self, side: Side, out: &mut [WorkCompletion]) -> Result<usize> {
        let BenchNode { node, send_cq, .. } = self.node(side);
        Ok(node.device_mut().poll_cq(*send_cq, out)?)
    }

    fn poll_recv(&mut self, side: Side, out: &mut [WorkCompletion]) -> Result<usize> {
        let BenchNode { node, recv_cq, .. } = self.node(side);
        Ok(node.device_mut().poll_cq(*recv_cq, out)?)
    }

    fn step(&mut self) {
        for node in &mut self.0 {
            node.node.poll();
        }
    }

    fn regions(&self, side: Side) -> [Region; 2] {
        let node = self.get(side);
        [node.source, node.sink].map(|MemoryRegion { addr, lkey, rkey, length, .. }| Region {
            addr,
            lkey,
            rkey,
            bytes: length,
        })
    }

    fn store(&mut self, side: Side, at: u64, word: u64) -> Result<()> {
        Ok(self.get(side).source_memory.write(at, &word.to_ne_bytes())?)
    }

    fn load(&self, side: Side, at: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.get(side).sink_memory.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }
}
