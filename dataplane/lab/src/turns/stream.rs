//! One end of one connection of the ping-pong test: its objects and its state machine.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use iwarp_verbs::{
    Access, AsyncEvent, Bind, CompletionQueue, Context, Data, Id, MemoryWindow, Mr, QpCap, QpOptions,
    QueuePair, RecvWr, SendFlags, SendOp, SendWr, Stag, WcStatus, WorkCompletion, inc_rkey,
};
use rdma::ErrorCode;
use serde_json::{Value, json};

use super::params::{DrawKind, HEADER_LEN, Header, Params, invalidates, pattern, solicited};

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
pub(super) struct Counts {
    pub(super) sends: u64,
    pub(super) writes: u64,
    pub(super) reads: u64,
    pub(super) invalidated: u64,
    pub(super) solicited: u64,
    pub(super) bytes: u64,
}

impl Counts {
    pub(super) fn report(&self) -> Value {
        let Self { sends, writes, reads, invalidated, solicited, bytes } = *self;
        json!({
            "sends": sends, "writes": writes, "reads": reads, "invalidated": invalidated, "solicited": solicited,
            "bytes": bytes,
        })
    }
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
    window: MemoryWindow,
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
pub(super) struct Stream {
    pub(super) id: Id,
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    params: Params,
    connector: bool,
    stage: Stage,
    /// Before the memory that their windows are bound to.
    slots: Vec<Slot>,
    mr: Mr,
    done: usize,
    /// Event of the Terminate that ended the stream, if there was one.
    terminate: Option<AsyncEvent>,
    /// True once the end of the connection was reported.
    disconnected: bool,
    pub(super) counts: Counts,
}

/// Buffers of a slot within the memory; the receive buffers follow after all slots.
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
    pub(super) fn new(context: &Context, id: Id, params: Params, connector: bool) -> Result<Self> {
        let work = 8_u16.saturating_mul(params.slots).saturating_add(2);
        let bytes = (4 * span(&params) + 3 * message_span(&params)) * u64::from(params.slots);
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(u32::from(work) * 2)?);
        let cap = QpCap {
            max_send_wr: work,
            max_recv_wr: 2 * params.slots,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(&cq) })?;
        let rights = [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::REMOTE_READ, Access::WINDOW_BIND];
        let mr = pd.alloc_mr(bytes, rights.into_iter().fold(Access::NONE, |all, one| all | one))?;
        let mut slots = Vec::with_capacity(params.slots.into());
        for _ in 0..params.slots {
            let window = pd.alloc_mw()?;
            slots.push(Slot {
                sink_stag: window.window().rkey,
                window,
                bound: false,
                peer: Header::default(),
                awaited: u32::from(connector),
                reading: false,
                revoked: None,
                sent_last: false,
            });
        }
        let stream = Self {
            id,
            qp,
            cq,
            params,
            connector,
            stage: Stage::Opening,
            slots,
            mr,
            done: 0,
            terminate: None,
            disconnected: false,
            counts: Counts::default(),
        };
        for slot in 0..params.slots {
            stream.poison(slot)?;
        }
        for index in 0..2 * u64::from(params.slots) {
            stream.post_receive(index)?;
        }
        Ok(stream)
    }

    /// Returns true if the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Handles the establishment of the connection.
    ///
    /// # Errors
    /// The first work requests cannot be posted.
    pub(super) fn established(&mut self) -> Result<()> {
        self.stage = Stage::Exchange;
        for slot in 0..if self.connector { self.params.slots } else { 0 } {
            self.take_turn(slot, 0)?;
        }
        Ok(())
    }

    /// Handles a completion.
    ///
    /// # Errors
    /// The work request failed, or its data is wrong.
    pub(super) fn completed(&mut self, wc: &WorkCompletion) -> Result<()> {
        if wc.status == WcStatus::WrFlushError && matches!(self.stage, Stage::Ending | Stage::Over) {
            return Ok(());
        }
        ensure!(wc.status == WcStatus::Success, "work request {}: {:?}", wc.wr_id, wc.status);
        let (tag, index) = (wc.wr_id % TAGS, wc.wr_id / TAGS);
        if tag == RECEIVE {
            return self.received(index, wc);
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

    fn received(&mut self, index: u64, wc: &WorkCompletion) -> Result<()> {
        let place = self.receive_place(index);
        let mut bytes = vec![0; wc.byte_len as usize];
        self.mr.read(place, &mut bytes)?;
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
        self.post_receive(index)?;
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
            self.post((number, READ), op, (BufferKind::Got, len), SendFlags::SIGNALED)?;
            self.counts.reads += 1;
        }
        if turn.saturating_add(1) < self.params.turns {
            return self.take_turn(number, turn.saturating_add(1));
        }
        self.done += usize::from(!reads);
        Ok(())
    }

    /// Posts a Write into the sink that the other end named last, and a Send that passes the turn.
    fn take_turn(&mut self, number: u16, turn: u32) -> Result<()> {
        let params = self.params;
        let len = params.length_of(turn, number, DrawKind::Source);
        self.fill(number, BufferKind::Source, &pattern(params.seed_of(turn, number, DrawKind::Source), len))?;
        self.bind_sink(number)?;
        let peer = self.slot_mut(number)?.peer;
        if turn > 0 {
            let len = params.length_of(turn, number, DrawKind::Written);
            self.fill(
                number,
                BufferKind::Out,
                &pattern(params.seed_of(turn, number, DrawKind::Written), len),
            )?;
            let op = SendOp::RdmaWrite { remote_addr: peer.sink, rkey: peer.sink_stag };
            self.post((number, WRITE), op, (BufferKind::Out, len), SendFlags::default())?;
            self.counts.writes += 1;
        }
        let invalidate = invalidates(turn, number).then_some(peer.sink_stag);
        let filler = params.length_of(turn, number, DrawKind::Filler).saturating_sub(1);
        let header = Header {
            turn,
            slot: number.into(),
            source_stag: self.mr.rkey(),
            sink_stag: self.slot_mut(number)?.sink_stag,
            source: self.address(number, BufferKind::Source),
            sink: self.address(number, BufferKind::Sink),
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
        self.post((number, SEND), SendOp::Send { invalidate }, (BufferKind::Message, len), flags)?;
        self.counts.sends += 1;
        Ok(())
    }

    /// Binds the sink to a new STag if the other end has invalidated the last one.
    fn bind_sink(&mut self, number: u16) -> Result<()> {
        let (address, lkey) = (self.address(number, BufferKind::Sink), self.mr.lkey());
        let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let bind = Bind { lkey, address, len: span(&self.params), access, zero_based: false };
        let slot = self.slot_mut(number)?;
        if slot.bound {
            return Ok(());
        }
        slot.bound = true;
        slot.sink_stag = inc_rkey(slot.sink_stag);
        let op = SendOp::BindMw { mw: slot.window.window().id, rkey: slot.sink_stag, bind };
        let wr = SendWr { wr_id: WRITE, op, data: Data::NONE, flags: SendFlags::default() };
        self.qp.post_send(&[wr]).map_err(|(_, error)| anyhow!("binding a window: {error}"))
    }

    /// Ends the connection once all exchanges are finished.
    ///
    /// # Errors
    /// No STag was invalidated that the last Write could use.
    pub(super) fn end_if_done(&mut self) -> Result<()> {
        if self.stage != Stage::Exchange || self.done < self.slots.len() {
            return Ok(());
        }
        self.stage = Stage::Ending;
        if !self.connector {
            return Ok(());
        }
        if !self.params.trespass {
            return Ok(self.id.disconnect()?);
        }
        let revoked = (0_u16..).zip(&self.slots).find_map(|(number, slot)| Some((number, slot.revoked?)));
        let (number, (rkey, remote_addr)) = revoked.context("no STag was invalidated: too few turns")?;
        let op = SendOp::RdmaWrite { remote_addr, rkey };
        self.post((number, WRITE), op, (BufferKind::Out, 1), SendFlags::default())
    }

    /// Records an asynchronous event of the queue pair.
    pub(super) fn on_async(&mut self, event: AsyncEvent) {
        self.terminate = Some(event);
    }

    /// Records the end of the connection.
    pub(super) fn on_disconnected(&mut self) {
        self.disconnected = true;
    }

    /// Checks the end of the connection once it is reported, with the Terminate that belongs to it, and its completions
    /// are polled.
    ///
    /// # Errors
    /// The end was not expected, or memory was written to after the last turn.
    pub(super) fn check_end(&mut self) -> Result<()> {
        let awaits_terminate =
            self.params.trespass && self.terminate.is_none() && self.stage == Stage::Ending;
        if !self.disconnected || self.is_over() || awaits_terminate {
            return Ok(());
        }
        let (done, all) = (self.done, self.slots.len());
        ensure!(
            self.stage == Stage::Ending || done == all,
            "the connection ended with {done} of {all} slots done: {:?}",
            self.terminate
        );
        let refused = match (self.params.trespass, self.connector) {
            (false, _) => None,
            (true, true) => Some(AsyncEvent::QpTerminated(self.qp.num(), INVALID_STAG)),
            (true, false) => Some(AsyncEvent::QpAccessError(self.qp.num(), INVALID_STAG)),
        };
        ensure!(self.terminate == refused, "{:?}, not {refused:?}", self.terminate);
        for number in 0..if self.connector { 0 } else { self.params.slots } {
            let mut sink = vec![0; usize::try_from(span(&self.params))?];
            self.mr.read(self.place(number, BufferKind::Sink), &mut sink)?;
            ensure!(
                sink.iter().all(|byte| *byte == POISON),
                "slot {number}: the sink changed after the last turn"
            );
        }
        self.stage = Stage::Over;
        Ok(())
    }

    fn reads(&self) -> bool {
        if self.connector { self.params.connector_reads } else { self.params.listener_reads }
    }

    fn slot_mut(&mut self, number: u16) -> Result<&mut Slot> {
        self.slots.get_mut(usize::from(number)).context("no such slot")
    }

    fn check(&self, number: u16, place: BufferKind, turn: u32, kind: DrawKind, len: u32) -> Result<()> {
        let mut bytes = vec![0; len as usize];
        self.mr.read(self.place(number, place), &mut bytes)?;
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
        self.mr.read(place, &mut behind)?;
        ensure!(behind == [POISON; GUARD as usize], "slot {number} turn {turn}: written beyond {len} bytes");
        Ok(())
    }

    fn poison(&self, number: u16) -> Result<()> {
        self.fill(number, BufferKind::Sink, &vec![POISON; usize::try_from(span(&self.params))?])
    }

    fn fill(&self, number: u16, place: BufferKind, bytes: &[u8]) -> Result<()> {
        self.mr.write(self.place(number, place), bytes)?;
        Ok(())
    }

    /// Returns the address of a buffer, for this end and the other.
    fn address(&self, number: u16, place: BufferKind) -> u64 {
        self.mr.addr().saturating_add(self.place(number, place))
    }

    /// Returns the offset of a buffer in the memory.
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

    fn post_receive(&self, index: u64) -> Result<()> {
        let length = HEADER_LEN.saturating_add(self.params.bytes);
        let sge = self.mr.sge(self.receive_place(index), length);
        let wr = RecvWr { wr_id: index.saturating_mul(TAGS).saturating_add(RECEIVE), sg_list: &[sge] };
        self.qp.post_recv(&[wr]).map_err(|(_, error)| anyhow!("post_recv: {error}"))
    }

    fn post(
        &mut self,
        (number, tag): (u16, u64),
        op: SendOp,
        (place, length): (BufferKind, u32),
        flags: SendFlags,
    ) -> Result<()> {
        let sge = self.mr.sge(self.place(number, place), length);
        let wr_id = u64::from(number) * TAGS + tag;
        let wr = SendWr { wr_id, op, data: Data::List(&[sge]), flags };
        self.counts.bytes += u64::from(length);
        self.qp.post_send(&[wr]).map_err(|(_, error)| anyhow!("post_send {op:?}: {error}"))
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
