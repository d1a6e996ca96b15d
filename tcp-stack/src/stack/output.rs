//! Transmission: replies, SYN-ACKs, and segments of connections.

use super::Stack;
use super::segmentation::{Failure, make_run};
use super::train::send_train;
use crate::buf::{Buf, BufClass, BufPool, TxFrame};
use crate::conn::{Conn, Cx, Frame, Limit, Pending, Reply};
use crate::four_tuple::FourTuple;
use crate::iface::{Interface, NotReady};
use crate::time::Instant;
use crate::wire::{EcnField, MacAddr, TcpFlags, TcpHeader, TcpOptions};

/// Segments that one connection may send before the next connection is served.
const QUANTUM: usize = 16;

/// The result of serving one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxOutcome {
    /// The connection has no more to send.
    Done,
    /// The connection has more to send and is queued again.
    More,
    /// The pool had no buffer.
    NoBuffer,
    /// The neighbor's link address is unknown.
    NoNeighbor(NotReady),
}

impl<B: Buf> Stack<B> {
    /// True if [`Self::poll_transmit`] may have something to send.
    pub fn has_output(&self) -> bool {
        self.interface.has_output()
            || !self.replies.is_empty()
            || !self.output.is_empty()
            || self.half_open.next_output().is_some()
            || (self.waits_for_neighbor() && self.interface.resolutions() != self.resolutions)
    }

    /// Passes at most `max` frames to `out`; returns their number. Connections are served round-robin. Frames that
    /// need a buffer while the pool is empty stay queued for the next call.
    pub fn poll_transmit<P: BufPool<Buf = B>>(
        &mut self,
        now: Instant,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<B>),
        max: usize,
    ) -> usize {
        if self.memory.budget.used() > 0 {
            self.memory.budget.observe(pool.available());
        }
        let mut sent = self.interface.poll_transmit(pool, out, max);
        sent = sent.saturating_add(self.send_replies(now, pool, out, max.saturating_sub(sent)));
        self.wake_neighbor_waiters();
        sent = sent.saturating_add(self.send_syn_acks(now, pool, out, max.saturating_sub(sent)));
        while sent < max {
            let Some(index) = self.output.pop(&mut self.conns) else { break };
            let quantum = QUANTUM.min(max.saturating_sub(sent));
            let (count, outcome) = self.transmit_from(now, index, pool, out, quantum);
            sent = sent.saturating_add(count);
            if let Some(deadline) =
                self.conns.at_mut(index).and_then(|conn| conn.timers.take_deadline_to_arm(now))
            {
                self.wheel.arm_no_later(index, deadline);
            }
            match outcome {
                TxOutcome::Done => {}
                TxOutcome::More => self.output.push(&mut self.conns, index),
                TxOutcome::NoBuffer => {
                    self.stats.no_buffer = self.stats.no_buffer.wrapping_add(1);
                    self.output.push(&mut self.conns, index);
                    break;
                }
                TxOutcome::NoNeighbor(why) => self.wait_for_neighbor(now, index, why),
            }
        }
        sent
    }

    fn wait_for_neighbor(&mut self, now: Instant, index: u32, why: NotReady) {
        self.stats.no_neighbor = self.stats.no_neighbor.wrapping_add(1);
        let Some(conn) = self.conns.at_mut(index) else { return };
        conn.on_no_neighbor(now, &self.config, why != NotReady::Resolving);
        if let Some(deadline) = conn.timers.take_deadline_to_arm(now) {
            self.wheel.arm_no_later(index, deadline);
        }
        self.neighbor_wait.push(&mut self.conns, index);
    }

    /// Queues the connections that wait for a neighbor again, after any neighbor has answered or has failed to.
    fn wake_neighbor_waiters(&mut self) {
        let resolutions = self.interface.resolutions();
        if resolutions == self.resolutions {
            return;
        }
        self.resolutions = resolutions;
        self.half_open.wake();
        while let Some(index) = self.neighbor_wait.pop(&mut self.conns) {
            self.output.push(&mut self.conns, index);
        }
    }

    fn waits_for_neighbor(&self) -> bool {
        !self.neighbor_wait.is_empty() || self.half_open.waits_for_neighbor()
    }

    /// Sends queued SYN-ACKs, at most `max`; returns their number.
    fn send_syn_acks<P: BufPool<Buf = B>>(
        &mut self,
        now: Instant,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<B>),
        max: usize,
    ) -> usize {
        let mut sent = 0_usize;
        while sent < max {
            let Some(index) = self.half_open.next_output() else { break };
            let Some(record) = self.half_open.get(index) else { break };
            let (local, remote) = (record.flow.local(), record.flow.remote());
            let Ok(mac) = self.interface.resolve(now, remote.ip()) else {
                self.stats.no_neighbor = self.stats.no_neighbor.wrapping_add(1);
                self.half_open.wait_for_neighbor(index);
                continue;
            };
            let ecn = record.syn_options.field();
            let syn_ack = record.syn_ack(&self.config, now, self.entropy.timestamp_offset(local, remote));
            match make_reply(&mut self.interface, pool, &syn_ack, mac, ecn) {
                Ok(frame) => out(frame),
                Err(Failure::NoBuffer) => {
                    self.stats.no_buffer = self.stats.no_buffer.wrapping_add(1);
                    break;
                }
                Err(Failure::NoRoom) => {}
            }
            self.half_open.on_sent(now, index);
            self.stats.segments_out = self.stats.segments_out.wrapping_add(1);
            sent = sent.saturating_add(1);
        }
        sent
    }

    fn transmit_from<P: BufPool<Buf = B>>(
        &mut self,
        now: Instant,
        index: u32,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<B>),
        quantum: usize,
    ) -> (usize, TxOutcome) {
        let Self { conns, tx, rx, memory, accounts, stats, config, interface, paths, predicts, .. } = self;
        let Some(conn) = conns.at_mut(index) else { return (0, TxOutcome::Done) };
        let mut cx = Cx { now, config, tx, rx, memory, accounts, stats, paths };
        let train = if *predicts { send_train(conn, &mut cx, interface, out, quantum) } else { Ok(0) };
        let sent = match train {
            Ok(0) => 0,
            Ok(sent) if !conn.wants_output() => return (sent, TxOutcome::Done),
            Ok(sent) => sent,
            Err(why) => return (0, TxOutcome::NoNeighbor(why)),
        };
        let mut mac = None;
        for count in sent..quantum {
            let Some(frame) = conn.next_frame(&mut cx) else { return (count, TxOutcome::Done) };
            let to = match mac.map_or_else(|| interface.resolve(now, conn.remote().ip()), Ok) {
                Ok(to) => to,
                Err(why) => return (count, TxOutcome::NoNeighbor(why)),
            };
            mac = Some(to);
            let made = make(conn, &mut cx, interface, pool, frame, to);
            let is_run = made.as_ref().is_ok_and(|frame| frame.offload.segment > 0);
            match made {
                Ok(frame) => out(frame),
                Err(Failure::NoBuffer) => return (count, TxOutcome::NoBuffer),
                Err(Failure::NoRoom) => {
                    cx.stats.no_headroom = cx.stats.no_headroom.wrapping_add(1);
                    return (count, TxOutcome::Done);
                }
            }
            cx.stats.segments_out = cx.stats.segments_out.wrapping_add(1);
            if is_run {
                return (count.saturating_add(1), TxOutcome::More);
            }
            if !conn.wants_output() {
                return (count.saturating_add(1), TxOutcome::Done);
            }
        }
        (quantum, TxOutcome::More)
    }

    fn send_replies<P: BufPool<Buf = B>>(
        &mut self,
        now: Instant,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<B>),
        max: usize,
    ) -> usize {
        let mut sent = 0_usize;
        while sent < max {
            let Some((reply, mac)) = self.replies.first().copied() else { break };
            // A reply does not wait for an unknown neighbor: it is dropped.
            if let Ok(mac) = mac.map_or_else(|| self.interface.resolve(now, reply.remote.ip()), Ok) {
                match make_reply(&mut self.interface, pool, &reply, mac, EcnField::NotEct) {
                    Ok(frame) => out(frame),
                    Err(Failure::NoBuffer) => break,
                    Err(Failure::NoRoom) => {}
                }
                self.stats.segments_out = self.stats.segments_out.wrapping_add(1);
                let flags = reply.header.flags;
                if flags.contains(TcpFlags::RST) {
                    self.stats.resets_out = self.stats.resets_out.wrapping_add(1);
                } else if !flags.contains(TcpFlags::SYN) {
                    self.stats.acks_out = self.stats.acks_out.wrapping_add(1);
                }
                sent = sent.saturating_add(1);
            }
            self.replies.drop_first();
        }
        sent
    }
}

fn make_reply<B: Buf, P: BufPool<Buf = B>>(
    interface: &mut Interface<B>,
    pool: &mut P,
    reply: &Reply,
    mac: MacAddr,
    ecn: EcnField,
) -> Result<TxFrame<B>, Failure> {
    let buf = pool.alloc(BufClass::Control).ok_or(Failure::NoBuffer)?;
    let flow = FourTuple::new(reply.local, reply.remote);
    let traffic_class = reply.traffic_class | ecn.bits();
    wrap(interface, buf, &reply.header, &reply.options, &flow, mac, traffic_class)
        .map_err(|_| Failure::NoRoom)
}

/// Prepends all headers to the payload in `buf`; returns `buf` if it has no room for them.
#[inline]
fn wrap<B: Buf>(
    interface: &mut Interface<B>,
    mut buf: B,
    header: &TcpHeader,
    options: &TcpOptions,
    flow: &FourTuple,
    mac: MacAddr,
    traffic_class: u8,
) -> Result<TxFrame<B>, B> {
    let plain = interface.encapsulate_plain(mac, flow, traffic_class, (header, options), (&mut buf, None));
    if let Some(offload) = plain {
        return Ok(TxFrame { buf, offload });
    }
    let written = match buf.prepend(TcpHeader::len_with(options)) {
        Some(room) => header.emit(options, room),
        None => false,
    };
    if !written {
        return Err(buf);
    }
    match interface.encapsulate(mac, flow.local().ip(), flow.remote().ip(), traffic_class, &mut buf) {
        Some(offload) => Ok(TxFrame { buf, offload }),
        None => Err(buf),
    }
}

/// Builds a frame, and notes in the connection that it was sent.
#[inline]
fn make<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    pool: &mut P,
    frame: Frame,
    mac: MacAddr,
) -> Result<TxFrame<B>, Failure> {
    match frame {
        Frame::Data { node } => make_run(conn, cx, interface, pool, node, mac)
            .unwrap_or_else(|| make_data(conn, cx, interface, pool, node, mac)),
        Frame::Split { node, len, limit } => {
            conn.snd.queue.trim_acked(cx.tx, node, conn.snd.una);
            let is_long = cx.tx.get(node).is_some_and(|segment| segment.len > len);
            let front = if is_long { split(conn, cx, pool, node, len)? } else { node };
            if is_long && limit == Limit::Window {
                cx.stats.window_splits = cx.stats.window_splits.wrapping_add(1);
            }
            make_data(conn, cx, interface, pool, front, mac)
        }
        Frame::PathProbe { node, len } => make_path_probe(conn, cx, interface, pool, (node, len), mac),
        Frame::Syn => {
            let buf = pool.alloc(BufClass::Control).ok_or(Failure::NoBuffer)?;
            let (header, options) = conn.syn_header(cx);
            let traffic_class = conn.traffic_class(conn.ecn.syn_field(conn.state));
            let frame = wrap(interface, buf, &header, &options, &conn.flow, mac, traffic_class)
                .map_err(|_| Failure::NoRoom)?;
            conn.on_header_sent(true, false);
            conn.on_syn_sent(cx);
            Ok(frame)
        }
        Frame::CeChangeAck | Frame::Ack | Frame::Keepalive => make_ack(conn, cx, interface, pool, frame, mac),
        Frame::Probe { node, offset } => {
            let (seq, byte) = byte_at(cx, node, offset).ok_or(Failure::NoRoom)?;
            let mut buf = pool.alloc(BufClass::Control).ok_or(Failure::NoBuffer)?;
            *buf.append(1).and_then(|room| room.first_mut()).ok_or(Failure::NoRoom)? = byte;
            let (header, options) = conn.header(cx, seq, TcpFlags::ACK, 1);
            let traffic_class = conn.traffic_class(conn.ecn.control_field());
            let frame = wrap(interface, buf, &header, &options, &conn.flow, mac, traffic_class)
                .map_err(|_| Failure::NoRoom)?;
            conn.on_header_sent(!options.sack.is_empty(), true);
            conn.on_probe_sent(cx, seq);
            Ok(frame)
        }
    }
}

/// Builds a segment without data: an acknowledgment or a keepalive probe.
#[inline]
fn make_ack<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    pool: &mut P,
    frame: Frame,
    mac: MacAddr,
) -> Result<TxFrame<B>, Failure> {
    let buf = pool.alloc(BufClass::Control).ok_or(Failure::NoBuffer)?;
    let (header, options) = match frame {
        Frame::CeChangeAck => conn.ce_change_header(cx),
        // RFC 9293 §3.8.4: "SEG.SEQ = SND.NXT-1".
        Frame::Keepalive => conn.header(cx, conn.snd.nxt - 1, TcpFlags::ACK, 0),
        _ => conn.header(cx, conn.snd.nxt, TcpFlags::ACK, 0),
    };
    let traffic_class = conn.traffic_class(conn.ecn.control_field());
    let made = wrap(interface, buf, &header, &options, &conn.flow, mac, traffic_class)
        .map_err(|_| Failure::NoRoom)?;
    if frame == Frame::CeChangeAck {
        conn.on_ce_change_ack_sent();
    } else {
        conn.on_header_sent(true, false);
    }
    let counter = if frame == Frame::Keepalive {
        conn.pending.remove(Pending::Keepalive);
        &mut cx.stats.keepalive_probes
    } else {
        &mut cx.stats.acks_out
    };
    *counter = counter.wrapping_add(1);
    Ok(made)
}

/// Returns one byte of a segment's payload, and its sequence number.
fn byte_at<B: Buf>(cx: &Cx<'_, B>, node: u32, offset: u16) -> Option<(crate::seq::SeqNum, u8)> {
    let segment = cx.tx.get(node)?;
    let payload = payload_of(segment.buf.as_ref()?, segment.len)?;
    Some((segment.seq + u32::from(offset), *payload.get(usize::from(offset))?))
}

/// Returns a segment's payload: the last `len` bytes of its buffer.
fn payload_of<B: Buf>(buf: &B, len: u16) -> Option<&[u8]> {
    let bytes = buf.bytes();
    bytes.get(bytes.len().checked_sub(usize::from(len))?..)
}

/// Splits off the first `len` bytes of a segment, copied, into a segment of their own; returns its node.
#[cold]
fn split<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    pool: &mut P,
    node: u32,
    len: u16,
) -> Result<u32, Failure> {
    if cx.tx.available() <= cx.config.connections() {
        // The last nodes are reserved for FINs.
        return Err(Failure::NoBuffer);
    }
    let segment = cx.tx.get(node).ok_or(Failure::NoRoom)?;
    let source = segment.buf.as_ref().ok_or(Failure::NoRoom)?;
    let front = payload_of(source, segment.len).and_then(|payload| payload.get(..usize::from(len)));
    let copy = copy_of(pool, front.ok_or(Failure::NoRoom)?)?;
    let front = conn.snd.queue.split(cx.tx, node, len, copy).ok_or(Failure::NoBuffer)?;
    cx.stats.splits = cx.stats.splits.wrapping_add(1);
    Ok(front)
}

/// Returns a fresh buffer with a copy of `bytes`. Retransmissions may use the pool's reserve.
#[cold]
fn copy_of<B: Buf, P: BufPool<Buf = B>>(pool: &mut P, bytes: &[u8]) -> Result<B, Failure> {
    let fresh = pool.alloc(BufClass::Data).or_else(|| pool.alloc(BufClass::Control));
    let mut copy = fresh.ok_or(Failure::NoBuffer)?;
    let room = copy.append(bytes.len()).ok_or(Failure::NoRoom)?;
    for (to, from) in room.iter_mut().zip(bytes) {
        *to = *from;
    }
    Ok(copy)
}

/// Builds the frame of a queued segment, in the memory that the application queued.
#[inline]
fn make_data<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    pool: &mut P,
    node: u32,
    mac: MacAddr,
) -> Result<TxFrame<B>, Failure> {
    let segment = cx.tx.get(node).ok_or(Failure::NoRoom)?;
    let (seq, len, fresh) = (segment.seq, segment.len, segment.transmissions == 0);
    let mut flags = if segment.fin { TcpFlags::ACK | TcpFlags::FIN } else { TcpFlags::ACK };
    if conn.snd.queue.tail() == node && len > 0 {
        flags |= TcpFlags::PSH;
    }
    let (ecn, cwr) = conn.data_marks(seq, len);
    flags |= cwr;
    let (header, options) = conn.header(cx, seq, flags, len);
    let traffic_class = conn.traffic_class(ecn);
    let queued = cx.tx.get_mut(node).and_then(|segment| Some((segment.buf.as_mut()?, segment.sum)));
    let bare = queued.filter(|(buf, _)| fresh && len > 0 && buf.bytes().len() == usize::from(len));
    let plain = bare.and_then(|(buf, sum)| {
        let headers = (&header, &options);
        let offload = interface.encapsulate_plain(mac, &conn.flow, traffic_class, headers, (buf, sum))?;
        Some(TxFrame { buf: buf.share(), offload })
    });
    let frame = match plain {
        Some(frame) => frame,
        None => make_again(cx, interface, pool, node, (&header, &options), &conn.flow, mac, traffic_class)?,
    };
    conn.on_header_sent(!options.sack.is_empty(), true);
    conn.on_data_marked(cx, ecn, flags);
    conn.on_data_sent(cx, node);
    Ok(frame)
}

/// Builds the frame of a segment whose buffer still holds the headers of its last transmission, or that has no
/// buffer (a FIN).
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "what a frame is made of")]
fn make_again<B: Buf, P: BufPool<Buf = B>>(
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    pool: &mut P,
    node: u32,
    (header, options): (&TcpHeader, &TcpOptions),
    flow: &FourTuple,
    mac: MacAddr,
    traffic_class: u8,
) -> Result<TxFrame<B>, Failure> {
    let segment = cx.tx.get_mut(node).ok_or(Failure::NoRoom)?;
    let (len, again, taken) = (segment.len, segment.transmissions > 0, segment.buf.take());
    let ready = match taken {
        Some(buf) => bare(cx, pool, buf, len, again),
        None => pool.alloc(BufClass::Control).ok_or((None, Failure::NoBuffer)),
    };
    let made = ready.and_then(|buf| {
        wrap(interface, buf, header, options, flow, mac, traffic_class)
            .map_err(|buf| (Some(buf), Failure::NoRoom))
    });
    let (kept, result) = match made {
        // A FIN keeps no buffer: it is built anew each time.
        Ok(frame) if len == 0 => (None, Ok(frame)),
        Ok(TxFrame { buf, offload }) => {
            let shared = buf.share();
            (Some(buf), Ok(TxFrame { buf: shared, offload }))
        }
        Err((buf, failure)) => (buf, Err(failure)),
    };
    if let Some(segment) = cx.tx.get_mut(node) {
        segment.buf = kept;
    }
    result
}

/// Returns the buffer of a segment without the headers of its last transmission: itself, or a copy while the port
/// still holds it.
#[inline]
fn bare<B: Buf, P: BufPool<Buf = B>>(
    cx: &mut Cx<'_, B>,
    pool: &mut P,
    mut buf: B,
    len: u16,
    again: bool,
) -> Result<B, (Option<B>, Failure)> {
    let headers = buf.bytes().len().saturating_sub(usize::from(len));
    if buf.trim_front(headers) {
        if again {
            buf.unlink();
        }
        return Ok(buf);
    }
    let copy = payload_of(&buf, len).ok_or(Failure::NoRoom).and_then(|payload| copy_of(pool, payload));
    match copy {
        Ok(copy) => {
            cx.stats.retransmit_copies = cx.stats.retransmit_copies.wrapping_add(1);
            Ok(copy)
        }
        Err(failure) => Err((Some(buf), failure)),
    }
}

/// Builds a path MTU probe from queued segments (RFC 4821 §7.4). Without a buffer that holds it, the first segment
/// is sent alone.
#[cold]
fn make_path_probe<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    pool: &mut P,
    (node, len): (u32, u16),
    mac: MacAddr,
) -> Result<TxFrame<B>, Failure> {
    let Some((buf, first, last)) = gather(conn, cx, pool, node, len) else {
        conn.on_path_probe(cx, None, 0);
        return make_data(conn, cx, interface, pool, node, mac);
    };
    let seq = cx.tx.get(first).ok_or(Failure::NoRoom)?.seq;
    let (ecn, cwr) = conn.data_marks(seq, len);
    let (header, options) = conn.header(cx, seq, TcpFlags::ACK | cwr, len);
    let traffic_class = conn.traffic_class(ecn);
    let frame = wrap(interface, buf, &header, &options, &conn.flow, mac, traffic_class)
        .map_err(|_| Failure::NoRoom)?;
    conn.on_header_sent(!options.sack.is_empty(), true);
    let mut at = first;
    loop {
        let next = conn.snd.queue.next_of(cx.tx, at);
        conn.on_data_sent(cx, at);
        if at == last || next == crate::pool::NIL {
            break;
        }
        at = next;
    }
    conn.on_path_probe(cx, Some(seq), len);
    Ok(frame)
}

/// Returns a copy of the first `len` bytes queued from `node` on, and the first and the last of their nodes. The
/// last segment is split at the end of the probe.
fn gather<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    pool: &mut P,
    node: u32,
    len: u16,
) -> Option<(B, u32, u32)> {
    let mut probe = pool.alloc(BufClass::Data)?;
    let mut room = probe.append(usize::from(len))?;
    let (mut first, mut at) = (node, node);
    loop {
        let segment = cx.tx.get(at)?;
        let left = u16::try_from(room.len()).ok()?;
        let last = left <= segment.len;
        if left < segment.len {
            // The part split off precedes the rest, which keeps the node.
            let front = split(conn, cx, pool, at, left).ok()?;
            first = if at == first { front } else { first };
            at = front;
        }
        let segment = cx.tx.get(at)?;
        let payload = payload_of(segment.buf.as_ref()?, segment.len)?;
        let (to, rest) = room.split_at_mut_checked(payload.len())?;
        for (to, from) in to.iter_mut().zip(payload) {
            *to = *from;
        }
        if last {
            return Some((probe, first, at));
        }
        (room, at) = (rest, conn.snd.queue.next_of(cx.tx, at));
    }
}
