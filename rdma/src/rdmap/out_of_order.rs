//! What is placed before the gap in front of it closes, and delivered when it has.
//!
//! RFC 5041 §5.3: the Data Sink "MAY perform Placement of DDP Segments out of order", and "MUST Deliver DDP Messages to
//! the ULP in the order they were sent". Only RDMA Writes are placed so: their segments say for themselves where they go.
//! The rights are those at the time of placing. They are not asked for again at delivery: what an STag that is revoked
//! in between let in before is as if it had come in order before.

use crate::Env;
use crate::memory::Memory;
use crate::mpa::{Fpdu, OutOfOrderRefusal, PlacedRun};
use crate::qp::{QueuePair, StreamState};
use crate::stats::{RdmaStats, count};
use crate::wire::ddp::{self, Header, TaggedHeader};
use crate::wire::rdmap::{self, ControlField, Opcode};

impl QueuePair {
    /// Places the segment that a verified FPDU behind a gap carries, if it is of an RDMA Write that may be placed. Says
    /// whether it ends a message.
    ///
    /// Whatever is wrong with it ends the stream when its turn has come, not before.
    pub(crate) fn place_out_of_order<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        fpdu: &Fpdu<'_, C>,
        last_out_of_order: bool,
        env: &mut Env<'_, M>,
    ) -> Result<bool, OutOfOrderRefusal> {
        let mut bytes = [0; TaggedHeader::LEN];
        let head_len = fpdu.copy_prefix(&mut bytes);
        let head = bytes.get(..head_len).unwrap_or_default();
        let Ok((Header::Tagged(header), _)) = Header::parse(head) else {
            return Err(OutOfOrderRefusal::Kind);
        };
        let control = ControlField::parse(header.ulp_control);
        let is_write = header.version == ddp::VERSION
            && control.version == rdmap::VERSION
            && control.opcode == Opcode::RdmaWrite;
        if !is_write {
            return Err(OutOfOrderRefusal::Kind);
        }
        if header.last && !last_out_of_order {
            return Err(OutOfOrderRefusal::Last);
        }
        let len = fpdu.len().saturating_sub(TaggedHeader::LEN);
        if len > 0 {
            let at = env.stags.check_place(header.stag, header.offset.0, len, self.origin);
            let at = at.map_err(|_| OutOfOrderRefusal::Access)?;
            // Its region does not have the bytes: the stream ends when their turn has come.
            self.place(at, fpdu, TaggedHeader::LEN, env).map_err(|_| OutOfOrderRefusal::Access)?;
            count(&mut env.stats.mpa.bytes_placed_early, len);
        }
        Ok(header.last)
    }

    /// Delivers what was placed early: the stream has reached it, and all before it is delivered.
    pub(crate) fn receive_placed(&mut self, run: &PlacedRun, stats: &mut RdmaStats) {
        if self.state != StreamState::ReadyToSend {
            count(&mut stats.drops.after_error, 1);
            return;
        }
        self.peer_sent = true;
        self.may_send = true;
        count(&mut self.counters.in_writes, run.writes as usize);
        count(&mut stats.rdmap.in_rdma_writes, run.writes as usize);
    }
}
