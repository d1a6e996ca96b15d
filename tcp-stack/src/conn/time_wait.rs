//! TIME-WAIT: a small record replaces the control block of a connection that has ended.
//!
//! All records live equally long, so one list in the order of creation replaces timers.

use core::time::Duration;

use super::listen::SynOffer;
use super::{Conn, Incoming, Reply, ts_clock};
use crate::config::TcpConfig;
use crate::four_tuple::FourTuple;
use crate::pool::{Link, List, Pool};
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::{TcpFlags, TcpHeader, TcpOptions, Timestamps};

/// Least time between two answers of a record to segments without sequence space, milliseconds.
const ANSWER_INTERVAL_MS: u32 = 1000;

/// The record of a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub(crate) flow: FourTuple,
    pub(crate) hash: u32,
    snd_nxt: SeqNum,
    rcv_nxt: SeqNum,
    /// TS.Recent, if timestamps were agreed on.
    ts_recent: Option<u32>,
    ts_offset: u32,
    window: u16,
    traffic_class: u8,
    ends_at: Instant,
    /// Earliest time of the next answer to a segment without sequence space, milliseconds modulo 2^32.
    answers_from_ms: u32,
    link: Link,
}

/// The response to a segment for a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeWaitVerdict {
    /// Drop the segment without an answer.
    Ignore,
    /// Send this acknowledgment, which repeats the last one.
    Answer(Reply),
    /// Let a new connection take the record's place; its initial sequence number must be at least this.
    Reuse(SeqNum),
    /// Remove the record: the peer has reset the connection.
    Remove,
}

impl TimeWait {
    pub(crate) fn of(conn: &Conn) -> Self {
        let window = conn.current_window() >> conn.negotiated.rcv_wscale;
        Self {
            flow: conn.flow,
            hash: conn.hash,
            snd_nxt: conn.snd.nxt,
            rcv_nxt: conn.rcv.nxt,
            ts_recent: conn.negotiated.timestamps.then_some(conn.rcv.ts_recent),
            ts_offset: conn.ts_offset,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            traffic_class: conn.snd.traffic_class,
            ends_at: Instant::MAX,
            answers_from_ms: 0,
            link: Link::NONE,
        }
    }

    /// Returns the acknowledgment `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>`.
    pub(crate) fn acknowledgment(&self, now: Instant) -> Reply {
        let echo = self.ts_recent;
        Reply {
            local: self.flow.local(),
            remote: self.flow.remote(),
            header: TcpHeader {
                src_port: self.flow.local().port(),
                dst_port: self.flow.remote().port(),
                seq: self.snd_nxt,
                ack: self.rcv_nxt,
                flags: TcpFlags::ACK,
                window: self.window,
                urgent: 0,
            },
            options: TcpOptions {
                timestamps: echo.map(|echo| Timestamps { value: ts_clock(now, self.ts_offset), echo }),
                ..TcpOptions::NONE
            },
            traffic_class: self.traffic_class,
        }
    }

    /// SEGMENT ARRIVES in TIME-WAIT (RFC 9293 §3.10.7.4).
    fn respond<B>(&mut self, now: Instant, segment: &Incoming<B>, timestamps: bool) -> TimeWaitVerdict {
        let header = &segment.header;
        if header.flags.contains(TcpFlags::RST) {
            // RFC 1337 would keep the record; RFC 5961 §3 makes a blind reset unlikely enough.
            let exact = header.seq == self.rcv_nxt;
            return if exact { TimeWaitVerdict::Remove } else { TimeWaitVerdict::Ignore };
        }
        if header.flags.contains(TcpFlags::SYN) && !header.flags.contains(TcpFlags::ACK) {
            let offer = SynOffer { header: *header, options: segment.options, ecn: segment.ecn };
            if self.may_be_reused(&offer, timestamps) {
                // RFC 9293 §3.6.1: "assigns its initial sequence number for the new connection to be
                // larger than the largest sequence number it used on the previous connection".
                return TimeWaitVerdict::Reuse(self.snd_nxt + (1 << 16));
            }
        }
        // A segment without sequence space may be part of an acknowledgment loop.
        if segment.seq_len() == 0 {
            let now_ms = ts_clock(now, 0);
            let too_soon = now_ms.wrapping_sub(self.answers_from_ms).cast_signed() < 0;
            if header.seq == self.rcv_nxt || too_soon {
                return TimeWaitVerdict::Ignore;
            }
            self.answers_from_ms = now_ms.wrapping_add(ANSWER_INTERVAL_MS);
        }
        TimeWaitVerdict::Answer(self.acknowledgment(now))
    }

    /// True if a SYN may reuse the record (RFC 6191 §2); `timestamps` is true if we would agree on them.
    fn may_be_reused(&self, offer: &SynOffer, timestamps: bool) -> bool {
        // "the sequence number corresponding to the FIN flag of the previous incarnation" is RCV.NXT - 1.
        let later_seq = offer.header.seq.at_or_after(self.rcv_nxt);
        match (self.ts_recent, offer.options.timestamps.filter(|_| timestamps)) {
            (Some(recent), Some(ts)) => {
                let newer = ts.value.wrapping_sub(recent).cast_signed();
                newer > 0 || (newer == 0 && later_seq)
            }
            // "If TCP Timestamps would be enabled for the new incarnation of the connection, honor the incoming
            // connection request".
            (None, Some(_)) => true,
            (_, None) => later_seq,
        }
    }
}

/// All TIME-WAIT records, in memory of fixed size.
#[derive(Debug)]
pub(crate) struct TimeWaitTable {
    pool: Pool<TimeWait>,
    /// The records, oldest first.
    by_age: List,
    length: Duration,
    /// True if a new connection would use timestamps.
    timestamps: bool,
}

impl TimeWaitTable {
    pub(crate) fn new(limit: u32, tcp: &TcpConfig) -> Self {
        let (length, timestamps) = (tcp.time_wait(), tcp.timestamps);
        Self { pool: Pool::new(limit.max(1)), by_age: List::EMPTY, length, timestamps }
    }

    pub(crate) fn used(&self) -> u32 {
        self.pool.used()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pool.available() == 0
    }

    pub(crate) fn get(&self, index: u32) -> Option<&TimeWait> {
        self.pool.get(index)
    }

    /// Adds a record; `None` if the table is full.
    pub(crate) fn insert(&mut self, now: Instant, record: TimeWait) -> Option<u32> {
        let index = self.pool.insert(record).ok()?;
        self.append(now, index);
        Some(index)
    }

    fn append(&mut self, now: Instant, index: u32) {
        if let Some(record) = self.pool.get_mut(index) {
            record.ends_at = now + self.length;
            record.answers_from_ms = ts_clock(now, 0);
        }
        self.by_age.push_back(&mut self.pool, index, |record| &mut record.link);
    }

    fn unlink(&mut self, index: u32) {
        self.by_age.unlink(&mut self.pool, index, |record| &mut record.link);
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<TimeWait> {
        self.unlink(index);
        self.pool.remove(index)
    }

    /// Handles a segment for a record; a repeated FIN restarts the record's time.
    pub(crate) fn on_segment<B>(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Incoming<B>,
    ) -> TimeWaitVerdict {
        let Some(record) = self.pool.get_mut(index) else { return TimeWaitVerdict::Ignore };
        let verdict = record.respond(now, segment, self.timestamps);
        let fin_again = matches!(verdict, TimeWaitVerdict::Answer(_))
            && segment.header.flags.contains(TcpFlags::FIN)
            && segment.header.seq + segment.seq_len() == record.rcv_nxt;
        if fin_again {
            self.unlink(index);
            self.append(now, index);
        }
        verdict
    }

    /// Returns the record that expires first, and the time of expiry.
    pub(crate) fn first(&self) -> Option<(u32, Instant)> {
        self.pool.get(self.by_age.first).map(|record| (self.by_age.first, record.ends_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConnOptions, StackConfig};
    use crate::conn::Origin;

    fn record(port: u16) -> TimeWait {
        let local = core::net::SocketAddr::from(([10, 0, 0, 1], 7));
        let remote = core::net::SocketAddr::from(([10, 0, 0, 2], port));
        let (iss, options) = (SeqNum::new(0), ConnOptions::default());
        let origin =
            Origin { local, remote, hash: 0, iss, ts_offset: 0, listener: None, options, path_mtu: 1500 };
        TimeWait::of(&Conn::open(Instant::ZERO, &origin, &StackConfig::default()))
    }

    #[test]
    fn records_expire_in_order_after_removals() {
        let mut table = TimeWaitTable::new(3, &TcpConfig { time_wait_ms: 60_000, ..TcpConfig::default() });
        let [a, b, c] = [1, 2, 3].map(|n| table.insert(Instant::from_millis(n), record(1)).unwrap());
        assert!(table.is_full());
        assert_eq!(table.insert(Instant::from_millis(4), record(4)), None);
        assert_eq!(table.first(), Some((a, Instant::from_millis(60_001))));
        table.remove(b).unwrap();
        table.remove(a).unwrap();
        assert_eq!(table.first(), Some((c, Instant::from_millis(60_003))));
        table.remove(c).unwrap();
        assert_eq!((table.first(), table.used()), (None, 0));
    }

    #[test]
    fn a_record_is_small() {
        assert!(size_of::<TimeWait>() <= 128, "{}", size_of::<TimeWait>());
    }
}
