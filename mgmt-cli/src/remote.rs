//! An iWARP initiator over the kernel's own TCP.
//!
//! ```text
//!  put, get, ping ── post_write, post_read ──► Link ◄── completions
//!                                               │
//!          window (VecMemory) ◄──► rdma::Endpoint ──► Outbox ──► socket
//!          ≤ 16 MiB                             └─◄── Chunk  ◄── socket
//! ```
//!
//! One thread drives a socket that does not block. A file passes through a window of bounded size, whatever
//! its length.

mod chunk;
mod destination;
mod get;
mod link;
mod outbox;
mod ping;
mod progress;
mod put;
mod readback;
mod refusal;

use std::time::Duration;

use serde::Serialize;

use crate::args::{Global, Remote, Target};
use crate::failure::Failure;
use crate::output::Output;
use crate::render;

/// The most octets of a file that are in memory at a time.
const WINDOW: u32 = 16 << 20;

/// Does what the command line says.
pub(crate) fn run(command: &Remote, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        Remote::Put(put) => output.result(&put::run(put, global, output)?, render::remote::transfer),
        Remote::Get(get) => {
            let transfer = get::run(get, global, output)?;
            if destination::is_stdout(&get.file) {
                return Ok(());
            }
            output.result(&transfer, render::remote::transfer)
        }
        Remote::Ping(ping) => output.result(&ping::run(ping, global, output)?, render::remote::ping),
    }
}

/// The peer, and what was agreed with it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    /// Its address and port.
    pub(crate) peer: std::net::SocketAddr,
    pub(crate) region: String,
    pub(crate) mpa_revision: u8,
    pub(crate) crc: bool,
    /// Nanoseconds that TCP and MPA took to set up.
    pub(crate) connect_ns: u64,
}

/// A file that went to or came from a peer.
#[derive(Debug, Serialize)]
pub(crate) struct Transfer {
    /// `put` or `get`.
    pub(crate) operation: &'static str,
    #[serde(flatten)]
    pub(crate) peer: Peer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) duration_ns: u64,
    pub(crate) bytes_per_second: u64,
    /// Whether what the peer holds was read back and is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verified: Option<bool>,
}

/// Round trips.
#[derive(Debug, Serialize)]
pub(crate) struct Pings {
    pub(crate) operation: &'static str,
    #[serde(flatten)]
    pub(crate) peer: Peer,
    pub(crate) offset: u64,
    /// Octets read each time.
    pub(crate) bytes: u32,
    pub(crate) count: u64,
    pub(crate) min_ns: u64,
    pub(crate) median_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) mean_ns: u64,
}

impl Transfer {
    fn new(operation: &'static str, peer: Peer, target: &Target, bytes: u64, duration: Duration) -> Self {
        let duration_ns = nanoseconds(duration);
        let per_second = u128::from(bytes) * 1_000_000_000 / u128::from(duration_ns.max(1));
        Self {
            operation,
            peer,
            offset: target.offset,
            bytes,
            duration_ns,
            bytes_per_second: u64::try_from(per_second).unwrap_or(u64::MAX),
            verified: None,
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
