//! Ends of connections. A program that learns of one finds the completions before it in their queues: a message that
//! has arrived is not lost because the program looks for messages no more.

use rdma::verbs::{CmEvent, CmEventKind, CqId, Device};

use super::{ContextId, ContextMemory, Contexts, Signals};
use crate::Event;

/// Ends that are looked at per poll.
const ENDS_MAX: usize = 64;

/// End of a connection that waits.
#[derive(Debug)]
pub(super) struct End {
    owner: ContextId,
    event: CmEvent,
    /// Completion queues of its queue pair, and the completions that their rings have when it is due.
    after: [(CqId, u64); 2],
}

impl<M: ContextMemory> Contexts<M> {
    /// Returns true if the ring of a completion queue has had `moved` completions or can get no more, or if the queue
    /// is gone.
    fn has_moved<C: AsRef<[u8]>>(&mut self, (cq, moved): (CqId, u64), device: &Device<C>) -> bool {
        self.ring(cq).is_none_or(|ring| ring.has_moved(moved, device))
    }

    /// Keeps the end of a connection that has completions which are not in their rings. Returns any other event.
    pub(super) fn hold_end<C: AsRef<[u8]>>(
        &mut self,
        owner: ContextId,
        event: CmEvent,
        device: &Device<C>,
    ) -> Option<CmEvent> {
        if event.kind != CmEventKind::Disconnected {
            return Some(event);
        }
        let Some(Ok(qp)) = device.ended_qp_of(event.id).map(|qp| device.query_qp(qp)) else {
            return Some(event);
        };
        let after = [qp.init.send_cq, qp.init.recv_cq]
            .map(|cq| (cq, self.ring(cq).map_or(0, |ring| ring.moved_with(device))));
        if after.iter().all(|after| self.has_moved(*after, device)) {
            return Some(event);
        }
        self.ends.push_back(End { owner, event, after });
        self.undelivered = true;
        None
    }

    /// Delivers the ends that are due, of the next ones. Drops those whose program has destroyed the id.
    #[cold]
    pub(super) fn release_ends<C: AsRef<[u8]>>(&mut self, device: &Device<C>, signals: &mut impl Signals) {
        for _ in 0..self.ends.len().min(ENDS_MAX) {
            let Some(end) = self.ends.pop_front() else { break };
            if Self::owner_of(device, end.event.id) != Some(end.owner) {
                continue;
            }
            if end.after.iter().all(|after| self.has_moved(*after, device)) {
                self.event(end.owner, Event::Cm(end.event), signals);
            } else {
                self.ends.push_back(end);
            }
        }
        self.undelivered |= !self.ends.is_empty();
    }
}
