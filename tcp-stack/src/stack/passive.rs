//! Passive opens: from a peer's SYN to a connection, through a half-open record or a cookie.

use core::net::SocketAddr;
use core::time::Duration;

use super::admission::Full;
use super::replies::reset_for;
use super::{Stack, UNLIMITED};
use crate::buf::Buf;
use crate::config::SynCookies;
use crate::conn::{
    COOKIE_LIFE, Conn, Cookies, HalfOpen, HalfOpenVerdict, Incoming, Listener, NOT_TIMED, Origin, Reply,
    SynOffer, SynOptions, Target, syn_ack, ts_clock,
};
use crate::event::ListenerId;
use crate::four_tuple::FourTuple;
use crate::iface::{DropReason, IcmpErrorKind};
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::timer::TimerKind;
use crate::wire::{TcpFlags, TcpHeader};

/// Time that a peer has to answer our SYN-ACK before its record may be recycled for another SYN: several of the
/// longest round trips. With cookies there is time to retransmit a lost SYN-ACK, because a cookie serves the other
/// SYN as well.
const HALF_OPEN_AGE_MIN: Duration = Duration::from_millis(500);
const HALF_OPEN_AGE_MIN_WITH_COOKIES: Duration = Duration::from_secs(3);

/// A segment that may open a connection: a SYN, or the acknowledgment of a cookie.
#[derive(Debug)]
pub(super) struct OpeningSegment<'a, B> {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) hash: u32,
    pub(super) incoming: &'a Incoming<B>,
    /// Lower bound of the initial sequence number of the new connection, if it reuses a TIME-WAIT record.
    pub(super) least: Option<SeqNum>,
}

impl<B: Buf> Stack<B> {
    /// SEGMENT ARRIVES in LISTEN, third: handles a SYN (RFC 9293 §3.10.7.2).
    pub(super) fn on_syn(&mut self, now: Instant, opening: &OpeningSegment<'_, B>) -> Result<(), DropReason> {
        let OpeningSegment { local, remote, incoming, least, .. } = *opening;
        let cookies = self.config.tcp.syn_cookies;
        let may_use_cookie = cookies != SynCookies::Never;
        let may_wait = self.make_room(now, (local, remote), may_use_cookie)?;
        let syn_options = self.syn_options_of(local, incoming);
        if may_wait || cookies == SynCookies::Always {
            return self.send_cookie(now, opening, syn_options);
        }
        if let Err(reason) = self.room_for_half_open(local) {
            let least_age = if may_use_cookie { HALF_OPEN_AGE_MIN_WITH_COOKIES } else { HALF_OPEN_AGE_MIN };
            let recycled = self.recycle_half_open(now, local, least_age);
            if !recycled {
                return if may_use_cookie {
                    self.send_cookie(now, opening, syn_options)
                } else {
                    Err(reason)
                };
            }
        }
        let mut iss = self.entropy.initial_sequence(now, local, remote);
        if let Some(least) = least {
            iss = iss.max(least);
        }
        let ts_recent = incoming.options.timestamps.map_or(0, |ts| ts.value);
        let irs = incoming.header.seq;
        let mut record = HalfOpen::new(now, FourTuple::new(local, remote), syn_options, iss, irs, ts_recent);
        let Some((id, listener)) = self.listeners.find(local) else {
            return Err(DropReason::TcpNoConnection);
        };
        record.traffic_class = listener.traffic_class();
        let placed = self.half_open.insert(now, &self.config.tcp, record, &mut listener.waiting);
        let index = placed.ok_or(DropReason::TcpTableFull)?;
        listener.half_open = listener.half_open.saturating_add(1);
        let _ = self.accounts.open(self.accounts.ids(Some(id), remote.ip()), UNLIMITED);
        self.conns.insert_flow(opening.hash, Target::HalfOpen(index));
        self.stats.passive_opens = self.stats.passive_opens.wrapping_add(1);
        Ok(())
    }

    /// Returns the options of a SYN that its listener accepts.
    fn syn_options_of(&mut self, local: SocketAddr, incoming: &Incoming<B>) -> SynOptions {
        let Incoming { header, options, ecn, .. } = *incoming;
        let conn = self.listeners.find(local).map(|(_, listener)| listener.options.conn);
        let offer = SynOffer { header, options, ecn };
        SynOptions::of(&offer, &self.config, &conn.unwrap_or_default(), local.is_ipv4())
    }

    /// Makes room for the connection of a SYN. Returns `true` if eviction is postponed until the peer has proven
    /// its address.
    fn make_room(
        &mut self,
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        may_wait: bool,
    ) -> Result<bool, DropReason> {
        let Some((id, _)) = self.listeners.find(local) else { return Ok(false) };
        let Err(full) = self.room_for(id, remote.ip()) else { return Ok(false) };
        let newcomer = self.accounts.ids(Some(id), remote.ip());
        match self.connection_to_evict(now, full, newcomer) {
            Some(_) if may_wait => Ok(true),
            Some(index) => {
                self.evict(now, index, full);
                Ok(false)
            }
            // Half-open connections occupy the table, too; one of them will be recycled.
            None if full == Full::Table && !self.conns.is_full() => Ok(false),
            None => Err(full.reason()),
        }
    }

    /// Makes room for a connection whose peer has proven its address.
    fn make_room_now(
        &mut self,
        now: Instant,
        id: ListenerId,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> Result<(), Full> {
        let Err(full) = self.room_for(id, remote.ip()) else { return Ok(()) };
        let newcomer = self.accounts.ids(Some(id), remote.ip());
        if let Some(index) = self.connection_to_evict(now, full, newcomer) {
            self.evict(now, index, full);
            return Ok(());
        }
        // A peer that has answered takes precedence over one that may not exist.
        let recycles = full == Full::Table && !self.conns.is_full();
        if recycles && self.recycle_half_open(now, local, Duration::ZERO) { Ok(()) } else { Err(full) }
    }

    /// Checks that a half-open record can be added: every record may become a connection.
    fn room_for_half_open(&mut self, local: SocketAddr) -> Result<(), DropReason> {
        let is_full = self.half_open.is_full() || self.all_connections() >= self.config.connections();
        let within = |listener: &Listener| listener.half_open < listener.options.backlog;
        match self.listeners.find(local) {
            Some((_, listener)) if !within(listener) => Err(DropReason::TcpBacklog),
            _ if is_full => Err(DropReason::TcpTableFull),
            _ => Ok(()),
        }
    }

    /// Returns the number of connections, half-open ones included.
    pub(super) fn all_connections(&self) -> u32 {
        self.conns.used().saturating_add(self.half_open.used())
    }

    /// Recycles the oldest half-open connection of a listener for a new SYN (RFC 4987 §3.4), so that a few forged
    /// SYNs do not block a listener for minutes. Returns true if it was old enough.
    fn recycle_half_open(&mut self, now: Instant, local: SocketAddr, least_age: Duration) -> bool {
        let Some((_, listener)) = self.listeners.find(local) else { return false };
        let Some(oldest) = listener.waiting.first() else { return false };
        let had_time = self.half_open.get(oldest).is_some_and(|record| record.age(now) >= least_age);
        if had_time {
            self.stats.half_open_recycled = self.stats.half_open_recycled.wrapping_add(1);
            self.stats.timed_out = self.stats.timed_out.wrapping_add(1);
            self.remove_half_open(oldest);
        }
        had_time
    }

    /// Removes a record from the table, its listener, its accounts and the flow table; returns it with its flow's
    /// hash.
    pub(super) fn remove_half_open(&mut self, index: u32) -> Option<(HalfOpen, u32)> {
        let flow = self.half_open.get(index)?.flow;
        let mut listener = self.listeners.find(flow.local());
        let waiting = listener.as_mut().map(|(_, listener)| &mut listener.waiting);
        let record = self.half_open.remove(index, waiting)?;
        if let Some((id, listener)) = listener {
            listener.half_open = listener.half_open.saturating_sub(1);
            self.accounts.close(self.accounts.ids(Some(id), flow.remote().ip()));
        }
        let hash = self.conns.hash(&record.flow);
        self.conns.remove_flow(hash, Target::HalfOpen(index));
        Some((record, hash))
    }

    /// Answers a SYN with a cookie and stores nothing. The cookie is not retransmitted: the peer repeats its SYN.
    fn send_cookie(
        &mut self,
        now: Instant,
        opening: &OpeningSegment<'_, B>,
        syn_options: SynOptions,
    ) -> Result<(), DropReason> {
        let OpeningSegment { local, remote, incoming, least, .. } = *opening;
        let flow = FourTuple::new(local, remote);
        let syn_options = Cookies::encodable(syn_options, local.is_ipv4());
        let irs = incoming.header.seq;
        let iss = self.cookies.make(now, &flow, irs, syn_options);
        // RFC 9293 §3.6.1: the rule on initial sequence numbers after TIME-WAIT, unless timestamps serve the same
        // purpose.
        if !syn_options.timestamps() && least.is_some_and(|least| iss.before(least)) {
            return Err(DropReason::TcpBacklog);
        }
        let times = incoming.options.timestamps.filter(|_| syn_options.timestamps()).map_or((0, 0), |ts| {
            let clock = ts_clock(now, self.entropy.timestamp_offset(local, remote));
            (Cookies::timestamp(clock, syn_options), ts.value)
        });
        let listener = self.listeners.find(local).map(|(_, listener)| listener);
        let traffic_class = listener.map_or(0, |listener| listener.traffic_class());
        let reply = Reply { traffic_class, ..syn_ack(&self.config, &flow, (iss, irs), syn_options, times) };
        // The reply goes to the SYN's link address: a flood must not cause neighbor discovery for hosts that do not
        // exist.
        if !self.replies.push_to(reply, incoming.src_mac) {
            return Err(DropReason::TcpBacklog);
        }
        if let Some((_, listener)) = self.listeners.find(local) {
            listener.cookies_until = now + COOKIE_LIFE;
        }
        self.stats.syn_cookies_out = self.stats.syn_cookies_out.wrapping_add(1);
        Ok(())
    }

    /// Verifies the cookie in an acknowledgment to no connection. Returns its options, an error if it is wrong, and
    /// `None` if the segment cannot carry one or the listener has sent none lately.
    pub(super) fn check_cookie(
        &mut self,
        now: Instant,
        opening: &OpeningSegment<'_, B>,
    ) -> Option<Result<SynOptions, ()>> {
        let OpeningSegment { local, remote, incoming, .. } = *opening;
        let TcpHeader { seq, ack, flags, .. } = incoming.header;
        let expected = flags.contains(TcpFlags::ACK)
            && !flags.contains(TcpFlags::SYN)
            && self.listeners.find(local).is_some_and(|(_, listener)| now < listener.cookies_until);
        if !expected {
            return None;
        }
        let flow = FourTuple::new(local, remote);
        let echo = incoming.options.timestamps.filter(|_| self.config.tcp.timestamps).map(|ts| ts.echo);
        let syn_options = self.cookies.check(now, &flow, seq - 1, ack - 1, echo);
        if syn_options.is_none() {
            self.stats.syn_cookies_failed = self.stats.syn_cookies_failed.wrapping_add(1);
        }
        Some(syn_options.ok_or(()))
    }

    /// True if an acknowledgment may answer a SYN-ACK that was no cookie: a connection of this flow could have
    /// begun with that initial sequence number within the lifetime of a cookie (RFC 6528 §3: within a flow, the
    /// numbers follow the clock).
    pub(super) fn may_answer_syn_ack(&self, now: Instant, opening: &OpeningSegment<'_, B>) -> bool {
        let newest = self.entropy.initial_sequence(now, opening.local, opening.remote);
        let ticks = newest.distance_from(opening.incoming.header.ack - 1);
        Duration::from_micros(u64::from(ticks).saturating_mul(4)) <= COOKIE_LIFE
    }

    /// Opens the connection of a valid cookie, and handles the segment that carried it.
    pub(super) fn open_by_cookie(
        &mut self,
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        hash: u32,
        syn_options: SynOptions,
        incoming: Incoming<B>,
    ) {
        let Some((id, options)) =
            self.listeners.find(local).map(|(id, listener)| (id, listener.options.conn))
        else {
            self.interface.drop_delivered(DropReason::TcpNoConnection);
            return;
        };
        if let Err(full) = self.make_room_now(now, id, (local, remote)) {
            // No reset: the peer retransmits, and there may be room then.
            self.interface.drop_delivered(full.reason());
            return;
        }
        let TcpHeader { seq, ack, .. } = incoming.header;
        let ts_offset = self.entropy.timestamp_offset(local, remote);
        let listener = Some(id);
        let origin = Origin {
            local,
            remote,
            hash,
            iss: ack - 1,
            ts_offset,
            listener,
            options,
            path_mtu: self.path_mtu_to(now, remote.ip()),
        };
        let offer = syn_options.offer(seq - 1, incoming.options.timestamps.map_or(0, |ts| ts.value));
        let mut conn = Conn::accept(now, &origin, &self.config, &offer, (now, now, NOT_TIMED));
        conn.ends_in_time_wait = true;
        self.stats.syn_cookies_in = self.stats.syn_cookies_in.wrapping_add(1);
        self.stats.passive_opens = self.stats.passive_opens.wrapping_add(1);
        self.establish(now, conn, incoming);
    }

    /// Handles a segment for a half-open connection.
    #[cold]
    pub(super) fn on_half_open(&mut self, now: Instant, index: u32, incoming: Incoming<B>) {
        let Some(record) = self.half_open.get(index).copied() else { return };
        let (local, remote) = (record.flow.local(), record.flow.remote());
        match record.classify(&self.config, &incoming) {
            HalfOpenVerdict::Ignore(reason) => self.interface.drop_delivered(reason),
            HalfOpenVerdict::Repeat => {
                self.interface.drop_delivered(DropReason::TcpDuplicate);
                let syn_options = self.syn_options_of(local, &incoming);
                self.half_open.repeat(index, syn_options);
            }
            HalfOpenVerdict::Reset => {
                self.interface.drop_delivered(DropReason::TcpBadAck);
                self.answer(now, reset_for(local, remote, &incoming.header, 0));
            }
            HalfOpenVerdict::Challenge(reason) => {
                self.interface.drop_delivered(reason);
                self.stats.challenge_acks = self.stats.challenge_acks.wrapping_add(1);
                let ts_offset = self.entropy.timestamp_offset(local, remote);
                self.answer(now, record.reply(&self.config, now, ts_offset, TcpFlags::ACK));
            }
            HalfOpenVerdict::Remove => {
                self.stats.resets_received = self.stats.resets_received.wrapping_add(1);
                self.remove_half_open(index);
            }
            HalfOpenVerdict::Establish => self.complete(now, index, incoming),
        }
    }

    /// Replaces a record whose SYN-ACK was acknowledged by a connection, and handles the segment.
    fn complete(&mut self, now: Instant, index: u32, incoming: Incoming<B>) {
        let Some((record, hash)) = self.remove_half_open(index) else { return };
        let (local, remote) = (record.flow.local(), record.flow.remote());
        let Some((id, listener)) = self.listeners.find(local) else { return };
        let options = listener.options.conn;
        let ts_offset = self.entropy.timestamp_offset(local, remote);
        let origin = Origin {
            local,
            remote,
            hash,
            iss: record.iss,
            ts_offset,
            listener: Some(id),
            options,
            path_mtu: self.path_mtu_to(now, remote.ip()),
        };
        let offer = record.syn_options.offer(record.irs, record.ts_recent);
        let sent = (now - record.age(now), now - record.since_sent(now), record.previous_attempts());
        let conn = Conn::accept(now, &origin, &self.config, &offer, sent);
        self.establish(now, conn, incoming);
    }

    fn establish(&mut self, now: Instant, mut conn: Conn, incoming: Incoming<B>) {
        let hash = conn.hash;
        // If the segment does not establish it after all, the SYN-ACK is retransmitted or times out as usual.
        let rto = conn.rto(&self.config);
        conn.set_timer(TimerKind::Retransmit, now, rto);
        let Some(id) = self.enter(conn) else {
            self.interface.drop_delivered(DropReason::TcpTableFull);
            return;
        };
        self.conns.insert_flow(hash, Target::Conn(id.index()));
        self.on_conn(now, id.index(), incoming);
    }

    /// Handles the timeout of a SYN-ACK (RFC 6298 §5.4 to §5.7).
    pub(super) fn on_half_open_timeout(&mut self, now: Instant, index: u32) {
        let Some(record) = self.half_open.get(index).copied() else { return };
        let (local, remote) = (record.flow.local(), record.flow.remote());
        let limit =
            self.listeners.find(local).and_then(|(_, listener)| listener.options.conn.user_timeout_ms);
        let is_over = limit.is_some_and(|ms| record.age(now) >= Duration::from_millis(u64::from(ms)));
        let sent_again = if is_over { None } else { self.half_open.retry(now, &self.config.tcp, index) };
        let counter = match sent_again {
            Some(true) => &mut self.stats.timeouts,
            Some(false) => &mut self.stats.syn_acks_withheld,
            None => &mut self.stats.timed_out,
        };
        *counter = counter.wrapping_add(1);
        if sent_again.is_none() {
            self.remove_half_open(index);
        } else if record.attempts > 0 {
            // RFC 1122 §3.3.1.4: the second timeout in a row casts doubt on the next hop.
            self.interface.suspect(now, remote.ip());
        }
    }

    /// Handles an ICMP error about a SYN-ACK (RFC 5927). Returns true if it was believed.
    pub(super) fn on_half_open_icmp(&mut self, index: u32, seq: SeqNum, kind: IcmpErrorKind) -> bool {
        let about_syn_ack = self.half_open.get(index).is_some_and(|record| record.iss == seq);
        match kind {
            _ if !about_syn_ack => false,
            IcmpErrorKind::PacketTooBig { .. } => false,
            IcmpErrorKind::Soft => true,
            IcmpErrorKind::Hard => {
                self.stats.refused = self.stats.refused.wrapping_add(1);
                self.remove_half_open(index).is_some()
            }
        }
    }

    /// Resets the half-open connections of a listener that was removed.
    pub(super) fn reset_half_open(&mut self, now: Instant, (id, mut listener): (ListenerId, Listener)) {
        while let Some(index) = listener.waiting.first() {
            let Some(record) = self.half_open.remove(index, Some(&mut listener.waiting)) else { return };
            let (local, remote) = (record.flow.local(), record.flow.remote());
            let hash = self.conns.hash(&record.flow);
            self.conns.remove_flow(hash, Target::HalfOpen(index));
            self.accounts.close(self.accounts.ids(Some(id), remote.ip()));
            self.stats.aborted = self.stats.aborted.wrapping_add(1);
            let ts_offset = self.entropy.timestamp_offset(local, remote);
            self.replies.push(record.reply(&self.config, now, ts_offset, TcpFlags::RST | TcpFlags::ACK));
        }
    }
}
