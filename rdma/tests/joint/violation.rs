//! Work requests that a peer must refuse.

use rdma::verbs::SendOp;
use rdma::{AtomicOp, Stag, WcOpcode};

use crate::engine::Local;
use crate::model::Effect;
use crate::scenario::Violation;
use crate::stream::{Posted, Stream, Tools};

impl Stream {
    /// Posts a violation as the last request. Returns false if it is not possible now.
    pub(crate) fn violation(&mut self, violation: Violation, tools: &mut Tools) -> Result<bool, String> {
        let peer = 1 - self.side;
        let base_to = self.base_to[peer];
        // A window may be unbound by the time of the access.
        let (narrow, stag) = {
            let offer = &self.model.borrow().offers[self.connection][peer];
            (offer.narrow, offer.stag)
        };
        let Some(((read_only, write_only), stag)) = narrow.zip(stag) else { return Ok(false) };
        let bad = Stag(0xffff_ff00);
        if matches!(violation, Violation::SendTooLong | Violation::SendNoBuffer | Violation::InvalidateNoStag)
        {
            return self.violating_send(violation, bad, tools);
        }
        let (kind, len) = match violation {
            Violation::ReadNoStag | Violation::ReadBeyond | Violation::ReadNoRight => {
                (WcOpcode::RdmaRead, 16)
            }
            Violation::AtomicUnaligned | Violation::AtomicNoRight => (WcOpcode::FetchAdd, 8),
            _ => (WcOpcode::RdmaWrite, 16),
        };
        let Some(range) = self.draw_source(len) else { return Ok(false) };
        let id = self.next_id();
        let local = Local { pieces: vec![range.clone()], inline: None };
        let beyond = base_to + u64::from(self.window);
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let write = |rkey, remote_addr| SendOp::RdmaWrite { rkey, remote_addr };
        let read = |rkey, remote_addr| SendOp::RdmaRead { rkey, remote_addr };
        let work = match violation {
            Violation::WriteNoStag => write(bad, base_to),
            Violation::WriteBeyond => write(stag, beyond),
            Violation::WriteNoRight => write(read_only, base_to),
            Violation::WriteWraps => write(stag, u64::MAX - 3),
            Violation::ReadNoStag => read(bad, base_to),
            Violation::ReadBeyond => read(stag, beyond - 15),
            Violation::ReadNoRight => read(write_only, base_to),
            Violation::AtomicUnaligned => SendOp::Atomic { remote_addr: base_to + 4, rkey: stag, op },
            _ => SendOp::Atomic { remote_addr: base_to, rkey: read_only, op },
        };
        let taken = self.post(tools, Posted::new(id, kind, len as u32), (work, false), &local)?;
        if taken {
            self.note(self.own(), id, &range, Stag(0), Effect::Source);
        }
        self.stopped = true;
        Ok(taken)
    }

    fn violating_send(&mut self, violation: Violation, bad: Stag, tools: &mut Tools) -> Result<bool, String> {
        let slot = self.peer_slot_len() as u64;
        let too_long = slot + 1 + self.random.below(2_000);
        let taken = match violation {
            Violation::SendTooLong => self.send_as(tools, too_long, None)?,
            Violation::InvalidateNoStag => {
                self.send_as(tools, slot.min(u64::from(self.plan.slot_len)).min(500), Some(bad))?
            }
            _ => {
                if self.credit() {
                    // The peer posts no more buffers; those posted are consumed first.
                    return self.immediate(tools);
                }
                self.stopped = true;
                let posted = Posted::new(self.next_id(), WcOpcode::Send, 0);
                let op = SendOp::Send { invalidate: None };
                self.post(tools, posted, (op, false), &Local::default())?
            }
        };
        self.stopped |= taken;
        Ok(taken)
    }
}
