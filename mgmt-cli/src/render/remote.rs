//! What `remote` did.

use std::time::Duration;

use crate::remote::{Peer, Pings, Transfer};
use crate::units;

/// A file that went to or came from a peer.
pub(crate) fn transfer(transfer: &Transfer) -> String {
    let Transfer { operation, peer, offset, bytes, duration_ns, bytes_per_second, verified } = transfer;
    let way = if *operation == "put" { "to" } else { "from" };
    let rate = *bytes_per_second as f64;
    format!(
        "{operation} {} {way} {}+{offset} in {}: {}, {}{}{}\n",
        units::size(*bytes),
        place(peer),
        units::duration(Duration::from_nanos(*duration_ns)),
        units::byte_rate(rate),
        units::bit_rate(rate * 8.0),
        if *operation == "put" { ", placed" } else { "" },
        if *verified == Some(true) { ", read back and the same" } else { "" },
    )
}

/// Round trips.
pub(crate) fn ping(pings: &Pings) -> String {
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

fn place(peer: &Peer) -> String {
    format!("{}/{}", peer.peer, peer.region)
}
