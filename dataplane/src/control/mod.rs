//! The control socket: admission, framing, and delivery of replies. `daemon` runs [`Server`] with a [`Handler`].
//!
//! ```text
//! connect ─▶ admitted? ─▶ a line of at most 64 KiB ─▶ a JSON-RPC request? ─▶ Handler ─▶ reply (and a descriptor)
//!             └ refused     └ refused, skipped          └ refused                └ refused, by its own reasons
//! ```
//!
//! The server runs on one thread that polls no port, off the packet path. Each connection has a thread of its own that
//! receives, because a client's descriptor may block the thread that uses it. The server bounds each client to a line
//! buffer, a slot and one request at a time. Bad input is answered with an error object, or closes that one connection,
//! and counts a reason. The [`Handler`] implements the methods; the server itself answers `hello`.

mod connection;
mod groups;
mod peer;
mod receiver;
mod relay;
mod server;
mod settings;
mod stats;
mod threads;

#[cfg(test)]
mod tests;

pub use connection::{Handler, Reply};
pub use peer::{Peer, Policy};
pub(crate) use relay::Relays;
pub use server::{BindError, Server, ServerConfig};
pub use settings::SharedSettings;
pub use stats::{ControlStats, SharedStats};
