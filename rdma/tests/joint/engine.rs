//! Engine of a stream: a bare endpoint, whose owner vouches for memory, or a queue pair of the host's device.

use core::ops::Range;

use rdma::verbs::{CmId, Data, PostError, QpNum, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge};
use rdma::{Endpoint, Env, LocalSlice, Progress, RegionId, Sink, StreamState};
use tcp_stack::testutil::HeapBuf;
use tcp_stack::{Duration, Instant, Segment};

use crate::stream::{Tools, since_start};

/// Local bytes of a work request: parts of a region in the order of the message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Local {
    pub(crate) pieces: Vec<Range<u64>>,
    /// `Some` for inline data, which is copied when the request is posted.
    pub(crate) inline: Option<Vec<u8>>,
}

impl Local {
    pub(crate) fn len(&self) -> u32 {
        self.pieces.iter().map(|piece| (piece.end - piece.start) as u32).sum()
    }
}

/// Handles of a queue pair and its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    pub(crate) id: CmId,
    pub(crate) qp: QpNum,
}

#[derive(Debug)]
pub(crate) enum Engine {
    Endpoint(Box<Endpoint<Segment<HeapBuf>>>),
    Verbs(Handle),
}

impl Engine {
    /// Returns true in full operation, where nothing may allocate.
    pub(crate) fn is_full(&self, tools: &Tools) -> bool {
        match self {
            Self::Endpoint(endpoint) => endpoint.info().state == StreamState::ReadyToSend,
            Self::Verbs(conn) => tools.device.query_qp(conn.qp).is_ok_and(|attr| attr.state == QpState::Rts),
        }
    }

    pub(crate) fn receive(
        &mut self,
        now: Instant,
        offset: u64,
        segment: Segment<HeapBuf>,
        tools: &mut Tools,
    ) {
        let now = since_start(now);
        let Tools { device, stags, memory, stats, .. } = tools;
        let mut env = Env { stags, memory, stats };
        match self {
            Self::Endpoint(endpoint) if segment.was_taken() => {
                endpoint.receive_placed(now, offset, segment.len(), &mut env);
            }
            Self::Endpoint(endpoint) => endpoint.receive(now, offset, segment, &mut env),
            Self::Verbs(conn) if segment.was_taken() => {
                device.receive_placed(conn.id, now, offset, segment.len(), &mut env);
            }
            Self::Verbs(conn) => device.receive(conn.id, now, offset, segment, &mut env),
        }
    }

    /// Returns true if the bytes behind a gap were placed.
    pub(crate) fn receive_out_of_order(
        &mut self,
        offset: u64,
        bytes: &[u8],
        tools: &mut EngineEnv<'_>,
    ) -> bool {
        match self {
            Self::Endpoint(endpoint) => endpoint.receive_out_of_order(offset, bytes, &mut tools.env),
            Self::Verbs(conn) => tools.device.receive_out_of_order(conn.id, offset, bytes, &mut tools.env),
        }
    }

    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        lent: &mut EngineEnv<'_>,
        sink: &mut impl Sink,
    ) -> Progress {
        match self {
            Self::Endpoint(endpoint) => endpoint.poll_transmit(since_start(now), &mut lent.env, sink),
            Self::Verbs(conn) => lent.device.poll_transmit(conn.id, since_start(now), &mut lent.env, sink),
        }
    }

    pub(crate) fn peer_closed(&mut self, now: Instant, tools: &mut Tools) {
        match self {
            Self::Endpoint(endpoint) => endpoint.peer_closed(since_start(now), &mut tools.stats),
            Self::Verbs(conn) => tools.device.peer_closed(conn.id, since_start(now), &mut tools.stats),
        }
    }

    pub(crate) fn transport_lost(&mut self, tools: &mut Tools) {
        match self {
            Self::Endpoint(endpoint) => endpoint.transport_lost(),
            Self::Verbs(conn) => tools.device.transport_lost(conn.id),
        }
    }

    pub(crate) fn disconnect(&mut self, now: Instant, tools: &mut Tools) {
        match self {
            Self::Endpoint(endpoint) => endpoint.disconnect(since_start(now)),
            Self::Verbs(conn) => tools.device.disconnect(conn.id, since_start(now)),
        }
    }

    /// Ends the stream for a local fault.
    pub(crate) fn fail(&mut self, now: Instant, tools: &mut Tools) {
        match self {
            Self::Endpoint(endpoint) => endpoint.fail_local(since_start(now), &mut tools.stats),
            // Refused if the stream is already ending.
            Self::Verbs(conn) => {
                let _ = tools.device.terminate_qp(conn.qp, since_start(now), &mut tools.stats);
            }
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, tools: &mut Tools) {
        match self {
            Self::Endpoint(endpoint) => endpoint.handle_timeout(since_start(now), &mut tools.stats),
            Self::Verbs(conn) => tools.device.handle_timeout(conn.id, since_start(now), &mut tools.stats),
        }
    }

    pub(crate) fn next_deadline(&self, tools: &Tools) -> Option<Duration> {
        match self {
            Self::Endpoint(endpoint) => endpoint.next_deadline(),
            Self::Verbs(conn) => tools.device.next_deadline(conn.id),
        }
    }

    /// Accepts or rejects the peer's request.
    pub(crate) fn answer(&mut self, rejects: bool, reply: &[u8], tools: &mut Tools) -> Result<(), String> {
        match self {
            Self::Endpoint(endpoint) => {
                let answered = if rejects { endpoint.reject(reply) } else { endpoint.accept(reply) };
                answered.map_err(|error| format!("{error:?}"))
            }
            Self::Verbs(conn) => {
                let device = &mut tools.device;
                let answered = if rejects {
                    device.reject(conn.id, reply)
                } else {
                    device.accept(conn.id, conn.qp, reply)
                };
                answered.map_err(|error| format!("{error:?}"))
            }
        }
    }

    pub(crate) fn post_send(
        &mut self,
        (wr_id, op, flags): (u64, SendOp, SendFlags),
        local: &Local,
        region: RegionId,
        list: &[Sge],
        tools: &mut Tools,
    ) -> Result<(), PostError> {
        match self {
            Self::Endpoint(endpoint) => {
                let slice = whole(local, region);
                let SendFlags { solicited, .. } = flags;
                match op {
                    SendOp::Send { invalidate } => endpoint.post_send(wr_id, slice, solicited, invalidate),
                    SendOp::RdmaWrite { remote_addr, rkey } => {
                        endpoint.post_write(wr_id, slice, rkey, remote_addr)
                    }
                    SendOp::RdmaRead { remote_addr, rkey } => {
                        endpoint.post_read(wr_id, slice, rkey, remote_addr)
                    }
                    SendOp::Atomic { remote_addr, rkey, op } => {
                        endpoint.post_atomic(wr_id, slice, rkey, remote_addr, op)
                    }
                    SendOp::Immediate { imm_data } => endpoint.post_immediate(wr_id, imm_data, solicited),
                    SendOp::RdmaWriteWithImm { .. }
                    | SendOp::RdmaReadInvalidate { .. }
                    | SendOp::BindMw { .. }
                    | SendOp::LocalInvalidate { .. }
                    | SendOp::SendWithImm { .. }
                    | SendOp::Datagram { .. } => unreachable!("drawn for queue pairs only"),
                }
            }
            Self::Verbs(conn) => {
                let data = local.inline.as_ref().map_or(Data::List(list), |bytes| Data::Inline(bytes));
                tools.device.post_send(conn.qp, &SendWr { wr_id, op, data, flags })
            }
        }
    }

    pub(crate) fn post_recv(
        &mut self,
        wr_id: u64,
        local: &Local,
        region: RegionId,
        list: &[Sge],
        tools: &mut Tools,
    ) -> Result<(), PostError> {
        match self {
            Self::Endpoint(endpoint) => endpoint.post_recv(wr_id, whole(local, region)),
            Self::Verbs(conn) => tools.device.post_recv(conn.qp, &RecvWr { wr_id, sg_list: list }),
        }
    }
}

/// State that an engine borrows while it sends or places, besides the stack.
pub(crate) struct EngineEnv<'a> {
    pub(crate) device: &'a mut rdma::verbs::Device<Segment<HeapBuf>>,
    pub(crate) env: Env<'a, crate::model::Watched>,
}

fn whole(local: &Local, region: RegionId) -> LocalSlice {
    match local.pieces.first() {
        None => LocalSlice { region: RegionId(0), offset: 0, len: 0 },
        Some(piece) => LocalSlice { region, offset: piece.start, len: local.len() },
    }
}
