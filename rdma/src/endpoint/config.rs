//! Settings of an endpoint, and the snapshot of its state for monitoring.

use core::time::Duration;

use crate::memory::PdId;
use crate::mpa::deframer::{CHUNKS_MAX, SPILL_MAX};
use crate::mpa::{NegotiationConfig, OutOfOrderPolicy};
use crate::qp::{StreamCounters, StreamState};
use crate::terminate::ErrorCode;

/// Longest messages, in bytes of payload, that fit one segment of the transport (RFC 4296 §2.2.1: `rdma_max_msizes`).
/// Longer messages are split into several segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSizes {
    /// Longest Send, in bytes (`max_untagged`).
    pub untagged: usize,
    /// Longest RDMA Write, or Read Response (`max_tagged`).
    pub tagged: usize,
}

/// Settings of an endpoint. They determine its memory: 56 bytes per inbound read (`mpa.ird_max` at most), 152 per slot
/// of the send queue, 72 per slot of the receive queue, 64 per chunk (`chunks_max`), 40 per out-of-order run
/// (`placed_runs_max`), and `spill_max`, of which pages are touched only as they are used. The endpoint allocates all
/// of it before full operation.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Settings of the negotiation: revision, CRC, read depths, private data, time limit.
    pub mpa: NegotiationConfig,
    /// Protection domain of the stream; `None` for a stream without verbs objects.
    pub pd: Option<PdId>,
    /// Slots of the send queue: work requests posted and not yet polled as complete.
    pub send_queue: u16,
    /// Slots of the receive queue: buffers posted and not yet polled as complete.
    pub receive_queue: u16,
    /// Received chunks that may be held, without a copy, for an incomplete FPDU. Each is at most a packet buffer.
    pub chunks_max: u16,
    /// Bytes of received FPDUs that may be copied when the peer sends small pieces.
    pub spill_max: usize,
    /// Policy for placing FPDUs behind a gap before it closes.
    pub out_of_order: OutOfOrderPolicy,
    /// True if the last segment of a message may also be placed before the gap closes. Many programs poll the last
    /// byte of a Write to detect that all of it has arrived; they need false.
    pub last_out_of_order: bool,
    /// Out-of-order runs that are remembered, 0–65535; segments behind further gaps are held.
    pub placed_runs_max: u16,
    /// Initiator: send an empty RDMA Write if the peer has sent nothing for this long after the first message. Linux
    /// soft-iWARP's responder may miss that message until another segment arrives. The wait doubles each time, up to
    /// [`super::POKES_MAX`] times.
    pub poke_after: Option<Duration>,
    /// Time that a rejected peer has to close the connection itself.
    pub reject_linger: Duration,
    /// Time that an FPDU may stay incomplete before the connection is reset; `None` for no limit. TCP may need a
    /// minute or more to repair a loss, and the memory held meanwhile is bounded: the limit ends connections whose
    /// peers never continue.
    pub fpdu_timeout: Option<Duration>,
    /// Time that a Terminate may wait for room in the transport before the connection is reset.
    pub terminate_timeout: Duration,
    /// Time that [`Endpoint::disconnect`](super::Endpoint::disconnect) may wait for Read Responses owed by either side
    /// before the connection is reset. Progress does not restart it.
    pub disconnect_timeout: Duration,
}

impl Default for EndpointConfig {
    /// Returns the settings of a region service's responder, which posts no work itself.
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

/// The settings that an endpoint needs after it was created. The rest of [`EndpointConfig`] is not stored per stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamConfig {
    /// True if this side asks for markers.
    pub(super) asks_for_markers: bool,
    pub(super) chunks_max: u16,
    pub(super) spill_max: usize,
    pub(super) out_of_order: OutOfOrderPolicy,
    pub(super) last_out_of_order: bool,
    pub(super) placed_runs_max: u16,
    pub(super) poke_after: Option<Duration>,
    pub(super) reject_linger: Duration,
    pub(super) fpdu_timeout: Option<Duration>,
    pub(super) terminate_timeout: Duration,
    pub(super) disconnect_timeout: Duration,
}

impl From<&EndpointConfig> for StreamConfig {
    fn from(config: &EndpointConfig) -> Self {
        Self {
            asks_for_markers: config.mpa.markers,
            chunks_max: config.chunks_max,
            spill_max: config.spill_max,
            out_of_order: config.out_of_order,
            last_out_of_order: config.last_out_of_order,
            placed_runs_max: config.placed_runs_max,
            poke_after: config.poke_after,
            reject_linger: config.reject_linger,
            fpdu_timeout: config.fpdu_timeout,
            terminate_timeout: config.terminate_timeout,
            disconnect_timeout: config.disconnect_timeout,
        }
    }
}

/// Snapshot of an endpoint's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointInfo {
    /// State of the stream.
    pub state: StreamState,
    /// True if this side opened the stream.
    pub initiator: bool,
    /// MPA revision; 0 until negotiated.
    pub rev: u8,
    /// True if FPDUs carry CRCs, in both directions.
    pub crc: bool,
    /// True if this side sends markers.
    pub markers: bool,
    /// True if this side receives markers; until negotiated, true if it asks for them.
    pub markers_in: bool,
    /// Inbound reads at a time (IRD).
    pub ird: u16,
    /// Outbound reads at a time (ORD).
    pub ord: u16,
    /// Read Requests of the peer that are not fully answered: at most `ird`, rounded up to a power of two.
    pub reads_owed: usize,
    /// Work requests posted to the send queue and not finished.
    pub work_pending: usize,
    /// Messages and bytes of the stream so far.
    pub counters: StreamCounters,
    /// Error code of the Terminate that was sent or received.
    pub terminate: Option<ErrorCode>,
}
