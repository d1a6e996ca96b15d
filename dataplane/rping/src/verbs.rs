//! The verbs that the client and the server use: those of an own dataplane, or of a daemon.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use rdma::verbs::{
    Access, AsyncEvent, CmEvent, CmId, ConnParam, CqId, MemoryRegion, MrId, PdId, PostError, QpCap, QpNum,
    RecvWr, RegionId, SendWr, WorkCompletion,
};
use tcp_stack::Instant;

use crate::error::Error;

/// Memory for the texts of one connection at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextMemory {
    /// Region of [`TextMemory::bytes`] bytes; `None` if the provider allocates memory as it registers it.
    pub region: Option<RegionId>,
    /// Length of the longest text, bytes.
    pub size: u32,
}

/// Bytes before the texts, for received Sends.
pub(crate) const CONTROL: u64 = 64;

impl TextMemory {
    /// Returns the bytes of a region for texts of `size` bytes.
    pub const fn bytes(size: u32) -> u64 {
        CONTROL + 2 * size as u64
    }
}

/// Objects and work of a device: that of the program's own dataplane, or of a context of the daemon. The methods are
/// those of [`rdma::verbs::Device`], with its errors.
#[allow(clippy::missing_errors_doc, reason = "the errors are those of the calls with the same names")]
pub trait Verbs {
    /// Allocates a protection domain.
    fn alloc_pd(&mut self) -> Result<PdId, Error>;
    /// Deallocates a protection domain.
    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Error>;
    /// Creates a completion queue of `cqe` entries.
    fn create_cq(&mut self, cqe: u32) -> Result<CqId, Error>;
    /// Destroys a completion queue.
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error>;
    /// Creates a queue pair whose two queues complete to `cq`, every request signaled.
    fn create_qp(&mut self, pd: PdId, cq: CqId, cap: QpCap) -> Result<QpNum, Error>;
    /// Destroys a queue pair.
    fn destroy_qp(&mut self, qp: QpNum) -> Result<(), Error>;
    /// Registers a part of the memory: its offset and length, bytes.
    fn reg_mr(
        &mut self,
        pd: PdId,
        memory: TextMemory,
        part: (u64, u64),
        access: Access,
    ) -> Result<MemoryRegion, Error>;
    /// Deregisters a memory region.
    fn dereg_mr(&mut self, mr: MrId) -> Result<(), Error>;
    /// Copies bytes to the beginning of registered memory. Returns `false` if they have no room.
    fn store(&mut self, memory: TextMemory, mr: &MemoryRegion, bytes: &[u8]) -> bool;
    /// Copies the first bytes of registered memory. Returns `false` if there are fewer.
    fn load(&self, memory: TextMemory, mr: &MemoryRegion, bytes: &mut [u8]) -> bool;

    /// Creates an id, with its local address if that matters.
    fn create_id(&mut self, local: Option<SocketAddr>) -> Result<CmId, Error>;
    /// Destroys an id; an open connection is reset.
    fn destroy_id(&mut self, id: CmId) -> Result<(), Error>;
    /// Listens at the id's address.
    fn listen(&mut self, id: CmId, backlog: NonZeroU16, param: &ConnParam<'_>) -> Result<(), Error>;
    /// Connects a queue pair. Events report the outcome.
    fn connect(&mut self, id: CmId, qp: QpNum, peer: SocketAddr, param: &ConnParam<'_>) -> Result<(), Error>;
    /// Accepts a connect request.
    fn accept(&mut self, id: CmId, qp: QpNum) -> Result<(), Error>;
    /// Rejects a connect request.
    fn reject(&mut self, id: CmId, private_data: &[u8]) -> Result<(), Error>;
    /// Closes a connection when its work is done.
    fn disconnect(&mut self, id: CmId, now: Instant);
    /// Returns the address of an id's peer, if known.
    fn peer(&self, id: CmId) -> Option<SocketAddr>;
    /// Returns the next connection event, if there is one.
    fn poll_cm_event(&mut self) -> Option<CmEvent>;
    /// Returns the next asynchronous event, if there is one.
    fn poll_async_event(&mut self) -> Option<AsyncEvent>;

    /// Posts a send request.
    fn post_send(&mut self, qp: QpNum, wr: &SendWr<'_>) -> Result<(), PostError>;
    /// Posts a receive buffer.
    fn post_recv(&mut self, qp: QpNum, wr: &RecvWr<'_>) -> Result<(), PostError>;
    /// Returns the next completion of a queue, if there is one.
    fn poll_cq(&mut self, cq: CqId) -> Option<WorkCompletion>;
}
