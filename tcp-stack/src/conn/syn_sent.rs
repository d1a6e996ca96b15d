//! SEGMENT ARRIVES in SYN-SENT (RFC 9293 §3.10.7.3).

use super::listen::SynOffer;
use super::{Conn, Cx, Incoming, Origin, Outcome, Pending, Reply};
use crate::buf::Buf;
use crate::config::StackConfig;
use crate::error::CloseReason;
use crate::iface::DropReason;
use crate::state::State;
use crate::time::Instant;
use crate::wire::{TcpFlags, TcpHeader, TcpOptions};

impl Conn {
    /// Active OPEN: makes a connection that will send a SYN.
    pub(crate) fn open(now: Instant, origin: &Origin, config: &StackConfig) -> Self {
        Self::new(now, origin, config, State::SynSent)
    }

    pub(super) fn in_syn_sent<B: Buf>(&mut self, cx: &mut Cx<'_, B>, segment: Incoming<B>) -> Outcome {
        let header = segment.header;
        let acks = header.flags.contains(TcpFlags::ACK);
        // First: "If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset".
        if acks && (header.ack.at_or_before(self.snd.iss) || header.ack.after(self.snd.nxt)) {
            if header.flags.contains(TcpFlags::RST) {
                return Outcome::Dropped(DropReason::TcpBadReset);
            }
            return Outcome::Answered(DropReason::TcpBadAck, self.reset_for_ack(&header));
        }
        // Second: a reset counts only with an acceptable ACK.
        if header.flags.contains(TcpFlags::RST) {
            if !acks {
                return Outcome::Dropped(DropReason::TcpBadReset);
            }
            self.finish(cx, CloseReason::Refused);
            return Outcome::Accepted;
        }
        // Fourth and fifth.
        if !header.flags.contains(TcpFlags::SYN) {
            return Outcome::Dropped(DropReason::TcpInvalid);
        }
        self.note_heard(cx.now);
        let offer = SynOffer { header, options: segment.options, ecn: segment.ecn };
        self.negotiate(cx.now, cx.config, &offer);
        if acks {
            self.on_syn_ack(cx, segment)
        } else {
            // Simultaneous open (RFC 9293 §3.5, figure 8): answer with SYN and ACK.
            self.state = State::SynReceived;
            self.pending.add(Pending::Syn);
            Outcome::Accepted
        }
    }

    fn on_syn_ack<B: Buf>(&mut self, cx: &mut Cx<'_, B>, segment: Incoming<B>) -> Outcome {
        let Incoming { header, mut payload, .. } = segment;
        self.snd.una = header.ack;
        self.sample_handshake(cx.now, &segment.options);
        self.become_established(cx, &header);
        self.pending.add(Pending::Ack);
        // "If there are other controls or text in the segment, then continue processing at the sixth
        // step". The SYN comes before the text.
        payload.seq = header.seq + 1;
        // Our SYN could not offer a scaled window, so the first one is offered now.
        self.offer_window(cx, true);
        if header.flags.contains(TcpFlags::URG) {
            self.take_urgent(cx, &header);
        }
        match self.take_text(cx, payload, header.flags.contains(TcpFlags::FIN)) {
            Ok(()) => Outcome::Accepted,
            Err(reason) => Outcome::Dropped(reason),
        }
    }

    /// Returns the reset `<SEQ=SEG.ACK><CTL=RST>`.
    pub(super) fn reset_for_ack(&self, header: &TcpHeader) -> Reply {
        Reply {
            local: self.local(),
            remote: self.remote(),
            header: TcpHeader {
                src_port: self.local().port(),
                dst_port: self.remote().port(),
                seq: header.ack,
                flags: TcpFlags::RST,
                ..TcpHeader::default()
            },
            options: TcpOptions::NONE,
            traffic_class: self.snd.traffic_class,
        }
    }
}
