//! Received frames, from the port to their connections. `Engine` of the crate `dataplane`
//! calls it once per burst.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use arrayvec::ArrayVec;

use super::Stack;
use super::passive::OpeningSegment;
use super::prefetch::BURST;
use super::replies::reset_for;
use crate::buf::{Buf, RxFrame};
use crate::conn::{Conn, Cx, Incoming, Notice, Outcome, Payload, Target, TimeWaitVerdict};
use crate::four_tuple::FourTuple;
use crate::iface::{DropReason, IcmpError, Received, TcpSegment};
use crate::pool::NIL;
use crate::seq::SeqNum;
use crate::state::State;
use crate::time::{Instant, MilliStamp, nanos};
use crate::wire::{EcnField, TcpFlags};

/// Least time between two reachability confirmations to the neighbor cache, per connection.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(5);
/// Connections per burst, at most, that must give up retained buffers. A burst has at most 32 segments, each of which
/// may become a retained buffer.
const RECLAIMED_PER_BURST: u32 = 32;

impl<B: Buf> Stack<B> {
    /// Handles a burst of frames from the port. Nothing is sent here: ACKs and resets are queued, so that a burst
    /// causes one ACK per connection.
    #[inline]
    pub fn handle_frames(&mut self, now: Instant, frames: impl IntoIterator<Item = RxFrame<B>>) {
        self.now = now;
        self.offerable = None;
        let mut run = None;
        if self.prefetches() {
            let mut frames = frames.into_iter();
            loop {
                let burst: ArrayVec<RxFrame<B>, BURST> = frames.by_ref().take(BURST).collect();
                if burst.is_empty() {
                    break;
                }
                let places = self.prefetch_burst(&burst);
                self.take_burst(now, burst.into_iter().zip(places), &mut run);
            }
        } else {
            self.take_burst(now, frames.into_iter().map(|frame| (frame, NIL)), &mut run);
        }
        self.end_run(now, &mut run);
        self.wake_pool_waiters(now);
        self.reclaim_retained(now);
    }

    /// Handles frames, each with the likely slot of its connection ([`NIL`] if unknown).
    #[inline]
    fn take_burst(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = (RxFrame<B>, u32)>,
        run: &mut Option<u32>,
    ) {
        for (frame, place) in frames {
            if let Some(frame) = self.take_predicted(now, frame, place, run) {
                self.end_run(now, run);
                self.take_frame(now, frame);
            }
        }
    }

    /// Handles a segment that its connection expects; returns any other frame. A connection is scheduled once per
    /// run of consecutive segments: `run` is the connection of the present run. `place` is the likely slot.
    #[inline(always)]
    fn take_predicted(
        &mut self,
        now: Instant,
        frame: RxFrame<B>,
        place: u32,
        run: &mut Option<u32>,
    ) -> Option<RxFrame<B>> {
        let plain =
            if self.predicts { self.interface.parse_plain(frame.buf.bytes(), frame.checksum) } else { None };
        let Some(plain) = plain else { return Some(frame) };
        let Some(index) = self.conn_of(&plain.flow, place) else { return Some(frame) };
        if *run != Some(index) {
            self.end_run(now, run);
        }
        let Self { conns, tx, rx, memory, accounts, stats, config, paths, interface, .. } = self;
        let Some(conn) = conns.at_mut(index).filter(|conn| conn.predicts(&plain)) else { return Some(frame) };
        *run = Some(index);
        let buf = frame.buf;
        interface.count_plain(buf.bytes().len(), &plain);
        stats.ce_in = stats.ce_in.wrapping_add(u64::from(plain.ecn == EcnField::Ce));
        let una = conn.snd.una;
        let mut cx = Cx { now, config, tx, rx, memory, accounts, stats, paths };
        if let Err(reason) = conn.on_predicted(&mut cx, &plain, buf) {
            interface.drop_delivered(reason);
        }
        if let Some(remote) = reachable(now, conn, una) {
            interface.confirm(now, remote);
        }
        None
    }

    /// Schedules the connection of a run of segments.
    #[inline]
    fn end_run(&mut self, now: Instant, run: &mut Option<u32>) {
        if let Some(index) = run.take() {
            self.schedule(now, index);
        }
    }

    /// Returns the slot of a flow's connection.
    #[inline(always)]
    fn conn_of(&mut self, flow: &FourTuple, place: u32) -> Option<u32> {
        // Usually the flow of the last segment.
        if let Some((index, last)) = &self.last
            && last == flow
        {
            return Some(*index);
        }
        let is_there = |conn: &Conn| conn.state != State::Closed && conn.flow == *flow;
        let index = if self.conns.at(place).is_some_and(is_there) {
            place
        } else {
            self.conns.find_conn(self.conns.hash(flow), flow)?
        };
        self.last = Some((index, *flow));
        Some(index)
    }

    #[inline(never)]
    fn take_frame(&mut self, now: Instant, frame: RxFrame<B>) {
        match self.interface.receive(now, frame) {
            Received::Tcp(segment) => self.on_tcp(now, segment),
            Received::Icmp(error) => self.on_icmp(now, &error),
            Received::Done => {}
        }
    }

    #[inline]
    fn on_tcp(&mut self, now: Instant, segment: TcpSegment<B>) {
        let TcpSegment { local, remote, header, options, buf, payload, traffic_class, src_mac, reassembled } =
            segment;
        let ecn = EcnField::of(traffic_class);
        self.stats.ce_in = self.stats.ce_in.wrapping_add(u64::from(ecn == EcnField::Ce));
        let local = SocketAddr::new(local, header.dst_port);
        let remote = SocketAddr::new(remote, header.src_port);
        let (Ok(start), Ok(end)) = (u16::try_from(payload.start), u16::try_from(payload.end)) else {
            self.interface.drop_delivered(DropReason::TcpInvalid);
            return;
        };
        let seq = header.seq + u32::from(header.flags.contains(TcpFlags::SYN));
        let payload = Payload { seq, range: start..end, buf };
        let incoming = Incoming { header, options, payload, src_mac, ecn };
        let flow = FourTuple::new(local, remote);
        // Usually the flow of the last segment.
        if let Some((index, last)) = self.last
            && last == flow
        {
            self.on_conn(now, index, incoming);
            return;
        }
        let hash = self.conns.hash(&flow);
        match self.find(hash, &flow) {
            Some(Target::Conn(index)) => {
                self.last = Some((index, flow));
                self.on_conn(now, index, incoming);
            }
            Some(Target::HalfOpen(at)) => self.on_half_open(now, at, incoming),
            Some(Target::TimeWait(at)) => self.on_time_wait(now, at, incoming),
            // Every worker reassembles a copy of a fragmented packet, so another worker may own the connection: no
            // reset.
            None if reassembled && self.config.worker_count > 1 => {
                self.interface.drop_delivered(DropReason::FragmentWorker);
            }
            None => {
                self.on_unknown(now, (local, remote), hash, incoming, None);
            }
        }
    }

    #[inline]
    pub(super) fn on_conn(&mut self, now: Instant, index: u32, incoming: Incoming<B>) {
        let outcome = self.with_conn(now, index, |conn, cx| {
            let una = conn.snd.una;
            let outcome = conn.on_segment(cx, incoming);
            (outcome, reachable(now, conn, una))
        });
        let Some((outcome, reachable)) = outcome else { return };
        if let Some(remote) = reachable {
            self.interface.confirm(now, remote);
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

    pub(super) fn answer(&mut self, now: Instant, reply: crate::conn::Reply) {
        if !self.replies.push_limited(now, reply) {
            self.stats.replies_limited = self.stats.replies_limited.wrapping_add(1);
        }
    }

    #[cold]
    fn on_time_wait(&mut self, now: Instant, at: u32, incoming: Incoming<B>) {
        let Some(record) = self.time_wait.get(at).copied() else { return };
        match self.time_wait.on_segment(now, at, &incoming) {
            TimeWaitVerdict::Ignore => self.interface.drop_delivered(DropReason::TcpTimeWait),
            TimeWaitVerdict::Answer(reply) => {
                self.interface.drop_delivered(DropReason::TcpTimeWait);
                self.answer(now, reply);
            }
            TimeWaitVerdict::Remove => self.remove_time_wait(at),
            TimeWaitVerdict::Reuse(least) => {
                // Unless the SYN is accepted, the record stays, and still rejects late segments of the old connection.
                let addresses = (record.flow.local(), record.flow.remote());
                if self.on_unknown(now, addresses, record.hash, incoming, Some(least)) {
                    self.stats.time_wait_reused = self.stats.time_wait_reused.wrapping_add(1);
                    self.remove_time_wait(at);
                }
            }
        }
    }

    /// SEGMENT ARRIVES in CLOSED and in LISTEN (RFC 9293 §3.10.7.1 and .2). Returns true if a SYN was accepted.
    #[cold]
    fn on_unknown(
        &mut self,
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        hash: u32,
        incoming: Incoming<B>,
        least: Option<SeqNum>,
    ) -> bool {
        let header = &incoming.header;
        if self.config.shared_ports.as_ref().is_some_and(|ours| !ours.contains(local.port())) {
            self.interface.drop_delivered(DropReason::TcpNotOurs);
            return false;
        }
        if header.flags.contains(TcpFlags::RST) {
            self.interface.drop_delivered(DropReason::TcpStrayReset);
            return false;
        }
        let opening = OpeningSegment { local, remote, hash, incoming: &incoming, least };
        if !header.flags.contains(TcpFlags::ACK) && self.listeners.find(local).is_some() {
            // LISTEN, third: a SYN, with any other bits but ACK; fourth: "Drop the segment and return."
            let is_syn = header.flags.contains(TcpFlags::SYN);
            let accepted = if is_syn { self.on_syn(now, &opening) } else { Err(DropReason::TcpNoAck) };
            if let Err(reason) = accepted {
                self.interface.drop_delivered(reason);
            }
            return accepted.is_ok();
        }
        let cookie = self.check_cookie(now, &opening);
        if let Some(Ok(syn_options)) = cookie {
            self.open_by_cookie(now, (local, remote), hash, syn_options, incoming);
            return false;
        }
        self.interface.drop_delivered(DropReason::TcpNoConnection);
        // `Some(Err)`: the listener has sent cookies lately, and this acknowledgment holds none. Data may have arrived
        // before the ACK with the cookie and is retransmitted anyway: no reset. A pure ACK may belong to an evicted
        // half-open record: a reset, so that the peer learns of it.
        let may_overtake =
            cookie.is_some() && (incoming.seq_len() > 0 || !self.may_answer_syn_ack(now, &opening));
        if !may_overtake {
            self.answer(now, reset_for(local, remote, header, incoming.seq_len()));
        }
        false
    }

    /// Returns the path MTU to `ip`, bytes.
    pub(super) fn path_mtu_to(&mut self, now: Instant, ip: IpAddr) -> u16 {
        self.paths.get(now, ip).unwrap_or(self.config.mtu)
    }

    #[cold]
    fn on_icmp(&mut self, now: Instant, error: &IcmpError) {
        let flow = FourTuple::new(error.local, error.remote);
        let believed = match self.find(self.conns.hash(&flow), &flow) {
            Some(Target::Conn(index)) => {
                self.with_conn(now, index, |conn, cx| conn.on_icmp(cx, error)).unwrap_or(false)
            }
            Some(Target::HalfOpen(at)) => self.on_half_open_icmp(at, error.seq, error.kind),
            Some(Target::TimeWait(_)) | None => false,
        };
        let counter = if believed { &mut self.stats.icmp_accepted } else { &mut self.stats.icmp_ignored };
        *counter = counter.wrapping_add(1);
    }

    /// Notifies connections that found the pool full, now that it has room again.
    fn wake_pool_waiters(&mut self, now: Instant) {
        if self.pool_wait.is_empty() || self.data_nodes() < (self.config.buffers_max / 8).min(64) {
            return;
        }
        for _ in 0..32 {
            let Some(index) = self.pool_wait.pop(&mut self.conns) else { return };
            self.with_conn(now, index, |conn, _| {
                if conn.snd.refused && conn.state.can_send() {
                    conn.snd.refused = false;
                    conn.notices.add(Notice::Writable);
                }
            });
        }
    }

    /// Makes the connections that have retained received data longest give it up before the budget is exhausted or
    /// the pool's reserve is used. Every connection can therefore retain a few buffers.
    fn reclaim_retained(&mut self, now: Instant) {
        let mut asked = 0_u32;
        for _ in 0..RECLAIMED_PER_BURST {
            let has_nodes = self.rx.available() > self.config.in_order_nodes();
            if has_nodes && !self.memory.budget.is_short(asked) {
                return;
            }
            let Some(index) = self.retaining.pop(&mut self.conns) else { return };
            let app_retained = self.with_conn(now, index, |conn, cx| {
                conn.give_up_retained(cx);
                conn.app_retained
            });
            asked = asked.saturating_add(app_retained.unwrap_or(0));
        }
    }

    /// Returns the owner of a flow: a connection or a record.
    #[inline]
    pub(super) fn find(&self, hash: u32, flow: &FourTuple) -> Option<Target> {
        self.conns.find(hash, |conns, target| match target {
            Target::Conn(index) => conns.at(index).is_some_and(|conn| conn.flow == *flow),
            Target::HalfOpen(at) => self.half_open.get(at).is_some_and(|record| record.flow == *flow),
            Target::TimeWait(at) => self.time_wait.get(at).is_some_and(|record| record.flow == *flow),
        })
    }

    /// Returns the free nodes of the send pool that data may use.
    pub(super) fn data_nodes(&self) -> u32 {
        self.config.data_nodes(self.tx.available())
    }
}

/// Returns the peer's address, at most once per [`CONFIRM_INTERVAL`], if SND.UNA has advanced from `una`: that
/// confirms the neighbor's reachability.
#[inline]
fn reachable(now: Instant, conn: &mut Conn, una: SeqNum) -> Option<IpAddr> {
    let confirms = conn.snd.una != una && conn.confirmed_at.age_nanos(now) >= nanos(CONFIRM_INTERVAL);
    confirms.then(|| {
        conn.confirmed_at = MilliStamp::of(now);
        conn.remote().ip()
    })
}
