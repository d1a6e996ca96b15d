//! Commands that watch the daemon: its events, its log, its frames.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand, ValueEnum, ValueHint};
use iwarp_control::{EventRecord, Filter, LogLevel};
use iwarp_terminal::examples;

use super::{seconds, size};
use crate::complete;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = examples![
        "Ends with the daemon, or by Ctrl-C. A monitor that does not read loses events; an event says how \
         many.";
        "iwarpctl monitor",
        "iwarpctl monitor --recent --event grant_refused,terminate_sent",
        "iwarpctl -j monitor | jq -c 'select(.level == \"error\")'",
    ]
)]
pub(crate) struct Monitor {
    /// Begin with the latest events before this command, at most 256.
    #[arg(short, long)]
    pub(crate) recent: bool,
    /// Only these events, joined by commas.
    #[arg(short, long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) event: Vec<String>,
    /// Only events of this severity and above.
    #[arg(short, long, value_enum, default_value_t = Level::Info)]
    pub(crate) level: Level,
    /// Stop after this number of events.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Stop after this time in seconds.
    #[arg(short, long, value_name = "SECS", value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
}

impl Monitor {
    /// Returns true if an event meets every condition.
    pub(crate) fn admits(&self, event: &EventRecord) -> bool {
        let named = self.event.is_empty() || self.event.contains(&event.event);
        named && Level::from_str(&event.level, true).is_ok_and(|level| level <= self.level)
    }
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = examples![
        "A filter is a list of tests that must all hold, joined by `and` or not; `not` before a test \
         negates it:\n  host, src, dst ADDRESS or PREFIX   port, sport, dport NUMBER   flags \
         syn,fin,rst,psh,ack,urg,ece,cwr\n  arp ip ip6 tcp udp icmp icmp6   in (received) out (sent)\n\n\
         Ends with the daemon, or by Ctrl-C; the file is whole then, too. Frames between two addresses of \
         one port\nare on no wire, and not captured. Checksums of sent frames may be the card's to fill \
         in.";
        "iwarpctl capture - | tshark -r -",
        "iwarpctl capture --filter 'tcp port 7400 not host 10.77.0.9' trace.pcapng",
        "iwarpctl capture --conn 17 --snap 128 --seconds 10 trace.pcapng",
    ]
)]
pub(crate) struct Capture {
    /// The file to write, or - for stdout.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Only frames of this port.
    #[arg(short = 'P', long, add = complete::ports())]
    pub(crate) port: Option<String>,
    /// Only the segments of this connection, by its number.
    #[arg(long, value_name = "ID", add = complete::conns())]
    pub(crate) conn: Option<u64>,
    /// Only frames that meet this expression.
    #[arg(short, long, value_name = "EXPRESSION", default_value = "", hide_default_value = true)]
    pub(crate) filter: Filter,
    /// The most bytes of a frame that are captured: 14 to 65535.
    #[arg(short, long, value_name = "BYTES", default_value = "65535",
          value_parser = clap::value_parser!(u32).range(14..=65_535))]
    pub(crate) snap: u32,
    /// The daemon's memory for the capture: 64k to 64M.
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = size)]
    pub(crate) buffer: u64,
    /// The most bytes per second that are captured: 64k to 1G. Frames beyond are dropped and counted.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub(crate) rate: u64,
    /// Stop after this number of frames.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Stop after this time in seconds.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Log {
    /// Shows the level of the log, or sets it until the daemon ends.
    #[command(after_help = examples!["iwarpctl log level", "iwarpctl log level debug"])]
    Level {
        /// The least severe level that is written.
        level: Option<Level>,
    },
}

/// A severity, from the least detailed to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Level {
    /// Failures of an operation or of the daemon.
    Error,
    /// Conditions that may lead to a failure.
    Warn,
    /// Normal events of interest.
    Info,
    /// Details for diagnosing a problem.
    Debug,
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::Error,
            Level::Warn => Self::Warn,
            Level::Info => Self::Info,
            Level::Debug => Self::Debug,
        }
    }
}
