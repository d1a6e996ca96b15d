//! The regions of a peer, read and written by `iwarpctl remote` with a device in its process, over the kernel's TCP.
//!
//! ```text
//!  put, get, ping, bench ── post_write, post_read ──► RegionSession ──► iwarp_verbs::RegionConnection
//!           └──────────────── files ◄──► window, ≤ 16 MiB ──┘
//! ```
//!
//! A file of any length passes through a window of bounded size.
#![forbid(unsafe_code)]

pub mod bench;
mod destination;
mod get;
pub mod options;
mod ping;
mod progress;
mod put;
mod readback;
mod refusal;
mod report;
mod resume;
mod session;
mod source;

use std::time::Duration;

use iwarp_terminal::{Failure, Output};

pub use self::options::{ConnectOptions, Get, Ping, Put, Remote, Resume, Target, crc_policy};
pub use self::session::read_token;

/// Bytes of a file in memory at a time, at most.
const WINDOW_BYTES: u32 = 16 << 20;

/// The environment of a command.
pub(crate) struct Context<'a> {
    /// The longest silence of the peer.
    timeout: Duration,
    output: &'a Output,
}

/// Runs a command and writes its result; the peer may be silent for `timeout`.
///
/// # Errors
/// The command failed; nothing was written to stdout.
pub fn run(command: &Remote, timeout: Duration, output: &Output) -> Result<(), Failure> {
    let context = Context { timeout, output };
    match command {
        Remote::Put(put) => output.result(&put::run(put, &context)?, report::transfer_text),
        Remote::Get(get) => {
            let transfer = get::run(get, &context)?;
            if get.files.iter().any(|file| destination::is_stdout(file)) {
                return Ok(());
            }
            output.result(&transfer, report::transfer_text)
        }
        Remote::Ping(ping) => output.result(&ping::run(ping, &context)?, report::ping_text),
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
