//! Work that a peer must refuse.

use rdma::verbs::SendOp;
use rdma::{AtomicOp, Stag, WcOpcode};

use crate::engine::Local;
use crate::model::What;
use crate::scenario::Sin;
use crate::stream::{Posted, Stream, Tools};

impl Stream {
    /// Posts what the peer must refuse, as the last thing. `false`: not possible now.
    pub(crate) fn sin(&mut self, sin: Sin, tools: &mut Tools) -> Result<bool, String> {
        let peer = 1 - self.side;
        let base_to = self.base_to[peer];
        // A window may be gone by the time that it is looked at.
        let (narrow, stag) = {
            let offer = &self.model.borrow().offers[self.dial][peer];
            (offer.narrow, offer.stag)
        };
        let Some(((read_only, write_only), stag)) = narrow.zip(stag) else { return Ok(false) };
        let bad = Stag(0xffff_ff00);
        if matches!(sin, Sin::SendTooLong | Sin::SendNoBuffer | Sin::InvalidateNoStag) {
            return self.sinful_send(sin, bad, tools);
        }
        let (kind, len) = match sin {
            Sin::ReadNoStag | Sin::ReadBeyond | Sin::ReadNoRight => (WcOpcode::RdmaRead, 16),
            Sin::AtomicUnaligned | Sin::AtomicNoRight => (WcOpcode::FetchAdd, 8),
            _ => (WcOpcode::RdmaWrite, 16),
        };
        let Some(range) = self.draw_source(len) else { return Ok(false) };
        let id = self.next_id();
        let local = Local { pieces: vec![range.clone()], inline: None };
        let beyond = base_to + u64::from(self.window);
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let write = |rkey, remote_addr| SendOp::RdmaWrite { rkey, remote_addr };
        let read = |rkey, remote_addr| SendOp::RdmaRead { rkey, remote_addr };
        let work = match sin {
            Sin::WriteNoStag => write(bad, base_to),
            Sin::WriteBeyond => write(stag, beyond),
            Sin::WriteNoRight => write(read_only, base_to),
            Sin::WriteWraps => write(stag, u64::MAX - 3),
            Sin::ReadNoStag => read(bad, base_to),
            Sin::ReadBeyond => read(stag, beyond - 15),
            Sin::ReadNoRight => read(write_only, base_to),
            Sin::AtomicUnaligned => SendOp::Atomic { remote_addr: base_to + 4, rkey: stag, op },
            _ => SendOp::Atomic { remote_addr: base_to, rkey: read_only, op },
        };
        let taken = self.post(tools, Posted::new(id, kind, len as u32), (work, false), &local)?;
        if taken {
            self.note(self.own(), id, &range, Stag(0), What::Source);
        }
        self.stopped = true;
        Ok(taken)
    }

    fn sinful_send(&mut self, sin: Sin, bad: Stag, tools: &mut Tools) -> Result<bool, String> {
        let slot = self.peer_slot_len() as u64;
        let too_long = slot + 1 + self.random.below(2_000);
        let taken = match sin {
            Sin::SendTooLong => self.send_as(tools, too_long, None)?,
            Sin::InvalidateNoStag => {
                self.send_as(tools, slot.min(u64::from(self.plan.slot_len)).min(500), Some(bad))?
            }
            _ => {
                if self.credit() {
                    // The peer posts no more; what it has posted is used up first.
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
