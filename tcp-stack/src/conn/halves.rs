//! The two halves of a connection: the send variables and the receive variables.

use super::window::{Tuning, initial_buffer};
use super::{Reassembly, SendQueue};
use crate::config::{ConnOptions, StackConfig};
use crate::seq::SeqNum;
use crate::time::{Instant, MilliStamp};
use crate::wire::{EcnField, SackBlocks, SackRange};

/// The MSS of a peer that announces none, bytes: RFC 9293 §3.7.1 (MUST-15).
const DEFAULT_MSS: u16 = 536;

/// The sending half, with the names of RFC 9293 §3.3.1.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Sender {
    /// Max(SND.WND): the largest window that the peer has offered, bytes.
    pub(crate) max_wnd: u32,
    pub(crate) iss: SeqNum,
    pub(crate) up: SeqNum,
    /// The peer's MSS, bytes.
    pub(crate) peer_mss: u16,
    /// Effective send MSS: payload of a full segment, bytes.
    pub(crate) emss: u16,
    pub(crate) queue: SendQueue,
    // The fields from here on, and the second half of the queue, are used by a response to a request.
    /// End of the last segment that was not full.
    pub(crate) small_end: SeqNum,
    /// Time of the last acknowledgment of new data, or when the queue became non-empty.
    pub(crate) progress_at: MilliStamp,
    /// Peak of the bytes in flight since the round trip began. When a round trip ends, the peak stays until the
    /// next segment is sent: all acknowledgments of one burst are compared with the same peak.
    pub(crate) peak_flight: u32,
    /// The sequence number whose acknowledgment ends the round trip.
    pub(crate) round_end: SeqNum,
    /// Set if a round trip has ended and no segment was sent since.
    pub(crate) round_is_new: bool,
    pub(crate) fin_queued: bool,
    /// Set while urgent data, which ends at SND.UP, is not acknowledged.
    pub(crate) urgent: bool,
    /// Set if the application was refused room and waits for [`Notice::Writable`](super::Notice::Writable).
    pub(crate) refused: bool,
    /// Set if CLOSE was called before the connection was established.
    pub(crate) close_when_open: bool,
    /// Set by an ICMP soft error (RFC 1122 §4.2.3.9).
    pub(crate) soft_error: bool,
    /// Nagle's algorithm is on: a small segment waits for the acknowledgment of another (RFC 9293 §3.7.4).
    pub(crate) nagle: bool,
    /// Traffic class of the connection's packets, without the ECN bits (RFC 9293 §3.9.1.9).
    pub(crate) traffic_class: u8,
    // The fields from here on are compared with every received segment.
    /// The sequence number after the last queued segment.
    pub(crate) end: SeqNum,
    pub(crate) una: SeqNum,
    /// The highest sequence number sent, plus one.
    pub(crate) nxt: SeqNum,
    pub(crate) wnd: u32,
    pub(crate) wl1: SeqNum,
}

/// The receiving half, with the names of RFC 9293 §3.3.1.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Receiver {
    /// Bytes received in order: the stream offset of RCV.NXT.
    pub(crate) bytes: u64,
    pub(crate) nxt: SeqNum,
    /// The right edge of the offered window; never moves left.
    pub(crate) edge: SeqNum,
    pub(crate) last_ack_sent: SeqNum,
    /// TS.Recent (RFC 7323 §4.3).
    pub(crate) ts_recent: u32,
    /// In-order bytes that the application has not consumed.
    pub(crate) unread: u32,
    /// Bytes received since an acknowledgment was sent.
    pub(crate) unacked: u32,
    /// Receive buffer: the bound of `unread`, bytes. It grows until it is [`tuned`](Self::tuned).
    pub(crate) buffer: u32,
    /// Segments received, modulo 2^32; [`ConnCounters`](super::ConnCounters) holds the rest.
    pub(crate) segments: u32,
    /// The largest payload seen, bytes: the size of a full segment.
    pub(crate) mss: u16,
    /// Set once `fin` is known.
    pub(crate) fin_known: bool,
    /// Set once the buffer has its maximum size.
    pub(crate) tuned: bool,
    pub(crate) held: Reassembly,
    // The fields up to the first part of `held` are used by every in-order segment.
    /// RCV.UP as a stream offset; 0 while nothing was urgent.
    pub(crate) urgent_end: u64,
    /// The sequence number of the peer's FIN; valid if `fin_known`.
    pub(crate) fin: SeqNum,
    /// The most recently changed out-of-order runs, latest first.
    pub(crate) recent: SackBlocks,
    // The fields from here on are used by a response to a request.
    pub(crate) tuning: Tuning,
    /// The duplicate to report (RFC 2883), or an empty range: see [`Self::dsack`].
    pub(super) dsack: SackRange,
    pub(crate) irs: SeqNum,
}

impl Sender {
    pub(super) fn new(now: Instant, iss: SeqNum, options: &ConnOptions) -> Self {
        Self {
            una: iss,
            nxt: iss,
            wnd: 0,
            wl1: iss,
            max_wnd: 0,
            end: iss + 1,
            emss: 536,
            peer_mss: 536,
            iss,
            queue: SendQueue::new(),
            fin_queued: false,
            small_end: iss,
            urgent: false,
            up: iss,
            refused: false,
            close_when_open: false,
            soft_error: false,
            nagle: options.nagle,
            traffic_class: options.traffic_class & !EcnField::MASK,
            progress_at: MilliStamp::of(now),
            peak_flight: 0,
            round_end: iss,
            round_is_new: false,
        }
    }

    /// Returns the least part of a segment, bytes, that is sent at once into a window that is too small for all of
    /// it.
    ///
    /// RFC 9293 §3.8.6.2.1: "Fs is a fraction whose recommended value is 1/2", of Max(SND.WND), which estimates the
    /// receiver's buffer. The estimate is at least the shortest MSS that every host accepts (§3.7.1), or the peer's
    /// if that is less: a peer that never offered more than one byte does not get its data one byte at a time.
    #[inline]
    pub(crate) fn partial_send_min(&self) -> u32 {
        self.max_wnd.max(self.emss.min(DEFAULT_MSS).into()) / 2
    }

    /// Updates [`Self::peak_flight`] after a segment was sent.
    #[inline(always)]
    pub(crate) fn note_flight(&mut self) {
        let before = if self.round_is_new { 0 } else { self.peak_flight };
        self.round_is_new = false;
        self.peak_flight = before.max(self.queue.in_flight());
    }

    /// True if SND.NXT is after SND.UNA.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.nxt.after(self.una)
    }
}

impl Receiver {
    /// Returns the sequence number of the peer's FIN, if known.
    #[inline]
    pub(crate) fn fin(&self) -> Option<SeqNum> {
        self.fin_known.then_some(self.fin)
    }

    /// Returns the duplicate to report, if there is one.
    #[inline]
    pub(crate) fn dsack(&self) -> Option<SackRange> {
        (self.dsack.start != self.dsack.end).then_some(self.dsack)
    }

    /// Returns the stream offset of `seq`, which must be at or before RCV.NXT.
    #[inline]
    pub(crate) fn offset_of(&self, seq: SeqNum) -> u64 {
        // A FIN occupies a sequence number but no byte of the stream.
        let end = self.fin().map_or(self.nxt, |fin| fin.min(self.nxt));
        self.bytes.wrapping_sub(end.distance_from(seq).into())
    }

    pub(super) fn new(now: Instant, config: &StackConfig) -> Self {
        let zero = SeqNum::new(0);
        Self {
            nxt: zero,
            edge: zero,
            irs: zero,
            last_ack_sent: zero,
            ts_recent: 0,
            held: Reassembly::new(),
            unread: 0,
            tuning: Tuning::new(now),
            bytes: 0,
            urgent_end: 0,
            fin: zero,
            fin_known: false,
            tuned: false,
            buffer: initial_buffer(config),
            segments: 0,
            mss: 536,
            unacked: 0,
            recent: SackBlocks::EMPTY,
            dsack: SackRange::default(),
        }
    }
}
