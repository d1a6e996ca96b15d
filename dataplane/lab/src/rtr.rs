//! An initiator over the kernel's TCP that starts its stream with a ready-to-receive message (RFC 6581 §9.2).

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use iwarp_remote::{ConnectOptions, Connection, ConnectionRequest, Target};
use iwarp_terminal::Failure;
use iwarp_verbs::{Access, RtrOptions};
use rdma::CrcPolicy;
use rdma::service::{decode_reply, encode_request};
use serde_json::{Value, json};

/// Bytes that are written or read behind the message.
const BYTES: u32 = 64;
/// The longest silence of the peer.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Region of the peer, readable and writable
    #[arg(value_name = "HOST:PORT/REGION")]
    region: Target,
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
    let failed = |failure: Failure| anyhow!("{}", failure.message);
    let has = |kind| options.kinds.contains(&kind);
    let rtr = RtrOptions { send: has(Kind::Send), write: has(Kind::Write), read: has(Kind::Read) };
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let request = ConnectionRequest {
        target: &options.region,
        options: &ConnectOptions { token_file: None, crc: CrcPolicy::Required, mpa_revision: 2 },
        private_data: &encode_request(&options.region.region, access, &[]).context("a name of a region")?,
        window_bytes: BYTES,
        rtr: Some(rtr),
        timeout: TIMEOUT,
    };
    let mut connection = Connection::open(&request).map_err(failed)?;
    let reply = connection.wait_reply().map_err(failed)?;
    let grant = decode_reply(&reply.private_data).map_err(|error| anyhow!("{error:?}"))?;
    reply.negotiated.context("the peer has rejected the connection")?;
    let (local, remote) = ((0, BYTES), (grant.stag, grant.base_to));
    if !rtr.write {
        connection.post_write(0, local, remote).map_err(failed)?;
        connection.wait_completion().map_err(failed)?;
    }
    // The witness that the peer has placed the Write.
    connection.post_read(1, local, remote).map_err(failed)?;
    connection.wait_completion().map_err(failed)?;
    connection.close();
    Ok(json!({ "bytes": BYTES }))
}
