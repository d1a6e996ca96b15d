//! Command-line options of `bench`.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use iwarp_config::parse_size;
use iwarp_terminal::examples;

use crate::options::{ConnectOptions, Target};

/// The largest message, in bytes; `--all` ends there.
pub(super) const SIZE_MAX: u32 = 8 << 20;
/// The smallest message of `--all`, in bytes.
const ALL_FROM: u32 = 2;
/// The longest measurement of one size.
const DURATION_MAX_S: f64 = 86_400.0;

/// Measures bandwidth or latency (RDMA Write, RDMA Read), in the columns of perftest.
#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "`write` overwrites the region. Its rate counts the time until an RDMA Read has proved the \
     placement of all messages.\nBW peak is the highest rate of any 100 ms, BW average that of the \
     whole measurement; 1 MB/s is 1,000,000 bytes/s.\nt_typical is the median. #iterations is the sum \
     over all connections.";
    "iwarpctl remote bench write 10.77.0.2:7400/lab --size 64k --duration 10",
    "iwarpctl remote bench read '[fd77::2]:7400/lab' --all --depth 16 --connections 4",
    "iwarpctl -j remote bench latency 10.77.0.2:7400/lab --size 8,4k -n 10000 | jq '.rows[].p99_ns'",
])]
pub struct Bench {
    /// The operation to measure.
    pub operation: Operation,
    /// The region to write or read: HOST:PORT/REGION[+OFFSET].
    pub target: Target,
    /// Bytes of a message, from 1 to 8M; several sizes are joined by commas. Default: 64k, and 8 for latency.
    #[arg(short, long, value_delimiter = ',', value_parser = message_size, conflicts_with = "all")]
    pub size: Vec<u32>,
    /// Measure every power of two from 2 to 8M that fits the region.
    #[arg(short, long)]
    pub all: bool,
    /// Outstanding messages of each connection; RDMA Reads are limited by the peer, too. Default: 16. Not for latency.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub depth: Option<u16>,
    /// Connections at the same time.
    #[arg(short = 'q', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// Messages of each connection and size.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000, conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: u64,
    /// Measure each size for this time instead, in seconds.
    #[arg(short = 'D', long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Options of the connections.
    #[command(flatten)]
    pub connect: ConnectOptions,
}

/// The operation that `bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Bandwidth of RDMA Writes.
    Write,
    /// Bandwidth of RDMA Reads.
    Read,
    /// Round trips of RDMA Reads, one at a time.
    Latency,
}

impl Operation {
    /// Returns the name on the command line and in a report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Latency => "latency",
        }
    }
}

impl Bench {
    /// Returns the sizes to measure, of which a region with `room` bytes from the offset holds all those of `--all`.
    pub(super) fn sizes(&self, room: u64) -> Vec<u32> {
        if self.all {
            let sizes = std::iter::successors(Some(ALL_FROM), |size| size.checked_mul(2));
            return sizes.take_while(|size| *size <= SIZE_MAX && u64::from(*size) <= room).collect();
        }
        match (self.size.is_empty(), self.operation) {
            (false, _) => self.size.clone(),
            (true, Operation::Latency) => vec![8],
            (true, Operation::Write | Operation::Read) => vec![64 << 10],
        }
    }
}

fn message_size(text: &str) -> Result<u32, String> {
    u32::try_from(parse_size(text)?)
        .ok()
        .filter(|size| (1..=SIZE_MAX).contains(size))
        .ok_or_else(|| "a message has from 1 byte to 8M".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= DURATION_MAX_S);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "write seconds, more than 0 and at most 86400".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_sizes() {
        assert_eq!((message_size("1"), message_size("8M")), (Ok(1), Ok(SIZE_MAX)));
        for wrong in ["0", "8388609", "x", ""] {
            assert!(message_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "inf", "86401", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
