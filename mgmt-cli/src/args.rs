//! The command line of iwarpctl.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum, ValueHint};
use ipnet::IpNet;
use iwarp_config::RegionName;
use iwarp_control::{bounds, parse_prefix};
use iwarp_remote::bench::Bench;
use iwarp_remote::{Remote, options};
use iwarp_terminal::{Color, Format, Output, examples};
use rdma::Access;

use crate::complete;

mod nfs;
mod observe;
mod serve;
mod view;

pub(crate) use nfs::{Nfs, NfsCommand};
pub(crate) use observe::{Capture, Log, Monitor};
pub(crate) use serve::{Content, Serve, Served};
pub(crate) use view::{ConnList, Drops, KEYS, Stats, Status, Tab, Top, View};

const EXAMPLES: &str = "\
Examples:
  iwarpctl status
  iwarpctl region register lab --size 64M --access remote-read,remote-write
  iwarpctl remote put image.raw 10.77.0.2:7400/lab
  iwarpctl -j conn list | jq '.[].remote'

Exit codes: 0 done, 1 refused or failed, 2 wrong command line, 3 not reachable, 4 no such object,
5 not permitted, 6 degraded (status, doctor).";

/// Controls iwarpd, the user-space iWARP daemon, and talks iWARP to any peer.
///
/// Commands can be shortened as long as they stay unique.
#[derive(Debug, Parser)]
#[command(name = "iwarpctl", version = version(), infer_subcommands = true, after_help = EXAMPLES)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Returns the version of this program and of the control messages.
pub(crate) fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| format!("{} (api {})", env!("CARGO_PKG_VERSION"), bounds::API));
    &VERSION
}

/// Options of every command.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// Write JSON, one line per result; errors go to stderr as JSON too.
    #[arg(short, long, global = true)]
    pub(crate) json: bool,
    /// Write JSON over several lines.
    #[arg(short, long, global = true)]
    pub(crate) pretty: bool,
    /// The control socket of the daemon.
    #[arg(short = 'S', long, global = true, value_name = "PATH", env = "IWARPCTL_SOCKET",
          default_value = bounds::DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Time limit for a silent daemon or peer, in seconds.
    #[arg(long, global = true, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Color the output; NO_COLOR is respected.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
}

impl Global {
    /// Returns the output that these options select.
    pub(crate) fn output(&self) -> Output {
        let format = match (self.json, self.pretty) {
            (_, true) => Format::JsonPretty,
            (true, false) => Format::Json,
            (false, false) => Format::Text,
        };
        Output::new(format, self.color)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows the daemon's state on one screen.
    Status(Status),
    /// Shows workers, ports, connections, regions and applications with their rates, live on a terminal.
    Top(Top),
    /// Poll-mode workers and their load.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl worker list", "iwarpctl worker list --watch"]
    )]
    Worker(Worker),
    /// Has the daemon read its configuration file again, and apply all of its changes or none.
    ///
    /// The log level, regions, listeners, limits, and modes, groups and users of the sockets can change. Grants that a
    /// region no longer permits are revoked. SIGHUP does the same.
    #[command(
        after_help = examples![
            "Exits with 1 if the file has mistakes or a change needs a restart: nothing has changed then.";
            "iwarpctl reload",
            "iwarpctl -j reload | jq -r '.changes[].object'",
        ]
    )]
    Reload,
    /// Stops the daemon when its connections have ended: no new ones are accepted, and idle ones are closed.
    ///
    /// Connections in use have the time of --timeout; those that are left then are reset. Another drain sets the time
    /// anew.
    #[command(
        after_help = examples![
            "Exits with 1 if connections were cut off; iwarpd then ends with 3 instead of 0.";
            "iwarpctl drain",
            "iwarpctl drain --timeout 60",
        ]
    )]
    Drain,
    /// Regions: memory that peers read and write by name.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl region list", "iwarpctl region show lab"]
    )]
    Region(Region),
    /// TCP connections and their RDMA streams.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl conn list", "iwarpctl conn show 17"]
    )]
    Conn(Conn),
    /// Applications: programs that use a port through shared memory.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl app list", "iwarpctl app show 3"]
    )]
    App(App),
    /// Queue pairs of applications.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl qp list", "iwarpctl -j qp list --app 3"]
    )]
    Qp(Objects),
    /// Completion queues of applications.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl cq list", "iwarpctl -j cq list --app 3"]
    )]
    Cq(Objects),
    /// Memory regions of applications.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl mr list", "iwarpctl -j mr list --app 3"]
    )]
    Mr(Objects),
    /// Ports and their counters.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl port list", "iwarpctl port stats p0"]
    )]
    Port(Port),
    /// Shows the daemon's counters by layer, and the load of its workers.
    Stats(Stats),
    /// Shows drops and refusals by reason.
    Drops(Drops),
    /// Shows the daemon's events as they happen: links, refusals, Terminates, regions, applications, drops.
    Monitor(Monitor),
    /// Captures frames of the daemon's ports, in the pcapng format.
    Capture(Capture),
    /// iwarp-nfsd, the server of NFS over RDMA: its state, exports, clients and counters.
    #[command(
        infer_subcommands = true,
        after_help = examples!["iwarpctl nfs status", "iwarpctl nfs exports", "iwarpctl nfs stats"]
    )]
    Nfs(Nfs),
    /// The daemon's log: its level.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl log level", "iwarpctl log level debug"]
    )]
    Log(Log),
    /// The configuration file of the daemon.
    #[command(
        subcommand,
        infer_subcommands = true,
        after_help = examples!["iwarpctl config check /etc/iwarpd/iwarpd.toml"]
    )]
    Config(Config),
    /// Compares the machine with a configuration, and names the remedy of everything that it finds.
    Doctor(Doctor),
    /// Speaks iWARP to a peer over this machine's own TCP; needs no daemon here.
    #[command(subcommand, infer_subcommands = true, after_help = options::EXAMPLES)]
    Remote(RemoteCommand),
    /// Serves files and memory as regions to peers, over this machine's own TCP, until Ctrl-C; needs no daemon here.
    Serve(Serve),
    /// Calls a method of the control socket and writes its reply as JSON.
    Call(Call),
    /// Writes a completion script for a shell. The script asks iwarpctl, and so completes regions, connections and
    /// ports of the running daemon, too.
    #[command(after_help = examples![
        "source <(iwarpctl completion bash)",
        "iwarpctl completion bash > /etc/bash_completion.d/iwarpctl",
    ])]
    Completion {
        /// The shell to write the script for.
        shell: clap_complete::Shell,
    },
    /// Shows the version of this program.
    #[command(after_help = examples!["iwarpctl version"])]
    Version,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    #[command(flatten)]
    Transfer(Remote),
    /// Measures bandwidth or latency (RDMA Write, RDMA Read), in the columns of perftest.
    Bench(Bench),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Worker {
    /// Lists all workers with their load and their counters.
    #[command(
        visible_alias = "ls",
        after_help = examples![
            "iwarpctl worker list",
            "iwarpctl -j worker list | jq '.[].busy_permille'",
        ]
    )]
    List(View),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Region {
    /// Creates a region and offers it to peers.
    #[command(visible_alias = "add")]
    Register(Register),
    /// Lists all regions, by name.
    #[command(
        visible_alias = "ls",
        after_help = examples!["iwarpctl region list", "iwarpctl -j region list | jq '.[].name'"]
    )]
    List(View),
    /// Shows one region and its grants.
    #[command(after_help = examples!["iwarpctl region show lab", "iwarpctl region show lab --watch"])]
    Show {
        /// The name of the region.
        #[arg(value_parser = region_name, add = complete::regions())]
        name: String,
        #[command(flatten)]
        view: View,
    },
    /// Revokes a region and frees its memory.
    #[command(
        visible_alias = "rm",
        after_help = examples![
            "iwarpctl region deregister lab",
            "iwarpctl region deregister lab --force",
        ]
    )]
    Deregister {
        /// The name of the region.
        #[arg(value_parser = region_name, add = complete::regions())]
        name: String,
        /// Revoke the grants of peers that use it; their next access ends their connections.
        #[arg(short, long)]
        force: bool,
    },
}

#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "iwarpctl region register lab --size 64M --access remote-read,remote-write",
    "iwarpctl region register logs --size 1G --access remote-write --token-file logs.token \\\n      \
     --allow 10.77.0.0/24 --allow fd77::/64",
])]
pub(crate) struct Register {
    /// The name that peers request: at most 63 bytes, without control or format characters.
    #[arg(value_parser = region_name)]
    pub(crate) name: String,
    /// The size in bytes, or with a unit of 1024: 64k, 64M, 1G.
    #[arg(short, long, value_parser = size)]
    pub(crate) size: u64,
    /// The rights of peers: remote-read, remote-write, remote-atomic, joined by commas.
    #[arg(short, long, required = true, value_delimiter = ',', value_name = "RIGHTS", value_parser = right,
          add = complete::rights())]
    pub(crate) access: Vec<Access>,
    /// A file with the token that peers must present: text or hex:…, at most 32 bytes.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Admit peers from this address or prefix only; may be given more than once.
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', value_parser = parse_prefix)]
    pub(crate) allow: Vec<IpNet>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Conn {
    /// Lists connections with their counters.
    #[command(visible_alias = "ls")]
    List(ConnList),
    /// Shows all properties of one connection.
    #[command(after_help = examples!["iwarpctl conn show 17"])]
    Show {
        /// The connection's number, as `conn list` gives it.
        #[arg(add = complete::conns())]
        id: u64,
        #[command(flatten)]
        view: View,
    },
    /// Resets connections and revokes their grants: one, those of a peer, or those of a listener.
    #[command(
        group = clap::ArgGroup::new("which").required(true),
        after_help = examples![
            "Exits with 4 if there is no such connection.";
            "iwarpctl conn close 17",
            "iwarpctl conn close --peer 10.77.0.99",
            "iwarpctl conn close --peer fd77:0:0:1::/64",
            "iwarpctl -j conn close --listener 7 | jq .count",
        ]
    )]
    Close {
        /// The connection's number, as `conn list` gives it.
        #[arg(group = "which", add = complete::conns())]
        id: Option<u64>,
        /// Every connection from an address, or from a prefix.
        #[arg(long, group = "which", value_name = "PREFIX", value_parser = parse_prefix)]
        peer: Option<IpNet>,
        /// Every connection that the listener on a TCP port accepted.
        #[arg(long, group = "which", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
        listener: Option<u16>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum App {
    /// Lists all applications with their counters.
    #[command(
        visible_alias = "ls",
        after_help = examples![
            "iwarpctl app list",
            "iwarpctl -j app list | jq '.[] | select(.errors > 0)'",
        ]
    )]
    List(View),
    /// Shows all properties of one application.
    #[command(
        after_help = examples![
            "Exits with 4 if there is no such application.";
            "iwarpctl app show 3",
        ]
    )]
    Show {
        /// The application's number, as `app list` gives it.
        id: u32,
        #[command(flatten)]
        view: View,
    },
    /// Lists the users that have applications, with what they have of each limit and its key.
    #[command(
        after_help = examples![
            "iwarpctl app users",
            "iwarpctl -j app users | jq '.[] | select(.uid == 1000)'",
        ]
    )]
    Users(View),
}

/// Commands about one kind of objects of applications.
#[derive(Debug, Subcommand)]
pub(crate) enum Objects {
    /// Lists them, by application.
    #[command(
        visible_alias = "ls",
        after_help = examples![
            "Exits with 4 if there is no such application.";
            "iwarpctl qp list",
            "iwarpctl cq list --app 3",
            "iwarpctl -j mr list | jq 'map(.bytes) | add'",
        ]
    )]
    List {
        /// Only those of this application, by its number.
        #[arg(long, value_name = "ID")]
        app: Option<u32>,
        #[command(flatten)]
        view: View,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Port {
    /// Lists all ports with their counters.
    #[command(
        visible_alias = "ls",
        after_help = examples!["iwarpctl port list", "iwarpctl port list --watch --interval 5"]
    )]
    List(View),
    /// Shows one port in detail: device, offloads, queues, interrupts, and how its link has changed.
    #[command(after_help = examples!["iwarpctl port show p0"])]
    Show {
        /// The port's name in the configuration.
        #[arg(add = complete::ports())]
        name: String,
        #[command(flatten)]
        view: View,
    },
    /// Shows the counters of the ports' hardware and drivers.
    #[command(after_help = examples!["iwarpctl port stats", "iwarpctl port stats p0 --nonzero"])]
    Stats {
        /// One port; without, all of them.
        #[arg(add = complete::ports())]
        name: Option<String>,
        /// Leave out counters that are zero.
        #[arg(short, long)]
        nonzero: bool,
        #[command(flatten)]
        view: View,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Checks a configuration file and says what memory it takes; needs no daemon.
    #[command(after_help = examples![
        "iwarpctl config check /etc/iwarpd/iwarpd.toml",
        "iwarpctl config check --machine --format short /etc/iwarpd/iwarpd.toml",
    ])]
    Check {
        /// The configuration file to check.
        file: PathBuf,
        /// Check it against this machine too, as iwarpd does when it starts: cores, interfaces, groups, hugepages.
        #[arg(short, long)]
        machine: bool,
        /// The format of mistakes.
        #[arg(short, long, value_enum, default_value_t = Mistakes::Full)]
        format: Mistakes,
    },
    /// Raises the machine's pool of hugepages to what a configuration takes, as iwarpd's unit does before each start.
    ///
    /// Pages that are free already count, and those of the daemon that runs. The pool is never lowered.
    #[command(after_help = examples![
        "Exits with 1 if the machine does not give as many.";
        "iwarpctl config reserve /etc/iwarpd/iwarpd.toml",
    ])]
    Reserve {
        /// The configuration file to reserve for.
        file: PathBuf,
        /// Use the pool of the machine whose /sys lies below this folder; no daemon is asked then.
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        root: Option<PathBuf>,
    },
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = examples![
        "Reads the machine before or while the daemon runs, and changes nothing. Exits with 0 if all is \
         well, with 6 if there are\nwarnings, and with 1 if the daemon would not start.";
        "iwarpctl doctor",
        "iwarpctl doctor pci.toml --all",
        "iwarpctl -j doctor | jq '.findings[] | select(.level != \"ok\")'",
    ]
)]
pub(crate) struct Doctor {
    /// The configuration file to compare with.
    #[arg(default_value = "/etc/iwarpd/iwarpd.toml", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Show what is well, too; JSON always has it.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Examine the machine whose /sys, /proc, /etc and /usr lie below this folder; no daemon is asked then.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) root: Option<PathBuf>,
}

/// The format of mistakes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mistakes {
    /// The line of the file, the allowed values, and the action that helps.
    Full,
    /// One line each: file:line:column: message.
    Short,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = examples![
        "iwarpctl call status",
        "iwarpctl call region.show '{\"name\":\"lab\"}'",
        "iwarpctl call region.register - < region.json",
    ]
)]
pub(crate) struct Call {
    /// The name of the method.
    #[arg(add = complete::methods())]
    pub(crate) method: String,
    /// The parameters, a JSON object; `-` reads it from stdin.
    #[arg(default_value = "{}", action = ArgAction::Set)]
    pub(crate) params: String,
}

fn region_name(text: &str) -> Result<String, String> {
    RegionName::new(text).map(|name| name.as_str().to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    match iwarp_config::parse_size(text)? {
        0 => Err("a size must not be 0".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses a right that a region can grant.
fn right(text: &str) -> Result<Access, String> {
    let [first, second, last] = Access::REGION_NAMES;
    Access::from_region_name(text)
        .ok_or_else(|| format!("not a right; the rights are {first}, {second} and {last}"))
}

/// Parses seconds: from a millisecond to a day.
fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| (Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(duration))
        .ok_or_else(|| "write seconds from 0.001 to 86400".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Returns the examples in the help of a command and its subcommands, one line each.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (_, shown) = help.split_once("Examples:\n").unwrap_or_default();
        let whole = shown.replace("\\\n", " ");
        let own =
            whole.lines().filter(|line| line.trim_start().starts_with("iwarpctl ")).map(ToOwned::to_owned);
        own.chain(command.get_subcommands().flat_map(examples)).collect()
    }

    #[test]
    fn every_example_is_a_right_command_line() {
        let mut command = Args::command();
        command.build();
        let examples = examples(&command);
        assert!(examples.len() > 30, "{}", examples.len());
        for example in examples {
            let ours = example.split(['|', '>', '<']).next().unwrap_or_default();
            // Every second part is between quotes: one word.
            let parts = ours.split('\'').enumerate();
            let words =
                parts.flat_map(
                    |(at, part)| {
                        if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }
                    },
                );
            if let Err(error) = Args::try_parse_from(words) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
