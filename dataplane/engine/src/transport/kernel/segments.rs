//! Ends of TCP segments, for peers beyond this machine.
//!
//! RFC 5044 §5.1 wants each FPDU in one TCP segment, and soft-iWARP drops a connection with CRCs if the trailer of an
//! FPDU arrives in two of its buffers. The kernel cuts the stream into full segments, so that FPDUs of a segment's
//! length stay aligned. A long message begins with an FPDU that fills the segment in which the message before ends.
//! Where one follows that does not fit behind those before, the segment ends before that one (MSG_EOR of send(2)).
//!
//! Each such end costs a packet of the kernel's, and a timer if the kernel paces its packets (BBR).
//!
//! An FPDU is a multiple of four bytes (RFC 5044 §4.1): where the EMSS is not, the longest FPDU is up to three bytes
//! shorter than the segment, and the next ones start that much before theirs. To end each of these segments would cost
//! a system call and a packet of the kernel's for each FPDU, an order of magnitude in rate; they are realigned every
//! [`RUN_BYTES`] instead.
//!
//! From the first bytes on that are longer than a segment, the socket is corked: otherwise the kernel would send the
//! part of an FPDU that still fits its buffer or the peer's window, and every segment behind it would be cut there.
//! Setting TCP_NODELAY sends the last segment, which is not full, in spite of the cork (`tcp_nagle_check`).

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rustix::net::sockopt::{set_tcp_cork, set_tcp_nodelay};

/// Bytes after which a segment must end: about the size of one packet that the kernel passes down.
const RUN_BYTES: usize = 62 << 10;
/// The same where FPDUs fill segments. If a full one is pushed while the peer's window ends within the next, the kernel
/// sends the part that fits, and the segments up to the next end follow that cut.
const ALIGNED_RUN_BYTES: usize = 4 * RUN_BYTES;
/// A shorter rest of a segment stays empty: an FPDU has 20 bytes or more beside its data.
const REST_MIN: usize = 96;

/// Positions in staged bytes at which a segment must end.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// Positions, ascending.
    ends: VecDeque<usize>,
    /// Bytes behind the last end, and the length of segments.
    run: usize,
    emss: usize,
    is_corked: bool,
}

impl Segments {
    /// Notes that `len` bytes of one FPDU are staged at `start`, for segments of `emss` bytes.
    pub(super) fn push(&mut self, start: usize, len: usize, emss: usize) {
        let longest = longest(emss);
        let is_cut_anew = std::mem::replace(&mut self.emss, emss) != emss;
        let used = self.run % longest;
        if is_cut_anew && self.run > 0 || used > 0 && used.saturating_add(len) > longest {
            self.end_at(start);
        }
        self.run = self.run.saturating_add(len);
        if self.run >= if emss == longest { ALIGNED_RUN_BYTES } else { RUN_BYTES } {
            self.end_at(start.saturating_add(len));
        }
    }

    /// Returns the bytes that the last segment has room for; those of a whole one if they are few.
    pub(super) fn rest(&self, emss: usize) -> usize {
        let longest = longest(emss);
        let rest = longest.saturating_sub(self.run % longest);
        if rest < REST_MIN { longest } else { rest }
    }

    /// Returns true if the last segment is full.
    pub(super) const fn is_full(&self) -> bool {
        self.emss > 0 && longest(self.emss) == self.emss && self.run.is_multiple_of(self.emss)
    }

    /// Ends a segment at a position. What was sent before position 0 has filled its segment.
    fn end_at(&mut self, position: usize) {
        if position > 0 {
            self.ends.push_back(position);
        }
        self.run = 0;
    }

    /// Returns the first position at which a segment must end.
    pub(super) fn first(&self) -> Option<usize> {
        self.ends.front().copied()
    }

    /// Notes that the kernel has all bytes before a position.
    pub(super) fn sent(&mut self, position: usize) {
        self.ends.pop_front_if(|end| *end <= position);
    }

    /// Notes that the staged bytes have moved towards the beginning.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.ends.iter_mut().for_each(|end| *end = end.saturating_sub(bytes));
    }

    /// Notes that no bytes are staged: the last of them has ended its segment, or filled it.
    pub(super) fn clear(&mut self) {
        self.ends.clear();
        if !self.is_full() {
            self.run = 0;
        }
    }

    /// Has the kernel keep each segment that is not full until [`Self::send_last`]. Only the alignment depends on that,
    /// so that a failure is no error.
    pub(super) fn cork(&mut self, socket: impl AsFd) {
        if !self.is_corked {
            self.is_corked = set_tcp_cork(socket, true).is_ok();
        }
    }

    /// Has the kernel send the last segment too.
    pub(super) fn send_last(&self, socket: impl AsFd) {
        if self.is_corked {
            let _ = set_tcp_nodelay(socket, true);
        }
    }
}

/// Returns the length of the longest FPDU that a segment has room for.
const fn longest(emss: usize) -> usize {
    if emss < 4 { 4 } else { emss & !3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ends that FPDUs of these lengths have.
    fn ends(emss: usize, lens: &[usize]) -> Vec<usize> {
        let (mut segments, mut at) = (Segments::default(), 0);
        for len in lens {
            segments.push(at, *len, emss);
            at += len;
        }
        segments.ends.into()
    }

    #[test]
    fn fpdus_of_a_segment_need_no_end_and_a_shorter_one_none_if_the_next_fits() {
        assert!(ends(1448, &[1448; 20]).is_empty());
        assert!(ends(1448, &[84; 17]).is_empty());
        assert_eq!(ends(1448, &[84; 18]), [17 * 84]);
        assert_eq!(ends(1448, &[1448, 84, 1448]), [1448 + 84]);
        assert!(ends(1448, &[84, 1364, 1448]).is_empty());
        assert!(ends(1447, &[1444, 1444]).is_empty());
    }

    #[test]
    fn a_long_message_fills_the_segment_before_unless_that_has_little_room() {
        let mut segments = Segments::default();
        assert_eq!(segments.rest(1448), 1448);
        for (at, len, rest) in [(0, 1448, 1448), (1448, 448, 1000), (1896, 904, 96), (2800, 4, 1448)] {
            segments.push(at, len, 1448);
            assert_eq!(segments.rest(1448), rest, "behind {len} bytes at {at}");
            assert_eq!(segments.is_full(), at == 0);
        }
        segments.push(2804, 1448, 1448);
        assert_eq!(segments.first(), Some(2804), "the short rest stays empty");
        assert!(segments.is_full());
    }

    #[test]
    fn a_segment_that_is_full_needs_no_end_and_one_of_another_length_begins_anew() {
        let mut segments = Segments::default();
        segments.push(0, 1448, 1448);
        segments.clear();
        segments.push(0, 500, 1448);
        segments.push(500, 948, 1448);
        assert!(segments.is_full());
        segments.push(1448, 1400, 1400);
        assert_eq!(segments.first(), Some(1448));
        segments.sent(1448);
        segments.push(2848, 100, 1400);
        segments.clear();
        segments.push(0, 1400, 1400);
        assert_eq!(segments.first(), None, "the short segment was ended with the last byte");
        segments.clear();
        segments.push(0, 1448, 1448);
        assert_eq!(segments.first(), None, "nothing waits that could end");
        // One that is no multiple of four has no full segment.
        segments.clear();
        segments.push(0, 1444, 1447);
        assert!(!segments.is_full());
    }

    #[test]
    fn no_fpdu_crosses_the_end_of_a_segment() {
        for emss in 536..=560 {
            let longest = emss & !3;
            let lens: Vec<usize> = (0..400).map(|n: usize| 4 * (1 + n * n * 7 % (longest / 4))).collect();
            let ends = ends(emss, &lens);
            let (mut at, mut start) = (0, 0);
            for len in lens {
                if ends.contains(&at) {
                    start = at;
                }
                let (first, last) = ((at - start) / longest, (at + len - 1 - start) / longest);
                assert_eq!(first, last, "{len} bytes at {at} of a run from {start}, EMSS {emss}");
                at += len;
            }
        }
    }

    #[test]
    fn a_run_has_as_few_ends_at_every_segment_size() {
        for emss in 1208..=8960 {
            let fpdu = emss & !3;
            let ends = ends(emss, &vec![fpdu; (1 << 20) / fpdu]);
            assert!(ends.len() <= (1 << 20) / RUN_BYTES, "{} ends at {emss}", ends.len());
        }
    }

    #[test]
    fn positions_follow_the_bytes() {
        let mut segments = Segments::default();
        for (at, len) in [(0, 1000), (1000, 1000), (2000, 1000)] {
            segments.push(at, len, 1448);
        }
        assert_eq!(segments.first(), Some(1000));
        segments.sent(999);
        assert_eq!(segments.first(), Some(1000));
        segments.sent(1000);
        segments.moved(1000);
        assert_eq!(segments.first(), Some(1000));
        segments.clear();
        assert_eq!(segments.first(), None);
        segments.push(0, 1448, 1448);
        assert_eq!(segments.first(), None);
    }
}
