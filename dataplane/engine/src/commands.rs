//! Access to an engine between two polls: by the worker's commands for regions and reports, and by a program for its
//! verbs objects.

use std::time::Duration;

use iwarp_shared_verbs::worker::{ContextId, Contexts};
use rdma::service::{AddError, RegionEntry};
use rdma::verbs::{
    Access, AddressBase, CmId, Device, MemoryRegion, MemoryWindow, MrId, MwId, PdId, QpNum, VerbsError,
};
use rdma::{EndpointInfo, Memory, MessageSizes, RdmaStats, RegionId};
use tcp_stack::{Buf, ConnId, ConnInfo, Instant, Segment, Stack};

use super::{Engine, RdmaCmStats, Service, ServiceStats};
use crate::memory::SharedWords;
use crate::notice::NoticeRing;
use crate::services::RegionResponder;
use crate::transport::{Transport, since_start};

/// One row of a list of connections.
#[derive(Clone, Debug)]
pub struct ConnRow {
    /// Identity of the connection.
    pub id: ConnId,
    /// TCP state of the connection.
    pub tcp: ConnInfo,
    /// Name of its service.
    pub service: &'static str,
    /// RDMA state, for an RDMA connection that has not ended.
    pub rdma: Option<EndpointInfo>,
    /// Region granted to the connection, if any.
    pub region: Option<RegionId>,
    /// Context of another process that has the connection, if one has.
    pub context: Option<ContextId>,
}

/// Events for the control thread.
impl<T: Transport, M: Memory> Engine<T, M> {
    /// Has the engine record its events in a ring.
    pub fn set_notices(&mut self, ring: NoticeRing) {
        self.notices = ring;
    }

    /// Returns the ring of events, for its counters.
    pub fn notices(&self) -> &NoticeRing {
        &self.notices
    }
}

/// Regions and their memory, for the commands of the control side.
impl<T: Transport, M: Memory> Engine<T, M> {
    /// Offers a region to peers under its name.
    ///
    /// # Errors
    /// As [`RegionService::add`](rdma::service::RegionService::add).
    pub fn region_add(&mut self, entry: RegionEntry) -> Result<(), AddError> {
        self.regions.service.add(entry)
    }

    /// Stops offering a region. Grants made before stay valid; returns their number.
    pub fn region_hide(&mut self, name: &str, region: RegionId) -> usize {
        self.regions.service.remove(name);
        self.rdma.stags.grants_of(region)
    }

    /// Revokes every grant on a region. When this returns, the engine does not touch its memory any more.
    pub fn region_revoke(&mut self, region: RegionId) -> usize {
        self.rdma.stags.revoke_region(region)
    }

    /// Returns the number of valid grants on a region.
    pub fn region_grants(&self, region: RegionId) -> usize {
        self.rdma.stags.grants_of(region)
    }

    /// Borrows the region memory mutably.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.rdma.memory
    }

    /// Borrows the region memory.
    pub fn memory(&self) -> &M {
        &self.rdma.memory
    }
}

/// Verbs objects, for a program with its own dataplane.
impl<T: Transport, M: Memory> Engine<T, M> {
    /// Borrows the device with all verbs objects.
    pub fn device(&self) -> &Device<Segment<T::Buf>> {
        &self.device
    }

    /// Borrows the device with all verbs objects mutably. Its methods for transport adapters are not for programs.
    pub fn device_mut(&mut self) -> &mut Device<Segment<T::Buf>> {
        &mut self.device
    }

    /// Calls [`Device::reg_mr`] with this engine's STag table.
    ///
    /// # Errors
    /// As for [`Device::reg_mr`].
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        range: (RegionId, u64, u64),
        base: AddressBase,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.device.reg_mr(pd, range, base, access, &mut self.rdma.stags)
    }

    /// Calls [`Device::dereg_mr`] with this engine's STag table.
    ///
    /// # Errors
    /// As for [`Device::dereg_mr`].
    pub fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.device.dereg_mr(mr, &mut self.rdma.stags)
    }

    /// Calls [`Device::alloc_mw`] with this engine's STag table.
    ///
    /// # Errors
    /// As for [`Device::alloc_mw`].
    pub fn alloc_mw(&mut self, pd: PdId) -> Result<MemoryWindow, VerbsError> {
        self.device.alloc_mw(pd, &mut self.rdma.stags)
    }

    /// Calls [`Device::dealloc_mw`] with this engine's STag table.
    ///
    /// # Errors
    /// As for [`Device::dealloc_mw`].
    pub fn dealloc_mw(&mut self, mw: MwId) -> Result<(), VerbsError> {
        self.device.dealloc_mw(mw, &mut self.rdma.stags)
    }

    /// Calls [`Device::disconnect`] at time `now`.
    pub fn disconnect(&mut self, id: CmId, now: Instant) {
        self.device.disconnect(id, since_start(now));
    }

    /// Calls [`Device::terminate_qp`] at time `now`.
    ///
    /// # Errors
    /// As for [`Device::terminate_qp`].
    pub fn terminate_qp(&mut self, qp: QpNum, now: Instant) -> Result<(), VerbsError> {
        self.device.terminate_qp(qp, since_start(now), &mut self.rdma.stats)
    }

    /// Returns the TCP state of a connection; `None` if the id has no connection, or its connection has closed.
    pub fn tcp_info(&self, id: CmId) -> Option<ConnInfo> {
        self.transport.info(self.conn_of(id)?)
    }

    /// Returns the bytes of a message that fit one segment of a connection on its current path (RFC 4296 §2.2.1:
    /// `rdma_max_msizes`); `None` unless it is established.
    pub fn max_msizes(&self, id: CmId) -> Option<MessageSizes> {
        self.device.max_msizes(id, self.transport.emss(self.conn_of(id)?))
    }

    /// Returns the number of valid STags.
    pub fn stags(&self) -> usize {
        self.rdma.stags.len()
    }

    /// Returns the number of connections, including closed ones whose peers have not closed yet.
    pub fn connections(&self) -> usize {
        self.conns.ids().count()
    }
}

/// Counters and rows of connections, for reports.
impl<T: Transport, M: Memory> Engine<T, M> {
    /// Sets the wall clock, time since 1970. The daytime service uses it.
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.services.set_wall_clock(now, since_epoch);
    }

    /// Returns the counters of MPA, DDP, RDMAP and the region service.
    pub fn rdma_stats(&self) -> &RdmaStats {
        &self.rdma.stats
    }

    /// Returns the counters of the services.
    pub fn service_stats(&self) -> &ServiceStats {
        &self.services.stats
    }

    /// Returns the counters of the device's connections.
    pub fn rdma_cm_stats(&self) -> &RdmaCmStats {
        &self.stats
    }

    /// Returns the row of a connection.
    pub fn conn(&self, id: ConnId) -> Option<ConnRow> {
        let tcp = self.transport.info(id)?;
        let mut context = None;
        let (service, rdma, region) = match self.conns.service(id) {
            Some(Service::Tcp(service)) => (service.name(), None, None),
            Some(Service::Rdma(rdma_conn)) => {
                let name = if rdma_conn.is_region() { "region" } else { "verbs" };
                let rdma = rdma_conn.id.and_then(|id| self.device.stream_info(id));
                context = rdma_conn.id.and_then(|id| Contexts::<SharedWords>::owner_of(&self.device, id));
                (name, rdma, rdma_conn.id.and_then(|id| RegionResponder::granted(&self.device, id)))
            }
            None => ("none", None, None),
        };
        Some(ConnRow { id, tcp, service, rdma, region, context })
    }
}

/// Our own TCP, for reports and commands.
impl<B: Buf, M: Memory> Engine<Stack<B>, M> {
    /// Borrows the TCP stack, for its counters and addresses.
    pub fn stack(&self) -> &Stack<B> {
        &self.transport
    }

    /// Returns the row of the connection with this slab index.
    pub fn conn_at(&self, index: u32) -> Option<ConnRow> {
        self.transport
            .connections_from(index)
            .next()
            .filter(|id| id.index() == index)
            .and_then(|id| self.conn(id))
    }

    /// Calls `take` for each connection from slab index `cursor` on, until it returns `false` (it did not take that
    /// row). Returns the index to continue at, `None` at the end.
    pub fn conns(&self, cursor: u32, take: &mut dyn FnMut(ConnRow) -> bool) -> Option<u32> {
        for id in self.transport.connections_from(cursor) {
            if let Some(row) = self.conn(id)
                && !take(row)
            {
                return Some(id.index());
            }
        }
        None
    }
}
