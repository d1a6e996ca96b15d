//! RPC-over-RDMA version 1 (RFC 8166) without I/O, for any RPC program: a received message in, operations out.
//!
//! ```text
//!  received message ─▶ Responder::receive ─▶ Call: RDMA Reads to post into a buffer
//!                                              │ they have completed
//!                                              ▼
//!                        Call::reader ─▶ message::Call (RFC 5531) ─▶ the program's procedure
//!                                                                          │ result, data items
//!                                              ┌───────────────────────────┘
//!                                              ▼
//!                      Responder::reply ─▶ Reply: RDMA Writes to post, then one Send
//! ```
//!
//! A [`Responder`] is the state of one connection. It holds no buffer: the caller keeps the received message until it
//! has replied, supplies a buffer of [`Call::fetch_bytes`] bytes for the RDMA Reads, and posts the operations. Data
//! items that travel in chunks never pass an XDR codec: [`xdr::Reader`] returns their place in the buffer, and a reply
//! names them by number.
//!
//! Each refusal of a peer's message has a counter in [`Stats`].
#![forbid(unsafe_code)]
// Integer overflow and an index out of bounds end the process. Bytes from a peer must never cause either.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

pub mod header;
pub mod message;
pub mod private_data;
mod reply;
mod responder;
mod stats;
#[cfg(feature = "testutil")]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests may end their process"
)]
pub mod testutil;
pub mod xdr;

pub use private_data::PrivateData;
pub use reply::{Item, Piece, Reply, Write};
pub use responder::{Call, Limits, Read, Received, Refusal, Responder};
pub use stats::Stats;
