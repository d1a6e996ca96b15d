//! What one end does in its thread: keeps its queues full, takes completions, counts what has arrived.

use anyhow::{Result, bail, ensure};
use rdma::verbs::{AsyncEvent, Data, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion};
use serde::{Deserialize, Serialize};

use super::Operation;
use super::pair::End;

/// Completions taken at a time.
const COMPLETIONS: usize = 64;

/// Where one queue pair stands.
#[derive(Clone, Debug, Default)]
struct Lane {
    /// Messages posted, and those of them known to be done.
    posted: u64,
    done: u64,
    /// Where in the queue pair's slice the next message is, and how many until one is signaled.
    at: u64,
    unsignaled: u64,
    /// Buffers posted, and those of them that were used.
    buffers: u64,
    used: u64,
    /// Where in the slice the next buffer is.
    buffer_at: u64,
}

/// The work of one end.
#[derive(Debug)]
pub(super) struct Worker {
    operation: Operation,
    size: u32,
    /// Messages under way on each queue pair.
    depth: u64,
    /// Every so many messages one is signaled.
    signal_every: u64,
    /// Messages to post on each queue pair, in all.
    limit: u64,
    receive_depth: u64,
    inline: Option<Vec<u8>>,
    lanes: Vec<Lane>,
    /// Bytes of a region that belong to one queue pair: whole messages.
    slice: u64,
    taken: [WorkCompletion; COMPLETIONS],
    /// Messages received whole, by their completions.
    pub(super) received: u64,
    /// Messages that this end knows to be done.
    pub(super) done: u64,
}

/// What it is to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) operation: Operation,
    pub(super) size: u32,
    pub(super) depth: u16,
    pub(super) receive_depth: u16,
    /// Messages to post on each queue pair, in all; 0 for an end that only answers.
    pub(super) limit: u64,
    pub(super) inline: bool,
}

impl Worker {
    pub(super) fn new(end: &End, task: &Task) -> Result<Self> {
        let size = u64::from(task.size);
        let slice = end.source.length / end.qps.len().max(1) as u64;
        ensure!(size > 0 && slice >= size, "a region of {} bytes is too small", end.source.length);
        Ok(Self {
            operation: task.operation,
            size: task.size,
            depth: task.depth.into(),
            signal_every: u64::from(task.depth / 4).max(1),
            limit: task.limit,
            receive_depth: task.receive_depth.into(),
            inline: task.inline.then(|| vec![0x5a; task.size as usize]),
            lanes: vec![Lane::default(); end.qps.len()],
            slice: slice - slice % size,
            taken: [WorkCompletion::default(); COMPLETIONS],
            received: 0,
            done: 0,
        })
    }

    /// Bytes of the region that each queue pair goes through.
    pub(super) fn slice(&self) -> u64 {
        self.slice
    }

    /// Whether everything that was to be posted is done.
    pub(super) fn is_through(&self) -> bool {
        self.lanes.iter().all(|lane| lane.done >= self.limit)
    }

    /// Takes completions, posts what there is room for.
    pub(super) fn turn(&mut self, end: &mut End) -> Result<()> {
        if self.limit > 0 {
            self.take_sent(end)?;
            self.post(end)?;
        }
        if self.receive_depth > 0 {
            self.take_received(end)?;
            self.post_buffers(end)?;
        }
        match end.node.verbs_mut().device_mut().poll_async_event() {
            None | Some(AsyncEvent::SrqLimitReached(_)) => Ok(()),
            Some(event) => bail!("{event:?}"),
        }
    }

    fn take_sent(&mut self, end: &mut End) -> Result<()> {
        let Self { taken, .. } = self;
        let count = end.node.verbs_mut().device_mut().poll_cq(end.send_cq, taken)?;
        for wc in taken.iter().take(count) {
            ensure!(wc.status == WcStatus::Success, "a message ended with {:?}", wc.status);
            // Signaled ones bear how many messages were posted before them, and on which queue pair.
            let (lane, number) = (wc.wr_id >> 48, wc.wr_id & ((1 << 48) - 1));
            if let Some(lane) = usize::try_from(lane).ok().and_then(|lane| self.lanes.get_mut(lane)) {
                let before = std::mem::replace(&mut lane.done, number + 1);
                self.done += lane.done - before;
            }
        }
        Ok(())
    }

    fn post(&mut self, end: &mut End) -> Result<()> {
        let End { node, qps, source, sink, peer_source, peer_sink, .. } = end;
        let device = node.verbs_mut().device_mut();
        for (index, (lane, qp)) in self.lanes.iter_mut().zip(qps).enumerate() {
            while lane.posted < self.limit && lane.posted - lane.done < self.depth {
                let at = index as u64 * self.slice + lane.at;
                let (local, op) = match self.operation {
                    Operation::Write => {
                        let (remote_addr, rkey) = (peer_sink.addr + at, peer_sink.rkey());
                        (source.addr + at, SendOp::RdmaWrite { remote_addr, rkey })
                    }
                    Operation::Read => {
                        let (remote_addr, rkey) = (peer_source.addr + at, peer_source.rkey());
                        (sink.addr + at, SendOp::RdmaRead { remote_addr, rkey })
                    }
                    Operation::Send => (source.addr + at, SendOp::Send { invalidate: None }),
                };
                let lkey = if self.operation == Operation::Read { sink.lkey } else { source.lkey };
                let list = [Sge { addr: local, length: self.size, lkey }];
                let next = lane.posted + 1;
                lane.unsignaled += 1;
                let signaled = lane.unsignaled == self.signal_every || next == self.limit;
                if signaled {
                    lane.unsignaled = 0;
                }
                let data = self.inline.as_deref().map_or(Data::List(&list), Data::Inline);
                let flags = SendFlags { signaled, ..SendFlags::default() };
                let wr_id = (index as u64) << 48 | lane.posted;
                device.post_send(*qp, &SendWr { wr_id, op, data, flags })?;
                lane.posted = next;
                lane.at = behind(lane.at, self.size, self.slice);
            }
        }
        Ok(())
    }

    fn take_received(&mut self, end: &mut End) -> Result<()> {
        let Self { taken, .. } = self;
        loop {
            let count = end.node.verbs_mut().device_mut().poll_cq(end.recv_cq, taken)?;
            for wc in taken.iter().take(count) {
                let (status, len) = (wc.status, wc.byte_len);
                ensure!(status == WcStatus::Success, "a buffer ended with {status:?}");
                ensure!(len == self.size, "a message of {len} bytes in place of {}", self.size);
                if let Some(lane) = usize::try_from(wc.wr_id).ok().and_then(|at| self.lanes.get_mut(at)) {
                    lane.used += 1;
                }
                self.received += 1;
            }
            if count < COMPLETIONS {
                return Ok(());
            }
        }
    }

    /// Buffers one behind the other, so that message i lies at the same place as at the sender.
    fn post_buffers(&mut self, end: &mut End) -> Result<()> {
        let End { node, qps, sink, .. } = end;
        let device = node.verbs_mut().device_mut();
        for (index, (lane, qp)) in self.lanes.iter_mut().zip(qps).enumerate() {
            while lane.buffers - lane.used < self.receive_depth {
                let at = index as u64 * self.slice + lane.buffer_at;
                let list = [Sge { addr: sink.addr + at, length: self.size, lkey: sink.lkey }];
                device.post_recv(*qp, &RecvWr { wr_id: index as u64, sg_list: &list })?;
                lane.buffers += 1;
                lane.buffer_at = behind(lane.buffer_at, self.size, self.slice);
            }
        }
        Ok(())
    }
}

/// Where the next message is in a slice of whole messages: behind the one at `at`, or at the start.
fn behind(at: u64, size: u32, slice: u64) -> u64 {
    let next = at + u64::from(size);
    if next < slice { next } else { 0 }
}
