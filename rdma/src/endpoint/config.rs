//! What an endpoint is made with, and what can be seen of it.

use core::time::Duration;

use crate::memory::PdId;
use crate::mpa::deframer::{CHUNKS_MAX, SPILL_MAX};
use crate::mpa::{NegotiationConfig, OutOfOrderPolicy};
use crate::qp::{StreamCounters, StreamState};
use crate::terminate::ErrorCode;

/// How much of a message fits a single segment of the transport (RFC 4296 §2.2.1: `rdma_max_msizes`), bytes of payload.
/// Longer messages are cut into as many as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSizes {
    /// Of a Send (`max_untagged`).
    pub untagged: usize,
    /// Of an RDMA Write, or of what an RDMA Read gets (`max_tagged`).
    pub tagged: usize,
}

/// What an endpoint is made with. Its memory follows from it: 56 bytes per read of the peer (`mpa.ird_max` at
/// most), 152 per place in the send queue, 72 per place in the receive queue, 64 per chunk (`chunks_max`), 40 per run
/// placed early (`placed_runs_max`), and `spill_max`, of which only what is used is touched. All of it is taken by the
/// time the stream is in full operation.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Revision, CRC, read depths, private data, time limit of the negotiation.
    pub mpa: NegotiationConfig,
    /// The protection domain of the stream.
    pub pd: Option<PdId>,
    /// Work requests posted to send whose completion the owner has not taken, at most.
    pub send_queue: u16,
    /// Buffers posted to receive whose event the owner has not taken, at most.
    pub receive_queue: u16,
    /// Received chunks that may be held, not copied, while an FPDU is not complete. Each is at most a packet buffer.
    pub chunks_max: u16,
    /// Bytes of received FPDUs that may be copied aside when the peer cuts its stream small.
    pub spill_max: usize,
    /// How FPDUs behind a gap are looked for, to be placed before it closes.
    pub out_of_order: OutOfOrderPolicy,
    /// Whether the last segment of a message may be placed before the gap closes, too. Many programs poll the last
    /// byte of a Write to learn that all of it is there.
    pub last_out_of_order: bool,
    /// Runs of FPDUs placed behind gaps that are remembered, 0–65535; what lies behind more gaps is held.
    pub placed_runs_max: u16,
    /// Initiator: send an empty RDMA Write when the peer has not answered anything for so long after the first
    /// message. Linux soft-iWARP's responder may overlook that message until another segment comes. The wait
    /// doubles each time; [`super::POKES_MAX`] times at most.
    pub poke_after: Option<Duration>,
    /// How long a peer that was rejected is given to close the connection itself.
    pub reject_linger: Duration,
    /// How long an FPDU may stay incomplete before the connection is reset; `None` for ever. TCP may need a minute or more
    /// to repair the loss of a segment, and what is held meanwhile is bounded: the limit is for peers that never go on.
    pub fpdu_timeout: Option<Duration>,
    /// How long a Terminate may wait for room in the transport before the connection is reset.
    pub terminate_timeout: Duration,
    /// How long [`Endpoint::disconnect`](super::Endpoint::disconnect) may wait for Read Responses that the peer owes, and
    /// for the peer to take its own, before the connection is reset. It does not start anew when some of them have come.
    pub disconnect_timeout: Duration,
}

impl Default for EndpointConfig {
    /// A responder of the region service, which posts nothing itself.
    fn default() -> Self {
        Self {
            mpa: NegotiationConfig::default(),
            pd: None,
            send_queue: 0,
            receive_queue: 0,
            chunks_max: u16::try_from(CHUNKS_MAX).unwrap_or(u16::MAX),
            spill_max: SPILL_MAX,
            out_of_order: OutOfOrderPolicy::default(),
            last_out_of_order: false,
            placed_runs_max: 32,
            poke_after: None,
            reject_linger: Duration::from_secs(5),
            fpdu_timeout: Some(Duration::from_secs(120)),
            terminate_timeout: Duration::from_secs(5),
            disconnect_timeout: Duration::from_secs(30),
        }
    }
}

/// An endpoint at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Where the queue pair stands.
    pub state: StreamState,
    /// Whether this side opened the stream.
    pub initiator: bool,
    /// The revision of MPA; 0 before it is agreed.
    pub rev: u8,
    /// Whether FPDUs carry CRCs, in both directions.
    pub crc: bool,
    /// Whether markers are sent.
    pub markers: bool,
    /// Whether markers come in; before it is agreed, whether they were asked for.
    pub markers_in: bool,
    /// Reads of the peer at a time.
    pub ird: u16,
    /// Reads of ours at a time.
    pub ord: u16,
    /// Reads of the peer that are not answered whole: `ird` at most, rounded up to a power of two.
    pub reads_owed: usize,
    /// Work requests posted to send and not finished.
    pub work_pending: usize,
    /// What went over the stream.
    pub counters: StreamCounters,
    /// The Terminate that was sent or received.
    pub terminate: Option<ErrorCode>,
}
