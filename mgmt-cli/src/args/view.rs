//! Commands that show the daemon's state, and how often and how wide they show it.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args as ClapArgs, ValueEnum};
use ipnet::IpNet;
use iwarp_control::{ConnInfo, parse_prefix};
use iwarp_terminal::examples;

use super::{region_name, seconds};
use crate::complete;

/// Options of every command that shows the daemon's state.
#[derive(Debug, ClapArgs)]
pub(crate) struct View {
    /// Show it again and again. A terminal is redrawn in place; a file or a pipe gets one report after the other.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// The pause between two reports in seconds; 1 by default.
    #[arg(short, long, value_name = "SECS", requires = "watch", value_parser = seconds)]
    pub(crate) interval: Option<Duration>,
    /// Stop after this number of reports.
    #[arg(short, long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Show every column and whole lines, although the terminal is too narrow.
    #[arg(long)]
    pub(crate) wide: bool,
}

/// The pause between two reports unless the command line has another one.
const INTERVAL: Duration = Duration::from_secs(1);

impl View {
    /// Returns the pause between two reports; `None` if one is wanted.
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.watch.then(|| self.interval.unwrap_or(INTERVAL))
    }
}

/// Time that `--wait` waits unless the command line has another one, in seconds.
const WAIT: &str = "60";

#[derive(Debug, ClapArgs)]
#[command(
    after_help = examples![
        "Exits with 6 if the daemon is degraded. The control socket exists before the daemon serves: a \
         script that has started\nit uses --wait, which exits with 3 if the daemon does not serve in time.";
        "iwarpctl status",
        "iwarpctl status --wait 30",
        "iwarpctl status --watch",
        "iwarpctl -j status | jq .state",
    ]
)]
pub(crate) struct Status {
    /// Wait until the daemon serves, at most this many seconds; 60 without a number.
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = WAIT, value_parser = seconds)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) view: View,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "A connection is listed if it meets every condition that is given.";
    "iwarpctl conn list",
    "iwarpctl conn list --state established --peer 10.77.0.0/24",
    "iwarpctl conn list --region lab --oneline",
    "iwarpctl conn list --app 3 --watch",
    "iwarpctl -j conn list | jq '.[] | select(.retransmits > 0)'",
])]
pub(crate) struct ConnList {
    /// Only connections in these states, joined by commas.
    #[arg(long, value_delimiter = ',', ignore_case = true, value_parser = PossibleValuesParser::new(STATES))]
    pub(crate) state: Vec<String>,
    /// Only connections from an address, or from a prefix.
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    pub(crate) peer: Option<IpNet>,
    /// Only connections with a grant of this region.
    #[arg(long, value_name = "NAME", value_parser = region_name, add = complete::regions())]
    pub(crate) region: Option<String>,
    /// Only connections of this application, by its number.
    #[arg(long, value_name = "ID")]
    pub(crate) app: Option<u32>,
    /// Write one line for each connection: every property as a pair of key and value.
    #[arg(short, long)]
    pub(crate) oneline: bool,
    #[command(flatten)]
    pub(crate) view: View,
}

/// The states of a connection that `conn list` can show (RFC 9293 §3.3.2); one in TIME-WAIT is no longer listed.
const STATES: [&str; 8] = [
    "SYN-SENT",
    "SYN-RECEIVED",
    "ESTABLISHED",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "CLOSE-WAIT",
    "CLOSING",
    "LAST-ACK",
];

impl ConnList {
    /// Returns true if a connection meets every condition.
    pub(crate) fn admits(&self, conn: &ConnInfo) -> bool {
        let region = || conn.rdma.as_ref().and_then(|rdma| rdma.region.as_ref());
        (self.state.is_empty() || self.state.iter().any(|state| state.eq_ignore_ascii_case(&conn.state)))
            && self.peer.is_none_or(|prefix| prefix.contains(&conn.remote.ip()))
            && self.region.as_ref().is_none_or(|wanted| region() == Some(wanted))
            && self.app.is_none_or(|wanted| conn.app == Some(wanted))
    }
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = examples![
        "With --watch come changes per second. In JSON each report is a line with the time by RFC 3339 \
         (time), in milliseconds\nsince 1970 (time_ms), the milliseconds since the line before \
         (elapsed_ms), and per_second for each counter.";
        "iwarpctl stats",
        "iwarpctl stats tcp rdmap --nonzero",
        "iwarpctl stats --watch --interval 2",
        "iwarpctl -j stats --watch --count 10",
    ]
)]
pub(crate) struct Stats {
    /// Only these groups, by the names that `iwarpctl stats` and `iwarpctl drops` show, e.g. tcp or rdmap.
    #[arg(value_name = "GROUP", add = complete::groups())]
    pub(crate) groups: Vec<String>,
    /// Leave out counters that are zero.
    #[arg(short, long)]
    pub(crate) nonzero: bool,
    /// Explain each counter, and give its name in Linux's iWARP drivers.
    #[arg(short, long)]
    pub(crate) details: bool,
    #[command(flatten)]
    pub(crate) view: View,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "Text leaves out reasons that never occurred; JSON has them all.";
    "iwarpctl drops",
    "iwarpctl drops --all",
    "iwarpctl -j drops | jq 'map(.count) | add'",
])]
pub(crate) struct Drops {
    /// Show the reasons that never occurred too.
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) view: View,
}

/// The keys of `top`, for its help and its manual page.
pub(crate) const KEYS: &str = "  1-5, Tab, Shift-Tab  workers, ports, connections, regions, applications
  s, S, Right, Left    sort by the next column, by the one before
  r                    reverse the order
  /                    filter: rows that contain a text; Esc clears it
  Up, Down, PgUp, PgDn scroll; Home and End, or j, k, g, G, too
  +, -                 sample more often, less often
  p, Space             pause, and go on
  ?, h, F1             help
  Ctrl-L, Ctrl-Z       draw the screen anew, suspend
  q, Ctrl-C            quit";

const TOP_EXAMPLES: &str = "\
Needs a terminal. For a file or a pipe: `iwarpctl stats --watch`.

Examples:
  iwarpctl top
  iwarpctl top ports --interval 2
  iwarpctl top connections --filter 10.77.0.99";

#[derive(Debug, ClapArgs)]
#[command(after_help = format!("Keys:\n{KEYS}\n\n{TOP_EXAMPLES}"))]
pub(crate) struct Top {
    /// The table to begin with.
    #[arg(value_enum, default_value_t = Tab::Connections)]
    pub(crate) table: Tab,
    /// The pause between two samples in seconds.
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Show only rows that contain this text, in any column and in any case.
    #[arg(short, long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
}

/// A table of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Tab {
    /// Poll-mode workers with their load.
    Workers,
    /// Ports with the traffic on their links.
    Ports,
    /// TCP connections with their rates.
    Connections,
    /// Regions with the rates of peers.
    Regions,
    /// Applications with their work requests.
    Applications,
}
