//! An initiator for the regions of a peer: over the kernel's own TCP, or over any other [`Connector`].
//!
//! ```text
//!  put, get, ping, bench ── post_write, post_read ──► RegionSession ──► dyn RdmaConnection ◄── completions
//!                                                                         │
//!                  window (VecMemory) ◄──► rdma::Endpoint ──► Outbox ──► socket     (kernel)
//!                  ≤ 16 MiB                       └─◄── Chunk  ◄── socket
//! ```
//!
//! One thread drives a non-blocking socket. A file of any length passes through a window of bounded size. `iwarpctl
//! remote` runs it over the kernel's TCP, `iwarp-rping` over its own dataplane.
#![forbid(unsafe_code)]

pub mod bench;
mod chunk;
mod destination;
mod get;
mod kernel;
pub mod options;
mod outbox;
mod ping;
mod progress;
mod put;
mod readback;
pub mod refusal;
mod report;
mod resume;
mod session;
mod source;

use std::time::Duration;

use iwarp_terminal::{Failure, Output};

pub use self::kernel::KernelTcp;
pub use self::options::{ConnectOptions, Get, Ping, Put, Remote, Resume, Target, crc_policy};
pub use self::session::{
    Completion, ConnectReply, ConnectionRequest, Connector, Fill, Inspect, Negotiated, READS_MAX,
    RdmaConnection, SEND_QUEUE, read_token,
};

/// Bytes of a file in memory at a time, at most.
const WINDOW_BYTES: u32 = 16 << 20;

/// The environment of a command.
pub(crate) struct Context<'a> {
    /// The longest silence of the peer.
    timeout: Duration,
    output: &'a Output,
    connector: &'a mut dyn Connector,
}

/// Runs a command over `connector` and writes its result; the peer may be silent for `timeout`.
///
/// # Errors
/// The command failed; nothing was written to stdout.
pub fn run(
    connector: &mut dyn Connector,
    command: &Remote,
    timeout: Duration,
    output: &Output,
) -> Result<(), Failure> {
    let mut context = Context { timeout, output, connector };
    match command {
        Remote::Put(put) => output.result(&put::run(put, &mut context)?, report::transfer_text),
        Remote::Get(get) => {
            let transfer = get::run(get, &mut context)?;
            if get.files.iter().any(|file| destination::is_stdout(file)) {
                return Ok(());
            }
            output.result(&transfer, report::transfer_text)
        }
        Remote::Ping(ping) => output.result(&ping::run(ping, &mut context)?, report::ping_text),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a mean or a deviation of nanoseconds as a whole number.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it lies between zero and its values"
)]
fn whole(nanoseconds: f64) -> u64 {
    nanoseconds as u64
}
