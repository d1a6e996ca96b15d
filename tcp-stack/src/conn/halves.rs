//! The two halves of a connection: what is sent, and what is received.

use super::window::{Tuning, initial_buffer};
use super::{Reassembly, SendQueue};
use crate::config::StackConfig;
use crate::seq::SeqNum;
use crate::time::{Instant, MilliStamp};
use crate::wire::{SackBlocks, SackRange};

/// The MSS of a peer that names none: RFC 9293 §3.7.1 (MUST-15).
const DEFAULT_MSS: u16 = 536;

/// The sending half; RFC 9293 §3.3.1's names.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Sender {
    /// Max(SND.WND): the largest window that the peer ever offered, in its SYN or later.
    pub(crate) max_wnd: u32,
    pub(crate) iss: SeqNum,
    pub(crate) up: SeqNum,
    /// What the peer's MSS option said.
    pub(crate) peer_mss: u16,
    /// Effective send MSS: payload of a full segment, bytes.
    pub(crate) emss: u16,
    pub(crate) queue: SendQueue,
    // From here on, and from the queue's middle: what an answer to a request needs.
    /// Where the last segment that was not full ended.
    pub(crate) small_end: SeqNum,
    /// When something was acknowledged last, or the queue ceased to be empty.
    pub(crate) progress_at: MilliStamp,
    /// The most bytes in flight after any segment sent since the round trip began. When a round trip ends, the peak stays
    /// until the next segment leaves: acknowledgments that come in one burst are judged by the same peak.
    pub(crate) peak_flight: u32,
    /// The acknowledgment that ends the round trip.
    pub(crate) round_end: SeqNum,
    /// A round trip has ended since a segment was sent.
    pub(crate) round_is_new: bool,
    pub(crate) fin_queued: bool,
    /// What lies before SND.UP is urgent, and not all of it is acknowledged.
    pub(crate) urgent: bool,
    /// The application was refused room and is to be told when there is some.
    pub(crate) refused: bool,
    /// CLOSE was called before the connection was established.
    pub(crate) close_when_open: bool,
    /// An ICMP error told that segments did not arrive (RFC 1122 §4.2.3.9).
    pub(crate) soft_error: bool,
    /// A small segment waits for the acknowledgment of another (RFC 9293 §3.7.4).
    pub(crate) nagle: bool,
    // From here on: what every segment that arrives is compared with.
    /// What the next segment queued will begin with.
    pub(crate) end: SeqNum,
    pub(crate) una: SeqNum,
    /// The highest sequence number sent, plus one.
    pub(crate) nxt: SeqNum,
    pub(crate) wnd: u32,
    pub(crate) wl1: SeqNum,
}

/// The receiving half; RFC 9293 §3.3.1's names.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Receiver {
    /// Bytes received in order: how far RCV.NXT is into the stream.
    pub(crate) bytes: u64,
    pub(crate) nxt: SeqNum,
    /// The right edge of the window that was offered: never goes back.
    pub(crate) edge: SeqNum,
    pub(crate) last_ack_sent: SeqNum,
    /// TS.Recent (RFC 7323 §4.3).
    pub(crate) ts_recent: u32,
    /// In-order bytes that the application has not let go of.
    pub(crate) unread: u32,
    /// Bytes received since an acknowledgment was sent.
    pub(crate) unacked: u32,
    /// What may be unread, bytes: grows until it is [`Self::tuned`].
    pub(crate) buffer: u32,
    /// Segments received, modulo 2^32; the rest is in the counters.
    pub(crate) segments: u32,
    /// The largest payload seen, bytes: what counts as a full segment.
    pub(crate) mss: u16,
    /// It is known where the peer's FIN is.
    pub(crate) fin_known: bool,
    /// The buffer is as large as it may become.
    pub(crate) tuned: bool,
    pub(crate) held: Reassembly,
    // Up to the first part of that: what every segment in order needs.
    /// RCV.UP as an offset in the stream; 0 as long as nothing was urgent.
    pub(crate) urgent_end: u64,
    /// Where the peer's FIN is, once it is known.
    pub(crate) fin: SeqNum,
    /// The runs that arrived most recently, latest first.
    pub(crate) recent: SackBlocks,
    // From here on: what an answer to a request needs.
    pub(crate) tuning: Tuning,
    /// A duplicate to report (RFC 2883): see [`Self::dsack`].
    pub(super) dsack: SackRange,
    pub(crate) irs: SeqNum,
}

impl Sender {
    pub(super) fn new(now: Instant, iss: SeqNum, nagle: bool) -> Self {
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
            nagle,
            progress_at: MilliStamp::of(now),
            peak_flight: 0,
            round_end: iss,
            round_is_new: false,
        }
    }

    /// The least part of a segment that is sent, without waiting, into a window that has no room for all of it, bytes.
    ///
    /// RFC 9293 §3.8.6.2.1: "Fs is a fraction whose recommended value is 1/2", of Max(SND.WND), which estimates the
    /// receiver's buffer. That counts as no less than the shortest MSS that every host accepts (§3.7.1), or the peer's, if
    /// that is less: a peer that never offered more than one byte does not get its data one byte at a time.
    #[inline]
    pub(crate) fn least_worth(&self) -> u32 {
        self.max_wnd.max(self.emss.min(DEFAULT_MSS).into()) / 2
    }

    /// Updates [`Self::peak_flight`] after a segment was sent.
    #[inline(always)]
    pub(crate) fn note_flight(&mut self) {
        let before = if self.round_is_new { 0 } else { self.peak_flight };
        self.round_is_new = false;
        self.peak_flight = before.max(self.queue.in_flight());
    }

    /// Whether something was sent, or must be, that is not acknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.nxt.after(self.una)
    }
}

impl Receiver {
    /// Where the peer's FIN is.
    #[inline]
    pub(crate) fn fin(&self) -> Option<SeqNum> {
        self.fin_known.then_some(self.fin)
    }

    /// The duplicate to report: a range that is not empty.
    #[inline]
    pub(crate) fn dsack(&self) -> Option<SackRange> {
        (self.dsack.start != self.dsack.end).then_some(self.dsack)
    }

    /// The offset in the stream of what was received in order and not taken: at or before RCV.NXT.
    #[inline]
    pub(crate) fn offset_of(&self, seq: SeqNum) -> u64 {
        // Beyond a FIN there are no bytes.
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
