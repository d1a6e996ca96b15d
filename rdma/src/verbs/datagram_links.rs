//! Links: connections between two workers that carry the datagrams of all their queue pairs.
//!
//! A worker opens a link at its first datagram to another worker, and closes it when it has been idle for a while.
//! Either end sends on it. If both open one, each sends on its own, and both receive on either. A queue pair waits for
//! room at its link, as on a network with flow control; but not for long, since its next datagram may go elsewhere.
//! A datagram that cannot be sent then is dropped, and so is one to a worker that is not reached.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{HashMap, HashSet};

use super::connection::{ConnParam, Details, Id, PendingConnect, Stage, TransportRequest};
use super::ids::{CmId, Owner, QpNum};
use super::rendezvous::wire::{Kind, Reply, Request, Status};
use super::rendezvous::{Rendezvous, are_hosts, gid, pause_after};
use super::slab::Slab;
use super::{Device, micros};
use crate::endpoint::Endpoint;
use crate::memory::{Origin, StreamId};
use crate::qp::{Arrived, Datagrams, Depths, Extensions, Local, Numbered, QueuePair, WorkOp, WorkRequest};
use crate::stats::count;
use crate::wire::datagram::DatagramHeader;
use crate::wire::mpa::RtrOptions;

/// Links of a worker, at most.
const LINKS_MAX: u32 = 1024;
/// Links that the queue pairs of one client open at a time, at most.
const OPENING_MAX: usize = 32;
/// Links that they have, at most: part of all.
const LINKS_OF_CLIENT_MAX: usize = LINKS_MAX as usize / 4;
/// Datagrams that wait at a link, for the transport or for its connection.
const WAITING_MAX: usize = 64;
/// Longest time that a queue pair waits for a link without progress.
const STALL_MAX: Duration = Duration::from_millis(100);
/// Time after which an idle link is closed by the end that has opened it.
const IDLE: Duration = Duration::from_secs(60);
/// Time between two searches for idle links.
const IDLE_CHECK: Duration = Duration::from_secs(10);
/// Handle that names no link.
const NO_LINK: u32 = 0;

/// Ends of a link: the addresses, and the number of the worker at the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) worker: u8,
}

/// Connections to another worker, one for each end that has opened it.
#[derive(Debug)]
struct DatagramLink {
    ends: Ends,
    /// Client whose queue pair has used it first; `None` if the other worker has.
    client: Option<Option<u32>>,
    /// Connection that this side has opened, or is opening.
    opened: Option<CmId>,
    /// True if that one carries datagrams.
    is_up: bool,
    /// Connection of the other worker's that carries datagrams.
    accepted: Option<CmId>,
    /// Datagrams for the connection that is being opened.
    waiting: Vec<Box<[u8]>>,
    /// Attempts in a row that have failed, and the time from which on another is made.
    failures: u32,
    retry_at: Duration,
    used_at: Duration,
    /// Time since which there has been no room for a datagram.
    stalled_since: Option<Duration>,
}

/// Links of a device, and its memory for datagrams under way.
#[derive(Debug)]
pub(super) struct DatagramLinks {
    links: Slab<DatagramLink>,
    by_ends: HashMap<Ends, u32>,
    by_id: HashMap<CmId, u32>,
    /// Connections at which datagrams have arrived, each once.
    pub(super) arrived: Vec<CmId>,
    pub(super) taken: Arrived,
    /// FPDU of a queue pair, message of a link, and segment for a queue pair.
    pub(super) sent: Vec<u8>,
    message: Vec<u8>,
    pub(super) placed: Vec<u8>,
    /// Queue pairs that wait for room at a link.
    blocked: HashSet<CmId>,
    /// Time of the next search for idle links, and for queue pairs that have waited for too long.
    check_at: Option<Duration>,
}

impl DatagramLink {
    /// Returns the connection that carries this side's datagrams.
    fn current(&self) -> Option<CmId> {
        self.opened.filter(|_| self.is_up).or(self.accepted)
    }
}

impl DatagramLinks {
    /// Bytes for an FPDU with the longest datagram.
    pub(super) const FPDU_MAX: usize = crate::wire::datagram::DATAGRAM_MAX + 128;

    pub(super) fn new() -> Self {
        Self {
            links: Slab::growing(LINKS_MAX),
            by_ends: HashMap::new(),
            by_id: HashMap::new(),
            arrived: Vec::new(),
            taken: Arrived::default(),
            sent: Vec::new(),
            message: Vec::new(),
            placed: Vec::new(),
            blocked: HashSet::new(),
            check_at: None,
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &DatagramLink)> {
        (0..self.links.slots()).filter_map(|slot| self.links.at(slot))
    }
}

/// Returns the queues of a link, for datagrams of up to `most` bytes.
fn queues(most: u16) -> QueuePair {
    let inline = DatagramHeader::LEN.saturating_add(most.into());
    let depths = Depths { send: WAITING_MAX, inline, ..Depths::default() };
    let mut queues = QueuePair::new(Origin::new(StreamId(0), None), depths);
    queues.agree(Numbered::of_datagrams(Datagrams::Link(Arrived::default())));
    queues
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Returns the handle of the link to another worker, which is made if there is room for it.
    pub(crate) fn datagram_link(&mut self, ends: Ends, client: Option<u32>) -> u32 {
        if !are_hosts(ends.local, ends.remote) {
            return NO_LINK;
        }
        match self.datagrams.by_ends.get(&ends) {
            Some(handle) => *handle,
            None => self.new_datagram_link(ends, Some(client)).unwrap_or(NO_LINK),
        }
    }

    #[cold]
    fn new_datagram_link(&mut self, ends: Ends, client: Option<Option<u32>>) -> Option<u32> {
        let (mut all, mut own, mut opening) = (0_u32, 0_usize, 0_usize);
        for (_, link) in self.datagrams.iter() {
            all = all.saturating_add(1);
            if client.is_some() && link.client == client {
                own = own.saturating_add(1);
                opening = opening.saturating_add(usize::from(link.opened.is_some() && !link.is_up));
            }
        }
        if opening >= OPENING_MAX {
            return None;
        }
        if own >= LINKS_OF_CLIENT_MAX {
            self.drop_oldest_link(|link| link.client == client);
        } else if all >= LINKS_MAX {
            self.drop_oldest_link(|_| true);
        }
        let now = self.now();
        let link = DatagramLink {
            ends,
            client,
            opened: None,
            is_up: false,
            accepted: None,
            waiting: Vec::new(),
            failures: 0,
            retry_at: Duration::ZERO,
            used_at: now,
            stalled_since: None,
        };
        let handle = self.datagrams.links.insert(link)?;
        self.datagrams.by_ends.insert(ends, handle);
        self.datagrams.check_at.get_or_insert(now.saturating_add(IDLE_CHECK));
        self.links.activate();
        Some(handle)
    }

    fn drop_oldest_link(&mut self, is_one: impl Fn(&DatagramLink) -> bool) {
        let links = self.datagrams.iter().filter(|(_, link)| is_one(link));
        if let Some((handle, _)) = links.min_by_key(|(_, link)| link.used_at) {
            self.drop_datagram_link(handle);
        }
    }

    /// Forgets a link, and closes its connections.
    fn drop_datagram_link(&mut self, handle: u32) {
        let Some(link) = self.datagrams.links.remove(handle) else { return };
        self.datagrams.by_ends.remove(&link.ends);
        for id in [link.opened, link.accepted].into_iter().flatten() {
            self.leave(id);
        }
    }

    /// Notes that a link is used, and returns its ends; `None` if it is gone.
    pub(super) fn use_datagram_link(&mut self, handle: u32, now: Duration) -> Option<Ends> {
        let link = self.datagrams.links.get_mut(handle)?;
        link.used_at = now;
        Some(link.ends)
    }

    /// Returns true if a datagram to a link is to be sent now, or to be dropped. Otherwise the queue pair, which has
    /// this connection, is asked for it again.
    pub(super) fn may_send_over(&mut self, handle: u32, queue_pair: CmId, now: Duration) -> bool {
        let Some(link) = self.datagrams.links.get_mut(handle) else { return true };
        let has_room = match (link.current(), link.opened) {
            (Some(id), _) => {
                let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_deref_mut());
                let is_full = |endpoint: &mut Endpoint<C>| {
                    endpoint.takes_work() && endpoint.queue_pair().sq.check_room().is_err()
                };
                !endpoint.is_some_and(is_full)
            }
            (None, Some(_)) => link.waiting.len() < WAITING_MAX,
            (None, None) => true,
        };
        if has_room {
            link.stalled_since = None;
            return true;
        }
        let until = link.stalled_since.get_or_insert(now).saturating_add(STALL_MAX);
        if now < until {
            self.datagrams.blocked.insert(queue_pair);
            self.datagrams.check_at = self.datagrams.check_at.map_or(Some(until), |at| Some(at.min(until)));
        }
        now >= until
    }

    /// Lets the queue pairs go on that have waited for room at a link.
    #[cold]
    #[inline(never)]
    pub(super) fn resume_blocked(&mut self) {
        if self.datagrams.blocked.is_empty() {
            return;
        }
        for id in core::mem::take(&mut self.datagrams.blocked) {
            self.request_transmit(id);
        }
    }

    /// Sends a datagram over a link, which is opened if need be.
    pub(super) fn send_over(&mut self, handle: u32, header: &DatagramHeader, payload: &[u8]) {
        let mut message = core::mem::take(&mut self.datagrams.message);
        message.clear();
        message.extend_from_slice(&header.emit());
        message.extend_from_slice(payload);
        self.send_message(handle, &message);
        self.datagrams.message = message;
    }

    /// Sends a message over a link: a datagram with its header.
    pub(crate) fn send_message(&mut self, handle: u32, message: &[u8]) {
        let now = self.now();
        let Some(link) = self.datagrams.links.get_mut(handle) else { return };
        if let Some(id) = link.current() {
            self.post_datagram(id, message);
        } else if link.opened.is_none() && link.retry_at > now {
            count(&mut self.stats.datagrams_unreached, 1);
        } else if link.waiting.len() >= WAITING_MAX {
            count(&mut self.stats.datagrams_congested, 1);
        } else {
            link.waiting.push(message.into());
            if link.opened.is_none() {
                self.open_datagram_link(handle);
            }
        }
    }

    /// Queues a message at a connection of a link.
    fn post_datagram(&mut self, id: CmId, message: &[u8]) {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_deref_mut());
        let Some(endpoint) = endpoint.filter(|endpoint| endpoint.takes_work()) else {
            return count(&mut self.stats.datagrams_unreached, 1);
        };
        let op = WorkOp::Datagram { link: 0, dest: 0, qkey: 0, immediate: None, solicited: false };
        let sq = &mut endpoint.queue_pair().sq;
        let posted = sq
            .check_room()
            .ok()
            .and_then(|()| sq.lists.keep_inline(message))
            .is_some_and(|local: Local| endpoint.post_work(WorkRequest::new(0, op, local)).is_ok());
        count(&mut self.stats.datagrams_congested, usize::from(!posted));
        self.request_transmit(id);
    }

    fn open_datagram_link(&mut self, handle: u32) {
        let Some(Rendezvous { port, .. }) = self.links.rendezvous() else { return };
        let Some(link) = self.datagrams.links.get(handle) else { return };
        let Ends { local, remote, worker } = link.ends;
        let request = Request {
            kind: Kind::Datagrams,
            extensions: Extensions::default(),
            sender: QpNum(self.qps.base()),
            receiver: QpNum(u32::from(worker) << QpNum::WORKER_SHIFT),
            rq_psn: 0,
            sq_psn: None,
            sender_gid: gid(local),
            receiver_gid: gid(remote),
            nonce: 0,
            min_rnr_timer: 0,
        };
        // A Write needs no inbound reads, and no buffer.
        let rtr = Some(RtrOptions { write: true, read: false, send: false });
        let pending_connect = Box::new(PendingConnect {
            private_data: Box::from(request.emit()),
            param: (0, 0, ConnParam::default().revision, rtr),
            any_port: true,
        });
        let peer = SocketAddr::new(remote, port.saturating_add(worker.into()));
        let local = Some(SocketAddr::new(local, 0));
        let details = Details {
            local,
            peer: Some(peer),
            pending_connect: Some(pending_connect),
            began_us: micros(self.now_ns),
            ..Details::NONE
        };
        // Nobody destroys it: it is freed with its stream.
        let owner = Owner::QueuePairs;
        let id = Id { owner, stage: Stage::Opening, destroyed: true, ..Id::new(details) };
        let id = self.ids.insert(id).map(CmId);
        match (id, self.datagrams.links.get_mut(handle)) {
            (Some(id), Some(link)) => {
                (link.opened, link.is_up) = (Some(id), false);
                self.datagrams.by_id.insert(id, handle);
                count(&mut self.stats.datagram_links_opened, 1);
                self.request(TransportRequest::Open { id, local, peer });
            }
            _ => self.datagram_link_failed(handle),
        }
    }

    /// Returns the queues of a link whose stream was opened.
    pub(super) fn datagram_queues(&self) -> Option<QueuePair> {
        self.links.rendezvous().map(|rendezvous| queues(rendezvous.datagram_max))
    }

    /// Accepts a link that another worker opens. `local` and `remote` are the ends of its connection.
    pub(super) fn accept_datagram_link(
        &mut self,
        id: CmId,
        request: &Request,
        (local, remote): (IpAddr, IpAddr),
    ) {
        let ends = Ends { local, remote, worker: request.sender.worker() };
        let reply = Reply {
            kind: Kind::Datagrams,
            extensions: Extensions::default(),
            status: Status::Connected,
            responder: QpNum(self.qps.base()),
            sq_psn: None,
            min_rnr_timer: 0,
            retry_after_ms: 0,
        };
        let known = self.datagrams.by_ends.get(&ends).copied();
        let handle = known.or_else(|| self.new_datagram_link(ends, None));
        let queues = self.datagram_queues();
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_deref_mut());
        let (Some(handle), Some(queues), Some(endpoint)) = (handle, queues, endpoint) else {
            return self.transport_lost(id);
        };
        if endpoint.accept(&reply.emit()).is_err() || !endpoint.adopt(queues, None) {
            return self.transport_lost(id);
        }
        self.leave_backlog(id);
        self.request_transmit(id);
        count(&mut self.stats.datagram_links_accepted, 1);
        let now = self.now();
        self.datagrams.by_id.insert(id, handle);
        if let Some(link) = self.datagrams.links.get_mut(handle) {
            link.used_at = now;
            // The other worker has begun anew.
            if let Some(old) = link.accepted.replace(id) {
                self.leave(old);
            }
        }
    }

    /// Handles the begin of full operation of a link. `private_data` is the reply of the other worker, if this side has
    /// asked.
    pub(super) fn datagram_link_up(&mut self, id: CmId, private_data: &[u8]) {
        self.established(id);
        let Some(handle) = self.datagrams.by_id.get(&id).copied() else { return self.transport_lost(id) };
        let Some(link) = self.datagrams.links.get_mut(handle).filter(|link| link.opened == Some(id)) else {
            return;
        };
        let is_right = |reply: &Reply| reply.kind == Kind::Datagrams && reply.status == Status::Connected;
        if !Reply::parse(private_data).is_some_and(|reply| is_right(&reply)) {
            // Another service has the port.
            return self.transport_lost(id);
        }
        (link.is_up, link.failures) = (true, 0);
        for message in core::mem::take(&mut link.waiting) {
            self.post_datagram(id, &message);
        }
        self.resume_blocked();
        self.request_transmit(id);
    }

    /// Handles the end of a connection of a link. Ignores any other connection.
    pub(super) fn datagram_link_ended(&mut self, id: CmId) {
        let Some(handle) = self.datagrams.by_id.remove(&id) else { return };
        self.resume_blocked();
        let Some(link) = self.datagrams.links.get_mut(handle) else { return };
        if link.accepted == Some(id) {
            link.accepted = None;
        }
        if link.opened != Some(id) {
            return;
        }
        link.opened = None;
        if !core::mem::take(&mut link.is_up) {
            self.datagram_link_failed(handle);
        }
    }

    /// Drops the datagrams of a link that was not opened.
    fn datagram_link_failed(&mut self, handle: u32) {
        let now = self.now();
        let Some(link) = self.datagrams.links.get_mut(handle) else { return };
        link.retry_at = now.saturating_add(pause_after(link.failures));
        link.failures = link.failures.saturating_add(1);
        count(&mut self.stats.datagram_links_failed, 1);
        count(&mut self.stats.datagrams_unreached, link.waiting.len());
        link.waiting.clear();
    }

    /// Notes that datagrams have arrived at a connection.
    #[cold]
    pub(super) fn datagrams_arrived(&mut self, id: CmId) {
        self.datagrams.arrived.push(id);
        self.links.activate();
    }

    /// Notes that a connection is used, and returns the addresses of the other end and of this one.
    pub(super) fn ends_of(&mut self, id: CmId) -> Option<(IpAddr, IpAddr)> {
        let now = self.now();
        let handle = *self.datagrams.by_id.get(&id)?;
        let link = self.datagrams.links.get_mut(handle)?;
        link.used_at = now;
        Some((link.ends.remote, link.ends.local))
    }

    /// Exchanges the datagrams that have arrived at a connection.
    pub(super) fn swap_arrived(&mut self, id: CmId, with: &mut Arrived) {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_deref_mut());
        if let Some(arrived) = endpoint.and_then(|endpoint| endpoint.queue_pair().arrived()) {
            core::mem::swap(arrived, with);
        }
    }

    /// Returns the time of the next search for idle links.
    #[inline]
    pub(super) const fn datagram_deadline(&self) -> Option<Duration> {
        self.datagrams.check_at
    }

    /// Lets queue pairs go on that have waited for too long, closes the links that nobody uses, and forgets those
    /// without a connection.
    pub(super) fn close_idle_datagram_links(&mut self) {
        let now = self.now();
        if self.datagrams.check_at.is_none_or(|at| at > now) {
            return;
        }
        // The other end closes what it has opened; this one does so if that end is gone.
        let is_idle = |link: &DatagramLink| {
            let limit = if link.accepted.is_some() { IDLE.saturating_mul(2) } else { IDLE };
            link.used_at.saturating_add(limit) <= now
        };
        self.resume_blocked();
        let idle: Vec<_> =
            self.datagrams.iter().filter(|(_, link)| is_idle(link)).map(|(handle, _)| handle).collect();
        for handle in idle {
            self.drop_datagram_link(handle);
        }
        let is_empty = self.datagrams.by_ends.is_empty();
        self.datagrams.check_at = (!is_empty).then_some(now.saturating_add(IDLE_CHECK));
    }
}
