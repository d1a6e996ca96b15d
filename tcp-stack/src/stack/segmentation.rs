//! TSO: several segments of one connection in one frame, which the port cuts into segments.
//!
//! ```text
//!   send queue   [1428] [1428] [1428] [900] [1428] …
//!                └──────── one run ───────┘
//!   frame        headers ─▶ payload ─▶ payload ─▶ payload ─▶ payload        linked buffers, none copied
//!   on the wire  headers payload │ headers payload │ …                      cut where the segments were
//! ```
//!
//! A port cuts at equal distances. So a run consists of new segments of one length, of which the last may be
//! shorter: every segment is sent as it was queued, and an MPA receiver finds its FPDUs aligned (RFC 5044 §5.1).
//! Retransmitted segments are sent one by one.

use crate::buf::{Buf, BufClass, BufPool, TxFrame};
use crate::config::Segmentation;
use crate::conn::{Conn, Cx, Frame, TxState};
use crate::iface::{Interface, SegmentRun};
use crate::pool::NIL;
use crate::wire::{EcnField, MacAddr, TcpFlags, TcpHeader};

/// Upper bound of a frame's payload, bytes: with all headers it stays below the 65,535 of an IP packet.
const BYTES_MAX: u32 = 65_000;

/// The reason why a frame was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NoBuffer,
    /// A buffer had no room for headers: it can never be sent.
    NoRoom,
}

/// Builds one frame from the run that begins with `node`; `None`, changing nothing, if the segment must be sent by
/// itself.
#[inline]
pub(super) fn make_run<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    pool: &mut P,
    node: u32,
    mac: MacAddr,
) -> Option<Result<TxFrame<B>, Failure>> {
    // No port cuts a looped frame.
    let limits = cx.config.segmentation.filter(|_| !conn.flow.is_looped())?;
    let segment = cx.tx.get(node).filter(|segment| segment.state == TxState::Ready)?.len;
    let ecn = conn.run_field(cx.tx.get(node)?.seq)?;
    let second = conn.snd.queue.next_of(cx.tx, node);
    if limits.buffers_max < 3 || !may_follow(cx, second, segment) || !has_bare_payload(cx, node) {
        return None;
    }
    collect(conn, cx, interface, pool, (node, segment, limits), ecn, mac)
}

/// True if a node is a new segment that can follow others of `segment` bytes in a run.
fn may_follow<B: Buf>(cx: &Cx<'_, B>, node: u32, segment: u16) -> bool {
    node != NIL
        && cx.tx.get(node).is_some_and(|next| {
            next.state == TxState::Ready && !next.fin && next.len > 0 && next.len <= segment
        })
        && has_bare_payload(cx, node)
}

/// True if a segment's buffer holds only its payload, and no port holds the buffer.
fn has_bare_payload<B: Buf>(cx: &Cx<'_, B>, node: u32) -> bool {
    let buf = cx.tx.get(node).and_then(|segment| Some((segment.buf.as_ref()?, segment.len)));
    buf.is_some_and(|(buf, len)| len > 0 && buf.bytes().len() == usize::from(len) && !buf.is_shared())
}

#[inline]
fn collect<B: Buf, P: BufPool<Buf = B>>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    pool: &mut P,
    (first, segment, limits): (u32, u16, Segmentation),
    ecn: EcnField,
    mac: MacAddr,
) -> Option<Result<TxFrame<B>, Failure>> {
    // The first buffer holds the headers; a segment sent by itself needs none.
    let mut frame = pool.alloc(BufClass::Data)?;
    let seq = cx.tx.get(first)?.seq;
    let (mut header, options) = conn.header(cx, seq, TcpFlags::ACK, segment);
    let mut run = SegmentRun { segments: 0, segment, bytes: 0 };
    let mut node = first;
    loop {
        let Some((payload, len)) =
            cx.tx.get(node).and_then(|segment| Some((segment.buf.as_ref()?.share(), segment.len)))
        else {
            break;
        };
        if frame.link(payload).is_err() {
            break;
        }
        run.segments = run.segments.saturating_add(1);
        run.bytes = run.bytes.saturating_add(usize::from(len));
        if conn.snd.queue.tail() == node {
            header.flags |= TcpFlags::PSH;
        }
        conn.on_header_sent(!options.sack.is_empty(), true);
        conn.on_data_marked(cx, ecn, TcpFlags::NONE);
        conn.on_data_sent(cx, node);
        let room = run.segments.saturating_add(1) < limits.buffers_max
            && run.bytes.saturating_add(usize::from(segment)) <= limits.bytes_max.min(BYTES_MAX) as usize;
        let next = conn.snd.queue.unsent();
        if !room || len < segment || !may_follow(cx, next, segment) {
            break;
        }
        // Windows and pacing decide for each segment as if it were sent by itself.
        match conn.next_frame(cx) {
            Some(Frame::Data { node: chosen }) if chosen == next => node = chosen,
            _ => break,
        }
    }
    if run.segments == 0 {
        return None;
    }
    cx.stats.segments_out = cx.stats.segments_out.wrapping_add(u64::from(run.segments.saturating_sub(1)));
    if run.segments > 1 {
        cx.stats.runs_out = cx.stats.runs_out.wrapping_add(1);
    }
    let addresses = (conn.local().ip(), conn.remote().ip());
    let written =
        frame.prepend(TcpHeader::len_with(&options)).is_some_and(|room| header.emit(&options, room));
    let traffic_class = conn.traffic_class(ecn);
    let offload =
        interface.encapsulate_run(mac, addresses, traffic_class, run, &mut frame).filter(|_| written);
    Some(offload.map(|offload| TxFrame { buf: frame, offload }).ok_or(Failure::NoRoom))
}
