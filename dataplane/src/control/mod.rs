//! The control socket: who may use it, what a line may be, and how a reply gets back.
//!
//! ```text
//! connect ─▶ admitted? ─▶ a line of at most 64 KiB ─▶ a JSON-RPC request? ─▶ Handler ─▶ reply (and a descriptor)
//!             └ refused     └ refused, skipped          └ refused                └ refused, by its own reasons
//! ```
//!
//! The server runs on one thread that polls no port; nothing here is on the way of a packet. It owes its other
//! clients that none of them can take more than a line buffer, a slot and one request at a time: whatever a client
//! sends or fails to send, the answer is an error object, or the end of that one connection, and a counted reason.
//! What the methods do is the [`Handler`]'s; the server itself answers `hello`.

mod connection;
mod groups;
mod peer;
mod server;
mod socket;
mod stats;

#[cfg(test)]
mod tests;

pub use connection::{Handler, Reply};
pub use peer::{Peer, Policy, group_id};
pub use server::{BindError, Server, ServerConfig};
pub use stats::{ControlStats, SharedStats};
