//! The flags that RDMA benchmarks share; they are named as in perftest where it has them.

use clap::{Args, ValueEnum};
use rdma::CrcPolicy;
use serde::{Deserialize, Serialize};

use super::crc;
use crate::{Cores, size};

/// Sizes of `-a`: powers of two from 64 bytes to 1 MiB.
const ALL: std::ops::RangeInclusive<u32> = 6..=20;

/// Operation that the row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA Write (RFC 5040 §5.1).
    Write,
    /// RDMA Read (RFC 5040 §5.2).
    Read,
    /// Send (RFC 5040 §5.3).
    Send,
}

impl Operation {
    /// Returns its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}

/// The connection between the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// A pair of ring ports in one process: buffers are handed over.
    Ring,
    /// Memory that two processes share: net_memif copies every frame into it, and out of it.
    Memif,
    /// A pair of ring ports of an `iwarpd` on the second CPU; a program on the first drives both ends.
    Daemon,
}

impl Link {
    /// Returns its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Memif => "memif",
            Self::Daemon => "daemon",
        }
    }

    /// Returns the most receive buffers that a queue pair may have: the device's limit in a daemon.
    pub(super) const fn receive_depth_max(self) -> u64 {
        match self {
            Self::Ring | Self::Memif => 8192,
            Self::Daemon => 4096,
        }
    }

    /// Returns the default MTUs, bytes.
    const fn default_mtus(self) -> &'static [u16] {
        match self {
            Self::Ring | Self::Daemon => &[1500, 9000],
            Self::Memif => &[1500],
        }
    }
}

/// Flags of the benchmarks of bandwidth and latency. Lists make one row for each combination.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Load {
    /// Bytes of a message.
    #[arg(short = 's', long, value_name = "BYTES,…", value_parser = size, value_delimiter = ',')]
    pub(super) size: Vec<u64>,
    /// All sizes from 64 bytes to 1 MiB.
    #[arg(short = 'a', long, conflicts_with = "size")]
    pub(super) all: bool,
    /// Messages; without this, as many as the time allows.
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(super) iters: Option<u64>,
    /// Seconds, after a fifth of that to warm up.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 2.0)]
    pub(super) duration: f64,
    /// Largest IP packet; without this 1500 and 9000, over memif 1500.
    #[arg(short = 'm', long, value_name = "BYTES,…", value_delimiter = ',')]
    mtu: Vec<u16>,
    /// Link between the two nodes: rings in one process, memif between this process and one that it starts, or rings of
    /// an iwarpd that it starts and whose application it is.
    #[arg(long, default_value = "ring")]
    pub(super) link: Link,
    /// MPA's CRC32c, on or off.
    #[arg(long, value_name = "ON|OFF,…", value_delimiter = ',', default_value = "on", value_parser = crc::parser())]
    #[serde(with = "crc::list")]
    pub(super) crc: Vec<CrcPolicy>,
    /// Size of the region on either side; messages cover all of it, again and again.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64M")]
    pub(super) region: u64,
    /// Packet buffers of either node.
    #[arg(long, default_value_t = 8191)]
    pub(super) packet_buffers: u32,
    /// Descriptors of the ring between the ports, per direction.
    #[arg(long, default_value_t = 256)]
    pub(super) descriptors: u16,
    /// TCP's send buffer and receive window: bytes in flight on a connection, at most.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "256k")]
    pub(super) window: u64,
    /// TCP's congestion control: newreno, cubic, dctcp or bbr.
    #[arg(long, default_value = "cubic")]
    pub(super) congestion: String,
    /// CPUs of initiator and target, pinned.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    pub(super) cores: Cores,
}

impl Load {
    /// Returns the message sizes, bytes; `default` if no flag names any.
    pub(super) fn sizes(&self, default: &[u64]) -> Vec<u64> {
        if self.all {
            ALL.map(|power| 1 << power).collect()
        } else if self.size.is_empty() {
            default.to_vec()
        } else {
            self.size.clone()
        }
    }

    /// Returns the MTUs, bytes; the link's default if no flag names any.
    pub(super) fn mtus(&self) -> &[u16] {
        if self.mtu.is_empty() { self.link.default_mtus() } else { &self.mtu }
    }

    /// Returns every combination of MTU, CRC and size, in this order.
    pub(super) fn rows(&self, default_sizes: &[u64]) -> Vec<(u16, CrcPolicy, u64)> {
        let sizes = self.sizes(default_sizes);
        let by_crc = |mtu: u16| self.crc.iter().map(move |crc| (mtu, *crc));
        let pairs = self.mtus().iter().flat_map(|mtu| by_crc(*mtu));
        pairs.flat_map(|(mtu, crc)| sizes.iter().map(move |size| (mtu, crc, *size))).collect()
    }
}
