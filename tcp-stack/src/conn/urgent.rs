//! The urgent mechanism (RFC 9293 §3.8.5, RFC 6093): a mark in the stream, up to which data is urgent.
//!
//! The data itself stays in line. What a peer can do with the mark is bounded: it is an offset of at most 65,535 from
//! a segment that was acceptable, it only advances, and however often it does, one event is owed.

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

    /// Where urgent data ends, as an offset in the stream.
    pub(crate) fn urgent_end(&self) -> u64 {
        self.rcv.urgent_end
    }

    /// Urgent bytes that the application has not taken.
    pub(crate) fn urgent_bytes<B>(&self, rx: &Pool<RxNode<B>>) -> u64 {
        let next = self.rcv.held.first_ready(rx).map_or(self.rcv.bytes, |seq| self.rcv.offset_of(seq));
        self.rcv.urgent_end.saturating_sub(next)
    }

    /// SEND with the urgent flag: all that is queued is urgent. `false` when nothing is: "the user must also send at
    /// least one data octet".
    pub(crate) fn mark_urgent(&mut self) -> bool {
        if self.snd.queue.bytes() == 0 || self.snd.fin_queued {
            return false;
        }
        self.snd.up = self.snd.end;
        self.snd.urgent = true;
        true
    }

    /// Puts the pointer into a segment that lies before it.
    #[cold]
    pub(super) fn emit_urgent(&mut self, header: &mut TcpHeader, seq: SeqNum) {
        if self.snd.una.at_or_after(self.snd.up) {
            self.snd.urgent = false;
        } else if seq.before(self.snd.up) {
            header.flags |= TcpFlags::URG;
            // What is further away is said so by a later segment.
            header.urgent = u16::try_from(self.snd.up.distance_from(seq)).unwrap_or(u16::MAX);
        }
    }
}
