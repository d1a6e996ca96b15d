//! CLOSE, ABORT and FIN, and the end of a connection.

use super::{Conn, Cx, Notice, Pending, Reassembly, Reply};
use crate::buf::Buf;
use crate::error::CloseReason;
use crate::seq::SeqNum;
use crate::set::Set;
use crate::state::State;
use crate::wire::{TcpFlags, TcpHeader, TcpOptions};

impl Conn {
    /// CLOSE (RFC 9293 §3.10.4): queues a FIN behind the data.
    pub(crate) fn close<B>(&mut self, cx: &mut Cx<'_, B>) {
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            State::SynReceived => {
                self.snd.close_when_open = true;
                return;
            }
            State::SynSent
            | State::FinWait1
            | State::FinWait2
            | State::Closing
            | State::LastAck
            | State::Closed => return,
        }
        // The pool reserves a node for each connection's FIN.
        if self.snd.queue.push(cx.tx, self.snd.end, 0, true, (None, None)).is_ok() {
            self.snd.end += 1;
            self.snd.fin_queued = true;
        }
    }

    /// Changes the state if the segment just processed acknowledged our FIN.
    pub(super) fn after_fin_acked<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        if !self.snd.fin_queued || self.snd.una != self.snd.end {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.arm_fin_wait_2(cx);
            }
            State::Closing => self.enter_time_wait(cx),
            // No record of the handshake shows that a late copy of the acknowledgment with the cookie is old: it would
            // open the connection, and deliver its data, a second time.
            State::LastAck if self.ends_in_time_wait => self.enter_time_wait(cx),
            State::LastAck => self.finish(cx, CloseReason::Normal),
            _ => {}
        }
    }

    /// Eighth: handles a FIN that is in order.
    pub(super) fn take_fin<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        self.rcv.nxt += 1;
        self.with_held(cx, Reassembly::clear_held);
        self.notices.add(Notice::PeerClosed);
        self.pending.add(Pending::Ack);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(cx),
            _ => {}
        }
    }

    /// Ends the connection; a TIME-WAIT record will answer late segments.
    fn enter_time_wait<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        cx.stats.time_wait = cx.stats.time_wait.wrapping_add(1);
        self.ends_in_time_wait = true;
        let owes_ack = self.pending.has(Pending::Ack);
        self.finish(cx, CloseReason::Normal);
        self.pending.add_if(owes_ack, Pending::Ack);
    }

    /// Enters CLOSED and frees the send queue. Data received in order can still be polled, unless the application
    /// aborted.
    pub(crate) fn finish<B: Buf>(&mut self, cx: &mut Cx<'_, B>, reason: CloseReason) {
        let counter = match reason {
            CloseReason::Normal => Some(&mut cx.stats.closed),
            CloseReason::Reset => Some(&mut cx.stats.resets_received),
            CloseReason::TimedOut => Some(&mut cx.stats.timed_out),
            CloseReason::Refused | CloseReason::Unreachable => Some(&mut cx.stats.refused),
            CloseReason::Aborted => Some(&mut cx.stats.aborted),
            // Counted per limit by the caller.
            CloseReason::Evicted => None,
        };
        if let Some(counter) = counter {
            *counter = counter.wrapping_add(1);
        }
        self.state = State::Closed;
        self.ended = Some(reason);
        self.ends_in_time_wait &= reason == CloseReason::Normal;
        self.notices.remove(Notice::Writable);
        self.notices.remove(Notice::EmssChanged);
        self.notices.remove(Notice::Reclaim);
        self.pending = Set::EMPTY;
        self.dup_acks_owed = 0;
        self.timers.clear_all();
        while self.snd.queue.pop_head(cx.tx).is_some() {}
        self.with_held(cx, Reassembly::clear_held);
        if reason == CloseReason::Aborted {
            self.rcv.held.clear(cx.rx);
        }
    }

    /// ABORT (RFC 9293 §3.10.5): returns the reset for the peer, if the peer has the connection.
    pub(crate) fn reset_for_abort(&self) -> Option<Reply> {
        match self.state {
            State::SynSent | State::Closed => None,
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck => Some(self.bare_reply(self.snd.nxt, TcpFlags::RST | TcpFlags::ACK)),
        }
    }

    fn bare_reply(&self, seq: SeqNum, flags: TcpFlags) -> Reply {
        Reply {
            local: self.local(),
            remote: self.remote(),
            header: TcpHeader {
                src_port: self.local().port(),
                dst_port: self.remote().port(),
                seq,
                ack: self.rcv.nxt,
                flags,
                ..TcpHeader::default()
            },
            options: TcpOptions::NONE,
            traffic_class: self.snd.traffic_class,
        }
    }
}
