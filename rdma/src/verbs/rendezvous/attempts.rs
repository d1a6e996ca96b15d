//! The initiator's side, and what follows for both ends: established, failed, ended.

use core::net::SocketAddr;
use core::time::Duration;

use super::wire::{Kind, Reply, Request, Status, gid};
use super::{LinkStage, OFFERED};
use crate::endpoint::Endpoint;
use crate::memory::StreamId;
use crate::qp::{Datagrams, Numbered};
use crate::stats::count;
use crate::verbs::Device;
use crate::verbs::connection::{ConnParam, Details, Id, QpLink, Stage, TransportRequest};
use crate::verbs::ids::{CmId, Owner, QpNum};
use crate::verbs::queue_pair::{QpState, QpType};
use crate::wire::mpa::RtrOptions;

/// Pause after a failed attempt; it doubles with each further one, up to the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Reads at a time of a queue pair that is connected with itself.
const READS_TO_ITSELF: usize = 16;

/// Returns the pause after an attempt that has failed, behind this many others in a row.
pub(in crate::verbs) fn pause_after(failures: u32) -> Duration {
    PAUSE.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(PAUSE_MAX)
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Returns an id of the device's own, for a queue pair.
    fn link_id(&mut self, number: QpNum, details: Details) -> Option<CmId> {
        let owner = self.qps.get(number.0)?.client.map_or(Owner::QueuePairs, Owner::QueuePairOf);
        // Nobody destroys it: it is freed with its stream.
        let id = Id { owner, destroyed: true, ..Id::new(details) };
        self.ids.insert(id).map(CmId)
    }

    /// Opens a connection to the peer of a queue pair.
    pub(super) fn open_link(&mut self, number: QpNum) {
        let Some(rendezvous) = self.links.rendezvous else { return };
        let Some(link) = self.link(number) else { return };
        let peer = link.peer;
        let request = Request {
            kind: Kind::QueuePairs,
            extensions: OFFERED,
            sender: number,
            receiver: peer.dest_qp_num,
            rq_psn: peer.rq_psn,
            sq_psn: link.send.map(|send| send.sq_psn),
            sender_gid: gid(peer.local),
            receiver_gid: gid(peer.remote),
            nonce: link.nonce,
            min_rnr_timer: peer.min_rnr_timer,
        };
        let port = rendezvous.port.saturating_add(peer.dest_qp_num.worker().into());
        let local = Some(SocketAddr::new(peer.local, 0));
        let private_data = request.emit();
        let param = ConnParam {
            private_data: &private_data,
            responder_resources: self.endpoint.mpa.ird_max,
            initiator_depth: self.endpoint.mpa.ord_max,
            revision: 2,
            // A Write needs no inbound reads, and no buffer.
            rtr: Some(RtrOptions { write: true, read: false, send: false }),
        };
        let id = self.link_id(number, Details { local, ..Details::NONE });
        let opened =
            id.filter(|id| self.connect(*id, number, SocketAddr::new(peer.remote, port), &param).is_ok());
        if opened.is_some() {
            count(&mut self.stats.qp_connects, 1);
            if let Some(link) = self.link(number) {
                link.stage = LinkStage::Opening;
            }
            return;
        }
        // No id is free, or the queue pair is about to leave another stream.
        if let Some(id) = id {
            self.ids.remove(id.0);
        }
        self.pause(number);
    }

    /// Has a connection opened later.
    fn pause(&mut self, number: QpNum) {
        let now = self.now();
        let Some(link) = self.link(number) else { return };
        let pause = pause_after(link.failures).max(core::mem::take(&mut link.retry_after));
        link.failures = link.failures.saturating_add(1);
        link.stage = LinkStage::Pausing(now.saturating_add(pause));
        self.arm(number);
    }

    /// Connects a queue pair with itself: the adapter answers by [`Self::looped_to_itself`].
    pub(super) fn connect_to_itself(&mut self, number: QpNum) {
        let Some(link) = self.link(number) else { return };
        let (local, peer) = (SocketAddr::new(link.peer.local, 0), SocketAddr::new(link.peer.remote, 0));
        link.stage = LinkStage::Opening;
        link.peer_timer = link.peer.min_rnr_timer;
        let details = Details { local: Some(local), peer: Some(peer), ..Details::NONE };
        if self.request_loop(number, details).is_none() {
            self.pause(number);
        }
    }

    /// Gives a queue pair a connection without a transport. `None`: no id is free.
    pub(in crate::verbs) fn request_loop(&mut self, number: QpNum, details: Details) -> Option<()> {
        let id = self.link_id(number, details)?;
        if let Some(entry) = self.ids.get_mut(id.0) {
            (entry.stage, entry.qp) = (Stage::Opening, QpLink::Of(number));
        }
        if let Some(qp) = self.qps.get_mut(number.0) {
            qp.id = Some(id);
        }
        self.request(TransportRequest::Loop { id });
        Some(())
    }

    /// Reports that the adapter calls [`Self::transmit_to_itself`] for the output of a [`TransportRequest::Loop`].
    /// `stream` is as for [`Self::incoming`].
    pub fn looped_to_itself(&mut self, id: CmId, stream: StreamId) {
        let config = self.endpoint;
        let Some(entry) = self.ids.get_mut(id.0).filter(|entry| entry.stage == Stage::Opening) else {
            return;
        };
        let Some(number) = entry.qp.current() else { return };
        let Some(qp) = self.qps.get_mut(number.0) else { return };
        let (numbered, reads) = match qp.link.as_deref() {
            Some(link) => (Numbered::new(OFFERED, link.rnr_limit()), READS_TO_ITSELF),
            None => (Numbered::of_datagrams(Datagrams::QueuePair), 0),
        };
        let Some(mut queues) = qp.queues.take() else { return };
        queues.agree(numbered);
        let endpoint = Endpoint::to_itself(config, stream, (*queues, qp.init.pd), reads);
        (entry.endpoint, entry.details.stream) = (Some(Box::new(endpoint)), Some(stream));
        self.looped.allocate();
        self.link_up(id, number);
    }

    /// Returns true if a connection is that of a queue pair with itself, or of one that sends datagrams.
    pub fn is_looped_to_itself(&self, id: CmId) -> bool {
        let entry = self.ids.get(id.0).filter(|entry| entry.owner.is_device());
        let number = entry.and_then(|entry| entry.qp.current());
        number.is_some_and(|number| {
            let qp = self.qps.get(number.0);
            let link = qp.and_then(|qp| qp.link.as_deref());
            let is_datagrams = qp.is_some_and(|qp| qp.init.qp_type == QpType::Ud);
            is_datagrams
                || link.is_some_and(|link| {
                    link.peer.dest_qp_num == number && link.peer.local == link.peer.remote
                })
        })
    }

    /// Handles the begin of full operation of a stream. `private_data` is the peer's reply, if this side has asked.
    pub(super) fn link_established(&mut self, id: CmId, private_data: &[u8]) {
        let Some(number) = self.qp_of(id) else { return self.datagram_link_up(id, private_data) };
        let Some(link) = self.link(number) else { return };
        if link.stage == LinkStage::Opening {
            let reply = Reply::parse(private_data).filter(|reply| {
                reply.kind == Kind::QueuePairs
                    && reply.status == Status::Connected
                    && reply.responder == link.peer.dest_qp_num
                    && reply.sq_psn.is_none_or(|psn| psn == link.peer.rq_psn)
            });
            // Another service has the port.
            let Some(reply) = reply else { return self.transport_lost(id) };
            link.peer_timer = reply.min_rnr_timer;
            let numbered = Numbered::new(reply.extensions, link.rnr_limit());
            if let Some(endpoint) = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_deref_mut()) {
                endpoint.queue_pair().agree(numbered);
            }
        }
        self.link_up(id, number);
    }

    fn link_up(&mut self, id: CmId, number: QpNum) {
        self.established(id);
        if let Some(link) = self.link(number) {
            (link.stage, link.failures, link.pending_since) = (LinkStage::Up, 0, None);
        }
        self.arm(number);
        self.request_transmit(id);
    }

    /// Handles the peer's rejection of a request.
    pub(super) fn link_rejected(&mut self, id: CmId, private_data: &[u8]) {
        let Some(link) = self.qp_of(id).and_then(|number| self.link(number)) else { return };
        let asked = Reply::parse(private_data).map_or(0, |reply| reply.retry_after_ms);
        link.retry_after = Duration::from_millis(asked.into()).min(PAUSE_MAX);
    }

    /// Takes the work of a queue pair out of an endpoint that has ended without an error.
    pub(super) fn keep_work(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id.0) else { return };
        let (Some(number), Some(endpoint)) = (entry.qp.current(), entry.endpoint.as_deref_mut()) else {
            return;
        };
        let work = endpoint.queue_pair();
        if work.keeps_work
            && let Some(qp) = self.qps.get_mut(number.0)
        {
            qp.queues = Some(Box::new(work.take_work()));
        }
    }

    /// Handles the end of a connection of the device's own, whose endpoint is gone.
    pub(in crate::verbs) fn link_ended(&mut self, id: CmId, number: Option<QpNum>) {
        match number {
            None => {
                self.forget_held(id);
                self.datagram_link_ended(id);
            }
            Some(number) => self.link_lost(id, number),
        }
        self.release_id(id);
    }

    fn link_lost(&mut self, id: CmId, number: QpNum) {
        let now = self.now();
        let Some(qp) = self.qps.get_mut(number.0).filter(|qp| qp.id == Some(id)) else { return };
        qp.id = None;
        let (Some(queues), Some(link)) = (qp.queues.as_deref_mut(), qp.link.as_deref_mut()) else {
            // The stream has ended with an error, and its work was flushed.
            return self.enter_error(number);
        };
        qp.state = QpState::Idle;
        let has_begun = link.stage == LinkStage::Up && queues.has_begun();
        if !has_begun {
            queues.rewind();
        }
        match link.stage {
            LinkStage::Up if has_begun => {
                link.stage = LinkStage::Orphan;
                link.pending_since = queues.sq.has_unfinished().then_some(now);
                count(&mut self.stats.qp_orphans, 1);
                self.arm(number);
            }
            LinkStage::Opening => {
                count(&mut self.stats.qp_connects_failed, 1);
                self.pause(number);
            }
            _ => {
                // The peer has given up the connection that this side had accepted. The end that opens does so again.
                let is_opener =
                    (number, gid(link.peer.local)) < (link.peer.dest_qp_num, gid(link.peer.remote));
                link.stage = LinkStage::Waiting;
                if is_opener {
                    self.pause(number);
                }
                self.arm(number);
            }
        }
    }
}
