//! SYN-RECEIVED of passive opens: a small record, in place of a control block, until the peer's acknowledgment
//! shows that the peer exists.
//!
//! A record is in the list of its listener, oldest first. While its SYN-ACK is queued, the record is also in one of
//! two lists: SYN-ACKs to send next, or SYN-ACKs that wait for a neighbor's link address.

use core::time::Duration;

use super::listen::mss_for;
use super::syn_options::SynOptions;
use super::syn_received::NOT_TIMED;
use super::window::{offered_scale, syn_window};
use super::{Incoming, Reply, ts_clock};
use crate::config::{StackConfig, TcpConfig};
use crate::four_tuple::FourTuple;
use crate::iface::DropReason;
use crate::pool::{Link, List, Pool};
use crate::recovery::RttEstimator;
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::timer::Wheel;
use crate::wire::{SackBlocks, TcpFlags, TcpHeader, TcpOptions, Timestamps};

/// The list in which a record's SYN-ACK is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    No,
    /// Sent as soon as the port can take it.
    Output,
    /// Sent when the neighbor's link address is known.
    Neighbor,
}

/// A connection of which only the SYN has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    pub(crate) flow: FourTuple,
    pub(crate) syn_options: SynOptions,
    pub(crate) iss: SeqNum,
    pub(crate) irs: SeqNum,
    /// TS.Recent: the TSval of the SYN, or of a later one.
    pub(crate) ts_recent: u32,
    /// Time of the last SYN-ACK, microseconds modulo 2^32: longer than a record lives.
    sent_us: u32,
    /// Arrival time of the SYN, milliseconds modulo 2^32.
    opened_ms: u32,
    age: Link,
    out: Link,
    queued: Queued,
    /// Set once a repeated SYN was answered again.
    repeated: bool,
    /// Consecutive timeouts of the SYN-ACK.
    pub(crate) attempts: u8,
    /// Traffic class that the listener gives its connections, without the ECN bits.
    pub(crate) traffic_class: u8,
}

/// The response to a segment for a half-open connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HalfOpenVerdict {
    /// Drop the segment for this reason.
    Ignore(DropReason),
    /// Send the SYN-ACK once more.
    Repeat,
    /// Send a reset: the peer acknowledges something never sent.
    Reset,
    /// Send an acknowledgment: the segment is forged, or belongs to an earlier connection.
    Challenge(DropReason),
    /// Remove the record: the peer has reset the connection.
    Remove,
    /// Establish the connection: the segment acknowledges the SYN-ACK.
    Establish,
}

/// Returns the low 32 bits.
fn low(value: u64) -> u32 {
    let [.., a, b, c, d] = value.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

impl HalfOpen {
    pub(crate) fn new(
        now: Instant,
        flow: FourTuple,
        syn_options: SynOptions,
        iss: SeqNum,
        irs: SeqNum,
        ts_recent: u32,
    ) -> Self {
        Self {
            flow,
            syn_options,
            iss,
            irs,
            ts_recent,
            sent_us: low(now.as_micros()),
            opened_ms: low(now.as_millis()),
            age: Link::NONE,
            out: Link::NONE,
            queued: Queued::No,
            repeated: false,
            attempts: 0,
            traffic_class: 0,
        }
    }

    /// Returns the time since the SYN arrived.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        Duration::from_millis(low(now.as_millis()).wrapping_sub(self.opened_ms).into())
    }

    /// Returns the time since the last SYN-ACK.
    pub(crate) fn since_sent(&self, now: Instant) -> Duration {
        Duration::from_micros(low(now.as_micros()).wrapping_sub(self.sent_us).into())
    }

    /// Returns the number of SYN-ACKs sent before the last one. If it is not 0, nobody knows which one the peer
    /// answers (RFC 6298 §3).
    pub(crate) fn previous_attempts(&self) -> u8 {
        self.attempts.max(u8::from(self.repeated)).min(NOT_TIMED - 1)
    }

    /// SEGMENT ARRIVES in SYN-RECEIVED (RFC 9293 §3.10.7.4), in its order of checks. The receive window is that of
    /// the SYN-ACK.
    pub(crate) fn classify<B>(&self, config: &StackConfig, segment: &Incoming<B>) -> HalfOpenVerdict {
        let TcpHeader { seq, ack, flags, .. } = segment.header;
        let first = self.irs + 1;
        let (reset, syn) = (flags.contains(TcpFlags::RST), flags.contains(TcpFlags::SYN));
        if syn && !reset && seq == self.irs {
            return HalfOpenVerdict::Repeat;
        }
        // RFC 7323 §5.3 R1, for a segment that has a timestamp.
        if self.syn_options.timestamps()
            && let Some(ts) = segment.options.timestamps.filter(|_| !reset && !syn)
            && ts.value.wrapping_sub(self.ts_recent).cast_signed() < 0
        {
            return HalfOpenVerdict::Challenge(DropReason::TcpPaws);
        }
        let window = syn_window(config);
        let len = segment.seq_len();
        let begins_within = seq.is_within(first, window) || (len == 0 && !reset && seq == first + window);
        let ends_within = len > 0 && (seq + len.wrapping_sub(1)).is_within(first, window);
        if !(begins_within || ends_within) {
            return match seq.before(first) {
                _ if reset => HalfOpenVerdict::Ignore(DropReason::TcpBadReset),
                true => HalfOpenVerdict::Challenge(DropReason::TcpDuplicate),
                false => HalfOpenVerdict::Challenge(DropReason::TcpOutOfWindow),
            };
        }
        // RFC 5961 §3 and §4: only an exact reset counts, and a SYN never does.
        match (reset, syn) {
            (true, _) if seq == first => HalfOpenVerdict::Remove,
            (true, _) => HalfOpenVerdict::Challenge(DropReason::TcpBadReset),
            (_, true) => HalfOpenVerdict::Challenge(DropReason::TcpBadSyn),
            _ if !flags.contains(TcpFlags::ACK) => HalfOpenVerdict::Ignore(DropReason::TcpNoAck),
            _ if ack == self.iss + 1 => HalfOpenVerdict::Establish,
            _ => HalfOpenVerdict::Reset,
        }
    }

    /// Returns the SYN-ACK of this record.
    pub(crate) fn syn_ack(&self, config: &StackConfig, now: Instant, ts_offset: u32) -> Reply {
        let syn_ack = syn_ack(
            config,
            &self.flow,
            (self.iss, self.irs),
            self.syn_options,
            (ts_clock(now, ts_offset), self.ts_recent),
        );
        Reply { traffic_class: self.traffic_class, ..syn_ack }
    }

    /// Returns `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>`, or a reset with the same numbers.
    pub(crate) fn reply(&self, config: &StackConfig, now: Instant, ts_offset: u32, flags: TcpFlags) -> Reply {
        let syn_ack = self.syn_ack(config, now, ts_offset);
        let resets = flags.contains(TcpFlags::RST);
        let scale = self.syn_options.window_scale().map_or(0, |_| offered_scale(config));
        let window = u16::try_from(syn_window(config) >> scale).unwrap_or(u16::MAX);
        Reply {
            header: TcpHeader {
                seq: self.iss + 1,
                flags,
                window: if resets { 0 } else { window },
                ..syn_ack.header
            },
            options: TcpOptions {
                timestamps: syn_ack.options.timestamps.filter(|_| !resets),
                ..TcpOptions::NONE
            },
            ..syn_ack
        }
    }
}

/// Returns `<SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>` with the agreed options: apart from the MSS, never an option that
/// the SYN did not have. So the SYN-ACK is at most four bytes longer than the SYN.
pub(crate) fn syn_ack(
    config: &StackConfig,
    flow: &FourTuple,
    (iss, irs): (SeqNum, SeqNum),
    syn_options: SynOptions,
    (value, echo): (u32, u32),
) -> Reply {
    let (local, remote) = (flow.local(), flow.remote());
    Reply {
        local,
        remote,
        header: TcpHeader {
            src_port: local.port(),
            dst_port: remote.port(),
            seq: iss,
            ack: irs + 1,
            flags: TcpFlags::SYN
                | TcpFlags::ACK
                | if syn_options.ecn() { TcpFlags::ECE } else { TcpFlags::NONE },
            window: u16::try_from(syn_window(config)).unwrap_or(u16::MAX),
            urgent: 0,
        },
        options: TcpOptions {
            mss: Some(mss_for(local, config.mtu)),
            window_scale: syn_options.window_scale().map(|_| offered_scale(config)),
            sack_permitted: syn_options.sack(),
            timestamps: syn_options.timestamps().then_some(Timestamps { value, echo }),
            sack: SackBlocks::EMPTY,
        },
        traffic_class: 0,
    }
}

/// Returns the timeout of a SYN-ACK that was sent again `attempts` times (RFC 6298 §5.5: "RTO <- RTO * 2").
fn timeout(tcp: &TcpConfig, attempts: u8) -> Duration {
    let doubled = 1_u32.checked_shl(u32::from(attempts)).unwrap_or(u32::MAX);
    let first = RttEstimator::new().rto(tcp.rto_min(), tcp.rto_max());
    first.saturating_mul(doubled).min(tcp.rto_max())
}

/// Unprovoked SYN-ACK retransmissions that are allowed, initially and per SYN.
const CREDIT_MAX: u32 = 1024;
const CREDIT_PER_SYN: u32 = 2;

/// All half-open connections, in memory of fixed size.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    pool: Pool<HalfOpen>,
    wheel: Wheel,
    output: List,
    neighbor: List,
    /// Unprovoked SYN-ACK retransmissions left. They limit reflection: after the first [`CREDIT_MAX`], a SYN with a
    /// forged source address makes us send that host at most three frames.
    credit: u32,
}

impl HalfOpenTable {
    pub(crate) fn new(limit: u32) -> Self {
        let (output, neighbor) = (List::EMPTY, List::EMPTY);
        Self { pool: Pool::new(limit), wheel: Wheel::new(limit), output, neighbor, credit: CREDIT_MAX }
    }

    pub(crate) fn used(&self) -> u32 {
        self.pool.used()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pool.available() == 0
    }

    pub(crate) fn get(&self, index: u32) -> Option<&HalfOpen> {
        self.pool.get(index)
    }

    /// Adds a record to its listener's list and queues its SYN-ACK; `None` if the table is full.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        tcp: &TcpConfig,
        record: HalfOpen,
        listener: &mut List,
    ) -> Option<u32> {
        let index = self.pool.insert(record).ok()?;
        listener.push_back(&mut self.pool, index, |record| &mut record.age);
        self.wheel.arm(index, now + timeout(tcp, 0));
        self.credit = self.credit.saturating_add(CREDIT_PER_SYN).min(CREDIT_MAX);
        self.queue(index, Queued::Output);
        Some(index)
    }

    /// Removes a record from the table and from its listener's list.
    pub(crate) fn remove(&mut self, index: u32, listener: Option<&mut List>) -> Option<HalfOpen> {
        self.queue(index, Queued::No);
        self.wheel.cancel(index);
        if let Some(listener) = listener {
            listener.unlink(&mut self.pool, index, |record| &mut record.age);
        }
        self.pool.remove(index)
    }

    fn queue(&mut self, index: u32, to: Queued) {
        let Some(record) = self.pool.get_mut(index) else { return };
        let from = core::mem::replace(&mut record.queued, to);
        let Self { pool, output, neighbor, .. } = self;
        match from {
            Queued::No => {}
            Queued::Output => output.unlink(pool, index, |record| &mut record.out),
            Queued::Neighbor => neighbor.unlink(pool, index, |record| &mut record.out),
        }
        match to {
            Queued::No => {}
            Queued::Output => output.push_back(pool, index, |record| &mut record.out),
            Queued::Neighbor => neighbor.push_back(pool, index, |record| &mut record.out),
        }
    }

    /// Queues the SYN-ACK once more, because the SYN was repeated, with `syn_options`.
    pub(crate) fn repeat(&mut self, index: u32, syn_options: SynOptions) {
        let Some(record) = self.pool.get_mut(index) else { return };
        if !syn_options.ecn() {
            record.syn_options = record.syn_options.without_ecn();
        }
        if record.queued == Queued::No {
            record.repeated = true;
            self.queue(index, Queued::Output);
        }
    }

    /// Handles a timeout: queues the SYN-ACK once more. Returns `None` if the record must be given up; otherwise
    /// true if the credit allowed a retransmission.
    pub(crate) fn retry(&mut self, now: Instant, tcp: &TcpConfig, index: u32) -> Option<bool> {
        let record = self.pool.get_mut(index).filter(|record| record.attempts < tcp.syn_retries)?;
        record.attempts = record.attempts.saturating_add(1);
        let (attempts, waits) = (record.attempts, record.queued != Queued::No);
        self.wheel.arm(index, now + timeout(tcp, attempts));
        if waits {
            // The previous SYN-ACK is still queued: this transmission takes its place.
            self.queue(index, Queued::Output);
            return Some(true);
        }
        let left = self.credit.checked_sub(1);
        if let Some(left) = left {
            self.credit = left;
            self.queue(index, Queued::Output);
        }
        Some(left.is_some())
    }

    /// Returns the record whose SYN-ACK must be sent next.
    pub(crate) fn next_output(&self) -> Option<u32> {
        self.output.first()
    }

    /// Notes that the SYN-ACK was handed to the port.
    pub(crate) fn on_sent(&mut self, now: Instant, index: u32) {
        if let Some(record) = self.pool.get_mut(index) {
            record.sent_us = low(now.as_micros());
        }
        self.queue(index, Queued::No);
    }

    /// Queues the SYN-ACK until the neighbor's link address is known.
    pub(crate) fn wait_for_neighbor(&mut self, index: u32) {
        self.queue(index, Queued::Neighbor);
    }

    /// True if a SYN-ACK waits for a neighbor.
    pub(crate) fn waits_for_neighbor(&self) -> bool {
        self.neighbor.first().is_some()
    }

    /// Queues all waiting SYN-ACKs for output: a neighbor's link address has become known.
    pub(crate) fn wake(&mut self) {
        while let Some(index) = self.neighbor.first() {
            self.queue(index, Queued::Output);
        }
    }

    /// Returns a record whose timer has expired; see [`Wheel::pop_expired`].
    pub(crate) fn pop_expired(&mut self, now: Instant, budget: &mut u32) -> Option<u32> {
        self.wheel.pop_expired(now, budget)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConnOptions;
    use crate::conn::SynOffer;
    use crate::pool::NIL;
    use crate::wire::EcnField;

    fn record(port: u16) -> HalfOpen {
        let remote = std::net::SocketAddr::from(([10, 0, 0, 2], port));
        let flow = FourTuple::new("10.0.0.1:7".parse().unwrap(), remote);
        HalfOpen::new(Instant::ZERO, flow, SynOptions::bare(536), SeqNum::new(1), SeqNum::new(2), 0)
    }

    fn ports(table: &HalfOpenTable, list: List, next: fn(&HalfOpen) -> u32) -> std::vec::Vec<u16> {
        let step = |index: &u32| table.get(*index).map(next).filter(|next| *next != NIL);
        core::iter::successors(list.first(), step)
            .map(|index| table.get(index).unwrap().flow.remote().port())
            .collect()
    }

    #[test]
    fn records_stay_in_order_of_age_after_removals() {
        let mut table = HalfOpenTable::new(4);
        let mut list = List::EMPTY;
        let all = [1, 2, 3, 4]
            .map(|n| table.insert(Instant::ZERO, &TcpConfig::default(), record(n), &mut list).unwrap());
        assert!(
            table.is_full()
                && table.insert(Instant::ZERO, &TcpConfig::default(), record(5), &mut list).is_none()
        );
        let listed = |table: &HalfOpenTable, list| ports(table, list, |record| record.age.next);
        assert_eq!(listed(&table, list), [1, 2, 3, 4]);
        for (n, left) in [(1, &[1, 3, 4][..]), (0, &[3, 4]), (3, &[3]), (2, &[])] {
            assert!(table.remove(all[n], Some(&mut list)).is_some());
            assert_eq!(listed(&table, list), left);
            assert_eq!(ports(&table, table.output, |record| record.out.next), left, "nothing of it is sent");
        }
        assert_eq!((table.used(), table.next_output(), table.next_deadline()), (0, None, None));
    }

    #[test]
    fn a_syn_ack_waits_for_its_neighbor_and_is_then_sent() {
        let mut table = HalfOpenTable::new(4);
        let mut list = List::EMPTY;
        let [a, b] =
            [1, 2].map(|n| table.insert(Instant::ZERO, &TcpConfig::default(), record(n), &mut list).unwrap());
        assert_eq!(table.next_output(), Some(a));
        table.wait_for_neighbor(a);
        table.on_sent(Instant::from_millis(3), b);
        assert_eq!((table.next_output(), table.waits_for_neighbor()), (None, true));
        table.repeat(a, SynOptions::bare(536));
        assert_eq!(table.next_output(), None, "it waits already");
        table.wake();
        assert_eq!((table.next_output(), table.waits_for_neighbor()), (Some(a), false));
        assert_eq!(table.get(b).unwrap().since_sent(Instant::from_millis(5)), Duration::from_millis(2));
    }

    #[test]
    fn unprovoked_syn_acks_are_limited_by_the_syns_received() {
        let tcp = TcpConfig { syn_retries: u8::MAX, ..TcpConfig::default() };
        let mut table = HalfOpenTable::new(64);
        let mut list = List::EMPTY;
        let all: std::vec::Vec<u32> =
            (0..64).map(|n| table.insert(Instant::ZERO, &tcp, record(n), &mut list).unwrap()).collect();
        let mut sent = 0;
        for _ in 0..100 {
            for index in &all {
                table.on_sent(Instant::ZERO, *index);
                sent += u32::from(table.retry(Instant::ZERO, &tcp, *index).unwrap());
            }
        }
        assert_eq!(sent, CREDIT_MAX);
        table.on_sent(Instant::ZERO, all[0]);
        table.remove(all[1], Some(&mut list)).unwrap();
        table.insert(Instant::ZERO, &tcp, record(99), &mut list).unwrap();
        let again = [0; 3].map(|_| {
            table.on_sent(Instant::ZERO, all[0]);
            table.retry(Instant::ZERO, &tcp, all[0])
        });
        assert_eq!(again, [Some(true), Some(true), Some(false)]);
    }

    #[test]
    fn a_syn_ack_is_at_most_four_bytes_longer_than_its_syn() {
        let config = StackConfig::default();
        let flow = record(1).flow;
        for n in 0..16 {
            let bit = |i: u32| n >> i & 1 == 1;
            let options = TcpOptions {
                mss: bit(0).then_some(1460),
                window_scale: bit(1).then_some(7),
                sack_permitted: bit(2),
                timestamps: bit(3).then_some(Timestamps::default()),
                sack: SackBlocks::EMPTY,
            };
            let header = TcpHeader { flags: TcpFlags::SYN, ..TcpHeader::default() };
            let syn = SynOffer { header, options, ecn: EcnField::NotEct };
            let syn_options = SynOptions::of(&syn, &config, &ConnOptions::default(), true);
            let answer = syn_ack(&config, &flow, (SeqNum::new(1), SeqNum::new(2)), syn_options, (0, 0));
            let longer = TcpHeader::len_with(&answer.options).saturating_sub(TcpHeader::len_with(&options));
            assert_eq!(longer, if bit(0) { 0 } else { 4 }, "{options:?}");
        }
    }

    #[test]
    fn timeouts_double_up_to_the_greatest() {
        let seconds = |attempts| timeout(&TcpConfig::default(), attempts).as_secs();
        assert_eq!([0, 1, 2, 5, 6, 40, 255].map(seconds), [1, 2, 4, 32, 60, 60, 60]);
    }
}
