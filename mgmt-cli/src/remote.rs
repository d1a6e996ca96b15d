//! An initiator for the regions of a peer: over the kernel's own TCP, or over whatever else is a [`Carrier`].
//!
//! ```text
//!  put, get, ping ── write, read ──► Link ──► dyn Wire ◄── completions
//!                                               │
//!          window (VecMemory) ◄──► rdma::Endpoint ──► Outbox ──► socket     (kernel)
//!          ≤ 16 MiB                             └─◄── Chunk  ◄── socket
//! ```
//!
//! One thread drives a socket that does not block. A file passes through a window of bounded size, whatever
//! its length.

mod chunk;
mod destination;
mod get;
mod kernel;
mod link;
mod outbox;
mod ping;
mod progress;
mod put;
mod readback;
pub mod refusal;

use std::time::Duration;

use serde::Serialize;

pub use self::link::{Agreed, Carrier, Done, Look, READS_MAX, Request, SEND_QUEUE, Terms, Use, Wire};
use crate::args::Global;
pub use crate::args::{Crc, Get, Link, Ping, Put, Remote, Target};
pub use crate::failure::Failure;
pub use crate::output::Output;
use crate::render;

/// The most bytes of a file that are in memory at a time.
const WINDOW: u32 = 16 << 20;

/// How the work is done.
pub(crate) struct Way<'a> {
    /// How long the peer may be silent.
    patience: Duration,
    output: &'a Output,
    carrier: &'a mut dyn Carrier,
}

/// Does what the command line says, over the kernel's TCP.
pub(crate) fn run(command: &Remote, global: &Global, output: &Output) -> Result<(), Failure> {
    run_over(&mut kernel::Kernel, command, global.timeout, output)
}

/// Does what the command line says, and writes the result; the peer may be silent for `patience`.
///
/// # Errors
/// It was not done.
pub fn run_over(
    carrier: &mut dyn Carrier,
    command: &Remote,
    patience: Duration,
    output: &Output,
) -> Result<(), Failure> {
    let mut way = Way { patience, output, carrier };
    match command {
        Remote::Put(put) => output.result(&put::run(put, &mut way)?, render::remote::transfer),
        Remote::Get(get) => {
            let transfer = get::run(get, &mut way)?;
            if destination::is_stdout(&get.file) {
                return Ok(());
            }
            output.result(&transfer, render::remote::transfer)
        }
        Remote::Ping(ping) => output.result(&ping::run(ping, &mut way)?, render::remote::ping),
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
    /// Bytes read each time.
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
