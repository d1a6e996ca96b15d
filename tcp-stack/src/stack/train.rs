//! Transmission of trains: new segments of one connection whose headers come from one template.

use crate::buf::{Buf, TxFrame};
use crate::conn::{Conn, Cx};
use crate::iface::{Interface, NotReady};
use crate::wire::TcpFlags;

/// Passes the new segments that a connection may send as a train to the port, at most `max`; returns their number.
/// `next_frame` decides on the remaining ones.
#[inline]
pub(super) fn send_train<B: Buf>(
    conn: &mut Conn,
    cx: &mut Cx<'_, B>,
    interface: &mut Interface<B>,
    out: &mut impl FnMut(TxFrame<B>),
    max: usize,
) -> Result<usize, NotReady> {
    if !interface.has_template(&conn.flow) {
        return Ok(0);
    }
    let Some(mut train) = conn.next_train(cx) else { return Ok(0) };
    let mac = interface.resolve(cx.now, conn.flow.remote().ip())?;
    let (header, timestamps) = conn.train_header(cx);
    let traffic_class = conn.traffic_class(train.ecn);
    let template = interface.template(mac, &conn.flow, traffic_class, (&header, timestamps));
    let Some(template) = template else { return Ok(0) };
    let stamp = conn.train_stamp(cx.now, &train);
    let mut sent = 0_usize;
    let sent_train = conn.snd.queue.mark_train_sent(cx.tx, (cx.now, stamp), |segment, in_flight, is_last| {
        // `next_train` has admitted the first one.
        if sent >= max || (sent > 0 && !train.admits(segment, in_flight)) {
            return false;
        }
        let flags = if is_last { TcpFlags::PSH } else { TcpFlags::NONE };
        let (seq, len, sum) = (segment.seq, segment.len, segment.sum);
        let bare = segment.buf.as_mut().filter(|buf| buf.bytes().len() == usize::from(len));
        let Some(buf) = bare else { return false };
        let Some(offload) = template.put((seq, flags), buf, sum) else { return false };
        out(TxFrame { buf: buf.share(), offload });
        train.note(segment);
        sent = sent.wrapping_add(1);
        true
    });
    if sent_train.segments > 0 {
        interface.count_templated(sent_train.segments);
        conn.end_train(cx, &train, &sent_train);
    }
    Ok(sent)
}
