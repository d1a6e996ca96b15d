//! The measured work, for both ends of a connection that one thread drives.

use std::time::Duration;

use anyhow::{Result, ensure};
use rdma::verbs::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion};
use serde::Serialize;

use super::super::end::End;
use super::super::load::Operation;
use crate::Stopwatch;
use crate::samples::median;

/// Requests that are posted at once, the last of them signaled.
pub(in crate::verbs) const BATCH: usize = 32;
/// Longest run without progress, iterations.
const IDLE_MAX: u64 = 2_000_000_000;

/// Messages from the initiator to the target, or Reads of the initiator.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Traffic {
    pub(in crate::verbs) operation: Operation,
    pub(in crate::verbs) size: u32,
    pub(in crate::verbs) messages: u64,
    /// Requests in flight, at most.
    pub(in crate::verbs) depth: u64,
}

/// Posts a batch of requests, the first of number `first`, the last of them signaled.
pub(in crate::verbs) fn post_batch(
    [initiator, target]: [&mut impl End; 2],
    traffic: &Traffic,
    first: u64,
    signal_all: bool,
) -> Result<usize> {
    let ([source, sink], [peer_source, peer_sink]) = (initiator.regions(), target.regions());
    let places = source.bytes / u64::from(traffic.size);
    let count = usize::try_from(traffic.messages - first).unwrap_or(BATCH).min(BATCH);
    let at = |index: usize| (first + index as u64) % places * u64::from(traffic.size);
    let lists: [[Sge; 1]; BATCH] = std::array::from_fn(|index| {
        let region = if traffic.operation == Operation::Read { sink } else { source };
        [Sge { addr: region.addr + at(index), length: traffic.size, lkey: region.lkey }]
    });
    let requests: [SendWr<'_>; BATCH] = std::array::from_fn(|index| {
        let op = match traffic.operation {
            Operation::Write => {
                SendOp::RdmaWrite { remote_addr: peer_sink.addr + at(index), rkey: peer_sink.rkey }
            }
            Operation::Read => {
                SendOp::RdmaRead { remote_addr: peer_source.addr + at(index), rkey: peer_source.rkey }
            }
            Operation::Send => SendOp::Send { invalidate: None },
        };
        let flags = SendFlags { signaled: signal_all || index + 1 == count, ..SendFlags::default() };
        SendWr { wr_id: first + index as u64, op, data: Data::List(&lists[index]), flags }
    });
    initiator.post_send(0, &requests[..count])?;
    Ok(count)
}

/// Posts receive buffers of the target, in lists, until `until` have been posted; returns their number.
fn post_buffers(target: &mut impl End, traffic: &Traffic, mut posted: u64, until: u64) -> Result<u64> {
    let [_, sink] = target.regions();
    let places = sink.bytes / u64::from(traffic.size);
    while posted < until {
        let lists: [[Sge; 1]; BATCH] = std::array::from_fn(|index| {
            let at = (posted + index as u64) % places * u64::from(traffic.size);
            [Sge { addr: sink.addr + at, length: traffic.size, lkey: sink.lkey }]
        });
        let buffers: [RecvWr<'_>; BATCH] =
            std::array::from_fn(|index| RecvWr { wr_id: posted + index as u64, sg_list: &lists[index] });
        let count = usize::try_from(until - posted).unwrap_or(BATCH).min(BATCH);
        target.post_recv(0, &buffers[..count])?;
        posted += count as u64;
    }
    Ok(posted)
}

/// Moves all messages; returns the time from the first to the last completion.
pub(super) fn drive([initiator, target]: &mut [impl End; 2], traffic: &Traffic) -> Result<Duration> {
    let Traffic { operation, messages, depth, .. } = *traffic;
    let sends = operation == Operation::Send;
    let (mut posted, mut done, mut received, mut idle) = (0, 0, 0, 0_u64);
    let mut out = [WorkCompletion::default(); BATCH];
    let mut buffers = if sends { post_buffers(target, traffic, 0, messages.min(depth))? } else { 0 };
    let watch = Stopwatch::start();
    while done < messages || (sends && received < messages) {
        let room = posted - done + BATCH as u64 <= depth
            && (!sends || buffers >= messages.min(posted + BATCH as u64));
        if posted < messages && room {
            posted += post_batch([initiator, target], traffic, posted, false)? as u64;
        }
        initiator.step();
        target.step();
        let polled = initiator.poll_send(&mut out)?;
        for wc in &out[..polled] {
            ensure!(wc.status == WcStatus::Success, "{wc:?}");
            done = wc.wr_id + 1;
        }
        let arrived = if sends { target.poll_recv(&mut out)? } else { 0 };
        for wc in &out[..arrived] {
            ensure!(wc.status == WcStatus::Success, "{wc:?}");
        }
        received += arrived as u64;
        if sends {
            buffers = post_buffers(target, traffic, buffers, messages.min(received + depth))?;
        }
        idle = if polled + arrived > 0 { 0 } else { idle + 1 };
        ensure!(idle < IDLE_MAX, "no progress after {done} messages");
    }
    Ok(watch.elapsed())
}

/// Round trip of two Writes, medians in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoundTrip {
    /// From the first store to the arrival of the answer.
    pub whole_ns: f64,
    /// Of that, both ends' stores of the message and calls to post it.
    pub post_ns: f64,
    /// The rest: from each post until its bytes are seen. In process, the thread does the nodes' work meanwhile; for an
    /// application, that is the worker's work and the transfers from core to core.
    pub wait_ns: f64,
}

impl RoundTrip {
    /// Returns the median of each part.
    pub(super) fn median(runs: &[Self]) -> Self {
        let of = |part: fn(&Self) -> f64| median(&runs.iter().map(part).collect::<Vec<_>>());
        Self {
            whole_ns: of(|run| run.whole_ns),
            post_ns: of(|run| run.post_ns),
            wait_ns: of(|run| run.wait_ns),
        }
    }
}

/// Sends Writes of 64 bytes back and forth, one at a time; both ends poll their memory. The clock is read from the time
/// stamp counter.
pub(super) fn round_trip(ends: &mut [impl End; 2], count: u32) -> Result<RoundTrip> {
    let mut trips = Vec::with_capacity(count as usize);
    let mut out = [WorkCompletion::default(); 4];
    let before = load(&ends[1])?;
    for number in 0..count {
        let word = before.wrapping_add(u64::from(number) + 1);
        let (watch, mut post_ns) = (Stopwatch::start(), 0.0);
        for from in [0, 1] {
            let began = watch.elapsed();
            let [_, sink] = ends[1 - from].regions();
            let end = &mut ends[from];
            end.write_source(56, &word.to_ne_bytes())?;
            let [source, _] = end.regions();
            let list = [Sge { addr: source.addr, length: 64, lkey: source.lkey }];
            let op = SendOp::RdmaWrite { remote_addr: sink.addr, rkey: sink.rkey };
            let wr = SendWr { wr_id: 0, op, data: Data::List(&list), flags: SendFlags::SIGNALED };
            end.post_send(0, &[wr])?;
            post_ns += watch.elapsed().saturating_sub(began).as_nanos() as f64;
            while load(&ends[1 - from])? != word {
                ends.iter_mut().for_each(End::step);
            }
        }
        let whole_ns = watch.elapsed().as_nanos() as f64;
        trips.push(RoundTrip { whole_ns, post_ns, wait_ns: whole_ns - post_ns });
        for side in [0, 1] {
            while ends[side].poll_send(&mut out)? == 0 {
                ends.iter_mut().for_each(End::step);
            }
        }
    }
    Ok(RoundTrip::median(&trips))
}

/// Reads the last word of a message of 64 bytes at the end that it was sent to.
fn load(end: &impl End) -> Result<u64> {
    let mut word = [0; 8];
    end.read_sink(56, &mut word)?;
    Ok(u64::from_ne_bytes(word))
}
