//! RDMA connections between two addresses of the port itself, with both ends on this worker: once the first messages
//! have passed through TCP, the device copies from one end's memory to the other's. TCP keeps the connection, and
//! closes it.

use rdma::Memory;
use rdma::verbs::CmId;
use tcp_stack::{BufPool, ConnId, Instant};

use super::rdma_conn::{self, Looped};
use super::{Engine, Service};
use crate::transport::{Transport, TxOutcome, since_start};

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Services the output of a looped connection.
    #[inline(never)]
    pub(super) fn transmit_looped(
        &mut self,
        now: Instant,
        (conn, id): (ConnId, CmId),
        pool: &mut impl BufPool<Buf = T::Buf>,
    ) -> TxOutcome {
        let peer = self.transport.other_end(conn);
        let other = peer.and_then(|peer| Some((peer, self.cm_id(peer)?)));
        match (self.looped(conn), other) {
            (Some(Looped::Direct), Some((peer, to))) => return self.pass_on(now, (conn, id), (peer, to)),
            (_, Some((peer, to))) if self.device.may_loop(id, to) => {
                if !self.transport.is_consumed(conn, peer) {
                    // What comes behind must not overtake it. It is on its way to this stack.
                    return TxOutcome::Again;
                }
                self.device.loop_out(id);
                if let Some(Service::Rdma(rdma_conn)) = self.conns.service_mut(conn) {
                    rdma_conn.looped = Looped::Direct;
                }
                return self.pass_on(now, (conn, id), (peer, to));
            }
            // If the other end has gone, TCP learns it from the answer.
            _ => {}
        }
        let Self { transport, device, rdma, .. } = self;
        rdma_conn::transmit(now, (conn, id), transport, pool, device, rdma)
    }

    fn looped(&self, conn: ConnId) -> Option<Looped> {
        match self.conns.service(conn) {
            Some(Service::Rdma(rdma_conn)) => Some(rdma_conn.looped),
            _ => None,
        }
    }

    /// Passes output of a connection to the other end, and schedules what that end has to do then.
    fn pass_on(&mut self, now: Instant, (conn, id): (ConnId, CmId), (peer, to): (ConnId, CmId)) -> TxOutcome {
        let progress = self.device.transmit_looped(id, to, since_start(now), &mut self.rdma.env());
        if progress.frames > 0 {
            for end in [conn, peer] {
                if let Some(Service::Rdma(rdma_conn)) = self.conns.service_mut(end) {
                    rdma_conn.note_looped(now);
                }
            }
            self.schedule(peer);
        }
        if progress.pending { TxOutcome::Again } else { TxOutcome::Idle }
    }
}
