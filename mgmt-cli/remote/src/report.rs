//! Results of `put`, `get` and `ping`, as data and as text.

use std::path::Path;
use std::time::Duration;

use iwarp_terminal::units;
use serde::Serialize;

use crate::nanoseconds;
use crate::options::Target;

/// The peer and the negotiated parameters.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    /// The peer's address and port.
    pub(crate) peer: std::net::SocketAddr,
    /// The name of the region.
    pub(crate) region: String,
    /// The MPA revision: 1 or 2.
    pub(crate) mpa_revision: u8,
    /// True if FPDUs carry a CRC.
    pub(crate) crc: bool,
    /// Nanoseconds that TCP and MPA took to connect.
    pub(crate) connect_ns: u64,
}

/// A file of a transfer, and its place in the region.
#[derive(Debug, Serialize)]
pub(crate) struct Part {
    /// The path, as it was given.
    file: String,
    /// Bytes from the start of the region.
    offset: u64,
    bytes: u64,
}

impl Part {
    pub(crate) fn new(path: &Path, offset: u64, bytes: u64) -> Self {
        Self { file: path.display().to_string(), offset, bytes }
    }
}

/// A transfer of files to or from a peer.
#[derive(Debug, Serialize)]
pub(crate) struct Transfer {
    /// The operation: `put` or `get`.
    pub(crate) operation: &'static str,
    #[serde(flatten)]
    pub(crate) peer: Peer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) duration_ns: u64,
    pub(crate) bytes_per_second: u64,
    /// The files, in the order of their places.
    pub(crate) files: Vec<Part>,
    /// Connections that replaced a broken one, if the transfer may resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumed: Option<u32>,
    /// The number sent as Immediate Data behind the last file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) immediate: Option<u64>,
    /// True if the region was read back and equals the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verified: Option<bool>,
}

/// Round-trip times of RDMA Reads.
#[derive(Debug, Serialize)]
pub(crate) struct Pings {
    pub(crate) operation: &'static str,
    #[serde(flatten)]
    pub(crate) peer: Peer,
    pub(crate) offset: u64,
    /// Bytes of each Read.
    pub(crate) bytes: u32,
    pub(crate) count: u64,
    pub(crate) min_ns: u64,
    pub(crate) median_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) mean_ns: u64,
}

impl Transfer {
    pub(crate) fn new(
        operation: &'static str,
        peer: Peer,
        target: &Target,
        bytes: u64,
        duration: Duration,
    ) -> Self {
        let duration_ns = nanoseconds(duration);
        let per_second = u128::from(bytes) * 1_000_000_000 / u128::from(duration_ns.max(1));
        Self {
            operation,
            peer,
            offset: target.offset,
            bytes,
            duration_ns,
            bytes_per_second: u64::try_from(per_second).unwrap_or(u64::MAX),
            files: Vec::new(),
            resumed: None,
            immediate: None,
            verified: None,
        }
    }
}

/// Describes a transfer in one line, and each of several files in another.
pub(crate) fn transfer_text(transfer: &Transfer) -> String {
    let Transfer { operation, peer, offset, bytes, duration_ns, bytes_per_second, files, .. } = transfer;
    let put = *operation == "put";
    let mut text = match files.len() {
        0 | 1 => format!("{operation} {}", units::size(*bytes)),
        several => format!("{operation} {several} files, {}", units::size(*bytes)),
    };
    text += &format!(
        " {} {}+{offset} in {}: {}",
        if put { "to" } else { "from" },
        place(peer),
        units::duration(Duration::from_nanos(*duration_ns)),
        units::byte_rate(*bytes_per_second as f64),
    );
    text += if put { ", placed" } else { "" };
    if let Some(number) = transfer.immediate {
        text += &format!(", immediate {number:#x}");
    }
    text += if transfer.verified == Some(true) { ", read back and the same" } else { "" };
    match transfer.resumed {
        Some(1) => text += ", resumed once",
        Some(times @ 2..) => text += &format!(", resumed {times} times"),
        _ => {}
    }
    text.push('\n');
    for Part { file, offset, bytes } in files.iter().filter(|_| files.len() > 1) {
        text += &format!("  {file}: {} at +{offset}\n", units::size(*bytes));
    }
    text
}

/// Describes round-trip times in two lines.
pub(crate) fn ping_text(pings: &Pings) -> String {
    format!(
        "ping {}+{}: {} read{} of {}\nmin {}  median {}  mean {}  p99 {}  max {}\n",
        place(&pings.peer),
        pings.offset,
        pings.count,
        if pings.count == 1 { "" } else { "s" },
        units::size(pings.bytes.into()),
        units::micros(pings.min_ns),
        units::micros(pings.median_ns),
        units::micros(pings.mean_ns),
        units::micros(pings.p99_ns),
        units::micros(pings.max_ns)
    )
}

pub(crate) fn place(peer: &Peer) -> String {
    format!("{}/{}", peer.peer, peer.region)
}
