//! Connections of programs whose memory another thread copies ([`rdma::Reach`]). While one is stalled, its received
//! data is kept here and counts as unread: the receive window closes, and bounds what is kept. The bytes are copied, so
//! that a slow program retains no packet buffers, which others need.

use std::collections::VecDeque;

use rdma::Memory;
use rdma::verbs::CmId;
use tcp_stack::{ConnId, Event, Instant, Segment};

use super::Engine;
use crate::transport::{DataRun, Transport, since_start};

/// Most connections that are checked in one poll.
const CHECKED_MAX: usize = 16;

/// Bytes that one piece of held data has at least, before the next begins: the rest of a piece is moved when some of it
/// has been taken.
const PIECE_BYTES: usize = 64 << 10;

/// Consecutive bytes of a stream.
#[derive(Debug)]
enum Held {
    /// The bytes, from a stream position on.
    Bytes(u64, Vec<u8>),
    /// Position and length of bytes that were placed out of order.
    Taken(u64, usize),
}

/// Received data of one connection.
#[derive(Debug)]
struct OfConn {
    conn: ConnId,
    data: VecDeque<Held>,
    /// True if the peer's half of the stream ends behind the data.
    ended: bool,
}

/// Received data of the connections that are stalled.
#[derive(Debug, Default)]
pub(super) struct HeldData {
    conns: Vec<OfConn>,
    /// Bytes added since [`Self::newly_held`] was called last.
    added: usize,
}

impl HeldData {
    /// Returns true if nothing is held.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Returns true if something of a connection is held.
    pub(super) fn has(&self, conn: ConnId) -> bool {
        self.conns.iter().any(|kept| kept.conn == conn)
    }

    fn of(&mut self, conn: ConnId) -> Option<&mut OfConn> {
        let at = self.conns.iter().position(|kept| kept.conn == conn).unwrap_or_else(|| {
            self.conns.push(OfConn { conn, data: VecDeque::new(), ended: false });
            self.conns.len().saturating_sub(1)
        });
        self.conns.get_mut(at)
    }

    fn add(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) {
        self.added = self.added.saturating_add(bytes.len());
        let Some(kept) = self.of(conn) else { return };
        match kept.data.back_mut() {
            Some(Held::Bytes(_, before)) if before.len() < PIECE_BYTES => before.extend_from_slice(bytes),
            _ => kept.data.push_back(Held::Bytes(offset, bytes.to_vec())),
        }
    }

    /// Takes the rest of a run.
    #[cold]
    pub(super) fn take_rest(&mut self, conn: ConnId, run: &mut DataRun<'_, impl Transport>) {
        for (offset, segment) in run {
            self.add(conn, offset, segment.bytes());
        }
    }

    /// Returns the number of bytes added since the last call.
    pub(super) fn newly_held(&mut self) -> usize {
        std::mem::take(&mut self.added)
    }

    /// Holds the end of the peer's half of the stream.
    #[cold]
    pub(super) fn hold_end(&mut self, conn: ConnId) {
        if let Some(kept) = self.of(conn) {
            kept.ended = true;
        }
    }

    /// Drops what is held of a connection.
    #[inline]
    pub(super) fn remove(&mut self, conn: ConnId) {
        if !self.conns.is_empty() {
            self.conns.retain(|kept| kept.conn != conn);
        }
    }
}

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Returns true if no received data is held.
    #[cfg(test)]
    pub(super) fn held_is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns true if data of a connection is to be held.
    #[cold]
    pub(super) fn holds_data(&self, conn: ConnId) -> bool {
        self.held.has(conn) || self.cm_id(conn).is_some_and(|id| self.device.is_stalled(id))
    }

    /// Holds a segment. Returns no event.
    #[cold]
    pub(super) fn hold_data(
        &mut self,
        conn: ConnId,
        offset: u64,
        segment: &Segment<T::Buf>,
    ) -> Option<Event<T::Buf>> {
        if segment.was_taken() {
            if let Some(kept) = self.held.of(conn) {
                kept.data.push_back(Held::Taken(offset, segment.len()));
            }
        } else {
            self.held.add(conn, offset, segment.bytes());
            self.held.newly_held();
        }
        None
    }

    /// Checks some of the connections that wait for copies, and lets those go on whose copies are done.
    #[cold]
    pub(super) fn resume_deferred(&mut self, now: Instant) {
        let at = since_start(now);
        for _ in 0..self.device.deferred().min(CHECKED_MAX) {
            let Self { device, rdma, .. } = self;
            let Some(id) = device.resume_next(at, &mut rdma.env()) else { continue };
            let Some(conn) = self.conn_of(id) else {
                self.queue_to_itself(id);
                continue;
            };
            self.receive_held(now, conn, id);
            self.schedule(conn);
            // The other end of a looped connection sends nothing to one that is stalled.
            if let Some(peer) = self.transport.other_end(conn) {
                self.schedule(peer);
            }
        }
    }

    /// Passes held data to the device until the connection is stalled again.
    fn receive_held(&mut self, now: Instant, conn: ConnId, id: CmId) {
        let Some(place) = self.held.conns.iter().position(|kept| kept.conn == conn) else { return };
        let Self { device, rdma, held, transport, .. } = self;
        let Some(kept) = held.conns.get_mut(place) else { return };
        let at = since_start(now);
        let mut consumed = 0_usize;
        while !device.is_stalled(id) {
            match kept.data.pop_front() {
                Some(Held::Taken(offset, len)) => {
                    device.receive_placed(id, at, offset, len, &mut rdma.env());
                    consumed = consumed.saturating_add(len);
                }
                Some(Held::Bytes(offset, mut bytes)) => {
                    let taken = device.receive_copied(id, at, offset, &bytes, &mut rdma.env());
                    consumed = consumed.saturating_add(taken);
                    if taken < bytes.len() {
                        bytes.drain(..taken);
                        kept.data.push_front(Held::Bytes(offset.saturating_add(taken as u64), bytes));
                    }
                }
                None => break,
            }
        }
        transport.consumed(conn, consumed);
        if kept.data.is_empty() && !device.is_stalled(id) {
            let ended = kept.ended;
            held.conns.swap_remove(place);
            if ended {
                self.device.peer_closed(id, at, &mut self.rdma.stats);
            }
        }
    }
}
