//! The region service: a client of the [`Device`] that answers connect requests with grants on registered regions. Its
//! connections have no queue pairs; the peers' RDMA Reads, Writes and atomics need no work of the service.
//! `Engine::poll` passes it each connection event of the device.

use std::net::SocketAddr;

use arrayvec::ArrayString;
use rdma::RegionId;
use rdma::service::{RegionService, requested_region};
use rdma::verbs::{CmEvent, CmEventKind, CmId, Device, Owner};
use tcp_stack::{Buf, Segment};

use crate::notice::{Notice, NoticeRing};
use crate::transport::RdmaState;

/// Answers connect requests with grants. Holds the regions that peers may ask for.
#[derive(Debug)]
pub(crate) struct RegionResponder {
    /// Names, rights and tokens of the regions.
    pub(crate) service: RegionService,
}

impl RegionResponder {
    /// Returns true if the service uses the id.
    pub(crate) fn owns<B: Buf>(device: &Device<Segment<B>>, id: CmId) -> bool {
        matches!(device.owner(id), Some(Owner::Region(_)))
    }

    /// Returns the region that was granted to a connection, if any.
    pub(crate) fn granted<B: Buf>(device: &Device<Segment<B>>, id: CmId) -> Option<RegionId> {
        if let Some(Owner::Region(granted)) = device.owner(id) { granted } else { None }
    }

    /// Handles an event of the service's listeners and connections.
    pub(crate) fn handle<B: Buf, M>(
        &mut self,
        event: CmEvent,
        device: &mut Device<Segment<B>>,
        rdma: &mut RdmaState<M>,
        notices: &mut NoticeRing,
    ) {
        let CmEvent { id, kind } = event;
        match kind {
            CmEventKind::ConnectRequest { peer, private_data, .. } => {
                if !self.answer((id, peer), &private_data, device, rdma, notices) {
                    release(device, id);
                }
            }
            CmEventKind::Established { .. } => {}
            CmEventKind::AddressError
            | CmEventKind::Rejected { .. }
            | CmEventKind::Refused
            | CmEventKind::Unreachable
            | CmEventKind::ConnectError { .. }
            | CmEventKind::Disconnected => release(device, id),
        }
    }

    /// Answers a connect request. Returns true if the connection is accepted.
    fn answer<B: Buf, M>(
        &mut self,
        (id, peer): (CmId, SocketAddr),
        private_data: &[u8],
        device: &mut Device<Segment<B>>,
        rdma: &mut RdmaState<M>,
        notices: &mut NoticeRing,
    ) -> bool {
        let Some(stream) = device.stream(id) else { return false };
        let answer = self.service.answer(private_data, peer.ip(), stream, &mut rdma.stags);
        rdma.stats.service.count(answer.status);
        if let Some(refusal) = answer.refusal {
            let region = requested_region(private_data).and_then(|name| ArrayString::from(name).ok());
            notices.record(Notice::GrantRefused { peer, refusal, region });
        }
        if !answer.accept {
            // Fails only if the stream has ended already.
            let _ = device.reject(id, &answer.reply);
            return false;
        }
        device
            .set_owner(id, Owner::Region(answer.region))
            .and_then(|()| device.accept_without_qp(id, &answer.reply, answer.region))
            .is_ok()
    }
}

/// Destroys an id. The device resets its connection, or, after a rejection, lets the reply finish.
fn release<B: Buf>(device: &mut Device<Segment<B>>, id: CmId) {
    // Fails only if the id is gone already.
    let _ = device.destroy_id(id);
}
