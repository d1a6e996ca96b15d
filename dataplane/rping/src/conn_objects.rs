//! Verbs objects and buffers of one connection, shared by the client and the server.

use rdma::verbs::{
    Access, AddressBase, CmId, CqId, Data, MemoryRegion, PdId, QpCap, QpInit, QpNum, RecvWr, RegionId,
    SendFlags, SendOp, SendWr, Sge, WorkCompletion,
};
use rdma::{Memory, VecMemory};
use tcp_stack::BufPool;

use dataplane::engine::Engine;
use dataplane::memory::WorkerMemory;

use crate::error::Error;
use crate::protocol::{INFO_LEN, Info};

/// Bytes before the texts, for received Sends.
const CONTROL: u64 = 64;
/// Depth of each work queue: at most two Sends and an RDMA operation are outstanding.
const PLACES: u16 = 16;

/// Region memory that the program reads and writes itself.
pub trait Bytes: Memory {
    /// Copies bytes into a region. Returns `false` if they are not inside it.
    fn store(&mut self, region: RegionId, at: u64, bytes: &[u8]) -> bool;
    /// Copies bytes out of a region. Returns `false` if they are not inside it.
    fn load(&self, region: RegionId, at: u64, bytes: &mut [u8]) -> bool;
}

impl Bytes for WorkerMemory {
    fn store(&mut self, region: RegionId, at: u64, bytes: &[u8]) -> bool {
        self.region(region).is_some_and(|memory| memory.write(at, bytes).is_ok())
    }

    fn load(&self, region: RegionId, at: u64, bytes: &mut [u8]) -> bool {
        self.region(region).is_some_and(|memory| memory.read(at, bytes).is_ok())
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

/// Memory for the texts of one connection at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextMemory {
    /// Region of [`TextMemory::bytes`] bytes.
    pub region: RegionId,
    /// Length of the longest text, bytes.
    pub size: u32,
}

impl TextMemory {
    /// Returns the bytes of a region for texts of `size` bytes.
    pub const fn bytes(size: u32) -> u64 {
        CONTROL + 2 * size as u64
    }
}

/// One of the two text buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    /// Text that the server reads from the client.
    Source,
    /// Client: text that the server writes. Server: target of its Read and source of its Write.
    Sink,
}

/// Verbs objects of one connection.
#[derive(Debug)]
pub(crate) struct ConnObjects {
    pub(crate) id: CmId,
    pub(crate) qp: QpNum,
    pub(crate) memory: TextMemory,
    pd: PdId,
    cq: CqId,
    control: MemoryRegion,
    source: MemoryRegion,
    sink: MemoryRegion,
}

impl ConnObjects {
    /// Creates the objects for an id without a queue pair. If `shared`, the peer may read the source and write the
    /// sink.
    pub(crate) fn new<P: BufPool, M: Bytes>(
        verbs: &mut Engine<P, M>,
        id: CmId,
        memory: TextMemory,
        shared: bool,
    ) -> Result<Self, Error> {
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let (may_read, may_write) =
            if shared { (local | Access::REMOTE_READ, local | Access::REMOTE_WRITE) } else { (local, local) };
        let size = u64::from(memory.size);
        let (pd, cq) = (verbs.device_mut().alloc_pd()?, verbs.device_mut().create_cq(u32::from(PLACES) * 2)?);
        let mut register =
            |at, len, access| verbs.reg_mr(pd, (memory.region, at, len), AddressBase::At(at), access);
        let control = register(0, CONTROL, local)?;
        let source = register(CONTROL, size, may_read)?;
        let sink = register(CONTROL.saturating_add(size), size, may_write)?;
        let cap = QpCap {
            max_send_wr: PLACES,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: u16::try_from(INFO_LEN).unwrap_or(u16::MAX),
        };
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: true };
        let qp = verbs.device_mut().create_qp(init)?;
        let objects = Self { id, qp, memory, pd, cq, control, source, sink };
        objects.expect(verbs)?;
        Ok(objects)
    }

    /// Destroys the objects and the id; an open connection is reset. Returns the memory for reuse.
    pub(crate) fn destroy<P: BufPool, M: Bytes>(self, verbs: &mut Engine<P, M>) -> Result<TextMemory, Error> {
        let device = verbs.device_mut();
        device.destroy_qp(self.qp)?;
        device.destroy_cq(self.cq)?;
        device.destroy_id(self.id)?;
        for mr in [self.control, self.source, self.sink] {
            verbs.dereg_mr(mr.id)?;
        }
        verbs.device_mut().dealloc_pd(self.pd)?;
        Ok(self.memory)
    }

    /// Posts a receive buffer for the peer's next Send.
    pub(crate) fn expect<P: BufPool, M: Bytes>(&self, verbs: &mut Engine<P, M>) -> Result<(), Error> {
        let sge = Sge { addr: self.control.addr, length: 16, lkey: self.control.lkey };
        Ok(verbs.device_mut().post_recv(self.qp, &RecvWr { wr_id: 0, sg_list: &[sge] })?)
    }

    /// Decodes the last Send of the peer.
    pub(crate) fn received<P: BufPool, M: Bytes>(&self, verbs: &Engine<P, M>) -> Result<Info, Error> {
        let mut bytes = [0; INFO_LEN];
        if verbs.memory().load(self.memory.region, 0, &mut bytes) {
            Ok(Info::decode(&bytes))
        } else {
            Err(Error::Memory)
        }
    }

    /// Advertises a text of `size` bytes to the peer.
    pub(crate) fn advertise<P: BufPool, M: Bytes>(
        &self,
        verbs: &mut Engine<P, M>,
        text: Text,
        size: u32,
    ) -> Result<Info, Error> {
        let MemoryRegion { addr, rkey, .. } = *self.text(text);
        let info = Info { addr, rkey, size };
        self.send(verbs, &info.encode())?;
        Ok(info)
    }

    /// Sends the go-ahead to the peer.
    pub(crate) fn send_go_ahead<P: BufPool, M: Bytes>(&self, verbs: &mut Engine<P, M>) -> Result<(), Error> {
        self.send(verbs, &[0; INFO_LEN])
    }

    fn send<P: BufPool, M: Bytes>(
        &self,
        verbs: &mut Engine<P, M>,
        bytes: &[u8; INFO_LEN],
    ) -> Result<(), Error> {
        let (op, data) = (SendOp::Send { invalidate: None }, Data::Inline(bytes));
        let wr = SendWr { wr_id: 0, op, data, flags: SendFlags::SIGNALED };
        Ok(verbs.device_mut().post_send(self.qp, &wr)?)
    }

    /// Posts an RDMA Read of `length` bytes into the sink, or an RDMA Write from it.
    pub(crate) fn transfer<P: BufPool, M: Bytes>(
        &self,
        verbs: &mut Engine<P, M>,
        op: SendOp,
        length: u32,
    ) -> Result<(), Error> {
        let list = [Sge { addr: self.sink.addr, length, lkey: self.sink.lkey }];
        let wr = SendWr { wr_id: 0, op, data: Data::List(&list), flags: SendFlags::SIGNALED };
        Ok(verbs.device_mut().post_send(self.qp, &wr)?)
    }

    /// Polls one completion, if available.
    pub(crate) fn completion<P: BufPool, M: Bytes>(
        &self,
        verbs: &mut Engine<P, M>,
    ) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        (verbs.device_mut().poll_cq(self.cq, &mut out) == Ok(1)).then_some(out).map(|[wc]| wc)
    }

    /// Copies bytes into a local text.
    pub(crate) fn store<P: BufPool, M: Bytes>(
        &self,
        verbs: &mut Engine<P, M>,
        text: Text,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let at = self.text(text).addr;
        let stored = verbs.memory_mut().store(self.memory.region, at, bytes);
        stored.then_some(()).ok_or(Error::Memory)
    }

    /// Copies a local text out.
    pub(crate) fn load<P: BufPool, M: Bytes>(
        &self,
        verbs: &Engine<P, M>,
        text: Text,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let at = self.text(text).addr;
        verbs.memory().load(self.memory.region, at, bytes).then_some(()).ok_or(Error::Memory)
    }

    const fn text(&self, text: Text) -> &MemoryRegion {
        match text {
            Text::Source => &self.source,
            Text::Sink => &self.sink,
        }
    }
}
