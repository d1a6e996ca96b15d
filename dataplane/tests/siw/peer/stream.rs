//! One end of one connection of the ping-pong test: its objects and its state machine.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dataplane::verbs::{Node, PortEngine};
use iwarp_engine::memory::RegionMemory;
use rdma::verbs::{
    Access, AddressBase, AsyncEvent, Bind, CmId, CqId, Data, MemoryRegion, MwId, PdId, QpCap, QpInit, QpNum,
    RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion, inc_rkey,
};
use rdma::{ErrorCode, Stag};

use crate::params::{DrawKind, HEADER_LEN, Header, Params, invalidates, pattern, solicited};

/// Bytes after the written part of a sink that must stay unchanged.
const GUARD: u32 = 64;
const POISON: u8 = 0xa5;
const PAGE: u32 = 4096;
/// DDP, tagged buffer, invalid STag (RFC 5041 §7.1).
const INVALID_STAG: ErrorCode = ErrorCode { layer: 1, etype: 1, code: 0 };

/// Kind of a work request, encoded in the low bits of its id.
const READ: u64 = 0;
const WRITE: u64 = 1;
const SEND: u64 = 2;
const RECEIVE: u64 = 3;
const TAGS: u64 = 4;

/// Counters of the finished work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sends: u64,
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) invalidated: u64,
    pub(crate) solicited: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Exchange,
    /// All exchanges are finished; the connection is about to end.
    Ending,
    Over,
}

#[derive(Debug)]
struct Slot {
    mw: MwId,
    /// STag that the sink is bound to, or was bound to last.
    sink_stag: Stag,
    bound: bool,
    /// Header of the other end's last message.
    peer: Header,
    /// Turn number of the next message expected from the other end.
    awaited: u32,
    reading: bool,
    /// STag of the other end that we have invalidated, and its address.
    revoked: Option<(Stag, u64)>,
    sent_last: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: CmId,
    pub(crate) qp: QpNum,
    pub(crate) cq: CqId,
    pd: PdId,
    mr: MemoryRegion,
    memory: Arc<RegionMemory>,
    params: Params,
    connector: bool,
    stage: Stage,
    slots: Vec<Slot>,
    done: usize,
    /// Event of the Terminate that ended the stream, if there was one.
    terminate: Option<AsyncEvent>,
    pub(crate) counts: Counts,
}

/// Buffers of a slot within the region; the receive buffers follow after all slots.
#[derive(Clone, Copy, Debug)]
enum BufferKind {
    Source,
    Sink,
    Out,
    Got,
    Message,
}

impl Stream {
    /// Creates the objects of one end for connection `id`, and posts its receive buffers.
    ///
    /// # Errors
    /// An object cannot be created.
    pub(crate) fn new(node: &mut Node, id: CmId, params: Params, connector: bool) -> Result<Self> {
        let work = 8_u16.saturating_mul(params.slots).saturating_add(2);
        let bytes = (4 * span(&params) + 3 * message_span(&params)) * u64::from(params.slots);
        let (region, memory) = node.add_region(&format!("turns-{}", id.0), bytes)?;
        let verbs = node.engine_mut();
        let device = verbs.device_mut();
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(u32::from(work) * 2)?);
        let cap = QpCap {
            max_send_wr: work,
            max_recv_wr: 2 * params.slots,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp =
            device.create_qp(QpInit { pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false })?;
        let rights = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::WINDOW_BIND;
        let mr = verbs.reg_mr(pd, (region, 0, bytes), AddressBase::Zero, rights)?;
        let mut slots = Vec::with_capacity(params.slots.into());
        for _ in 0..params.slots {
            let window = verbs.alloc_mw(pd)?;
            slots.push(Slot {
                mw: window.id,
                sink_stag: window.rkey,
                bound: false,
                peer: Header::default(),
                awaited: u32::from(connector),
                reading: false,
                revoked: None,
                sent_last: false,
            });
        }
        let (stage, counts) = (Stage::Opening, Counts::default());
        let stream = Self {
            id,
            qp,
            cq,
            pd,
            mr,
            memory,
            params,
            connector,
            stage,
            slots,
            done: 0,
            terminate: None,
            counts,
        };
        for slot in 0..params.slots {
            stream.poison(slot)?;
        }
        for index in 0..2 * u64::from(params.slots) {
            stream.post_receive(verbs, index)?;
        }
        Ok(stream)
    }

    /// Returns true if the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Handles the establishment of the connection.
    ///
    /// # Errors
    /// The first work requests cannot be posted.
    pub(crate) fn established(&mut self, verbs: &mut PortEngine) -> Result<()> {
        self.stage = Stage::Exchange;
        for slot in 0..if self.connector { self.params.slots } else { 0 } {
            self.take_turn(verbs, slot, 0)?;
        }
        Ok(())
    }

    /// Handles a completion.
    ///
    /// # Errors
    /// The work request failed, or its data is wrong.
    pub(crate) fn completed(&mut self, verbs: &mut PortEngine, wc: &WorkCompletion) -> Result<()> {
        if wc.status == WcStatus::WrFlushError && matches!(self.stage, Stage::Ending | Stage::Over) {
            return Ok(());
        }
        ensure!(wc.status == WcStatus::Success, "work request {}: {:?}", wc.wr_id, wc.status);
        let (tag, index) = (wc.wr_id % TAGS, wc.wr_id / TAGS);
        if tag == RECEIVE {
            return self.received(verbs, index, wc);
        }
        let number = u16::try_from(index)?;
        let (last, connector) = (self.params.turns.saturating_sub(1), self.connector);
        let slot = self.slots.get_mut(usize::from(number)).context("a completion of no slot")?;
        if tag == READ {
            slot.reading = false;
            let turn = slot.peer.turn;
            self.check(
                number,
                BufferKind::Got,
                turn,
                DrawKind::Source,
                self.params.length_of(turn, number, DrawKind::Source),
            )?;
            self.done += usize::from(turn == last);
        } else if tag == SEND && !connector && slot.awaited > last && !slot.sent_last {
            slot.sent_last = true;
            self.done += 1;
        }
        Ok(())
    }

    fn received(&mut self, verbs: &mut PortEngine, index: u64, wc: &WorkCompletion) -> Result<()> {
        let place = self.receive_place(index);
        let mut bytes = vec![0; wc.byte_len as usize];
        self.memory.read(place, &mut bytes)?;
        let header = Header::decode(&bytes).context("a message without a header")?;
        let number = u16::try_from(header.slot)?;
        let (turn, filler) = (header.turn, bytes.split_off(HEADER_LEN as usize));
        let slot = self.slots.get(usize::from(number)).context("a message for no slot")?;
        ensure!(
            turn == slot.awaited && turn < self.params.turns,
            "slot {number}: turn {turn}, not {}",
            slot.awaited
        );
        ensure!(!slot.reading, "slot {number} turn {turn}: overtook the Read that it follows");
        ensure!(
            wc.solicited == solicited(turn, number),
            "slot {number} turn {turn}: solicited is {}",
            wc.solicited
        );
        let revoked = invalidates(turn, number).then_some(slot.sink_stag);
        ensure!(
            wc.invalidated == revoked && header.invalidates == revoked.unwrap_or_default(),
            "slot {number} turn {turn}: {:?} invalidated, not {revoked:?}",
            wc.invalidated
        );
        let wanted = self.params.length_of(turn, number, DrawKind::Filler).saturating_sub(1);
        ensure!(
            header.filler == wanted
                && filler == pattern(self.params.seed_of(turn, number, DrawKind::Filler), wanted),
            "slot {number} turn {turn}: the message is not as it was sent"
        );
        self.check_sink(number, turn)?;
        self.poison(number)?;
        self.post_receive(verbs, index)?;
        self.counts.solicited += u64::from(wc.solicited);
        self.counts.invalidated += u64::from(wc.invalidated.is_some());
        let reads = self.reads();
        let slot = self.slot_mut(number)?;
        slot.peer = header;
        slot.awaited = turn.saturating_add(2);
        slot.bound &= wc.invalidated.is_none();
        slot.reading = reads;
        if reads {
            let len = self.params.length_of(turn, number, DrawKind::Source);
            let op = SendOp::RdmaRead { remote_addr: header.source, rkey: header.source_stag };
            self.fill(number, BufferKind::Got, &vec![POISON; len as usize])?;
            self.post(verbs, (number, READ), op, (BufferKind::Got, len), SendFlags::SIGNALED)?;
            self.counts.reads += 1;
        }
        if turn.saturating_add(1) < self.params.turns {
            return self.take_turn(verbs, number, turn.saturating_add(1));
        }
        self.done += usize::from(!reads);
        Ok(())
    }

    /// Posts a Write into the sink that the other end named last, and a Send that passes the turn.
    fn take_turn(&mut self, verbs: &mut PortEngine, number: u16, turn: u32) -> Result<()> {
        let params = self.params;
        let len = params.length_of(turn, number, DrawKind::Source);
        self.fill(number, BufferKind::Source, &pattern(params.seed_of(turn, number, DrawKind::Source), len))?;
        self.bind_sink(verbs, number)?;
        let peer = self.slot_mut(number)?.peer;
        if turn > 0 {
            let len = params.length_of(turn, number, DrawKind::Written);
            self.fill(
                number,
                BufferKind::Out,
                &pattern(params.seed_of(turn, number, DrawKind::Written), len),
            )?;
            let op = SendOp::RdmaWrite { remote_addr: peer.sink, rkey: peer.sink_stag };
            self.post(verbs, (number, WRITE), op, (BufferKind::Out, len), SendFlags::default())?;
            self.counts.writes += 1;
        }
        let invalidate = invalidates(turn, number).then_some(peer.sink_stag);
        let filler = params.length_of(turn, number, DrawKind::Filler).saturating_sub(1);
        let header = Header {
            turn,
            slot: number.into(),
            source_stag: self.mr.rkey,
            sink_stag: self.slot_mut(number)?.sink_stag,
            source: self.place(number, BufferKind::Source),
            sink: self.place(number, BufferKind::Sink),
            invalidates: invalidate.unwrap_or_default(),
            filler,
        };
        let mut message = header.encode();
        message.extend(pattern(params.seed_of(turn, number, DrawKind::Filler), filler));
        self.fill(number, BufferKind::Message, &message)?;
        if let Some(stag) = invalidate {
            self.slot_mut(number)?.revoked = Some((stag, peer.sink));
        }
        let flags =
            SendFlags { signaled: true, solicited: solicited(turn, number), fence: turn > 0 && self.reads() };
        let len = HEADER_LEN.saturating_add(filler);
        self.post(verbs, (number, SEND), SendOp::Send { invalidate }, (BufferKind::Message, len), flags)?;
        self.counts.sends += 1;
        Ok(())
    }

    /// Binds the sink to a new STag if the other end has invalidated the last one.
    fn bind_sink(&mut self, verbs: &mut PortEngine, number: u16) -> Result<()> {
        let (address, lkey) = (self.place(number, BufferKind::Sink), self.mr.lkey);
        let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let bind = Bind { lkey, address, len: span(&self.params), access, zero_based: false };
        let slot = self.slot_mut(number)?;
        if slot.bound {
            return Ok(());
        }
        slot.bound = true;
        slot.sink_stag = inc_rkey(slot.sink_stag);
        let op = SendOp::BindMw { mw: slot.mw, rkey: slot.sink_stag, bind };
        let wr = SendWr { wr_id: WRITE, op, data: Data::NONE, flags: SendFlags::default() };
        verbs.device_mut().post_send(self.qp, &wr).context("binding a window")
    }

    /// Ends the connection once all exchanges are finished.
    ///
    /// # Errors
    /// No STag was invalidated that the last Write could use.
    pub(crate) fn end_if_done(&mut self, verbs: &mut PortEngine, now: tcp_stack::Instant) -> Result<()> {
        if self.stage != Stage::Exchange || self.done < self.slots.len() {
            return Ok(());
        }
        self.stage = Stage::Ending;
        if !self.connector {
            return Ok(());
        }
        if !self.params.trespass {
            verbs.disconnect(self.id, now);
            return Ok(());
        }
        let revoked = (0_u16..).zip(&self.slots).find_map(|(number, slot)| Some((number, slot.revoked?)));
        let (number, (rkey, remote_addr)) = revoked.context("no STag was invalidated: too few turns")?;
        let op = SendOp::RdmaWrite { remote_addr, rkey };
        self.post(verbs, (number, WRITE), op, (BufferKind::Out, 1), SendFlags::default())
    }

    /// Records an asynchronous event of the queue pair.
    pub(crate) fn on_async(&mut self, event: AsyncEvent) {
        self.terminate = Some(event);
    }

    /// Handles the end of the connection.
    ///
    /// # Errors
    /// The end was not expected, or memory was written to after the last turn.
    pub(crate) fn disconnected(&mut self) -> Result<()> {
        let (done, all) = (self.done, self.slots.len());
        ensure!(
            self.stage == Stage::Ending || done == all,
            "the connection ended with {done} of {all} slots done: {:?}",
            self.terminate
        );
        let refused = match (self.params.trespass, self.connector) {
            (false, _) => None,
            (true, true) => Some(AsyncEvent::QpTerminated(self.qp, INVALID_STAG)),
            (true, false) => Some(AsyncEvent::QpAccessError(self.qp, INVALID_STAG)),
        };
        ensure!(self.terminate == refused, "{:?}, not {refused:?}", self.terminate);
        for number in 0..if self.connector { 0 } else { self.params.slots } {
            let mut sink = vec![0; usize::try_from(span(&self.params))?];
            self.memory.read(self.place(number, BufferKind::Sink), &mut sink)?;
            ensure!(
                sink.iter().all(|byte| *byte == POISON),
                "slot {number}: the sink changed after the last turn"
            );
        }
        self.stage = Stage::Over;
        Ok(())
    }

    /// Destroys the objects, as far as a program can.
    ///
    /// # Errors
    /// An object is still in use.
    pub(crate) fn destroy(self, verbs: &mut PortEngine) -> Result<Counts> {
        verbs.device_mut().destroy_qp(self.qp).context("destroy_qp")?;
        for slot in &self.slots {
            verbs.dealloc_mw(slot.mw).context("dealloc_mw")?;
        }
        verbs.dereg_mr(self.mr.id).context("dereg_mr")?;
        verbs.device_mut().destroy_cq(self.cq).context("destroy_cq")?;
        verbs.device_mut().dealloc_pd(self.pd).context("dealloc_pd")?;
        Ok(self.counts)
    }

    fn reads(&self) -> bool {
        if self.connector { self.params.connector_reads } else { self.params.listener_reads }
    }

    fn slot_mut(&mut self, number: u16) -> Result<&mut Slot> {
        self.slots.get_mut(usize::from(number)).context("no such slot")
    }

    fn check(&self, number: u16, place: BufferKind, turn: u32, kind: DrawKind, len: u32) -> Result<()> {
        let mut bytes = vec![0; len as usize];
        self.memory.read(self.place(number, place), &mut bytes)?;
        let wanted = pattern(self.params.seed_of(turn, number, kind), len);
        match bytes.iter().zip(&wanted).position(|(is, wanted)| is != wanted) {
            None => Ok(()),
            Some(at) => bail!("slot {number} turn {turn}: byte {at} of {len} of {kind:?} is wrong"),
        }
    }

    /// Checks the data that the other end has written in this turn, and the bytes after it.
    fn check_sink(&self, number: u16, turn: u32) -> Result<()> {
        let len = if turn == 0 { 0 } else { self.params.length_of(turn, number, DrawKind::Written) };
        self.check(number, BufferKind::Sink, turn, DrawKind::Written, len)?;
        let mut behind = [0; GUARD as usize];
        let place = self.place(number, BufferKind::Sink).saturating_add(len.into());
        self.memory.read(place, &mut behind)?;
        ensure!(behind == [POISON; GUARD as usize], "slot {number} turn {turn}: written beyond {len} bytes");
        Ok(())
    }

    fn poison(&self, number: u16) -> Result<()> {
        self.fill(number, BufferKind::Sink, &vec![POISON; usize::try_from(span(&self.params))?])
    }

    fn fill(&self, number: u16, place: BufferKind, bytes: &[u8]) -> Result<()> {
        self.memory.write(self.place(number, place), bytes)?;
        Ok(())
    }

    fn place(&self, number: u16, place: BufferKind) -> u64 {
        let (span, number) = (span(&self.params), u64::from(number));
        let slot = number.saturating_mul(4 * span + message_span(&self.params));
        slot.saturating_add(match place {
            BufferKind::Source => 0,
            BufferKind::Sink => span,
            BufferKind::Out => 2 * span,
            BufferKind::Got => 3 * span,
            BufferKind::Message => 4 * span,
        })
    }

    fn receive_place(&self, index: u64) -> u64 {
        let slots =
            u64::from(self.params.slots).saturating_mul(4 * span(&self.params) + message_span(&self.params));
        slots.saturating_add(index.saturating_mul(message_span(&self.params)))
    }

    fn post_receive(&self, verbs: &mut PortEngine, index: u64) -> Result<()> {
        let length = HEADER_LEN.saturating_add(self.params.bytes);
        let sge = Sge { addr: self.receive_place(index), length, lkey: self.mr.lkey };
        let wr = RecvWr { wr_id: index.saturating_mul(TAGS).saturating_add(RECEIVE), sg_list: &[sge] };
        verbs.device_mut().post_recv(self.qp, &wr).context("post_recv")
    }

    fn post(
        &mut self,
        verbs: &mut PortEngine,
        (number, tag): (u16, u64),
        op: SendOp,
        (place, length): (BufferKind, u32),
        flags: SendFlags,
    ) -> Result<()> {
        let sge = Sge { addr: self.place(number, place), length, lkey: self.mr.lkey };
        let wr_id = u64::from(number) * TAGS + tag;
        let wr = SendWr { wr_id, op, data: Data::List(&[sge]), flags };
        self.counts.bytes += u64::from(length);
        verbs.device_mut().post_send(self.qp, &wr).map_err(|error| anyhow!("post_send {op:?}: {error}"))
    }
}

fn pages(bytes: u32) -> u64 {
    u64::from(bytes.div_ceil(PAGE)) * u64::from(PAGE)
}

/// Returns the bytes of a source or sink including its guard.
fn span(params: &Params) -> u64 {
    pages(params.bytes.saturating_add(GUARD))
}

fn message_span(params: &Params) -> u64 {
    pages(HEADER_LEN.saturating_add(params.bytes))
}
