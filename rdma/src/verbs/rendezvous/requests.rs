//! The responder: requests of peers are checked, held, accepted or rejected.

use core::net::IpAddr;
use core::time::Duration;

use super::wire::{Kind, Reply, Request, Status, gid};
use super::{LinkStage, OFFERED};
use crate::qp::{Extensions, Numbered};
use crate::stats::count;
use crate::verbs::Device;
use crate::verbs::connection::Details;
use crate::verbs::ids::{CmId, Owner, QpNum};

/// Requests of one host that are held, at most.
const HELD_OF_HOST_MAX: usize = 64;
/// Time after which a peer may ask again whose request was refused as [`Status::Busy`], ms.
const BUSY_MS: u32 = 50;
/// Part of the MPA handshake's time limit for which a request is held: the rest is for the reply's way.
const HELD_PART: f32 = 0.5;

/// Request whose queue pair is not ready.
#[derive(Debug)]
pub(super) struct Held {
    id: CmId,
    request: Request,
    /// Time at which the request is rejected.
    pub(super) until: Duration,
}

/// Returns a reply in the name of a queue pair.
fn reply(responder: QpNum, status: Status) -> Reply {
    let retry_after_ms = if status == Status::Busy { BUSY_MS } else { 0 };
    let (extensions, sq_psn, min_rnr_timer) = (Extensions::default(), None, 0);
    let kind = Kind::QueuePairs;
    Reply { kind, extensions, status, responder, sq_psn, min_rnr_timer, retry_after_ms }
}

/// Returns the extensions that both ends offer.
const fn agreed(offered: Extensions) -> Extensions {
    let Extensions { send_immediate, immediate_length, progress } = offered;
    Extensions {
        send_immediate: send_immediate && OFFERED.send_immediate,
        immediate_length: immediate_length && OFFERED.immediate_length,
        progress: progress && OFFERED.progress,
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Handles the request of a peer on a connection of the device's own listener.
    pub(super) fn link_requested(&mut self, id: CmId, private_data: &[u8]) {
        if self.enter_backlog(id).is_none() {
            return self.transport_lost(id);
        }
        match Request::parse(private_data) {
            Some(request) if request.kind == Kind::Datagrams => match self.ends_of_request(id, &request) {
                Some(ends) => self.accept_datagram_link(id, &request, ends),
                None => self.refuse(id, request.receiver, Status::AnotherPeer),
            },
            Some(request) => self.answer(id, request),
            None => self.refuse(id, QpNum(0), Status::Malformed),
        }
    }

    /// Answers the requests that were held for a queue pair.
    pub(super) fn answer_held(&mut self, number: QpNum) {
        while let Some(at) = self.links.held.iter().position(|held| held.request.receiver == number) {
            let Some(Held { id, request, .. }) = self.links.held.remove(at) else { break };
            self.answer(id, request);
            // A request for an old peer is held again: the queue pair has another one now, and rejects it.
            if self.links.held.back().is_some_and(|held| held.id == id) {
                break;
            }
        }
    }

    /// Rejects the requests that were held for too long.
    pub(super) fn expire_held(&mut self, now: Duration) {
        while let Some(Held { id, request, .. }) = self.links.held.pop_front_if(|held| held.until <= now) {
            self.refuse(id, request.receiver, Status::HeldTooLong);
        }
    }

    /// Forgets a request whose connection has ended.
    pub(super) fn forget_held(&mut self, id: CmId) {
        self.links.held.retain(|held| held.id != id);
    }

    fn answer(&mut self, id: CmId, request: Request) {
        match self.judge(id, &request) {
            Ok(true) => self.accept_link(id, &request),
            Ok(false) => self.hold(id, request),
            Err(status) => self.refuse(id, request.receiver, status),
        }
    }

    /// Returns true if a request is to be accepted now, and false if it is to be held.
    fn judge(&mut self, id: CmId, request: &Request) -> Result<bool, Status> {
        let (local, peer) = self.ends_of_request(id, request).ok_or(Status::AnotherPeer)?;
        let (local, peer) = (gid(local), gid(peer));
        let qp = self.qps.get(request.receiver.0).ok_or(Status::NoSuchQueuePair)?;
        let Some(link) = qp.link.as_deref() else { return Ok(false) };
        let expected = &link.peer;
        if expected.dest_qp_num != request.sender
            || gid(expected.remote) != peer
            || gid(expected.local) != local
        {
            return Err(Status::AnotherPeer);
        }
        let own_psn = link.send.map_or(request.rq_psn, |send| send.sq_psn);
        if request.rq_psn != own_psn || request.sq_psn.is_some_and(|psn| psn != expected.rq_psn) {
            return Err(Status::Psn);
        }
        match link.stage {
            LinkStage::Waiting | LinkStage::Pausing(_) => Ok(true),
            // Both ends open: the smaller nonce wins.
            LinkStage::Opening if request.nonce < link.nonce => Ok(true),
            LinkStage::Opening | LinkStage::Accepting => Err(Status::Busy),
            // The peer has begun anew. This end follows once its program does.
            LinkStage::Up | LinkStage::Orphan => Ok(false),
        }
    }

    /// Returns the local and the peer's address of a request's connection; `None` if it names others.
    fn ends_of_request(&self, id: CmId, request: &Request) -> Option<(IpAddr, IpAddr)> {
        let Details { local, peer, .. } = &*self.ids.get(id.0)?.details;
        let (local, peer) = (local.as_ref()?.ip(), peer.as_ref()?.ip());
        (request.sender_gid == gid(peer) && request.receiver_gid == gid(local)).then_some((local, peer))
    }

    fn hold(&mut self, id: CmId, request: Request) {
        let host = request.sender_gid;
        let of_host = self.links.held.iter().filter(|held| held.request.sender_gid == host).count();
        let most = usize::try_from(self.limits.silent).unwrap_or(usize::MAX);
        if self.links.held.len() >= most || of_host >= HELD_OF_HOST_MAX {
            return self.refuse(id, request.receiver, Status::Busy);
        }
        count(&mut self.stats.qp_requests_held, 1);
        let until = self.now().saturating_add(self.endpoint.mpa.timeout.mul_f32(HELD_PART));
        self.links.held.push_back(Held { id, request, until });
        self.links.activate();
    }

    fn refuse(&mut self, id: CmId, responder: QpNum, status: Status) {
        count(&mut self.stats.qp_requests_rejected, 1);
        if self.reject(id, &reply(responder, status).emit()).is_err() {
            self.transport_lost(id);
        }
    }

    fn accept_link(&mut self, id: CmId, request: &Request) {
        let number = request.receiver;
        let is_opening = self.link(number).is_some_and(|link| link.stage == LinkStage::Opening);
        if is_opening && let Some(own) = self.qps.get(number.0).and_then(|qp| qp.id) {
            count(&mut self.stats.qp_collisions, 1);
            self.transport_lost(own);
        }
        let qp = self.qps.get_mut(number.0).map(|qp| (qp.queues.as_deref_mut(), qp.link.as_deref_mut()));
        let Some((Some(queues), Some(link))) = qp else {
            return self.refuse(id, number, Status::NoSuchQueuePair);
        };
        link.peer_timer = request.min_rnr_timer;
        let extensions = agreed(request.extensions);
        queues.agree(Numbered::new(extensions, link.rnr_limit()));
        let reply = Reply {
            extensions,
            sq_psn: link.send.map(|send| send.sq_psn),
            min_rnr_timer: link.peer.min_rnr_timer,
            ..reply(number, Status::Connected)
        };
        if self.accept(id, number, &reply.emit()).is_err() {
            return self.transport_lost(id);
        }
        count(&mut self.stats.qp_requests_accepted, 1);
        let client = self.qps.get(number.0).and_then(|qp| qp.client);
        if let Some(entry) = self.ids.get_mut(id.0) {
            entry.owner = client.map_or(Owner::QueuePairs, Owner::QueuePairOf);
        }
        if let Some(link) = self.link(number) {
            link.stage = LinkStage::Accepting;
        }
        self.arm(number);
    }
}
