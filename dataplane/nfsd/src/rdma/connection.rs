//! One connection: its slots, and the work that moves a call through them.

use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::{Context as _, Result, anyhow, bail};
use iwarp_rpc::xdr::Data as Argument;
use iwarp_rpc::{Call, Item, Piece, PrivateData, Read, Received, Refusal, Responder, Stats};
use iwarp_verbs::{
    Access, CmId, CompletionQueue, Data, Id, Mr, ProtectionDomain, QpCap, QpNum, QpOptions, QueuePair,
    RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};

use super::RdmaLimits;
use crate::file::{read_all, write_all};
use crate::server::{PAYLOADS_MAX, Server, Step};
use crate::stats::Connected;

/// Bytes of a call or a reply besides its payload, at most.
const STREAM_BYTES: u32 = 64 << 10;
/// Elements of the list of a Send: bytes, item, padding, bytes.
const SGE_MAX: u16 = 4;

/// Returns the entries of a connection in the completion queue: its receive buffers and its send queue.
pub(super) fn queue_entries(limits: &RdmaLimits) -> u32 {
    u32::from(limits.credits).saturating_add(send_entries(limits).into())
}

fn send_entries(limits: &RdmaLimits) -> u16 {
    // Reads and Writes of all segments, one more for each piece of a reply, and the Send.
    let pieces = PAYLOADS_MAX.saturating_mul(3).saturating_add(1);
    limits.credits.saturating_mul(limits.segments_max.saturating_add(pieces).saturating_add(1))
}

/// Offsets in the memory region.
#[derive(Clone, Copy, Debug)]
struct Layout {
    inline: u32,
    area: u32,
}

impl Layout {
    fn slot_bytes(self) -> u64 {
        u64::from(self.inline).saturating_add(u64::from(self.area).saturating_mul(2))
    }

    fn received(self, slot: u32) -> u64 {
        self.slot_bytes().saturating_mul(slot.into())
    }

    fn reply(self, slot: u32) -> u64 {
        self.received(slot).saturating_add(self.inline.into())
    }

    fn data(self, slot: u32) -> u64 {
        self.reply(slot).saturating_add(self.area.into())
    }
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Connection {
    qp: QueuePair,
    mr: Mr,
    layout: Layout,
    responder: Responder,
    /// Calls by slot, with their messages.
    calls: Vec<Option<(Call, Vec<u8>)>>,
    address: IpAddr,
    connected: Connected,
    id: Id,
}

fn posted(result: Result<(), (usize, iwarp_verbs::PostError)>) -> Result<()> {
    result.map_err(|(_, error)| anyhow!("post: {error:?}"))
}

impl Connection {
    /// Accepts a connection, with all receive buffers posted.
    pub(super) fn new(
        id: Id,
        address: IpAddr,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        limits: &RdmaLimits,
        server: &Server,
        (own, peer): (&PrivateData, &PrivateData),
    ) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: send_entries(limits),
            max_recv_wr: limits.credits,
            max_send_sge: SGE_MAX,
            ..QpCap::default()
        };
        let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(cq) })?;
        let area = server.transfer_max.saturating_add(STREAM_BYTES);
        let layout = Layout { inline: limits.inline_bytes, area };
        let bytes = layout.slot_bytes().saturating_mul(limits.credits.into());
        // The peer has no access: it names its own memory only.
        let mr = pd.alloc_mr(bytes, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let responder = Responder::new(limits.rpc(area), own, peer);
        let calls = (0..limits.credits).map(|_| None).collect();
        let connected = server.connected(address, "rdma");
        let connection = Self { qp, mr, layout, responder, calls, address, connected, id };
        for slot in 0..limits.credits {
            connection.post_recv(slot.into())?;
        }
        connection.id.accept(&connection.qp, &own.emit())?;
        Ok(connection)
    }

    pub(super) fn qp_num(&self) -> QpNum {
        self.qp.num()
    }

    pub(super) fn handle(&self) -> CmId {
        self.id.handle()
    }

    fn post_recv(&self, slot: u32) -> Result<()> {
        let sge = [self.mr.sge(self.layout.received(slot), self.layout.inline)];
        posted(self.qp.post_recv(&[RecvWr { wr_id: slot.into(), sg_list: &sge }]))
    }

    fn copy(&self, offset: u64, length: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.mr.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Handles a completion. An error ends the connection.
    pub(super) fn completion(
        &mut self,
        server: &Server,
        wc: &WorkCompletion,
        stats: &mut Stats,
    ) -> Result<()> {
        if wc.status != WcStatus::Success {
            bail!("{wc:?}");
        }
        let slot = u32::try_from(wc.wr_id)?;
        match wc.opcode {
            WcOpcode::Recv => self.received(server, slot, wc.byte_len, stats),
            WcOpcode::RdmaRead => self.execute(server, slot, stats),
            WcOpcode::Send => self.post_recv(slot),
            _ => Ok(()),
        }
    }

    fn received(&mut self, server: &Server, slot: u32, length: u32, stats: &mut Stats) -> Result<()> {
        let message = self.copy(self.layout.received(slot), length)?;
        match self.responder.receive(&message, stats) {
            Received::Answer(answer) => self.send_bytes(slot, &answer),
            Received::Discard => self.post_recv(slot),
            Received::Close => bail!("the client exceeds its credits"),
            Received::Call(call) => {
                self.fetch(slot, call.reads())?;
                let at_once = call.reads().is_empty();
                *self.calls.get_mut(slot as usize).context("no such slot")? = Some((call, message));
                if at_once { self.execute(server, slot, stats) } else { Ok(()) }
            }
        }
    }

    /// Posts the RDMA Reads of a call; the last one completes when all have.
    fn fetch(&self, slot: u32, reads: &[Read]) -> Result<()> {
        for (at, read) in (1..).zip(reads) {
            let sge =
                [self.mr.sge(self.layout.data(slot).saturating_add(read.offset.into()), read.source.length)];
            let op = SendOp::RdmaRead { remote_addr: read.source.offset, rkey: read.source.stag };
            self.post(slot, op, &sge, at == reads.len())?;
        }
        Ok(())
    }

    fn post(&self, slot: u32, op: SendOp, list: &[Sge], signaled: bool) -> Result<()> {
        let flags = SendFlags { signaled, ..SendFlags::default() };
        posted(self.qp.post_send(&[SendWr { wr_id: slot.into(), op, data: Data::List(list), flags }]))
    }

    fn send_bytes(&self, slot: u32, bytes: &[u8]) -> Result<()> {
        self.mr.write(self.layout.reply(slot), bytes)?;
        let sge = [self.mr.sge(self.layout.reply(slot), u32::try_from(bytes.len())?)];
        self.post(slot, SendOp::SEND, &sge, true)
    }

    /// Executes a call whose data is complete, and sends its reply.
    fn execute(&mut self, server: &Server, slot: u32, stats: &mut Stats) -> Result<()> {
        let taken = self.calls.get_mut(slot as usize).and_then(Option::take);
        let (call, message) = taken.context("a slot without a call")?;
        let fetched = self.copy(self.layout.data(slot), call.fetched_stream_bytes())?;
        let (stream, items) = match call.reader(&message, &fetched) {
            Ok(reader) => {
                let data = self.layout.data(slot);
                let copy_out = |range: std::ops::Range<u32>| {
                    self.copy(data.saturating_add(range.start.into()), range.end.saturating_sub(range.start))
                        .unwrap_or_default()
                };
                let Some(step) = server.call(self.address, reader, &copy_out) else {
                    self.responder.discard(call, stats);
                    return self.post_recv(slot);
                };
                self.transfer(slot, step)?
            }
            Err(refusal) => return self.refuse(slot, &call, refusal, stats),
        };
        match self.responder.reply(&call, &stream, &items, stats) {
            Ok(reply) => {
                self.connected.answered();
                self.send(slot, &reply, &items)
            }
            Err(refusal) => self.refuse(slot, &call, refusal, stats),
        }
    }

    fn refuse(&mut self, slot: u32, call: &Call, refusal: Refusal, stats: &mut Stats) -> Result<()> {
        let answer = self.responder.refuse(call, refusal, stats);
        self.send_bytes(slot, &answer)
    }

    /// Moves the payload between the file and the slot. Returns the stream of the reply, and its data items.
    fn transfer(&self, slot: u32, step: Step<'_>) -> Result<(Vec<u8>, Vec<Item>)> {
        let data = self.layout.data(slot);
        let reply = match step {
            Step::Done(reply) => {
                self.mr.write(data, &reply.content)?;
                reply
            }
            Step::Read(call) => {
                let mut content = vec![0; call.length as usize];
                let read = read_all(call.as_fd(), &mut content, call.offset);
                content.truncate(read.unwrap_or(0) as usize);
                self.mr.write(data, &content)?;
                call.reply(read)
            }
            Step::Write(call) => {
                let written = match call.data {
                    Argument::Inline(bytes) => write_all(call.as_fd(), bytes, call.offset),
                    Argument::Fetched { offset, length } => {
                        let bytes = self.copy(data.saturating_add(offset.into()), length)?;
                        write_all(call.as_fd(), &bytes, call.offset)
                    }
                };
                call.reply(written)
            }
        };
        Ok((reply.stream, reply.payloads))
    }

    /// Posts the Writes of a reply, and its Send.
    fn send(&self, slot: u32, reply: &iwarp_rpc::Reply, items: &[Item]) -> Result<()> {
        self.mr.write(self.layout.reply(slot), &reply.bytes)?;
        for write in &reply.writes {
            let op = SendOp::RdmaWrite { remote_addr: write.offset, rkey: write.stag };
            self.post(slot, op, &[self.element(slot, &write.source, items)?], false)?;
        }
        if reply.send.len() > usize::from(SGE_MAX) {
            let parts = reply.send.iter().map(|piece| self.bytes(slot, piece, items));
            let message = parts.collect::<Result<Vec<_>>>()?.concat();
            self.mr.write(self.layout.reply(slot), &message)?;
            let list = [self.mr.sge(self.layout.reply(slot), u32::try_from(message.len())?)];
            return self.post(slot, SendOp::Send { invalidate: reply.invalidate }, &list, true);
        }
        let list =
            reply.send.iter().map(|piece| self.element(slot, piece, items)).collect::<Result<Vec<_>>>()?;
        self.post(slot, SendOp::Send { invalidate: reply.invalidate }, &list, true)
    }

    /// Returns the list element of a piece.
    fn element(&self, slot: u32, piece: &Piece, items: &[Item]) -> Result<Sge> {
        let (start, length) = self.place(slot, piece, items)?;
        Ok(self.mr.sge(start, length))
    }

    fn bytes(&self, slot: u32, piece: &Piece, items: &[Item]) -> Result<Vec<u8>> {
        let (start, length) = self.place(slot, piece, items)?;
        self.copy(start, length)
    }

    /// Returns the offset and the length of a piece. The slot's data holds the items one behind the other.
    fn place(&self, slot: u32, piece: &Piece, items: &[Item]) -> Result<(u64, u32)> {
        let (start, range) = match piece {
            Piece::Bytes(range) => (self.layout.reply(slot), range),
            Piece::Item { item, range } => {
                let before = items.iter().take(*item).map(|item| u64::from(item.length));
                (before.fold(self.layout.data(slot), u64::saturating_add), range)
            }
        };
        Ok((start.saturating_add(range.start as u64), u32::try_from(range.len())?))
    }
}
