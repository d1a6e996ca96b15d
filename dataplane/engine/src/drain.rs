//! Graceful end of all connections before the daemon stops. A worker calls it for a drain, one page per command.

use std::time::Duration;

use rdma::Memory;
use tcp_stack::{ConnId, ConnInfo, Instant, State};

use super::{Engine, ListenerOwner, Service};
use crate::services::{RegionResponder, TcpService};
use crate::transport::{Transport, since_start};

/// Most slots examined per call, so that a worker with many connections polls its ports between two calls.
const SLOTS_PER_CALL: u32 = 1024;

/// Silence of a peer after which its connection is idle, at least; on a long path, two round trips.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The same after the peer has acknowledged our FIN: it then has nothing more to send.
const ENDED_AFTER: Duration = Duration::from_millis(200);

/// Result of one call of [`Engine::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainPage {
    /// Connections of the page that have not ended.
    pub open: u64,
    /// Slab index to continue at, `None` at the end.
    pub next: Option<u32>,
}

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Stops accepting and opening connections: removes every listener, those of contexts included, and resets
    /// half-open connections. MPA Requests that arrive later are refused.
    pub fn stop_accepting(&mut self, now: Instant) {
        self.accepts = false;
        while let Some((listener, owner)) = self.listeners.pop() {
            // An application's port stays this worker's: frames of its connections must come here until they end.
            self.transport.unlisten(listener);
            if let ListenerOwner::Device(id) = owner
                && RegionResponder::owns(&self.device, id)
            {
                // Fails only if the id is gone already.
                let _ = self.device.destroy_id(id);
            }
        }
        self.apply_requests(now);
    }

    /// Closes idle connections from slab index `from` on, and counts those that have not ended. Connections in use stay
    /// open: their peers are in the middle of something. A connection counts as ended once its peer has acknowledged
    /// our FIN and is silent.
    pub fn drain(&mut self, now: Instant, from: u32) -> DrainPage {
        let (end, capacity) = (from.saturating_add(SLOTS_PER_CALL), self.conns.capacity());
        let mut open = 0_u64;
        for index in from..end.min(capacity) {
            let Some(conn) = self.conns.at(index) else { continue };
            open = open.saturating_add(u64::from(self.drain_conn(now, conn)));
        }
        self.apply_requests(now);
        DrainPage { open, next: (end < capacity).then_some(end) }
    }

    /// Closes a connection if it is idle. Returns true unless it has ended.
    fn drain_conn(&mut self, now: Instant, conn: ConnId) -> bool {
        let Some(info) = self.transport.info(conn) else { return false };
        let is_open = matches!(info.state, State::Established | State::CloseWait);
        let idle = is_idle(&info, now, IDLE_AFTER);
        let has_ended = info.state == State::FinWait2 && is_idle(&info, now, ENDED_AFTER);
        let Self { transport, conns, device, .. } = self;
        match conns.service_mut(conn) {
            Some(Service::Rdma(rdma_conn)) => {
                let Some(id) = rdma_conn.id else { return !has_ended };
                let idle = idle && rdma_conn.looped_age(now) >= IDLE_AFTER;
                // Resets a connection whose peer has not been granted anything yet.
                if idle || !device.is_established(id) {
                    device.disconnect(id, since_start(now));
                    self.schedule(conn);
                }
                true
            }
            Some(Service::Tcp(service)) if is_open => {
                let ends = match service {
                    TcpService::Echo(_) | TcpService::Discard => idle,
                    // They send without end, or close after their line.
                    TcpService::Chargen(_) | TcpService::Daytime => true,
                };
                if ends {
                    if matches!(service, TcpService::Echo(_)) {
                        // What arrives behind our FIN cannot be sent back.
                        *service = TcpService::Discard;
                    }
                    transport.close(now, conn);
                }
                true
            }
            Some(Service::Tcp(_)) | None => !has_ended,
        }
    }
}

/// Returns true if nothing is on its way in either direction, as far as this end knows: the peer is silent for `after`.
fn is_idle(info: &ConnInfo, now: Instant, after: Duration) -> bool {
    let silence = now.saturating_since(info.heard_at);
    let round_trips = info.srtt.unwrap_or_default().saturating_mul(2);
    silence >= after.max(round_trips) && info.send_queue_bytes == 0 && info.unread_bytes == 0
}
