//! FPDUs that wait for room in the socket. The endpoint builds them here, and `kernel.rs` sends them.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rdma::Sink;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_cork;
use rustix::net::{SendFlags, send};

/// Bytes that can wait: some hundred segments, or a few of the largest.
const CAPACITY: usize = 1 << 20;
/// Bytes after which a segment must end: about the size of one packet that the kernel passes down.
const RUN: usize = 62 << 10;

/// FPDUs that wait for room in the socket.
///
/// RFC 5044 §5.1 wants each FPDU to start a TCP segment. The kernel cuts the stream into full segments, so this
/// holds as long as FPDUs are as long as segments; a shorter one ends its segment. An FPDU is a multiple of four bytes
/// (RFC 5044 §4.1): where the MSS is not, the longest FPDU is up to three bytes shorter than the segment, and the next
/// ones start that much before theirs. To end each of these segments would cost a system call and a packet of the
/// kernel's for each FPDU, an order of magnitude in rate; they are realigned every [`RUN`] bytes instead.
///
/// While more waits than the kernel takes, the socket is corked: otherwise the kernel would send the half of an FPDU
/// that still fits its buffer. The kernel may cut elsewhere for its own reasons, so a mark every [`RUN`] bytes ends a
/// segment.
#[derive(Debug)]
pub(super) struct Outbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Positions at which a segment must end, ascending.
    marks: VecDeque<usize>,
    mss: usize,
    corked: bool,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; CAPACITY].into_boxed_slice(),
            start: 0,
            end: 0,
            marks: VecDeque::new(),
            mss: 536, // RFC 9293 §3.7.1, until the connection knows better
            corked: false,
        }
    }

    /// Bytes of data in a full segment.
    pub(super) fn set_mss(&mut self, mss: usize) {
        self.mss = mss.clamp(1, CAPACITY);
    }

    /// Bytes of the longest FPDU that fits a full segment: a multiple of four.
    const fn fpdu_longest(&self) -> usize {
        self.mss & !3
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Sends as many bytes as the socket takes; returns their number.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self, socket: impl AsFd) -> rustix::io::Result<usize> {
        let before = self.start;
        if self.end.saturating_sub(before) > self.mss {
            self.cork(&socket, true);
        }
        while !self.is_empty() {
            let mark = self.marks.front().copied();
            let run = self.bytes.get(self.start..mark.unwrap_or(self.end)).unwrap_or_default();
            let end = if mark.is_some() { SendFlags::EOR } else { SendFlags::empty() };
            match send(&socket, run, SendFlags::NOSIGNAL | SendFlags::DONTWAIT | end) {
                Ok(taken) => self.start = self.start.saturating_add(taken),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            self.marks.pop_front_if(|mark| *mark == self.start);
        }
        let sent = self.start.saturating_sub(before);
        if self.is_empty() {
            self.clear();
            self.cork(&socket, false);
        }
        Ok(sent)
    }

    /// Only the alignment depends on the cork, so its failure is no error.
    fn cork(&mut self, socket: impl AsFd, corked: bool) {
        if self.corked != corked {
            self.corked = corked;
            let _ = set_tcp_cork(socket, corked);
        }
    }

    /// Discards the bytes that wait.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
        self.marks.clear();
    }
}

impl Sink for Outbox {
    fn fpdu_max(&self) -> usize {
        self.mss
    }

    fn room(&self) -> usize {
        self.bytes.len().saturating_sub(self.end)
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let end = self.end.saturating_add(len);
        let Some(room) = self.bytes.get_mut(self.end..end) else {
            return false;
        };
        build(room);
        self.end = end;
        let marked = self.marks.back().copied().unwrap_or(0);
        if len < self.fpdu_longest() || end.saturating_sub(marked) >= RUN {
            self.marks.push_back(end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;

    fn push(outbox: &mut Outbox, len: usize, byte: u8) -> bool {
        outbox.push(len, &mut |room| room.fill(byte))
    }

    #[test]
    fn what_is_pushed_comes_out_in_order() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::new();
        outbox.set_mss(100);
        assert!(push(&mut outbox, 100, 1) && push(&mut outbox, 60, 2) && push(&mut outbox, 100, 3));
        assert_eq!(outbox.marks, [160]);
        assert_eq!(outbox.flush(&ours), Ok(260));
        assert!(outbox.is_empty() && outbox.marks.is_empty());
        assert_eq!(outbox.room(), CAPACITY);
        let mut bytes = [0; 260];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!((bytes[99], bytes[100], bytes[159], bytes[160]), (1, 2, 2, 3));
    }

    /// Returns the sends per MiB of the longest FPDUs at an MSS; a record socket keeps one record per send.
    fn sends_per_mib(mss: usize, fpdu: usize) -> usize {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut outbox = Outbox::new();
        outbox.set_mss(mss);
        while push(&mut outbox, fpdu, 1) {}
        let (mut sends, mut record) = (0, vec![0; CAPACITY]);
        while !outbox.is_empty() {
            outbox.flush(&ours).unwrap();
            while recv(&theirs, &mut record[..], RecvFlags::empty()).is_ok() {
                sends += 1;
            }
        }
        sends
    }

    #[test]
    fn a_mebibyte_takes_as_few_system_calls_at_every_mss() {
        for mss in 1208..=8960 {
            let fpdu = rdma::mpa::fpdu_len(rdma::mpa::Framer::new(true).ulpdu_max(mss));
            assert_eq!(fpdu, mss / 4 * 4);
            // A run ends with the FPDU that reaches its length.
            let sends = sends_per_mib(mss, fpdu);
            assert!(sends <= CAPACITY.div_ceil(RUN), "{sends} sends at an MSS of {mss}, {} mod 8", mss % 8);
        }
    }

    #[test]
    fn a_short_fpdu_ends_its_segment() {
        for mss in 1208..=1216 {
            let mut outbox = Outbox::new();
            outbox.set_mss(mss);
            let longest = mss / 4 * 4;
            assert!(push(&mut outbox, longest, 1) && push(&mut outbox, longest - 4, 2));
            assert_eq!(outbox.marks, [2 * longest - 4], "{mss}");
        }
    }

    #[test]
    fn a_full_socket_takes_the_rest_later() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::new();
        outbox.set_mss(1000);
        while push(&mut outbox, 999, 7) {}
        assert!(outbox.room() < 999);
        let mut received = 0;
        while !outbox.is_empty() {
            let sent = outbox.flush(&ours).unwrap();
            theirs.read_exact(&mut vec![0; sent]).unwrap();
            received += sent;
        }
        assert_eq!(received, CAPACITY / 999 * 999);
    }

    #[test]
    fn a_closed_socket_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut outbox = Outbox::new();
        assert!(push(&mut outbox, 1, 0));
        assert_eq!(outbox.flush(&ours), Err(Errno::PIPE));
    }
}
