//! The urgent mechanism (RFC 9293 §3.8.5, RFC 6093): a pointer to the end of urgent data in the stream.
//!
//! The data itself stays in line. The pointer's effect is bounded: it is an offset of at most 65,535 from an
//! acceptable segment, it only advances, and one event is pending however often it does.

use super::{Conn, Cx, Notice, RxNode};
use crate::pool::Pool;
use crate::seq::SeqNum;
use crate::wire::{TcpFlags, TcpHeader};

impl Conn {
    /// Sixth: "RCV.UP <- max(RCV.UP,SEG.UP), and signal the user that the remote side has urgent data if the urgent
    /// pointer (RCV.UP) is in advance of the data consumed".
    #[cold]
    pub(super) fn take_urgent<B>(&mut self, cx: &mut Cx<'_, B>, header: &TcpHeader) {
        // "The urgent pointer MUST point to the sequence number of the octet following the urgent data (MUST-62)."
        let up = header.seq + u32::from(header.urgent);
        if !self.state.can_receive() || !up.after(self.rcv.nxt) {
            return;
        }
        let ahead = up.distance_from(self.rcv.nxt);
        let end = self.rcv.bytes.wrapping_add(u64::from(ahead));
        if end > self.rcv.urgent_end {
            self.rcv.urgent_end = end;
            self.notices.add(Notice::Urgent);
            cx.stats.urgent_in = cx.stats.urgent_in.wrapping_add(1);
        }
    }

    /// Returns the end of urgent data as a stream offset.
    pub(crate) fn urgent_end(&self) -> u64 {
        self.rcv.urgent_end
    }

    /// Returns the urgent bytes that the application has not polled.
    pub(crate) fn urgent_bytes<B>(&self, rx: &Pool<RxNode<B>>) -> u64 {
        let next = self.rcv.held.first_ready(rx).map_or(self.rcv.bytes, |seq| self.rcv.offset_of(seq));
        self.rcv.urgent_end.saturating_sub(next)
    }

    /// SEND with the urgent flag: marks all queued data urgent. Returns `false` if nothing is queued: "the user
    /// must also send at least one data octet".
    pub(crate) fn mark_urgent(&mut self) -> bool {
        if self.snd.queue.bytes() == 0 || self.snd.fin_queued {
            return false;
        }
        self.snd.up = self.snd.end;
        self.snd.urgent = true;
        true
    }

    /// Sets the urgent pointer in a segment that begins before it.
    #[cold]
    pub(super) fn emit_urgent(&mut self, header: &mut TcpHeader, seq: SeqNum) {
        if self.snd.una.at_or_after(self.snd.up) {
            self.snd.urgent = false;
        } else if seq.before(self.snd.up) {
            header.flags |= TcpFlags::URG;
            // A pointer further ahead is set by a later segment.
            header.urgent = u16::try_from(self.snd.up.distance_from(seq)).unwrap_or(u16::MAX);
        }
    }
}
