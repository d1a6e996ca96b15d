//! Drives the traffic of one end: keeps its queues full, polls completions and counts messages.

use anyhow::{Result, ensure};
use rdma::verbs::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion};
use serde::{Deserialize, Serialize};

use super::end::End;
use super::load::Operation;

/// Completions per poll of a queue.
const COMPLETIONS: usize = 64;

/// Progress of one queue pair.
#[derive(Clone, Debug, Default)]
struct QpProgress {
    /// Messages posted so far.
    posted: u64,
    /// Messages known to be completed.
    done: u64,
    /// Offset of the next message in the queue pair's slice.
    at: u64,
    /// Messages posted since the last signaled one.
    unsignaled: u64,
    /// Receive buffers posted so far.
    buffers: u64,
    /// Receive buffers completed so far.
    used: u64,
    /// Offset of the next receive buffer in the slice.
    buffer_at: u64,
}

/// The queues of one node and their progress.
#[derive(Debug)]
pub(super) struct TrafficDriver {
    operation: Operation,
    size: u32,
    /// Messages in flight on each queue pair, at most.
    depth: u64,
    /// One message in this number is signaled.
    signal_every: u64,
    /// Messages to post on each queue pair.
    limit: u64,
    receive_depth: u64,
    inline: Option<Vec<u8>>,
    queues: Vec<QpProgress>,
    /// Bytes of a region per queue pair: whole messages.
    slice: u64,
    completions: [WorkCompletion; COMPLETIONS],
    /// Messages received, by their completions.
    pub(super) received: u64,
    /// Messages known to be completed.
    pub(super) done: u64,
}

/// Traffic of one node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct TrafficSpec {
    pub(super) operation: Operation,
    pub(super) size: u32,
    pub(super) depth: u16,
    pub(super) receive_depth: u16,
    /// Messages to post on each queue pair; 0 for a node that only receives.
    pub(super) limit: u64,
    pub(super) inline: bool,
}

impl TrafficDriver {
    pub(super) fn new(end: &impl End, traffic: &TrafficSpec) -> Result<Self> {
        let size = u64::from(traffic.size);
        let ([source, _], queue_pairs) = (end.regions(), end.queue_pairs());
        let slice = source.bytes / queue_pairs.max(1) as u64;
        ensure!(size > 0 && slice >= size, "a region of {} bytes is too small", source.bytes);
        Ok(Self {
            operation: traffic.operation,
            size: traffic.size,
            depth: traffic.depth.into(),
            signal_every: u64::from(traffic.depth / 4).max(1),
            limit: traffic.limit,
            receive_depth: traffic.receive_depth.into(),
            inline: traffic.inline.then(|| vec![0x5a; traffic.size as usize]),
            queues: vec![QpProgress::default(); queue_pairs],
            slice: slice - slice % size,
            completions: [WorkCompletion::default(); COMPLETIONS],
            received: 0,
            done: 0,
        })
    }

    /// Returns the bytes of the region per queue pair.
    pub(super) fn slice(&self) -> u64 {
        self.slice
    }

    /// Returns true once all messages are completed.
    pub(super) fn is_done(&self) -> bool {
        self.queues.iter().all(|queue| queue.done >= self.limit)
    }

    /// Polls completions and fills the queues.
    pub(super) fn poll(&mut self, end: &mut impl End) -> Result<()> {
        if self.limit > 0 {
            self.poll_send_cq(end)?;
            self.post_sends(end)?;
        }
        if self.receive_depth > 0 {
            self.poll_recv_cq(end)?;
            self.post_buffers(end)?;
        }
        end.check_events()
    }

    fn poll_send_cq(&mut self, end: &mut impl End) -> Result<()> {
        let Self { completions, .. } = self;
        let count = end.poll_send(completions)?;
        for wc in completions.iter().take(count) {
            ensure!(wc.status == WcStatus::Success, "a message ended with {:?}", wc.status);
            // The ID of a signaled message has the queue pair in its upper bits, and the number of earlier messages.
            let (queue, number) = (wc.wr_id >> 48, wc.wr_id & ((1 << 48) - 1));
            if let Some(queue) = usize::try_from(queue).ok().and_then(|queue| self.queues.get_mut(queue)) {
                let before = std::mem::replace(&mut queue.done, number + 1);
                self.done += queue.done - before;
            }
        }
        Ok(())
    }

    fn post_sends(&mut self, end: &mut impl End) -> Result<()> {
        let [source, sink] = end.regions();
        let [(peer_source, source_key), (peer_sink, sink_key)] = end.peer_regions();
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.posted >= self.limit || queue.posted - queue.done >= self.depth {
                continue;
            }
            end.begin_batch(index);
            while queue.posted < self.limit && queue.posted - queue.done < self.depth {
                let at = index as u64 * self.slice + queue.at;
                let (local, op) = match self.operation {
                    Operation::Write => {
                        let remote_addr = peer_sink + at;
                        (source.addr + at, SendOp::RdmaWrite { remote_addr, rkey: sink_key })
                    }
                    Operation::Read => {
                        let remote_addr = peer_source + at;
                        (sink.addr + at, SendOp::RdmaRead { remote_addr, rkey: source_key })
                    }
                    Operation::Send => (source.addr + at, SendOp::Send { invalidate: None }),
                };
                let lkey = if self.operation == Operation::Read { sink.lkey } else { source.lkey };
                let list = [Sge { addr: local, length: self.size, lkey }];
                let next = queue.posted + 1;
                queue.unsignaled += 1;
                let signaled = queue.unsignaled == self.signal_every || next == self.limit;
                if signaled {
                    queue.unsignaled = 0;
                }
                let data = self.inline.as_deref().map_or(Data::List(&list), Data::Inline);
                let flags = SendFlags { signaled, ..SendFlags::default() };
                let wr_id = (index as u64) << 48 | queue.posted;
                end.post_send(index, &[SendWr { wr_id, op, data, flags }])?;
                queue.posted = next;
                queue.at = next_offset(queue.at, self.size, self.slice);
            }
            end.end_batch(index);
        }
        Ok(())
    }

    fn poll_recv_cq(&mut self, end: &mut impl End) -> Result<()> {
        let Self { completions, .. } = self;
        loop {
            let count = end.poll_recv(completions)?;
            for wc in completions.iter().take(count) {
                let (status, len) = (wc.status, wc.byte_len);
                ensure!(status == WcStatus::Success, "a buffer ended with {status:?}");
                ensure!(len == self.size, "a message of {len} bytes in place of {}", self.size);
                if let Some(queue) = usize::try_from(wc.wr_id).ok().and_then(|at| self.queues.get_mut(at)) {
                    queue.used += 1;
                }
                self.received += 1;
            }
            if count < COMPLETIONS {
                return Ok(());
            }
        }
    }

    /// Posts consecutive buffers, so that each message is placed at the offset that it has at the sender.
    fn post_buffers(&mut self, end: &mut impl End) -> Result<()> {
        let [_, sink] = end.regions();
        for (index, queue) in self.queues.iter_mut().enumerate() {
            while queue.buffers - queue.used < self.receive_depth {
                let at = index as u64 * self.slice + queue.buffer_at;
                let list = [Sge { addr: sink.addr + at, length: self.size, lkey: sink.lkey }];
                end.post_recv(index, &[RecvWr { wr_id: index as u64, sg_list: &list }])?;
                queue.buffers += 1;
                queue.buffer_at = next_offset(queue.buffer_at, self.size, self.slice);
            }
        }
        Ok(())
    }
}

/// Returns the offset of the message after the one at `at`, in a slice of whole messages that is used as a ring.
fn next_offset(at: u64, size: u32, slice: u64) -> u64 {
    let next = at + u64::from(size);
    if next < slice { next } else { 0 }
}
