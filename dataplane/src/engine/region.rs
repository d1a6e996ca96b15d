//! A connection of the region service: an RDMA responder on one of our TCP streams.

use std::net::IpAddr;
use std::time::Duration;

use rdma::service::RegionService;
use rdma::{
    Access, CloseHow, Endpoint, EndpointConfig, EndpointInfo, Event, Memory, RdmaStats, RegionId, StreamId,
};
use tcp_stack::{Buf, BufPool, ConnId, GivesWay, Instant, Segment, Stack};

use super::deadlines::{LINGER, since_start};
use super::rdma_state::RdmaState;
use super::sink::{StreamSink, TxOutcome};

/// State shared by all RDMA connections of one port and worker.
#[derive(Debug)]
pub(super) struct RegionState<M> {
    pub(super) rdma: RdmaState<M>,
    pub(super) service: RegionService,
}

/// What the owner of the connection must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Keep,
    /// Close the stream in an orderly way.
    Close,
    /// Reset it.
    Abort,
}

/// One stream of the region service.
#[derive(Debug)]
pub(super) struct RegionStream<B: Buf> {
    endpoint: Endpoint<Segment<B>>,
    stream: StreamId,
    peer: IpAddr,
    region: Option<RegionId>,
    /// The time limit that the owner keeps for it.
    armed: Option<Duration>,
    /// Packet buffers that it is known to keep.
    kept: usize,
    /// We have closed: until when the peer may take to do so.
    linger_until: Option<Duration>,
    /// When the connection gives way to others, as the owner was told.
    gives_way: GivesWay,
}

impl<B: Buf> RegionStream<B> {
    pub(super) fn new(config: &EndpointConfig, stream: StreamId, peer: IpAddr, now: Instant) -> Self {
        Self {
            endpoint: Endpoint::responder(*config, stream, since_start(now)),
            stream,
            peer,
            region: None,
            armed: None,
            kept: 0,
            linger_until: None,
            gives_way: GivesWay::Anytime,
        }
    }

    /// Takes segments of the stream, in order and each with its offset, and acts on what they bring.
    pub(super) fn receive<M: Memory>(
        &mut self,
        now: Instant,
        segments: impl Iterator<Item = (u64, Segment<B>)>,
        state: &mut RegionState<M>,
    ) -> Action {
        let (mut env, at) = (state.rdma.env(), since_start(now));
        for (offset, segment) in segments {
            self.endpoint.receive(at, offset, segment, &mut env);
        }
        self.handle_events(now, state)
    }

    /// The stream goes on by bytes that were placed already.
    pub(super) fn receive_placed<M: Memory>(
        &mut self,
        now: Instant,
        offset: u64,
        bytes: usize,
        state: &mut RegionState<M>,
    ) -> Action {
        self.endpoint.receive_placed(since_start(now), offset, bytes, &mut state.rdma.env());
        self.handle_events(now, state)
    }

    /// Looks at bytes of the stream behind a gap; whether nobody needs them any more, since they are placed.
    pub(super) fn receive_out_of_order<M: Memory>(
        &mut self,
        offset: u64,
        bytes: &[u8],
        state: &mut RegionState<M>,
    ) -> bool {
        self.endpoint.receive_out_of_order(offset, bytes, &mut state.rdma.env())
    }

    pub(super) fn peer_closed<M: Memory>(&mut self, now: Instant, state: &mut RegionState<M>) -> Action {
        self.endpoint.peer_closed(since_start(now), &mut state.rdma.stats);
        self.handle_events(now, state)
    }

    /// Acts on a time limit that has passed.
    pub(super) fn handle_timeout<M: Memory>(&mut self, now: Instant, state: &mut RegionState<M>) -> Action {
        if self.linger_until.is_some_and(|until| until <= since_start(now)) {
            return Action::Abort;
        }
        self.endpoint.handle_timeout(since_start(now), &mut state.rdma.stats);
        self.handle_events(now, state)
    }

    /// The time limit that the owner keeps for it, and the one that it is to keep from now on.
    pub(super) fn arm(&mut self) -> (Option<Duration>, Option<Duration>) {
        let deadline = [self.endpoint.next_deadline(), self.linger_until].into_iter().flatten().min();
        (std::mem::replace(&mut self.armed, deadline), deadline)
    }

    /// The time limit that the owner keeps for it.
    pub(super) fn armed(&self) -> Option<Duration> {
        self.armed
    }

    /// Queues what the endpoint wants to send, as far as its turn goes.
    pub(super) fn pump<P: BufPool<Buf = B>, M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack<B>,
        pool: &mut P,
        state: &mut RegionState<M>,
    ) -> (TxOutcome, Action) {
        let mut sink = StreamSink::new(stack, pool, conn, now);
        let progress = self.endpoint.poll_transmit(since_start(now), &mut state.rdma.env(), &mut sink);
        let outcome = sink.outcome(progress.pending);
        (outcome, self.handle_events(now, state))
    }

    /// Tells the stack how many packet buffers are kept for an FPDU that is not complete; if that is too many, what is
    /// wanted of them is copied.
    #[inline]
    pub(super) fn retain_kept(&mut self, stack: &mut Stack<B>, conn: ConnId, stats: &mut RdmaStats) {
        if self.endpoint.chunks() == self.kept {
            return;
        }
        self.kept = self.endpoint.chunks();
        if !stack.retain(conn, buffers(self.kept)) {
            self.copy_kept(stack, conn, stats);
        }
    }

    /// Keeps no packet buffer: what is wanted of them is copied.
    #[cold]
    pub(super) fn copy_kept(&mut self, stack: &mut Stack<B>, conn: ConnId, stats: &mut RdmaStats) {
        self.endpoint.compact(stats);
        self.kept = self.endpoint.chunks();
        stack.retain(conn, buffers(self.kept));
    }

    /// When the connection gives way to others from now on, if that has changed: never, while a region is granted to it.
    pub(super) fn gives_way_change(&mut self) -> Option<GivesWay> {
        let is_granted = self.region.is_some() && self.linger_until.is_none();
        let when = if is_granted { GivesWay::Never } else { GivesWay::Anytime };
        (std::mem::replace(&mut self.gives_way, when) != when).then_some(when)
    }

    /// The region that this connection was granted, if any.
    pub(super) fn region(&self) -> Option<RegionId> {
        self.region
    }

    pub(super) fn info(&self) -> EndpointInfo {
        self.endpoint.info()
    }

    /// The connection is gone: so are its grants.
    pub(super) fn close<M>(&mut self, state: &mut RegionState<M>) {
        state.rdma.stags.revoke_stream(self.stream);
    }

    fn handle_events<M>(&mut self, now: Instant, state: &mut RegionState<M>) -> Action {
        let mut action = Action::Keep;
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::ConnectRequest { private_data, .. } => {
                    let RegionState { service, rdma: RdmaState { stags, stats, .. } } = state;
                    let answer = service.answer(&private_data, self.peer, self.stream, stags);
                    stats.service.count(answer.status);
                    self.region = answer.region;
                    let answered = if answer.accept {
                        self.endpoint.accept(&answer.reply)
                    } else {
                        self.endpoint.reject(&answer.reply)
                    };
                    // CommandError only when the negotiation is over already, which an event of its own tells.
                    let _ = answered;
                }
                Event::Close { how: CloseHow::Fin } => {
                    self.linger_until = Some(since_start(now).saturating_add(LINGER));
                    action = Action::Close;
                }
                Event::Close { how: CloseHow::Reset } => action = Action::Abort,
                // A region has no receive queue and starts nothing of its own; what the stream did is
                // in its counters.
                _ => {}
            }
        }
        action
    }
}

/// As the stack counts them.
fn buffers(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The rights that a configuration names.
pub fn access_of(access: iwarp_config::Access) -> Access {
    Access::from_bits(access.bits()).unwrap_or(Access::NONE)
}
