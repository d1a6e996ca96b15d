//! Verbs objects and buffers of one connection, shared by the client and the server.

use rdma::verbs::{
    Access, CmId, CqId, Data, MemoryRegion, PdId, QpCap, QpNum, RecvWr, SendFlags, SendOp, SendWr, Sge,
    WorkCompletion,
};

use crate::error::Error;
use crate::protocol::{INFO_LEN, Info};
use crate::verbs::{CONTROL, TextMemory, Verbs};

/// Depth of each work queue: at most two Sends and an RDMA operation are outstanding.
const PLACES: u16 = 16;

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
    pub(crate) fn new<V: Verbs>(
        verbs: &mut V,
        id: CmId,
        memory: TextMemory,
        shared: bool,
    ) -> Result<Self, Error> {
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let (may_read, may_write) =
            if shared { (local | Access::REMOTE_READ, local | Access::REMOTE_WRITE) } else { (local, local) };
        let size = u64::from(memory.size);
        let (pd, cq) = (verbs.alloc_pd()?, verbs.create_cq(u32::from(PLACES) * 2)?);
        let control = verbs.reg_mr(pd, memory, (0, CONTROL), local)?;
        let source = verbs.reg_mr(pd, memory, (CONTROL, size), may_read)?;
        let sink = verbs.reg_mr(pd, memory, (CONTROL.saturating_add(size), size), may_write)?;
        let cap = QpCap {
            max_send_wr: PLACES,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: u16::try_from(INFO_LEN).unwrap_or(u16::MAX),
        };
        let qp = verbs.create_qp(pd, cq, cap)?;
        let objects = Self { id, qp, memory, pd, cq, control, source, sink };
        objects.expect(verbs)?;
        Ok(objects)
    }

    /// Destroys the objects and the id; an open connection is reset. Returns the memory for reuse.
    pub(crate) fn destroy<V: Verbs>(self, verbs: &mut V) -> Result<TextMemory, Error> {
        verbs.destroy_qp(self.qp)?;
        verbs.destroy_cq(self.cq)?;
        verbs.destroy_id(self.id)?;
        for mr in [self.control, self.source, self.sink] {
            verbs.dereg_mr(mr.id)?;
        }
        verbs.dealloc_pd(self.pd)?;
        Ok(self.memory)
    }

    /// Posts a receive buffer for the peer's next Send.
    pub(crate) fn expect<V: Verbs>(&self, verbs: &mut V) -> Result<(), Error> {
        let sge = Sge { addr: self.control.addr, length: 16, lkey: self.control.lkey };
        Ok(verbs.post_recv(self.qp, &RecvWr { wr_id: 0, sg_list: &[sge] })?)
    }

    /// Decodes the last Send of the peer.
    pub(crate) fn received<V: Verbs>(&self, verbs: &V) -> Result<Info, Error> {
        let mut bytes = [0; INFO_LEN];
        if verbs.load(self.memory, &self.control, &mut bytes) {
            Ok(Info::decode(&bytes))
        } else {
            Err(Error::Memory)
        }
    }

    /// Advertises a text of `size` bytes to the peer.
    pub(crate) fn advertise<V: Verbs>(&self, verbs: &mut V, text: Text, size: u32) -> Result<Info, Error> {
        let MemoryRegion { addr, rkey, .. } = *self.text(text);
        let info = Info { addr, rkey, size };
        self.send(verbs, &info.encode())?;
        Ok(info)
    }

    /// Sends the go-ahead to the peer.
    pub(crate) fn send_go_ahead<V: Verbs>(&self, verbs: &mut V) -> Result<(), Error> {
        self.send(verbs, &[0; INFO_LEN])
    }

    fn send<V: Verbs>(&self, verbs: &mut V, bytes: &[u8; INFO_LEN]) -> Result<(), Error> {
        let (op, data) = (SendOp::Send { invalidate: None }, Data::Inline(bytes));
        let wr = SendWr { wr_id: 0, op, data, flags: SendFlags::SIGNALED };
        Ok(verbs.post_send(self.qp, &wr)?)
    }

    /// Posts an RDMA Read of `length` bytes into the sink, or an RDMA Write from it.
    pub(crate) fn transfer<V: Verbs>(&self, verbs: &mut V, op: SendOp, length: u32) -> Result<(), Error> {
        let list = [Sge { addr: self.sink.addr, length, lkey: self.sink.lkey }];
        let wr = SendWr { wr_id: 0, op, data: Data::List(&list), flags: SendFlags::SIGNALED };
        Ok(verbs.post_send(self.qp, &wr)?)
    }

    /// Polls one completion, if available.
    pub(crate) fn completion<V: Verbs>(&self, verbs: &mut V) -> Option<WorkCompletion> {
        verbs.poll_cq(self.cq)
    }

    /// Copies bytes into a local text.
    pub(crate) fn store<V: Verbs>(&self, verbs: &mut V, text: Text, bytes: &[u8]) -> Result<(), Error> {
        verbs.store(self.memory, self.text(text), bytes).then_some(()).ok_or(Error::Memory)
    }

    /// Copies a local text out.
    pub(crate) fn load<V: Verbs>(&self, verbs: &V, text: Text, bytes: &mut [u8]) -> Result<(), Error> {
        verbs.load(self.memory, self.text(text), bytes).then_some(()).ok_or(Error::Memory)
    }

    const fn text(&self, text: Text) -> &MemoryRegion {
        match text {
            Text::Source => &self.source,
            Text::Sink => &self.sink,
        }
    }
}
