//! Verbs of the program's own dataplane.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use iwarp_engine::memory::WorkerMemory;
use iwarp_engine::{Engine, Transport};
use rdma::verbs::{
    Access, AddressBase, AsyncEvent, CmEvent, CmId, ConnParam, CqId, MemoryRegion, MrId, PdId, PostError,
    QpCap, QpInit, QpNum, RecvWr, RegionId, SendWr, VerbsError, WorkCompletion,
};
use rdma::{Memory, VecMemory};
use tcp_stack::Instant;

use crate::error::Error;
use crate::verbs::{TextMemory, Verbs};

/// Region memory that the program reads and writes itself.
pub trait Bytes: Memory {
    /// Copies bytes into a region. Returns `false` if they are not inside it.
    fn store(&mut self, region: RegionId, at: u64, bytes: &[u8]) -> bool;
    /// Copies bytes out of a region. Returns `false` if they are not inside it.
    fn load(&self, region: RegionId, at: u64, bytes: &mut [u8]) -> bool;
}

impl Bytes for WorkerMemory {
    fn store(&mut self, region: RegionId, at: u64, bytes: &[u8]) -> bool {
        self.write(region, at, bytes)
    }

    fn load(&self, region: RegionId, at: u64, bytes: &mut [u8]) -> bool {
        self.read(region, at, bytes)
    }
}

impl Bytes for VecMemory {
    fn store(&mut self, region: RegionId, at: u64, bytes: &[u8]) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        let to = self.bytes_mut(region).and_then(|memory| memory.get_mut(at..)?.get_mut(..bytes.len()));
        to.map(|to| to.copy_from_slice(bytes)).is_some()
    }

    fn load(&self, region: RegionId, at: u64, bytes: &mut [u8]) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        let from = self.bytes(region).and_then(|memory| memory.get(at..)?.get(..bytes.len()));
        from.map(|from| bytes.copy_from_slice(from)).is_some()
    }
}

impl<T: Transport, M: Bytes> Verbs for Engine<T, M> {
    fn alloc_pd(&mut self) -> Result<PdId, Error> {
        Ok(self.device_mut().alloc_pd()?)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Error> {
        Ok(self.device_mut().dealloc_pd(pd)?)
    }

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, Error> {
        Ok(self.device_mut().create_cq(cqe)?)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        Ok(self.device_mut().destroy_cq(cq)?)
    }

    fn create_qp(&mut self, pd: PdId, cq: CqId, cap: QpCap) -> Result<QpNum, Error> {
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: true };
        Ok(self.device_mut().create_qp(init)?)
    }

    fn destroy_qp(&mut self, qp: QpNum) -> Result<(), Error> {
        Ok(self.device_mut().destroy_qp(qp)?)
    }

    fn reg_mr(
        &mut self,
        pd: PdId,
        memory: TextMemory,
        (at, length): (u64, u64),
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let region = memory.region.ok_or(VerbsError::Invalid)?;
        Ok(Self::reg_mr(self, pd, (region, at, length), AddressBase::At(at), access)?)
    }

    fn dereg_mr(&mut self, mr: MrId) -> Result<(), Error> {
        Ok(Self::dereg_mr(self, mr)?)
    }

    fn store(&mut self, memory: TextMemory, mr: &MemoryRegion, bytes: &[u8]) -> bool {
        memory.region.is_some_and(|region| self.memory_mut().store(region, mr.addr, bytes))
    }

    fn load(&self, memory: TextMemory, mr: &MemoryRegion, bytes: &mut [u8]) -> bool {
        memory.region.is_some_and(|region| self.memory().load(region, mr.addr, bytes))
    }

    fn create_id(&mut self, local: Option<SocketAddr>) -> Result<CmId, Error> {
        Ok(self.device_mut().create_id(local)?)
    }

    fn destroy_id(&mut self, id: CmId) -> Result<(), Error> {
        Ok(self.device_mut().destroy_id(id)?)
    }

    fn listen(&mut self, id: CmId, backlog: NonZeroU16, param: &ConnParam<'_>) -> Result<(), Error> {
        Ok(self.device_mut().listen(id, backlog, param)?)
    }

    fn connect(&mut self, id: CmId, qp: QpNum, peer: SocketAddr, param: &ConnParam<'_>) -> Result<(), Error> {
        Ok(self.device_mut().connect(id, qp, peer, param)?)
    }

    fn accept(&mut self, id: CmId, qp: QpNum) -> Result<(), Error> {
        Ok(self.device_mut().accept(id, qp, &[])?)
    }

    fn reject(&mut self, id: CmId, private_data: &[u8]) -> Result<(), Error> {
        Ok(self.device_mut().reject(id, private_data)?)
    }

    fn disconnect(&mut self, id: CmId, now: Instant) {
        Self::disconnect(self, id, now);
    }

    fn peer(&self, id: CmId) -> Option<SocketAddr> {
        self.device().addresses(id).ok()?.1
    }

    fn poll_cm_event(&mut self) -> Option<CmEvent> {
        self.device_mut().poll_cm_event()
    }

    fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.device_mut().poll_async_event()
    }

    fn post_send(&mut self, qp: QpNum, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.device_mut().post_send(qp, wr)
    }

    fn post_recv(&mut self, qp: QpNum, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.device_mut().post_recv(qp, wr)
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        (self.device_mut().poll_cq(cq, &mut out) == Ok(1)).then_some(out).map(|[wc]| wc)
    }
}
