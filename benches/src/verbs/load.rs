//! The flags that RDMA benchmarks share; perftest's, where it has them.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::Link;
use crate::{Cores, size};

/// Sizes of `-a`: powers of two from 64 bytes to 1 MiB.
const ALL: std::ops::RangeInclusive<u32> = 6..=20;

/// Whether MPA's CRC32c is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crc {
    /// As peers get it.
    On,
    /// Both sides agree to do without.
    Off,
}

impl Crc {
    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// What is common to the benchmarks of bandwidth and latency. Lists make one row for each combination.
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
    /// What joins the two: rings of one process, or memif between this and one that it starts.
    #[arg(long, default_value = "ring")]
    pub(super) link: Link,
    /// MPA's CRC32c.
    #[arg(long, value_name = "ON|OFF,…", value_delimiter = ',', default_value = "on")]
    pub(super) crc: Vec<Crc>,
    /// Size of the region on either side, all of which is gone through.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64M")]
    pub(super) region: u64,
    /// Packet buffers of either side.
    #[arg(long, default_value_t = 8191)]
    pub(super) packet_buffers: u32,
    /// Descriptors of the ring between the ports, per direction.
    #[arg(long, default_value_t = 256)]
    pub(super) descriptors: u16,
    /// Bytes that TCP may have under way on a connection: its send buffer and its receive window.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "256k")]
    pub(super) window: u64,
    /// CPUs: initiator, target.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    pub(super) cores: Cores,
}

impl Load {
    /// The message sizes, or what the benchmark is usually run with.
    pub(super) fn sizes(&self, usual: &[u64]) -> Vec<u64> {
        if self.all {
            ALL.map(|power| 1 << power).collect()
        } else if self.size.is_empty() {
            usual.to_vec()
        } else {
            self.size.clone()
        }
    }

    /// The MTUs, or those that the link is usually measured with.
    pub(super) fn mtus(&self) -> &[u16] {
        if self.mtu.is_empty() { self.link.usual_mtus() } else { &self.mtu }
    }

    /// Every combination of MTU, CRC and size, in this order.
    pub(super) fn rows(&self, usual: &[u64]) -> Vec<(u16, Crc, u64)> {
        let sizes = self.sizes(usual);
        let by_crc = |mtu: u16| self.crc.iter().map(move |crc| (mtu, *crc));
        let pairs = self.mtus().iter().flat_map(|mtu| by_crc(*mtu));
        pairs.flat_map(|(mtu, crc)| sizes.iter().map(move |size| (mtu, crc, *size))).collect()
    }
}
