//! MPA (RFC 5044, RFC 6581): from a TCP stream to whole, verified ULPDUs and back.
//!
//! ```text
//!   startup    Negotiation: Request and Reply frames, revision, CRC, read depths, RTR
//!   receive    chunks of the stream -> Deframer -> Fpdu (verified; borrowed, never copied)
//!   transmit   ULPDU written in place -> Framer -> FPDU that fills a segment
//! ```
//!
//! Markers are never asked for (we send M = 0), and a peer that asks for them is refused and counted.

pub mod crc;
pub mod deframer;
pub mod framer;
pub mod negotiate;
mod stats;

pub use deframer::{Deframer, Fpdu, FpduError, Pieces};
pub use framer::{FrameError, Framer, fpdu_len, mulpdu};
pub use negotiate::{
    ConnectRequest, CrcPolicy, Event, LocalError, Negotiation, NegotiationConfig, Offer, Refusal, Rtr, Terms,
};
pub use stats::MpaStats;

/// Octets of the ULPDU_Length field that opens an FPDU (RFC 5044 §4.1).
pub const LENGTH_LEN: usize = 2;
/// Octets of the CRC field that closes it.
pub const CRC_LEN: usize = 4;
/// Octets of the longest FPDU that ULPDU_Length can describe, without markers.
pub const FPDU_LEN_MAX: usize = fpdu_len(u16::MAX as usize);
