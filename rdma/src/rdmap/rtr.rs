//! The peer's first message: in the peer-to-peer model the ready-to-receive indication (RFC 6581 §9.2).

use crate::mpa::Rtr;
use crate::qp::QueuePair;
use crate::stats::{RdmaStats, count};
use crate::terminate::{Fault, StreamError};
use crate::wire::ddp::{self, Header, TaggedHeader, UntaggedHeader};
use crate::wire::mpa::RtrOptions;
use crate::wire::rdmap::{self, ControlField, Opcode, ReadRequest};
use crate::wire::{MessageOffset, Msn, QueueNumber};

/// Classification of a first message.
enum First {
    /// A message that may serve as the indication.
    Rtr(Rtr),
    /// Any other well-formed message.
    Other,
    /// A Terminate, or a message that the normal checks refuse.
    Checked,
}

impl QueuePair {
    /// Examines the peer's first FPDU, given its first bytes and its length. Returns true if that consumes the FPDU.
    ///
    /// RFC 6581 §9.2: "the initiator MUST generate one of the negotiated RTR indications". A Write or a Read is then
    /// processed normally. An empty Send is consumed here: the program's buffers are for messages of the peer's
    /// program, and §4.4.2 counts no RTR in its work queues.
    #[cold]
    pub(super) fn first(&mut self, head: &[u8], len: usize, stats: &mut RdmaStats) -> bool {
        self.peer_sent = true;
        self.may_send = true;
        let Some(options) = self.rtr_due.take() else { return false };
        let rtr = match first(head, len, options) {
            First::Rtr(rtr) => rtr,
            First::Checked => return false,
            First::Other => {
                self.fail(&Fault::bare(StreamError::NoMatchingRtr), stats);
                return true;
            }
        };
        count(&mut stats.rdmap.in_rtrs, 1);
        if rtr == Rtr::Send && len > 0 {
            self.in_sends.advance(0, true);
            count(&mut self.counters.in_sends, 1);
            count(&mut stats.rdmap.in_sends, 1);
        }
        rtr == Rtr::Send
    }
}

/// Classifies a first message. RFC 6581 §9 calls B "a zero-length FULPDU (Send)": some implementations send an empty
/// Send, others an empty FPDU. Both are accepted.
fn first(head: &[u8], len: usize, options: RtrOptions) -> First {
    if len == 0 {
        return if options.send { First::Rtr(Rtr::Send) } else { First::Checked };
    }
    let Ok((header, rest)) = Header::parse(head) else { return First::Checked };
    let control = ControlField::parse(header.ulp_control());
    if header.version() != ddp::VERSION || control.version != rdmap::VERSION {
        return First::Checked;
    }
    let (rtr, agreed) = match (header, control.opcode) {
        (Header::Tagged(header), Opcode::RdmaWrite) if header.last && len == TaggedHeader::LEN => {
            (Rtr::Write, options.write)
        }
        (Header::Untagged(header), Opcode::Send) if len == UntaggedHeader::LEN => {
            let in_order = header.queue == QueueNumber::SEND
                && header.msn == Msn::FIRST
                && header.offset == MessageOffset(0)
                && header.last;
            if !in_order {
                return First::Checked;
            }
            (Rtr::Send, options.send)
        }
        (Header::Untagged(_), Opcode::ReadRequest) => match ReadRequest::parse(rest) {
            Ok((request, _)) if request.size == 0 => (Rtr::Read, options.read),
            Ok(_) => return First::Other,
            Err(_) => return First::Checked,
        },
        (Header::Untagged(_), Opcode::Terminate)
        | (_, Opcode::SendImmediate | Opcode::SendImmediateSolicited | Opcode::Progress | Opcode::Datagram) =>
        {
            return First::Checked;
        }
        _ => return First::Other,
    };
    if agreed { First::Rtr(rtr) } else { First::Other }
}
