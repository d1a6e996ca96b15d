//! One connection: its slots, and the work that moves a call through them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use iwarp_rpc::{Call, Piece, PrivateData, Read, Received, Refusal, Responder, Stats};
use iwarp_server::{Connected, Execution, Io, Memory, Peer, Room, Span};
use iwarp_verbs::{
    Access, CmId, CompletionQueue, Data, Id, Mr, ProtectionDomain, QpCap, QpNum, QpOptions, QueuePair,
    RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};

use super::RdmaLimits;
use crate::reply::{Payload, Reply};
use crate::server::{PAYLOADS_MAX, Server, Ways};
use crate::stats::{PayloadStats, Way};

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

/// A call that is not executed yet: its data is being fetched.
#[derive(Debug)]
struct Pending {
    call: Call,
    message: Vec<u8>,
    /// Part of a region that the data goes to; `None`: the slot's data.
    placed: Option<Span>,
}

/// A call in a slot of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) address: IpAddr,
    pub(super) qp: QpNum,
    /// Number of the connection: that of its queue pair is used again.
    pub(super) connection: u64,
    pub(super) slot: u32,
}

impl iwarp_server::Key for Key {
    fn client(&self) -> IpAddr {
        self.address
    }
}

/// A call that was executed.
#[derive(Debug)]
pub(super) struct Executed {
    call: Call,
    outcome: Result<Outcome>,
}

#[derive(Debug)]
enum Outcome {
    Reply(Reply),
    /// The message holds no call.
    NoCall,
    Refused(Refusal),
}

/// The slots. Calls that wait for a file keep them when their connection has ended.
#[derive(Debug)]
struct Slots {
    mr: Arc<Mr>,
    layout: Layout,
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Connection {
    qp: QueuePair,
    slots: Arc<Slots>,
    number: u64,
    responder: Responder,
    /// Calls whose data is being fetched, by slot.
    calls: Vec<Option<Pending>>,
    /// Memory of regions that the operations of a slot's reply read.
    sent: Vec<Vec<Payload>>,
    peer: Peer,
    /// Time at which the latest call was executed, or the connection accepted.
    used: Instant,
    /// True once a call was executed.
    was_used: bool,
    connected: Connected,
    id: Id,
}

/// Queue pair and memory of a connection, which the daemon limits.
#[derive(Debug)]
pub(super) struct Resources {
    qp: QueuePair,
    slots: Slots,
}

impl Resources {
    /// Creates a queue pair and its memory.
    ///
    /// # Errors
    /// The daemon refuses.
    pub(super) fn new(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        limits: &RdmaLimits,
        transfer_max: u32,
    ) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: send_entries(limits),
            max_recv_wr: limits.credits,
            max_send_sge: SGE_MAX,
            ..QpCap::default()
        };
        let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(cq) })?;
        let layout = Layout { inline: limits.inline_bytes, area: transfer_max.saturating_add(STREAM_BYTES) };
        let bytes = layout.slot_bytes().saturating_mul(limits.credits.into());
        // The peer has no access: it names its own memory only.
        let mr = pd.alloc_mr(bytes, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        Ok(Self { qp, slots: Slots { mr: Arc::new(mr), layout } })
    }
}

#[allow(clippy::disallowed_methods, reason = "the silence of clients is measured from here")]
fn now() -> Instant {
    Instant::now()
}

fn posted(result: Result<(), (usize, iwarp_verbs::PostError)>) -> Result<()> {
    result.map_err(|(_, error)| anyhow!("post: {error:?}"))
}

impl Connection {
    /// Accepts a connection, with all receive buffers posted.
    pub(super) fn new(
        id: Id,
        (number, peer): (u64, Peer),
        Resources { qp, slots }: Resources,
        limits: &RdmaLimits,
        server: &Server,
        (own, peers): (&PrivateData, &PrivateData),
    ) -> Result<Self> {
        let responder = Responder::new(limits.rpc(slots.layout.area), own, peers);
        let calls = (0..limits.credits).map(|_| None).collect();
        let sent = (0..limits.credits).map(|_| Vec::new()).collect();
        let connected = server.connected(peer, "rdma");
        let (slots, used) = (Arc::new(slots), now());
        let connection =
            Self { qp, slots, number, responder, calls, sent, peer, used, was_used: false, connected, id };
        for slot in 0..limits.credits {
            connection.post_recv(slot.into())?;
        }
        connection.id.accept(&connection.qp, &own.emit())?;
        Ok(connection)
    }

    pub(super) fn qp_num(&self) -> QpNum {
        self.qp.num()
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the time at which the latest call was executed, or the connection accepted, and true in the first case.
    pub(super) fn used(&self) -> (Instant, bool) {
        (self.used, self.was_used)
    }

    pub(super) fn handle(&self) -> CmId {
        self.id.handle()
    }

    pub(super) fn key(&self, slot: u32) -> Key {
        Key { address: self.peer.address, qp: self.qp.num(), connection: self.number, slot }
    }

    fn post_recv(&self, slot: u32) -> Result<()> {
        let Slots { mr, layout } = self.slots.as_ref();
        let sge = [mr.sge(layout.received(slot), layout.inline)];
        posted(self.qp.post_recv(&[RecvWr { wr_id: slot.into(), sg_list: &sge }]))
    }

    /// Handles a completion. Returns the slot of a call that can be executed now. An error ends the connection.
    pub(super) fn completion(
        &mut self,
        server: &Server,
        wc: &WorkCompletion,
        stats: &mut Stats,
    ) -> Result<Option<u32>> {
        if wc.status != WcStatus::Success {
            bail!("{wc:?}");
        }
        let slot = u32::try_from(wc.wr_id)?;
        match wc.opcode {
            WcOpcode::Recv => self.received(server, slot, wc.byte_len, stats),
            WcOpcode::RdmaRead => Ok(Some(slot)),
            WcOpcode::Send => {
                // The Writes before the Send have completed, too.
                if let Some(sent) = self.sent.get_mut(slot as usize) {
                    sent.clear();
                }
                self.post_recv(slot).map(|()| None)
            }
            _ => Ok(None),
        }
    }

    fn received(
        &mut self,
        server: &Server,
        slot: u32,
        length: u32,
        stats: &mut Stats,
    ) -> Result<Option<u32>> {
        let message = self.slots.copy(self.slots.layout.received(slot), length)?;
        match self.responder.receive(&message, stats) {
            Received::Answer(answer) => self.send_bytes(slot, &answer).map(|()| None),
            Received::Discard => self.post_recv(slot).map(|()| None),
            Received::Close => bail!("the client exceeds its credits"),
            Received::Call(call) => {
                let placed = self.place(server, &call, &message);
                self.fetch(slot, call.reads(), placed.as_ref())?;
                let at_once = call.reads().is_empty();
                let pending = Pending { call, message, placed };
                *self.calls.get_mut(slot as usize).context("no such slot")? = Some(pending);
                Ok(at_once.then_some(slot))
            }
        }
    }

    /// Returns the part of a region to which the chunk of a call is to be read: its data, and not padding behind that.
    fn place(&self, server: &Server, call: &Call, message: &[u8]) -> Option<Span> {
        if call.reads().is_empty() || call.fetched_stream_bytes() != 0 {
            return None;
        }
        let span = server.place(self.peer, call.reader(message, &[]).ok()?)?;
        let is_whole = call.fetch_bytes() == span.length();
        span.element(0, span.length()).filter(|_| is_whole).map(|_| span)
    }

    /// Posts the RDMA Reads of a call; the last one completes when all have.
    fn fetch(&self, slot: u32, reads: &[Read], placed: Option<&Span>) -> Result<()> {
        let data = self.slots.layout.data(slot);
        for (at, read) in (1..).zip(reads) {
            let (start, length) = (u64::from(read.offset), read.source.length);
            let sge = [match placed {
                Some(span) => span.element(start, length).context("memory that is not registered")?,
                None => self.slots.mr.sge(data.saturating_add(start), length),
            }];
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
        let Slots { mr, layout } = self.slots.as_ref();
        mr.write(layout.reply(slot), bytes)?;
        let sge = [mr.sge(layout.reply(slot), u32::try_from(bytes.len())?)];
        self.post(slot, SendOp::SEND, &sge, true)
    }

    /// Returns what executes the call in a slot, whose data is complete.
    pub(super) fn execution(
        &mut self,
        server: &Arc<Server>,
        slot: u32,
    ) -> Result<impl FnOnce(Io) -> Execution<Executed> + use<>> {
        let taken = self.calls.get_mut(slot as usize).and_then(Option::take);
        let pending = taken.context("a slot without a call")?;
        let (server, slots, peer) = (Arc::clone(server), Arc::clone(&self.slots), self.peer);
        Ok(move |io: Io| -> Execution<Executed> {
            Box::pin(async move {
                let outcome = slots.execute(&server, peer, slot, &pending, &io).await;
                Executed { call: pending.call, outcome }
            })
        })
    }

    /// Sends the reply of a call that was executed.
    pub(super) fn answer(&mut self, slot: u32, executed: Executed, stats: &mut Stats) -> Result<()> {
        let Executed { call, outcome } = executed;
        (self.used, self.was_used) = (now(), true);
        let result = match outcome? {
            Outcome::Reply(reply) => reply,
            Outcome::NoCall => {
                self.responder.discard(call, stats);
                return self.post_recv(slot);
            }
            Outcome::Refused(refusal) => return self.refuse(slot, &call, refusal, stats),
        };
        match self.responder.reply(&call, &result.stream, &result.items(), stats) {
            Ok(reply) => {
                self.connected.answered();
                self.send(slot, &reply, &result)?;
                let payloads = result.payloads.into_iter().map(|(_, payload)| payload);
                *self.sent.get_mut(slot as usize).context("no such slot")? =
                    payloads.filter(|payload| matches!(payload, Payload::Span(_))).collect();
                Ok(())
            }
            Err(refusal) => self.refuse(slot, &call, refusal, stats),
        }
    }

    fn refuse(&mut self, slot: u32, call: &Call, refusal: Refusal, stats: &mut Stats) -> Result<()> {
        let answer = self.responder.refuse(call, refusal, stats);
        self.send_bytes(slot, &answer)
    }

    /// Posts the Writes of a reply, and its Send.
    fn send(&self, slot: u32, reply: &iwarp_rpc::Reply, result: &Reply) -> Result<()> {
        let Slots { mr, layout } = self.slots.as_ref();
        mr.write(layout.reply(slot), &reply.bytes)?;
        for write in &reply.writes {
            let op = SendOp::RdmaWrite { remote_addr: write.offset, rkey: write.stag };
            self.post(slot, op, &[self.element(slot, &write.source, result)?], false)?;
        }
        let op = SendOp::Send { invalidate: reply.invalidate };
        if reply.send.len() > usize::from(SGE_MAX) {
            let parts = reply.send.iter().map(|piece| self.bytes(slot, piece, result));
            let message = parts.collect::<Result<Vec<_>>>()?.concat();
            mr.write(layout.reply(slot), &message)?;
            let list = [mr.sge(layout.reply(slot), u32::try_from(message.len())?)];
            return self.post(slot, op, &list, true);
        }
        let list = reply.send.iter().map(|piece| self.element(slot, piece, result));
        self.post(slot, op, &list.collect::<Result<Vec<_>>>()?, true)
    }

    /// Returns the list element of a piece.
    fn element(&self, slot: u32, piece: &Piece, result: &Reply) -> Result<Sge> {
        match piece {
            Piece::Bytes(range) => {
                let start = self.slots.layout.reply(slot).saturating_add(range.start as u64);
                Ok(self.slots.mr.sge(start, u32::try_from(range.len())?))
            }
            Piece::Item { item, range } => {
                let (start, length) = (range.start as u64, u32::try_from(range.len())?);
                registered(result, *item)?.element(start, length).context("memory that is not registered")
            }
        }
    }

    fn bytes(&self, slot: u32, piece: &Piece, result: &Reply) -> Result<Vec<u8>> {
        match piece {
            Piece::Bytes(range) => {
                let start = self.slots.layout.reply(slot).saturating_add(range.start as u64);
                self.slots.copy(start, u32::try_from(range.len())?)
            }
            Piece::Item { item, range } => {
                let (start, length) = (range.start as u64, u32::try_from(range.len())?);
                Ok(registered(result, *item)?.copy(start, length)?)
            }
        }
    }
}

/// Returns the memory of an item, which [`Slots::execute`] has put there.
fn registered(result: &Reply, item: usize) -> Result<&Span> {
    match result.payloads.get(item) {
        Some((_, Payload::Span(span) | Payload::Placed(span))) => Ok(span),
        _ => bail!("an item that is not in registered memory"),
    }
}

impl Slots {
    fn copy(&self, offset: u64, length: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.mr.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Executes the call of a slot.
    async fn execute(
        &self,
        server: &Server,
        peer: Peer,
        slot: u32,
        pending: &Pending,
        io: &Io,
    ) -> Result<Outcome> {
        let Pending { call, message, placed } = pending;
        let data = self.layout.data(slot);
        let fetched = self.copy(data, call.fetched_stream_bytes())?;
        let reader = match call.reader(message, &fetched) {
            Ok(reader) => reader,
            Err(refusal) => return Ok(Outcome::Refused(refusal)),
        };
        let copy_out = |range: std::ops::Range<u32>| {
            let length = range.end.saturating_sub(range.start);
            self.copy(data.saturating_add(range.start.into()), length).unwrap_or_default()
        };
        let memory: Arc<dyn Memory> = Arc::<Mr>::clone(&self.mr);
        let end = data.saturating_add(self.layout.area.into());
        let room = Room::new(memory, data..end, call.fetch_bytes());
        let ways = Ways { copy_out: &copy_out, room: Some(&room), placed: placed.as_ref(), io };
        let Some(mut reply) = server.call_waiting(peer, reader, ways).await else {
            return Ok(Outcome::NoCall);
        };
        register(&mut reply.payloads, &room, &server.stats.payload)?;
        Ok(Outcome::Reply(reply))
    }
}

/// Puts all payloads in registered memory, and counts their ways.
fn register(payloads: &mut [(usize, Payload)], room: &Room, stats: &PayloadStats) -> Result<()> {
    for (_, payload) in &mut *payloads {
        if matches!(payload, Payload::Span(span) if span.element(0, span.length()).is_none()) {
            payload.detach();
        }
        stats.read(payload.way(), payload.length().into());
    }
    let place = |payload: &mut Payload| -> Option<Result<()>> {
        let Payload::Bytes(bytes) = payload else { return Some(Ok(())) };
        let span = room.take(u32::try_from(bytes.len()).ok()?)?;
        let copied = span.fill(bytes);
        room.keep(&span);
        *payload = Payload::Placed(span);
        Some(copied.map_err(Into::into))
    };
    if !payloads.iter_mut().all(|(_, payload)| matches!(place(payload), Some(Ok(())))) {
        // The data that was fetched fills the room. The call has been executed: nobody needs it any more.
        payloads
            .iter_mut()
            .filter(|(_, payload)| payload.way() == Way::Placed)
            .for_each(|(_, payload)| payload.detach());
        room.clear();
        for (_, payload) in payloads {
            place(payload).context("payloads that are longer than the memory of a call")??;
        }
    }
    Ok(())
}
