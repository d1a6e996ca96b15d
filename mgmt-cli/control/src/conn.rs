//! Connections.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Parameters of `conn.show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnShow {
    /// The connection's number, as `conn.list` gives it.
    pub id: u64,
}

/// Parameters of `conn.close`: exactly one of them is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnClose {
    /// The connection of this number, as `conn.list` gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Every connection whose peer has an address of this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::prefix::option")]
    pub peer: Option<IpNet>,
    /// Every connection that a listener on this TCP port accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<u16>,
}

/// The reply to `conn.close`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnsClosed {
    /// How many connections were closed: at least one.
    pub count: u64,
    /// These connections; of more than [`crate::bounds::CONNECTIONS_LISTED_MAX`] the first.
    pub closed: Vec<ConnClosed>,
}

/// A connection that was closed: its peer was sent a reset, its grants are revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnClosed {
    /// Its number.
    pub id: u64,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The service of its listener.
    pub service: String,
}

/// A TCP connection, and what runs on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnInfo {
    /// Its number: unique while the daemon runs.
    pub id: u64,
    /// The worker that it lives on.
    pub worker: u32,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Its state by the name of RFC 9293 §3.3.2.
    pub state: String,
    /// The service of its listener: `region`, `echo`, `discard`, `chargen`, `daytime`.
    pub service: String,
    /// Milliseconds since it was opened.
    pub age_ms: u64,
    /// Bytes received in order.
    pub bytes_in: u64,
    /// Bytes sent and acknowledged.
    pub bytes_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Segments sent, retransmissions included.
    pub segments_out: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub rtt_us: u64,
    /// Its variation in microseconds.
    pub rttvar_us: u64,
    /// The least round-trip time of late in microseconds; 0 before the first sample.
    pub min_rtt_us: u64,
    /// Retransmission timeout in milliseconds.
    pub rto_ms: u64,
    /// Timeouts, or probes, in a row without a sign of life.
    pub attempts: u32,
    /// Whether a router, or the peer's host, said of late that something did not arrive.
    pub soft_error: bool,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Loss recoveries without a timeout.
    pub recoveries: u64,
    /// Congestion control: `newreno`, `cubic`, `dctcp`, `bbr`.
    pub congestion: String,
    /// Explicit congestion notification: `off`, `on`, or `echo`, that of the peer's marks only.
    pub ecn: String,
    /// The rate at which segments leave, bytes per second, if it is paced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing_bytes_per_s: Option<u64>,
    /// The rate at which data was delivered of late, bytes per second, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_bytes_per_s: Option<u64>,
    /// Whether it was the application, or the peer's window, and not the network that limited that rate.
    pub delivery_app_limited: bool,
    /// What BBR knows of the path, where that is the congestion control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bbr: Option<ConnBbrInfo>,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Slow-start threshold in bytes; the largest integer while there is none.
    pub ssthresh_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// The most bytes of data in a segment that we send.
    pub mss: u32,
    /// The largest packet that the path is known to carry, bytes.
    pub path_mtu: u32,
    /// The window that the peer offers, in bytes.
    pub snd_wnd: u64,
    /// The window that we offer, in bytes.
    pub rcv_wnd: u64,
    /// Bytes received in order that the service has not let go of.
    pub unread_bytes: u64,
    /// Of what has not come yet, or is not let go of, so many bytes are urgent.
    pub urgent_bytes: u64,
    /// Bytes of packet buffers held behind gaps.
    pub held_bytes: u64,
    /// Whether selective acknowledgments were agreed.
    pub sack: bool,
    /// Whether timestamps were agreed.
    pub timestamps: bool,
    /// Window shifts: of the windows that we receive, of those that we send.
    pub wscale: [u8; 2],
    /// What runs on it, if that is RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<ConnRdmaInfo>,
}

/// BBR's model of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnBbrInfo {
    /// `startup`, `drain`, `probe-bw` or `probe-rtt`.
    pub state: String,
    /// The bottleneck's bandwidth, bytes per second.
    pub bandwidth_bytes_per_s: u64,
    /// The round-trip time without queues in microseconds; 0 before the first sample.
    pub min_rtt_us: u64,
    /// The pacing rate in percent of the bandwidth.
    pub pacing_gain_percent: u32,
    /// The window in percent of bandwidth times round-trip time.
    pub cwnd_gain_percent: u32,
}

/// The RDMA stream of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnRdmaInfo {
    /// The MPA revision agreed.
    pub mpa_revision: u8,
    /// Whether FPDUs carry a CRC.
    pub crc: bool,
    /// RDMA Reads that the peer may have outstanding.
    pub ird: u16,
    /// RDMA Reads that we may have outstanding.
    pub ord: u16,
    /// The region granted, once there is one.
    pub region: Option<String>,
    /// The stream's state.
    pub state: String,
    /// RDMA Writes received.
    pub in_writes: u64,
    /// RDMA Read Requests received.
    pub in_reads: u64,
    /// Bytes that the peer has written.
    pub bytes_placed: u64,
    /// Bytes that the peer has read.
    pub bytes_fetched: u64,
    /// The last Terminate sent or received, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_terminate: Option<String>,
}
