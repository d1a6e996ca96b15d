//! An initiator over the kernel's TCP that starts its stream with a ready-to-receive message (RFC 6581 §9.2).

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use iwarp_verbs::{Access, RegionConnection, RegionOptions, RegionShape, RegionTarget, RtrOptions};
use serde_json::{Value, json};

/// Bytes that are written or read behind the message.
const BYTES: u32 = 64;
/// The longest silence of the peer.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Region of the peer, readable and writable
    #[arg(value_name = "HOST:PORT/REGION")]
    region: RegionTarget,
    /// Kinds of the message to offer; the peer chooses
    #[arg(long, value_name = "KIND", value_delimiter = ',', required = true)]
    kinds: Vec<Kind>,
}

/// A ready-to-receive message, of no bytes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Send,
    Write,
    Read,
}

/// Starts a stream with the message. Then reads from the region, or, if the message may not be a Write, writes to it:
/// the opcode of the first message on the wire tells them apart.
pub(crate) fn run(options: &Options) -> Result<Value> {
    let has = |kind| options.kinds.contains(&kind);
    let rtr = RtrOptions { send: has(Kind::Send), write: has(Kind::Write), read: has(Kind::Read) };
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let terms = RegionOptions { rtr: Some(rtr), timeout: TIMEOUT, ..RegionOptions::new(access) };
    let shape = RegionShape { window_bytes: BYTES.into(), requests: 2, reads: 1 };
    let mut connection = RegionConnection::open(&options.region, &terms, &shape)?;
    if !rtr.write {
        connection.post_write(0, (0, BYTES), 0)?;
        connection.complete()?;
    }
    // The witness that the peer has placed the Write.
    connection.post_read(1, (0, BYTES), 0)?;
    connection.complete()?;
    Ok(json!({ "bytes": BYTES }))
}
