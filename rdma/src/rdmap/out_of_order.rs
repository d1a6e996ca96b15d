//! Out-of-order placement: RDMA Writes behind a gap are placed at once, and delivered when the gap has closed.
//!
//! RFC 5041 §5.3: the Data Sink "MAY perform Placement of DDP Segments out of order", and "MUST Deliver DDP Messages
//! to the ULP in the order they were sent". Only RDMA Writes are placed out-of-order: each of their segments names its
//! destination. Access is checked at placement and not again at delivery: if an STag is revoked in between, the bytes
//! count as having arrived in order before the revocation.

use super::payload::FpduPayload;
use crate::Env;
use crate::memory::Memory;
use crate::mpa::{Fpdu, OutOfOrderRefusal, PlacedRun};
use crate::qp::{QueuePair, StreamState};
use crate::stats::{RdmaStats, count};
use crate::wire::ddp::{self, Header, TaggedHeader};
use crate::wire::rdmap::{self, ControlField, Opcode};

impl QueuePair {
    /// Places the segment in a verified FPDU behind a gap if it belongs to an RDMA Write and may be placed. Returns
    /// true if it ends a message.
    ///
    /// An invalid segment ends the stream when the stream reaches it, not before.
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
            // The region does not have the bytes: the stream ends when it reaches the segment.
            let payload = FpduPayload { fpdu, skip: TaggedHeader::LEN };
            self.place(at, payload, env).map_err(|_| OutOfOrderRefusal::Access)?;
            count(&mut env.stats.mpa.bytes_placed_early, len);
            self.count_placed_ahead(len);
        }
        Ok(header.last)
    }

    /// Delivers a run that was placed out-of-order: the stream has reached it, and everything before it is delivered.
    pub(crate) fn receive_placed(&mut self, run: &PlacedRun, stats: &mut RdmaStats) {
        if self.state != StreamState::ReadyToSend {
            count(&mut stats.drops.after_error, 1);
            return;
        }
        self.peer_sent = true;
        self.may_send = true;
        self.count_delivered(run);
        self.processed(run.writes);
        count(&mut self.counters.in_writes, run.writes as usize);
        count(&mut stats.rdmap.in_rdma_writes, run.writes as usize);
    }
}
