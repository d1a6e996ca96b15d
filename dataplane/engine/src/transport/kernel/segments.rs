//! Ends of TCP segments, for peers beyond this machine.
//!
//! RFC 5044 §5.1 wants each FPDU in one TCP segment, and soft-iWARP drops a connection with CRCs if the trailer of an
//! FPDU arrives in two of its buffers. The kernel cuts the stream into full segments, so that FPDUs of a segment's
//! length stay aligned. Where a shorter one follows that does not fit behind those before, the segment ends before that
//! one (MSG_EOR of send(2)).
//!
//! An FPDU is a multiple of four bytes (RFC 5044 §4.1): where the EMSS is not, the longest FPDU is up to three bytes
//! shorter than the segment, and the next ones start that much before theirs. To end each of these segments would cost
//! a system call and a packet of the kernel's for each FPDU, an order of magnitude in rate; they are realigned every
//! [`RUN_BYTES`] instead.
//!
//! While more waits than a segment, the socket is corked: otherwise the kernel would send the half of an FPDU that
//! still fits its buffer.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rustix::net::sockopt::set_tcp_cork;

/// Bytes after which a segment must end: about the size of one packet that the kernel passes down.
const RUN_BYTES: usize = 62 << 10;

/// Positions in staged bytes at which a segment must end.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// Positions, ascending.
    ends: VecDeque<usize>,
    /// Bytes behind the last end.
    run: usize,
    is_corked: bool,
}

impl Segments {
    /// Notes that `len` bytes of one FPDU are staged at `start`, for segments of `emss` bytes.
    pub(super) fn push(&mut self, start: usize, len: usize, emss: usize) {
        let longest = (emss & !3).max(4);
        let used = self.run % longest;
        if used > 0 && used.saturating_add(len) > longest {
            self.end_at(start);
        }
        self.run = self.run.saturating_add(len);
        if self.run >= RUN_BYTES {
            self.end_at(start.saturating_add(len));
        }
    }

    fn end_at(&mut self, position: usize) {
        self.ends.push_back(position);
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

    /// Notes that no bytes are staged: the last of them has ended its segment.
    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.run = 0;
    }

    /// Has the kernel keep a segment that is not full, or send it. Only the alignment depends on that, so that a
    /// failure is no error.
    pub(super) fn cork(&mut self, socket: impl AsFd, is_corked: bool) {
        if std::mem::replace(&mut self.is_corked, is_corked) != is_corked {
            let _ = set_tcp_cork(socket, is_corked);
        }
    }
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
