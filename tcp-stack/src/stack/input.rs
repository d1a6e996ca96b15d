//! Frames in.

use core::net::SocketAddr;
use core::time::Duration;

use super::Stack;
use super::replies::reset_for;
use crate::buf::{Buf, RxFrame};
use crate::conn::{
    Conn, ConnTable, Incoming, Origin, Outcome, Payload, State, SynOffer, Target, TimeWaitTable,
    TimeWaitVerdict,
};
use crate::error::CloseReason;
use crate::event::ListenerId;
use crate::iface::{DropReason, IcmpError, Received, TcpSegment};
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::{EcnField, TcpFlags, TcpHeader};

/// How often a neighbor is told that it is reachable.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(5);
/// What a peer has to answer our SYN and ACK, whoever else knocks: several of the longest round trips.
const HALF_OPEN_LEAST: Duration = Duration::from_millis(500);

impl<B: Buf> Stack<B> {
    /// Takes a burst of frames from the port. Nothing is sent: replies are only noted, so that a burst is
    /// acknowledged once.
    #[inline]
    pub fn handle_frames(&mut self, now: Instant, frames: impl IntoIterator<Item = RxFrame<B>>) {
        self.now = now;
        for frame in frames {
            match self.interface.receive(now, frame) {
                Received::Tcp(segment) => self.on_tcp(now, segment),
                Received::Icmp(error) => self.on_icmp(now, &error),
                Received::Done => {}
            }
        }
        self.wake_pool_waiters(now);
    }

    #[inline]
    fn on_tcp(&mut self, now: Instant, segment: TcpSegment<B>) {
        let TcpSegment { local, remote, header, options, buf, payload, traffic_class } = segment;
        let ecn = EcnField::of(traffic_class);
        self.stats.ce_in = self.stats.ce_in.wrapping_add(u64::from(ecn == EcnField::Ce));
        let local = SocketAddr::new(local, header.dst_port);
        let remote = SocketAddr::new(remote, header.src_port);
        let (Ok(start), Ok(end)) = (u16::try_from(payload.start), u16::try_from(payload.end)) else {
            self.interface.drop_delivered(DropReason::TcpInvalid);
            return;
        };
        let seq = header.seq + u32::from(header.flags.contains(TcpFlags::SYN));
        let incoming = Incoming { header, options, payload: Payload { seq, range: start..end, buf }, ecn };
        // The flow of the last segment, mostly.
        if let Some(conn) = self.conns.at(self.last)
            && conn.remote == remote
            && conn.local == local
            && conn.state != State::Closed
        {
            self.on_conn(now, self.last, incoming);
            return;
        }
        let hash = self.conns.hash(local, remote);
        match find(&self.conns, &self.time_wait, hash, local, remote) {
            Some(Target::Conn(index)) => {
                self.last = index;
                self.on_conn(now, index, incoming);
            }
            Some(Target::TimeWait(at)) => self.on_time_wait(now, at, &incoming),
            None => self.on_unknown(now, (local, remote), hash, &incoming, None),
        }
    }

    #[inline]
    fn on_conn(&mut self, now: Instant, index: u32, incoming: Incoming<B>) {
        let outcome = self.with_conn(now, index, |conn, cx| {
            let una = conn.snd.una;
            let outcome = conn.on_segment(cx, incoming);
            let progress = conn.snd.una != una && now.saturating_since(conn.confirmed_at) >= CONFIRM_INTERVAL;
            if progress {
                conn.confirmed_at = now;
            }
            (outcome, progress.then_some(conn.remote))
        });
        let Some((outcome, reachable)) = outcome else { return };
        if let Some(remote) = reachable {
            self.interface.confirm(now, remote.ip());
        }
        match outcome {
            Outcome::Accepted => {}
            Outcome::Dropped(reason) => self.interface.drop_delivered(reason),
            Outcome::Answered(reason, reply) => {
                self.interface.drop_delivered(reason);
                self.answer(now, reply);
            }
        }
    }

    fn answer(&mut self, now: Instant, reply: crate::conn::Reply) {
        if !self.replies.push_limited(now, reply) {
            self.stats.replies_limited = self.stats.replies_limited.wrapping_add(1);
        }
    }

    #[cold]
    fn on_time_wait(&mut self, now: Instant, at: u32, incoming: &Incoming<B>) {
        let Some(record) = self.time_wait.get(at).copied() else { return };
        match self.time_wait.on_segment(now, at, incoming) {
            TimeWaitVerdict::Ignore => self.interface.drop_delivered(DropReason::TcpTimeWait),
            TimeWaitVerdict::Answer(reply) => {
                self.interface.drop_delivered(DropReason::TcpTimeWait);
                self.answer(now, reply);
            }
            TimeWaitVerdict::Forget => self.forget_time_wait(at),
            TimeWaitVerdict::Reuse(least) => {
                // Without a listener the record stays: it still guards the old connection.
                if self.listeners.find(record.local.port()).is_some() {
                    self.stats.time_wait_reused = self.stats.time_wait_reused.wrapping_add(1);
                    self.forget_time_wait(at);
                }
                let ends = (record.local, record.remote);
                self.on_unknown(now, ends, record.hash, incoming, Some(least));
            }
        }
    }

    /// SEGMENT ARRIVES in CLOSED and in LISTEN (RFC 9293 §3.10.7.1 and .2).
    #[cold]
    fn on_unknown(
        &mut self,
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        hash: u32,
        incoming: &Incoming<B>,
        least: Option<SeqNum>,
    ) {
        let header = &incoming.header;
        let reason = if header.flags.contains(TcpFlags::RST) {
            Some(DropReason::TcpStrayReset)
        } else if !is_plausible(header) {
            Some(DropReason::TcpInvalid)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.interface.drop_delivered(reason);
            return;
        }
        let opens = header.flags.contains(TcpFlags::SYN) && !header.flags.contains(TcpFlags::ACK);
        if !opens || self.listeners.find(local.port()).is_none() {
            self.interface.drop_delivered(DropReason::TcpNoConnection);
            self.answer(now, reset_for(local, remote, header, incoming.seq_len()));
            return;
        }
        let offer = SynOffer { header: *header, options: incoming.options, ecn: incoming.ecn };
        if let Err(reason) = self.accept(now, (local, remote), hash, &offer, least) {
            self.interface.drop_delivered(reason);
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        hash: u32,
        offer: &SynOffer,
        least: Option<SeqNum>,
    ) -> Result<(), DropReason> {
        let Some((id, listener)) = self.listeners.find(local.port()) else {
            return Err(DropReason::TcpNoConnection);
        };
        let options = listener.options.conn;
        let backlog_is_full = listener.half_open >= listener.options.backlog;
        if (backlog_is_full || self.conns.is_full()) && !self.recycle_half_open(now, id) {
            return Err(if backlog_is_full { DropReason::TcpBacklog } else { DropReason::TcpTableFull });
        }
        let mut iss = self.entropy.initial_sequence(now, local, remote);
        if let Some(least) = least {
            iss = iss.max(least);
        }
        let ts_offset = self.entropy.timestamp_offset(local, remote);
        let origin = Origin { local, remote, hash, iss, ts_offset, listener: Some(id), options };
        let mut conn = Conn::accept(now, &origin, &self.config, offer);
        conn.half_open = true;
        let Ok(conn) = self.conns.insert(conn) else { return Err(DropReason::TcpTableFull) };
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.half_open = listener.half_open.saturating_add(1);
            let conns = &self.conns;
            listener.note_waiting(conn, |conn| conns.get(conn).is_some_and(|conn| conn.half_open));
        }
        self.conns.insert_flow(hash, Target::Conn(conn.index()));
        self.stats.passive_opens = self.stats.passive_opens.wrapping_add(1);
        self.settle(now, conn.index());
        Ok(())
    }

    /// RFC 4987 §3.4: the half-open connection that is oldest gives way to a SYN, so that a few SYNs that
    /// nobody stands behind do not shut a listener for minutes. Returns whether one did.
    fn recycle_half_open(&mut self, now: Instant, id: ListenerId) -> bool {
        let Some(listener) = self.listeners.get_mut(id) else { return false };
        let conns = &self.conns;
        let half_open = |id| conns.get(id).filter(|conn| conn.half_open);
        let Some(oldest) = listener.oldest_waiting(|conn| half_open(conn).is_some()) else { return false };
        let had_time =
            half_open(oldest).is_some_and(|conn| now.saturating_since(conn.opened_at) >= HALF_OPEN_LEAST);
        if had_time {
            self.stats.half_open_recycled = self.stats.half_open_recycled.wrapping_add(1);
            self.with_conn(now, oldest.index(), |conn, cx| conn.finish(cx, CloseReason::TimedOut));
        }
        had_time
    }

    #[cold]
    fn on_icmp(&mut self, now: Instant, error: &IcmpError) {
        let hash = self.conns.hash(error.local, error.remote);
        let target = find(&self.conns, &self.time_wait, hash, error.local, error.remote);
        let believed = match target {
            Some(Target::Conn(index)) => self
                .with_conn(now, index, |conn, cx| conn.on_icmp(cx, error.seq, error.kind))
                .unwrap_or(false),
            Some(Target::TimeWait(_)) | None => false,
        };
        let counter = if believed { &mut self.stats.icmp_accepted } else { &mut self.stats.icmp_ignored };
        *counter = counter.wrapping_add(1);
    }

    /// Tells connections that found the pool full that it no longer is.
    fn wake_pool_waiters(&mut self, now: Instant) {
        if self.pool_wait.is_empty() || self.data_nodes() < (self.config.buffers_max / 8).min(64) {
            return;
        }
        for _ in 0..32 {
            let Some(index) = self.pool_wait.pop(&mut self.conns) else { return };
            self.with_conn(now, index, |conn, _| {
                if conn.snd.refused && conn.state.can_send() {
                    conn.snd.refused = false;
                    conn.notices.writable = true;
                }
            });
        }
    }

    /// Nodes of the send pool that are left for data.
    pub(super) fn data_nodes(&self) -> u32 {
        self.config.data_nodes(self.tx.available())
    }
}

/// What the flow between two ends leads to.
#[inline]
pub(super) fn find(
    conns: &ConnTable,
    time_wait: &TimeWaitTable,
    hash: u32,
    local: SocketAddr,
    remote: SocketAddr,
) -> Option<Target> {
    conns.find(hash, |conns, target| match target {
        Target::Conn(index) => {
            conns.at(index).is_some_and(|conn| conn.remote == remote && conn.local == local)
        }
        Target::TimeWait(at) => {
            time_wait.get(at).is_some_and(|record| record.remote == remote && record.local == local)
        }
    })
}

/// Whether an honest host can have sent this to open or continue a connection.
fn is_plausible(header: &TcpHeader) -> bool {
    let flags = header.flags;
    header.src_port != 0
        && header.dst_port != 0
        && !flags.contains(TcpFlags::SYN | TcpFlags::FIN)
        && flags.intersects(TcpFlags::SYN | TcpFlags::ACK | TcpFlags::FIN)
}
