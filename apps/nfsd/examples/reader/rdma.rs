//! RPC over RDMA (RFC 8166): a requester on queue pairs of a daemon.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use iwarp_rpc::PrivateData;
use iwarp_rpc::header::{Body, ChunkLists, Header, Segment, VERSION};
use iwarp_rpc::xdr::Writer;
use iwarp_verbs::{
    Access, CmEventKind, CompletionQueue, ConnParam, Context, Data, Event, Id, Mr, QpCap, QpOptions,
    QueuePair, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion,
};

use crate::Transport;
use crate::rpc::{self, READ_HEAD, Target};

/// Bytes of a message without chunks.
const INLINE: u32 = 4096;
/// Segments of a reply, at most.
const SEGMENTS_MAX: usize = 8;
/// Flag of the numbers of send requests.
const SENT: u64 = 1 << 32;

/// READs of one file. Each slot has memory for a call, a received message, and the data or the whole reply.
pub(crate) struct Reads {
    target: Target,
    size: u32,
    depth: u32,
    /// True if replies come in reply chunks.
    whole: bool,
    /// Sequence number of the slots' calls.
    xids: Vec<u32>,
    /// The data of whole replies.
    copies: Vec<Vec<u8>>,
    qp: QueuePair,
    mr: Mr,
    cq: CompletionQueue,
    _id: Id,
    context: Context,
}

impl Reads {
    pub(crate) fn connect(
        socket: &Path,
        address: SocketAddr,
        target: Target,
        size: u32,
        depth: u32,
        whole: bool,
    ) -> Result<Self> {
        let context = Context::open(socket, None)?;
        let pd = context.alloc_pd()?;
        let entries = u16::try_from(depth)?;
        let cq = context.create_cq(depth.saturating_mul(2))?;
        let cap = QpCap { max_send_wr: entries, max_recv_wr: entries, ..QpCap::default() };
        let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(&cq) })?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.alloc_mr(u64::from(depth).saturating_mul(slot_bytes(size)), access)?;
        let id = context.create_id(None)?;
        let copies = (0..depth).map(|_| vec![0; if whole { size as usize } else { 0 }]).collect();
        let xids = (0..depth).collect();
        let reads = Self { target, size, depth, whole, xids, copies, qp, mr, cq, _id: id, context };
        (0..depth).try_for_each(|slot| reads.post_recv(slot))?;
        let own =
            PrivateData { remote_invalidation: false, send_bytes: INLINE, receive_bytes: INLINE }.emit();
        reads._id.connect(&reads.qp, address, &ConnParam { private_data: &own, ..ConnParam::default() })?;
        reads.established()?;
        Ok(reads)
    }

    fn established(&self) -> Result<()> {
        loop {
            match self.context.wait_event(Duration::from_secs(10))? {
                Some(Event::Cm(event)) if matches!(event.kind, CmEventKind::Established { .. }) => {
                    return Ok(());
                }
                // The link of a memif port may come up after the connection was requested.
                Some(Event::PortActive) => {}
                other => bail!("no connection over RDMA: {other:?}"),
            }
        }
    }

    fn call_at(&self, slot: u32) -> u64 {
        slot_bytes(self.size).saturating_mul(slot.into())
    }

    fn received_at(&self, slot: u32) -> u64 {
        self.call_at(slot).saturating_add(INLINE.into())
    }

    fn data_at(&self, slot: u32) -> u64 {
        self.received_at(slot).saturating_add(INLINE.into())
    }

    fn post_recv(&self, slot: u32) -> Result<()> {
        let sge = [self.mr.sge(self.received_at(slot), INLINE)];
        let posted = self.qp.post_recv(&[RecvWr { wr_id: slot.into(), sg_list: &sge }]);
        posted.map_err(|(_, error)| anyhow!("post_recv: {error:?}"))
    }

    /// Takes a completion; returns the buffer and the length of a received message.
    fn completion(&self, wc: &WorkCompletion) -> Result<Option<(u32, u32)>> {
        ensure!(wc.status == WcStatus::Success, "{wc:?}");
        let received = wc.opcode == WcOpcode::Recv;
        Ok(if received { Some((u32::try_from(wc.wr_id)?, wc.byte_len)) } else { None })
    }

    /// Checks a reply; returns its slot and the length of its data.
    fn check(&mut self, message: &[u8]) -> Result<(u32, u32)> {
        let parsed = Header::parse(message, SEGMENTS_MAX);
        let (header, inline) = parsed.map_err(|error| anyhow!("the header of a reply: {error:?}"))?;
        let slot = header.xid.checked_rem(self.depth).context("no slots")?;
        ensure!(self.xids.get(slot as usize) == Some(&header.xid), "a reply to no call: {}", header.xid);
        let bytes = |segments: &[Segment]| {
            segments.iter().fold(0_u32, |sum, segment| sum.saturating_add(segment.length))
        };
        match &header.body {
            Body::Msg(lists) if !self.whole => {
                let length = rpc::read_results(inline, header.xid)?;
                let written = lists.writes.first().map_or(0, |chunk| bytes(chunk));
                ensure!(written == length, "{written} bytes written, {length} read");
                Ok((slot, length))
            }
            Body::NoMsg(lists) if self.whole => {
                let mut head = [0; READ_HEAD as usize];
                self.mr.read(self.data_at(slot), &mut head)?;
                let length = rpc::read_results(&head, header.xid)?;
                let written = lists.reply.as_deref().map_or(0, bytes);
                ensure!(written >= READ_HEAD.saturating_add(length), "a reply of {written} bytes");
                let copy =
                    self.copies.get_mut(slot as usize).and_then(|copy| copy.get_mut(..length as usize));
                let data = slot_bytes(self.size)
                    .saturating_mul(slot.into())
                    .saturating_add(u64::from(INLINE.saturating_mul(2).saturating_add(READ_HEAD)));
                self.mr.read(data, copy.context("more data than wanted")?)?;
                Ok((slot, length))
            }
            other => bail!("not the kind of reply that was asked for: {other:?}"),
        }
    }
}

/// Bytes of a slot: a call, a received message, and a whole reply.
fn slot_bytes(size: u32) -> u64 {
    u64::from(INLINE).saturating_mul(3).saturating_add(u64::from(size).next_multiple_of(4096))
}

impl Transport for Reads {
    fn send(&mut self, slot: u32, offset: u64) -> Result<()> {
        let place = self.mr.addr().saturating_add(self.data_at(slot));
        let xid = self.xids.get_mut(slot as usize).context("no such slot")?;
        *xid = xid.wrapping_add(self.depth);
        let xid = *xid;
        let room =
            if self.whole { self.size.saturating_add(READ_HEAD).next_multiple_of(4) } else { self.size };
        let chunk = vec![Segment { stag: self.mr.rkey(), length: room, offset: place }];
        let lists = if self.whole {
            ChunkLists { reply: Some(chunk), ..ChunkLists::default() }
        } else {
            ChunkLists { writes: vec![chunk], ..ChunkLists::default() }
        };
        let header = Header { xid, version: VERSION, credits: self.depth, body: Body::Msg(lists) };
        let mut writer = Writer::new();
        header.emit(&mut writer);
        writer.fixed(&rpc::read(xid, &self.target, offset, self.size));
        let bytes = writer.into_bytes();
        self.mr.write(self.call_at(slot), &bytes)?;
        let sge = [self.mr.sge(self.call_at(slot), u32::try_from(bytes.len())?)];
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr_id = SENT | u64::from(slot);
        let request = SendWr { wr_id, op: SendOp::SEND, data: Data::List(&sge), flags };
        self.qp.post_send(&[request]).map_err(|(_, error)| anyhow!("post_send: {error:?}"))
    }

    fn reply(&mut self) -> Result<(u32, u32)> {
        let mut out = [WorkCompletion::default(); 1];
        loop {
            if self.cq.poll(&mut out).map_err(|error| anyhow!("poll: {error:?}"))? == 0 {
                self.cq.req_notify(false);
                if self.cq.poll(&mut out).map_err(|error| anyhow!("poll: {error:?}"))? == 0 {
                    self.context.wait(Duration::from_secs(1))?;
                    match self.context.poll_event() {
                        None | Some(Event::PortActive) => continue,
                        Some(event) => bail!("the connection has ended: {event:?}"),
                    }
                }
            }
            let [wc] = &out;
            let Some((buffer, length)) = self.completion(wc)? else { continue };
            let mut message = vec![0; length as usize];
            self.mr.read(self.received_at(buffer), &mut message)?;
            self.post_recv(buffer)?;
            return self.check(&message);
        }
    }

    fn data(&self, slot: u32, length: u32) -> Result<Vec<u8>> {
        if self.whole {
            let copy = self.copies.get(slot as usize).and_then(|copy| copy.get(..length as usize));
            return Ok(copy.context("no such data")?.to_vec());
        }
        let mut data = vec![0; length as usize];
        self.mr.read(self.data_at(slot), &mut data)?;
        Ok(data)
    }
}
