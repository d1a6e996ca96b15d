//! Segments that belong to no connection: resets, and acknowledgements from TIME-WAIT.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use crate::conn::Reply;
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::{MacAddr, TcpFlags, TcpHeader, TcpOptions};

/// Replies that wait at most.
const QUEUE_MAX: usize = 256;
/// Replies to unknown segments per second, and at once.
const PER_SECOND: u64 = 1000;
const BURST: u64 = 200;
const NANOS_PER_REPLY: u64 = 1_000_000_000 / PER_SECOND;

/// The replies that wait to be sent; unsolicited ones are limited by a token bucket.
#[derive(Debug)]
pub(super) struct Replies {
    /// Replies, and the stations that they go to where that is known.
    queue: VecDeque<(Reply, Option<MacAddr>)>,
    /// Nanoseconds of credit: a reply costs [`NANOS_PER_REPLY`].
    credit: u64,
    at: Instant,
}

impl Replies {
    pub(super) fn new() -> Self {
        Self { queue: VecDeque::with_capacity(QUEUE_MAX), credit: BURST * NANOS_PER_REPLY, at: Instant::ZERO }
    }

    /// Queues a reply to a segment that anybody could have sent; `false` when there are too many.
    pub(super) fn push_limited(&mut self, now: Instant, reply: Reply) -> bool {
        let earned = now.as_nanos().saturating_sub(self.at.as_nanos());
        self.credit = self.credit.saturating_add(earned).min(BURST * NANOS_PER_REPLY);
        self.at = self.at.max(now);
        let Some(left) = self.credit.checked_sub(NANOS_PER_REPLY) else { return false };
        let queued = self.push(reply);
        if queued {
            self.credit = left;
        }
        queued
    }

    /// Queues a reply of our own accord.
    pub(super) fn push(&mut self, reply: Reply) -> bool {
        self.push_any(reply, None)
    }

    /// Queues an answer to a SYN: one for each, to the station that it came from.
    pub(super) fn push_to(&mut self, reply: Reply, mac: MacAddr) -> bool {
        self.push_any(reply, Some(mac))
    }

    fn push_any(&mut self, reply: Reply, mac: Option<MacAddr>) -> bool {
        let has_room = self.queue.len() < QUEUE_MAX;
        if has_room {
            self.queue.push_back((reply, mac));
        }
        has_room
    }

    pub(super) fn first(&self) -> Option<&(Reply, Option<MacAddr>)> {
        self.queue.front()
    }

    pub(super) fn drop_first(&mut self) {
        self.queue.pop_front();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// RFC 9293 §3.10.7.1: the reset that answers a segment for which there is no connection.
pub(super) fn reset_for(local: SocketAddr, remote: SocketAddr, header: &TcpHeader, seq_len: u32) -> Reply {
    let answer = TcpHeader { src_port: local.port(), dst_port: remote.port(), ..TcpHeader::default() };
    let header = if header.flags.contains(TcpFlags::ACK) {
        TcpHeader { seq: header.ack, flags: TcpFlags::RST, ..answer }
    } else {
        let flags = TcpFlags::RST | TcpFlags::ACK;
        TcpHeader { seq: SeqNum::new(0), ack: header.seq + seq_len, flags, ..answer }
    };
    Reply { local, remote, header, options: TcpOptions::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_limited_per_time() {
        let end = SocketAddr::from(([10, 0, 0, 1], 1));
        let reply = reset_for(end, end, &TcpHeader::default(), 0);
        let mut replies = Replies::new();
        let mut sent = 0;
        while replies.push_limited(Instant::ZERO, reply) {
            sent += 1;
            replies.drop_first();
        }
        assert_eq!(sent, BURST);
        assert!(!replies.push_limited(Instant::from_micros(900), reply));
        assert!(replies.push_limited(Instant::from_micros(1_900), reply));
        assert!(!replies.push_limited(Instant::from_micros(1_900), reply));
    }
}
