//! Replies that belong to no connection: resets, SYN cookies, and acknowledgments from TIME-WAIT.

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::conn::Reply;
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::{MacAddr, TcpFlags, TcpHeader, TcpOptions};

/// Bound of queued replies.
const QUEUE_MAX: usize = 256;
/// Replies to segments of no connection, per address: per second on average, and at once.
const PER_SECOND: u64 = 200;
const BURST: u64 = 100;
const NANOS_PER_REPLY: u64 = 1_000_000_000 / PER_SECOND;
/// Number of token buckets that all addresses share.
const BUCKETS: usize = 256;

/// A token bucket; its tokens are nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    credit: u64,
    at: Instant,
}

/// The queue of replies, with rate limits.
///
/// Replies to forgeable segments are limited per claimed source address. With one limit for all, an attacker could
/// count the resets to its own segments and learn whether a segment that it forged in another host's name was
/// answered: which ports two other hosts use. A secret keyed hash assigns addresses to buckets, and the cost of
/// each reply is random.
#[derive(Debug)]
pub(super) struct Replies {
    /// Replies, with their destination link addresses if known.
    queue: VecDeque<(Reply, Option<MacAddr>)>,
    buckets: [Bucket; BUCKETS],
    hasher: SipHasher13,
    /// Number of random draws so far: the input of the next one.
    draws: u64,
}

impl Replies {
    /// Makes an empty queue; `key` must be secret.
    pub(super) fn new(key: (u64, u64)) -> Self {
        let full = Bucket { credit: BURST * NANOS_PER_REPLY, at: Instant::ZERO };
        let hasher = SipHasher13::new_with_keys(key.0, key.1);
        Self { queue: VecDeque::with_capacity(QUEUE_MAX), buckets: [full; BUCKETS], hasher, draws: 0 }
    }

    /// Queues a reply to a segment that may be forged; `false` if the limit is exceeded.
    pub(super) fn push_limited(&mut self, now: Instant, reply: Reply) -> bool {
        self.draws = self.draws.wrapping_add(1);
        let draw = self.hasher.hash(&self.draws.to_le_bytes()) % NANOS_PER_REPLY;
        let cost = (NANOS_PER_REPLY / 2).saturating_add(draw);
        let at = self.bucket_of(reply.remote.ip());
        let Some(bucket) = self.buckets.get_mut(at) else { return false };
        let earned = now.as_nanos().saturating_sub(bucket.at.as_nanos());
        bucket.credit = bucket.credit.saturating_add(earned).min(BURST * NANOS_PER_REPLY);
        bucket.at = bucket.at.max(now);
        let Some(left) = bucket.credit.checked_sub(cost) else { return false };
        bucket.credit = left;
        self.push(reply)
    }

    /// Returns the bucket of an address. All of an IPv6 /64 counts as one host.
    fn bucket_of(&self, address: IpAddr) -> usize {
        let hash = match address {
            IpAddr::V4(address) => self.hasher.hash(&address.octets()),
            IpAddr::V6(address) => {
                let [prefix @ .., _, _, _, _, _, _, _, _] = address.octets();
                let prefix: [u8; 8] = prefix;
                self.hasher.hash(&prefix).wrapping_add(1)
            }
        };
        let [low, ..] = hash.to_le_bytes();
        usize::from(low)
    }

    /// Queues a reply without a rate limit; `false` if the queue is full.
    pub(super) fn push(&mut self, reply: Reply) -> bool {
        self.push_any(reply, None)
    }

    /// Queues an answer to a SYN, one for each, to the link address that the SYN came from.
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

/// Returns the reset for a segment without a connection (RFC 9293 §3.10.7.1).
pub(super) fn reset_for(local: SocketAddr, remote: SocketAddr, header: &TcpHeader, seq_len: u32) -> Reply {
    let answer = TcpHeader { src_port: local.port(), dst_port: remote.port(), ..TcpHeader::default() };
    let header = if header.flags.contains(TcpFlags::ACK) {
        TcpHeader { seq: header.ack, flags: TcpFlags::RST, ..answer }
    } else {
        let flags = TcpFlags::RST | TcpFlags::ACK;
        TcpHeader { seq: SeqNum::new(0), ack: header.seq + seq_len, flags, ..answer }
    };
    Reply { local, remote, header, options: TcpOptions::NONE, traffic_class: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply_to(remote: &str) -> Reply {
        let end = SocketAddr::from(([10, 0, 0, 1], 1));
        reset_for(end, SocketAddr::new(remote.parse().unwrap(), 1), &TcpHeader::default(), 0)
    }

    /// Returns the number of replies allowed at once.
    fn burst(replies: &mut Replies, now: Instant, remote: &str) -> u64 {
        let mut sent = 0;
        while replies.push_limited(now, reply_to(remote)) {
            sent += 1;
            replies.drop_first();
        }
        sent
    }

    #[test]
    fn replies_are_limited_per_time_and_address() {
        let mut replies = Replies::new((1, 2));
        let now = Instant::ZERO;
        let first = burst(&mut replies, now, "10.0.0.2");
        assert!(first.abs_diff(BURST) < BURST / 5, "{first}");
        assert_eq!(burst(&mut replies, now, "10.0.0.2"), 0);
        // Other addresses usually have other buckets.
        let others = (3..20).filter(|n| burst(&mut replies, now, &std::format!("10.0.0.{n}")) > 0);
        assert!(others.count() > 14);
        let second = burst(&mut replies, Instant::from_millis(250), "10.0.0.2");
        assert!(second.abs_diff(PER_SECOND / 4) < 10, "{second}");
    }

    #[test]
    fn addresses_of_one_subnet_share_a_bucket_in_ipv6() {
        let mut replies = Replies::new((1, 2));
        assert!(burst(&mut replies, Instant::ZERO, "fd00::1") > 0);
        assert_eq!(burst(&mut replies, Instant::ZERO, "fd00::ffff:2"), 0);
        assert!(burst(&mut replies, Instant::ZERO, "fd00:0:0:1::1") > 0);
    }

    #[test]
    fn the_number_of_replies_is_unpredictable() {
        let counts = (0..20).map(|key| burst(&mut Replies::new((key, 0)), Instant::ZERO, "10.0.0.2"));
        let distinct: std::collections::BTreeSet<_> = counts.collect();
        assert!(distinct.len() > 5, "{distinct:?}");
    }
}
