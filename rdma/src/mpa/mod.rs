//! MPA (RFC 5044, RFC 6581): splits a TCP stream into verified ULPDUs, and frames outgoing ULPDUs.
//!
//! ```text
//!   startup    Negotiation: Request and Reply frames, revision, CRC, read depths, RTR
//!   receive    chunks of the stream -> Deframer -> Fpdu (verified; borrowed, never copied)
//!   transmit   ULPDU written in place -> Framer -> FPDU that fills a segment
//! ```
//!
//! Markers are sent if the peer asks for them, and requested if the configuration says so. An FPDU that lies
//! completely inside a chunk behind a gap can be located, by markers or by the start of the chunk, and verified before
//! the gap closes ([`out_of_order`]).

pub mod crc;
pub mod deframer;
mod fpdu;
pub mod framer;
mod kept;
pub mod marker;
pub mod negotiate;
pub mod out_of_order;
mod placed;
mod stats;
mod whole;

pub use deframer::{Deframer, DeframerConfig, FpduError};
pub use fpdu::{Fpdu, Pieces};
pub use framer::{FrameError, Framer, fpdu_len, mulpdu, mulpdu_marked};
pub use marker::{Layout, MARKER_INTERVAL, MARKER_LEN};
pub use negotiate::{
    ConnectRequest, CrcPolicy, Event, LocalError, Negotiation, NegotiationConfig, Offer, Refusal, Rtr, Terms,
};
pub use out_of_order::{OutOfOrderFpdus, OutOfOrderPolicy, OutOfOrderRefusal};
pub use placed::PlacedRun;
pub use stats::MpaStats;

/// Length in bytes of the ULPDU_Length field that opens an FPDU (RFC 5044 §4.1).
pub const LENGTH_LEN: usize = 2;
/// Length in bytes of the CRC field that closes an FPDU (RFC 5044 §4.1).
pub const CRC_LEN: usize = 4;
/// Length in bytes of the longest FPDU that ULPDU_Length can describe, without markers.
pub const FPDU_LEN_MAX: usize = fpdu_len(u16::MAX as usize);
/// Length in bytes of the longest FPDU with its markers.
pub const MARKED_LEN_MAX: usize = FPDU_LEN_MAX + (FPDU_LEN_MAX / marker::BETWEEN + 1) * MARKER_LEN;
