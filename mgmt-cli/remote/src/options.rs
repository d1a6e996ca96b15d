//! Command-line options of `put`, `get` and `ping`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand, ValueHint};
use iwarp_config::parse_size;
use iwarp_terminal::examples;
use iwarp_verbs::{CrcPolicy, RegionTarget, RemoteError};

/// Examples of the `remote` commands, for the help text.
pub const EXAMPLES: &str = "\
A peer's region is written HOST:PORT/REGION or HOST:PORT/REGION+OFFSET. An IPv6 address stands in brackets, and :7400
may be left out.
Where the name itself ends with + and a size, as `x+4k`, the offset must be there: HOST:PORT/x+4k+0.

Examples:
  iwarpctl remote put image.raw 10.77.0.2:7400/lab
  iwarpctl remote get 10.77.0.2:7400/lab+4k part.raw --length 1M
  iwarpctl remote ping '[fd77::2]:7400/lab'
  iwarpctl remote bench write 10.77.0.2:7400/lab --size 64k --duration 10";

/// A command on a peer's region.
#[derive(Debug, Subcommand)]
pub enum Remote {
    /// Writes files into a peer's region (RDMA Write), and proves that they were placed (RDMA Read).
    Put(Put),
    /// Reads a peer's region into files (RDMA Read).
    Get(Get),
    /// Measures round trips (RDMA Read).
    Ping(Ping),
}

/// Writes files into a peer's region (RDMA Write), and proves that they were placed (RDMA Read).
#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "iwarpctl remote put image.raw 10.77.0.2:7400/lab",
    "iwarpctl remote put part.raw 10.77.0.2:7400/lab+1M --token-file lab.token",
    "iwarpctl remote put a.raw b.raw c.raw 10.77.0.2:7400/lab --resume",
    "tar c photos | iwarpctl remote put - 10.77.0.2:7400/lab",
])]
pub struct Put {
    /// The files to write, one behind the other. The last one may be a pipe; `-` is stdin.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// The destination, as HOST:PORT/REGION[+OFFSET].
    pub target: Target,
    /// Send this number as Immediate Data behind the last file, for a program that watches the region.
    #[arg(long, value_name = "NUMBER", value_parser = immediate)]
    pub immediate: Option<u64>,
    /// Read the region back and compare; the region must allow reading too. Not for a pipe.
    #[arg(long)]
    pub verify: bool,
    /// Options of a repetition.
    #[command(flatten)]
    pub resume: Resume,
    /// Options of the connection.
    #[command(flatten)]
    pub connect: ConnectOptions,
}

/// Reads a peer's region into files (RDMA Read).
#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "The files appear when all of them are whole, or not at all.";
    "iwarpctl remote get 10.77.0.2:7400/lab copy.raw --length 64M",
    "iwarpctl remote get 10.77.0.2:7400/lab a.raw b.raw --length 1M,4k --resume",
    "iwarpctl remote get '[fd77::2]:7400/lab+1M' part.raw --length 4k",
])]
pub struct Get {
    /// The source, as HOST:PORT/REGION[+OFFSET].
    pub target: Target,
    /// The files to write, from one place behind the other; `-` is stdout, and then no report is written.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// The length of each file, joined by commas: in bytes, or with a unit of 1024 as in 64k, 64M, 1G. Default of the
    /// last one: up to the region's end.
    #[arg(short, long, value_delimiter = ',', value_parser = parse_size)]
    pub length: Vec<u64>,
    /// Options of a repetition.
    #[command(flatten)]
    pub resume: Resume,
    /// Options of the connection.
    #[command(flatten)]
    pub connect: ConnectOptions,
}

/// Measures round trips (RDMA Read).
#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "iwarpctl remote ping 10.77.0.2:7400/lab",
    "iwarpctl remote ping 10.77.0.2:7400/lab -c 10000 --size 4k",
])]
pub struct Ping {
    /// The region to read: HOST:PORT/REGION[+OFFSET].
    pub target: Target,
    /// The number of round trips.
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Bytes of each RDMA Read, at most 1M.
    #[arg(short, long, default_value = "8", value_parser = ping_size)]
    pub size: u32,
    /// Options of the connection.
    #[command(flatten)]
    pub connect: ConnectOptions,
}

/// Options of a repetition.
#[derive(Debug, ClapArgs)]
pub struct Resume {
    /// When the connection breaks, connect again and continue behind the last byte that is known to be complete. Not
    /// for a pipe.
    #[arg(long)]
    pub resume: bool,
    /// With --resume: attempts in a row that may complete nothing. The pause before them doubles from 0.2 s to 10 s.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "resume",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub retries: u32,
}

/// Options of the connection to a peer.
#[derive(Debug, ClapArgs)]
pub struct ConnectOptions {
    /// A file with the region's token: text or hex:…, at most 32 bytes.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// CRC32c over every FPDU; off only if the peer agrees.
    #[arg(long, default_value = "on", value_parser = crc_policy())]
    pub crc: CrcPolicy,
    /// The MPA revision to request.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub mpa_revision: u8,
}

/// Returns clap's parser of a CRC policy: `on` or `off`.
pub fn crc_policy() -> impl TypedValueParser<Value = CrcPolicy> {
    let value = |(name, policy)| {
        PossibleValue::new(name).help(match policy {
            CrcPolicy::Required => "Require a CRC in every FPDU",
            CrcPolicy::IfPeerAsks => "Send no CRC if the peer agrees",
        })
    };
    PossibleValuesParser::new(CrcPolicy::NAMES.map(value))
        .try_map(|name| CrcPolicy::from_name(&name).ok_or("neither `on` nor `off`"))
}

/// A peer, its region, and an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The peer and the region.
    pub region: RegionTarget,
    /// Bytes from the start of the region.
    pub offset: u64,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The name of a region may contain a plus sign: only a size behind the last one is an offset.
        let name = text.find('/').unwrap_or(0);
        let split = text.rfind('+').filter(|plus| *plus > name).and_then(|plus| {
            let (region, size) = (text.get(..plus)?, text.get(plus.saturating_add(1)..)?);
            Some((region, parse_size(size).ok()?))
        });
        let (region, offset) = split.unwrap_or((text, 0));
        let region = region.parse().map_err(|error| match error {
            RemoteError::Target { reason, .. } => reason,
            other => other.to_string(),
        })?;
        Ok(Self { region, offset })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}

/// The largest RDMA Read of `ping`, in bytes.
const PING_SIZE_MAX: u32 = 1 << 20;

/// Parses a number of 64 bits, decimal or hexadecimal.
fn immediate(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    // A sign is not a digit, but from_str_radix takes it.
    let number = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
    number.ok_or_else(|| {
        "write a number from 0 to 18446744073709551615, or 0x and hexadecimal digits".to_owned()
    })
}

fn ping_size(text: &str) -> Result<u32, String> {
    u32::try_from(parse_size(text)?)
        .ok()
        .filter(|size| *size <= PING_SIZE_MAX)
        .ok_or_else(|| "at most 1M is read each time".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16, name: &str, offset: u64) -> Target {
        Target { region: RegionTarget { host: host.to_owned(), port, name: name.to_owned() }, offset }
    }

    #[test]
    fn targets() {
        for (text, expected) in [
            ("10.77.0.2:7400/lab", target("10.77.0.2", 7400, "lab", 0)),
            ("[fd77::2]:7400/lab+4k", target("fd77::2", 7400, "lab", 4096)),
            ("peer.example:1/a/b+0x10", target("peer.example", 1, "a/b", 16)),
            ("h:1/c++", target("h", 1, "c++", 0)),
            ("h/lab+1", target("h", 7400, "lab", 1)),
            ("[fd77::2]/lab", target("fd77::2", 7400, "lab", 0)),
            ("h:1/c+1+0", target("h", 1, "c+1", 0)),
        ] {
            assert_eq!(text.parse::<Target>().unwrap(), expected, "{text}");
        }
        assert_eq!(target("fd77::2", 7400, "lab", 1).to_string(), "[fd77::2]:7400/lab");
    }

    #[test]
    fn wrong_targets_are_explained() {
        for (text, reason) in [
            ("10.77.0.2:7400", "HOST:PORT/NAME"),
            ("10.77.0.2:0/lab", "from 1 to 65535"),
            ("10.77.0.2:65536/lab", "from 1 to 65535"),
            (":7400/lab", "host is missing"),
            ("fd77::2:7400/lab", "brackets"),
            ("h:1/", "empty"),
        ] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn immediate_numbers() {
        for (text, number) in [("0", 0), ("7", 7), ("0x1f", 31), ("18446744073709551615", u64::MAX)] {
            assert_eq!(immediate(text), Ok(number), "{text}");
        }
        for text in ["", "-1", "x", "0x", "0x+1", "+1", "18446744073709551616", "1k"] {
            assert!(immediate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ping_sizes() {
        assert_eq!(ping_size("1M"), Ok(1 << 20));
        assert!(ping_size("1048577").is_err());
    }
}
