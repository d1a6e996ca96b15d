//! A connection of the region service: an RDMA responder on one TCP connection. `Engine` feeds it segments and services
//! its output.

use std::net::IpAddr;
use std::time::Duration;

use rdma::service::RegionService;
use rdma::{CloseHow, Endpoint, EndpointConfig, EndpointInfo, Event, Memory, RdmaStats, RegionId, StreamId};
use tcp_stack::{Buf, BufPool, ConnId, EvictionPolicy, Instant, Segment, Stack};

use super::deadlines::{LINGER, since_start};
use super::rdma_state::RdmaState;
use super::sink::{StreamSink, TxOutcome};

/// State shared by all connections of the region service on one port and worker.
#[derive(Debug)]
pub(super) struct RegionState<M> {
    pub(super) rdma: RdmaState<M>,
    pub(super) service: RegionService,
}

/// Action that the engine must take on the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Keep the connection open.
    Keep,
    /// Close it with a FIN.
    Close,
    /// Close it with a RST.
    Abort,
}

/// RDMA stream of one connection.
#[derive(Debug)]
pub(super) struct RegionStream<B: Buf> {
    endpoint: Endpoint<Segment<B>>,
    stream: StreamId,
    peer: IpAddr,
    region: Option<RegionId>,
    /// Deadline that the engine has queued for the stream.
    armed: Option<Duration>,
    /// Packet buffers that the stack accounts to the stream.
    kept: usize,
    /// After our close: time until which the peer may delay its own.
    linger_until: Option<Duration>,
    /// Eviction rule that was last reported to the stack.
    eviction_policy: EvictionPolicy,
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
            eviction_policy: EvictionPolicy::Anytime,
        }
    }

    /// Processes consecutive segments of the stream, each with its offset.
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

    /// Advances the stream over bytes that were placed out of order.
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

    /// Offers out-of-order bytes for placement. Returns true if they were placed, so that the buffer can be freed.
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

    /// Handles an expired deadline.
    pub(super) fn handle_timeout<M: Memory>(&mut self, now: Instant, state: &mut RegionState<M>) -> Action {
        if self.linger_until.is_some_and(|until| until <= since_start(now)) {
            return Action::Abort;
        }
        self.endpoint.handle_timeout(since_start(now), &mut state.rdma.stats);
        self.handle_events(now, state)
    }

    /// Updates the queued deadline. Returns the one before and the new one.
    pub(super) fn arm(&mut self) -> (Option<Duration>, Option<Duration>) {
        let deadline = [self.endpoint.next_deadline(), self.linger_until].into_iter().flatten().min();
        (std::mem::replace(&mut self.armed, deadline), deadline)
    }

    /// Returns the queued deadline.
    pub(super) fn armed(&self) -> Option<Duration> {
        self.armed
    }

    /// Moves the endpoint's output into the send queue, up to the budget of one service.
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

    /// Reports the packet buffers retained for an incomplete FPDU to the stack. If the stack allows no more, their
    /// bytes are copied and the buffers freed.
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

    /// Copies the bytes of retained packet buffers and frees the buffers.
    #[cold]
    pub(super) fn copy_kept(&mut self, stack: &mut Stack<B>, conn: ConnId, stats: &mut RdmaStats) {
        self.endpoint.compact(stats);
        self.kept = self.endpoint.chunks();
        stack.retain(conn, buffers(self.kept));
    }

    /// Returns the new eviction rule if it has changed: a connection with a grant never gives way.
    pub(super) fn eviction_policy_change(&mut self) -> Option<EvictionPolicy> {
        let is_granted = self.region.is_some() && self.linger_until.is_none();
        let when = if is_granted { EvictionPolicy::Never } else { EvictionPolicy::Anytime };
        (std::mem::replace(&mut self.eviction_policy, when) != when).then_some(when)
    }

    /// Returns the region that was granted to this connection, if any.
    pub(super) fn region(&self) -> Option<RegionId> {
        self.region
    }

    pub(super) fn info(&self) -> EndpointInfo {
        self.endpoint.info()
    }

    /// Revokes the grants of a connection that has closed.
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
                    // Fails only if the negotiation is over already, which another event reports.
                    let _ = answered;
                }
                Event::Close { how: CloseHow::Fin } => {
                    self.linger_until = Some(since_start(now).saturating_add(LINGER));
                    action = Action::Close;
                }
                Event::Close { how: CloseHow::Reset } => action = Action::Abort,
                // A region has no receive queue and posts no work; the counters record the stream's traffic.
                _ => {}
            }
        }
        action
    }
}

/// Converts a number of packet buffers to the stack's type.
fn buffers(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
