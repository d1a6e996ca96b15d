//! Messages about TCP connections.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The parameters of `conn.show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnShow {
    /// The connection's number, as `conn.list` gives it.
    pub id: u64,
}

/// The parameters of `conn.close`: exactly one is present.
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
    /// The number of connections closed: at least one.
    pub count: u64,
    /// The closed connections; the first [`crate::bounds::CONNECTIONS_LISTED_MAX`] if there are more.
    pub closed: Vec<ConnClosed>,
}

/// A connection that the daemon closed: it sent a reset to the peer and revoked the grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnClosed {
    /// The number of the connection.
    pub id: u64,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The service of its listener.
    pub service: String,
}

/// A TCP connection and the RDMA stream on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnInfo {
    /// The number of the connection, unique while the daemon runs.
    pub id: u64,
    /// The worker that serves the connection.
    pub worker: u32,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The state, by its name in RFC 9293 §3.3.2.
    pub state: String,
    /// The service of the listener: `region`, `echo`, `discard`, `chargen`, `daytime`; `verbs` if an application has
    /// the connection.
    pub service: String,
    /// The number of the application that has the connection, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<u32>,
    /// Milliseconds since the connection was opened.
    pub age_ms: u64,
    /// Bytes received in order.
    pub bytes_in: u64,
    /// Bytes sent and acknowledged.
    pub bytes_out: u64,
    /// TCP segments received, duplicates included.
    pub segments_in: u64,
    /// Segments sent, retransmissions included.
    pub segments_out: u64,
    /// TCP segments sent more than once.
    pub retransmits: u64,
    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub rtt_us: u64,
    /// Variation of the round-trip time (RTTVAR) in microseconds.
    pub rttvar_us: u64,
    /// Minimum round-trip time over a recent window, in microseconds; 0 before the first sample.
    pub min_rtt_us: u64,
    /// Retransmission timeout in milliseconds.
    pub rto_ms: u64,
    /// Timeouts or probes in a row without an answer.
    pub attempts: u32,
    /// True if an ICMP error about this connection arrived recently (RFC 5461).
    pub soft_error: bool,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Loss recoveries without a timeout.
    pub recoveries: u64,
    /// Congestion control: `newreno`, `cubic`, `dctcp`, `bbr`.
    pub congestion: String,
    /// Explicit congestion notification: `off`, `on`, or `echo` (the peer marks, we only echo).
    pub ecn: String,
    /// The pacing rate in bytes per second, if the connection is paced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing_bytes_per_s: Option<u64>,
    /// The recent delivery rate in bytes per second, once there is a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_bytes_per_s: Option<u64>,
    /// True if the application or the peer's window, not the network, limited the delivery rate.
    pub delivery_app_limited: bool,
    /// The path model of BBR, if BBR is the congestion control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bbr: Option<ConnBbrInfo>,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Slow-start threshold in bytes; the largest integer before the first loss.
    pub ssthresh_bytes: u64,
    /// Bytes sent and neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// The effective MSS: bytes of data in a full segment that we send.
    pub mss: u32,
    /// The largest packet that the path is known to carry, in bytes.
    pub path_mtu: u32,
    /// SND.WND: the window that the peer advertises, in bytes.
    pub snd_wnd: u64,
    /// RCV.WND: the window that we advertise, in bytes.
    pub rcv_wnd: u64,
    /// Bytes received in order that the service has not consumed.
    pub unread_bytes: u64,
    /// Bytes up to the end of the urgent data that the service has not consumed.
    pub urgent_bytes: u64,
    /// Bytes of out-of-order data, in packet buffers.
    pub held_bytes: u64,
    /// True if both sides support SACK.
    pub sack: bool,
    /// True if both sides send timestamps.
    pub timestamps: bool,
    /// Window scale shifts: of the windows that we receive, and of those that we send.
    pub wscale: [u8; 2],
    /// The RDMA stream, if the connection carries one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<ConnRdmaInfo>,
}

/// BBR's model of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnBbrInfo {
    /// The state: `startup`, `drain`, `probe-bw` or `probe-rtt`.
    pub state: String,
    /// The bandwidth of the bottleneck in bytes per second.
    pub bandwidth_bytes_per_s: u64,
    /// The round-trip time without queues in microseconds; 0 before the first sample.
    pub min_rtt_us: u64,
    /// The pacing rate in percent of the bandwidth.
    pub pacing_gain_percent: u32,
    /// The congestion window in percent of the bandwidth-delay product.
    pub cwnd_gain_percent: u32,
}

/// The RDMA stream of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnRdmaInfo {
    /// The negotiated MPA revision: 1 or 2.
    pub mpa_revision: u8,
    /// True if FPDUs carry a CRC.
    pub crc: bool,
    /// IRD: RDMA Reads that the peer may have in flight.
    pub ird: u16,
    /// ORD: RDMA Reads that we may have in flight.
    pub ord: u16,
    /// The region granted to the peer, once one is.
    pub region: Option<String>,
    /// The state of the stream.
    pub state: String,
    /// RDMA Write messages received.
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
