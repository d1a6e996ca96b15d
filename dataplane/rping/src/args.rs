//! Command line of `iwarp-rping`, parsed by `main`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::{PORT, SIZE_MAX, SIZE_MIN};
use clap::{ArgAction, ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use iwarp_remote::{Get, Ping, Put, crc_policy};
use rdma::CrcPolicy;
use rdma::wire::mpa::RtrOptions;

use crate::device::PortArgs;

const EXAMPLES: &str = "\
Examples:
  iwarp-rping -s -V --driver tap --interface iw0 --address 10.77.0.2/24
  iwarp-rping -c -a 10.77.0.2 -V -C 1000 -S 4k --driver tap --interface iw1 --address 10.77.0.3/24
  iwarp-rping -s -P --config rping.toml
  iwarp-rping -s -P --daemon /run/iwarpd/verbs.sock
  iwarp-rping put image.raw 10.77.0.2:7400/lab --config rping.toml

The peer may be rdma-core's rping. Exit codes: 0 done, 1 failed, 2 wrong command line or configuration.";

/// rping over Ironwarp: a client's texts go to a server and back, by RDMA Read and RDMA Write.
///
/// The program is its own dataplane, which owns a DPDK port with an address of its own, or an application of iwarpd.
#[derive(Debug, Parser)]
#[command(name = "iwarp-rping", version, disable_version_flag = true, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(group = ArgGroup::new("role").args(["server", "client"]).required(true))]
#[command(group = ArgGroup::new("device").args(["daemon", "config", "driver"]).required(true))]
pub struct Args {
    /// An operation on a region, in place of rping.
    #[command(subcommand)]
    pub region: Option<Region>,
    /// Run as the server.
    #[arg(short, long)]
    pub server: bool,
    /// Run as the client.
    #[arg(short, long, requires = "address")]
    pub client: bool,
    /// Client: the server's address or name. Server: which address of the port to listen on.
    #[arg(short, long = "peer", value_name = "ADDRESS", id = "address")]
    pub address: Option<String>,
    /// Client: source address of the connection.
    #[arg(short = 'I', long, value_name = "ADDRESS", conflicts_with = "server")]
    pub source: Option<IpAddr>,
    /// TCP port of the server.
    #[arg(short, long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Number of rounds; default: until interrupted.
    #[arg(short = 'C', long, default_value_t = 0, hide_default_value = true, conflicts_with = "server")]
    pub count: u64,
    /// Bytes of a text, or with a unit of 1024. Client: default 64. Server: longest text accepted, default 1M.
    #[arg(short = 'S', long, value_parser = size)]
    pub size: Option<u32>,
    /// Print the ping data.
    #[arg(short, long)]
    pub verbose: bool,
    /// Client: compare the returned data. Server: check that the data read is a text of rping.
    #[arg(short = 'V', long)]
    pub validate: bool,
    /// Server: serve further clients after one has ended, several at a time.
    #[arg(short = 'P', long, conflicts_with = "client")]
    pub persistent: bool,
    /// Server with -P: most clients at the same time.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=60))]
    pub clients: u16,
    /// Print every event to stderr.
    #[arg(short, long)]
    pub debug: bool,
    /// Longest silence of the peer, seconds; 0: unlimited.
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub timeout: Duration,
    /// Print the statistics as JSON.
    #[arg(short, long)]
    pub json: bool,
    /// Parameters of the MPA negotiation.
    #[command(flatten)]
    pub mpa: Mpa,
    /// Use the device of a daemon, through its verbs socket. The daemon's configuration has the CRC and the markers.
    #[arg(long, value_name = "SOCKET", help_heading = "Port", conflicts_with_all = ["crc", "markers", "rtr"])]
    pub daemon: Option<PathBuf>,
    /// The port that the program owns.
    #[command(flatten)]
    pub port_args: PortArgs,
    /// Print the version and exit.
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// Parameters of the MPA negotiation.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "MPA")]
pub struct Mpa {
    /// CRC32c over every FPDU; off only if the peer agrees. Default: as in the configuration, which is on.
    #[arg(long, value_parser = crc_policy())]
    pub crc: Option<CrcPolicy>,
    /// Ask the peer for markers.
    #[arg(long)]
    pub markers: bool,
    /// Client: MPA revision to request.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub mpa_revision: u8,
    /// Client: start with a ready-to-receive message, the peer-to-peer model; the server chooses one of several kinds.
    #[arg(long, value_name = "KIND", value_delimiter = ',', conflicts_with = "server")]
    pub rtr: Vec<Rtr>,
    /// Most outstanding RDMA Reads of the peer (IRD).
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(..0x3fff))]
    pub ird: u16,
    /// Most outstanding RDMA Reads of this side (ORD).
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(..0x3fff))]
    pub ord: u16,
}

/// A ready-to-receive message (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rtr {
    /// A Send of no bytes.
    Send,
    /// An RDMA Write of no bytes.
    Write,
    /// An RDMA Read of no bytes.
    Read,
}

impl Mpa {
    /// Returns the kinds offered; `None` for the client-server model.
    pub fn rtr(&self) -> Option<RtrOptions> {
        let has = |kind| self.rtr.contains(&kind);
        let options = RtrOptions { send: has(Rtr::Send), write: has(Rtr::Write), read: has(Rtr::Read) };
        Some(options).filter(|options| !options.is_empty())
    }
}

/// Operation on a region of a peer such as `iwarpd`.
#[derive(Debug, Subcommand)]
pub enum Region {
    /// Write a file into a peer's region (RDMA Write), and verify the placement (RDMA Read).
    Put(With<Put>),
    /// Read a peer's region into a file (RDMA Read).
    Get(With<Get>),
    /// Measure round trips (RDMA Read).
    Ping(With<Ping>),
}

/// Arguments of an operation, and of the node that it runs on.
#[derive(Debug, ClapArgs)]
pub struct With<T: ClapArgs> {
    /// The operation, with its own options.
    #[command(flatten)]
    pub what: T,
    /// The node that it runs on.
    #[command(flatten)]
    pub over: Over,
}

/// Arguments of the node.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("device").args(["config", "driver"]).required(true))]
pub struct Over {
    /// Longest silence of the peer, seconds.
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub timeout: Duration,
    /// Print the result as JSON.
    #[arg(short, long)]
    pub json: bool,
    /// The port that the program owns.
    #[command(flatten)]
    pub port_args: PortArgs,
}

impl Args {
    /// Returns the address of `-a` with the port: the peer's, or this side's.
    pub fn endpoint(&self) -> Result<SocketAddr, String> {
        let Some(host) = &self.address else { return Ok(SocketAddr::from(([0; 4], self.port))) };
        let mut addresses =
            (host.as_str(), self.port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
        addresses.next().ok_or_else(|| format!("{host} has no address"))
    }
}

fn size(text: &str) -> Result<u32, String> {
    let size = u32::try_from(iwarp_config::parse_size(text)?).unwrap_or(u32::MAX);
    if (SIZE_MIN..=SIZE_MAX).contains(&size) {
        Ok(size)
    } else {
        Err(format!("a text has {SIZE_MIN} to {SIZE_MAX} bytes"))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds, such as 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("iwarp-rping").chain(line.split_whitespace()))
    }

    #[test]
    fn the_command_line_definition_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_flags_match_those_of_rdma_core() {
        let client = parse("-c -a 10.77.0.2 -p 7175 -C 9 -S 4k -v -V -d -I 10.77.0.3 --config x").unwrap();
        assert!(client.client && client.verbose && client.validate && client.debug && !client.server);
        assert_eq!((client.count, client.size, client.port), (9, Some(4096), 7175));
        assert_eq!(client.endpoint(), Ok("10.77.0.2:7175".parse().unwrap()));
        let server = parse("-s -P --config x").unwrap();
        assert!(server.server && server.persistent);
        assert_eq!(server.endpoint(), Ok("0.0.0.0:7174".parse().unwrap()));
        assert_eq!((client.mpa.rtr(), server.mpa.rtr()), (None, None));
        let peer = parse("-c -a 10.77.0.2 --rtr write,read --config x").unwrap();
        assert_eq!(peer.mpa.rtr(), Some(RtrOptions { send: false, write: true, read: true }));
        let application = parse("-c -a 10.77.0.2 --daemon /run/verbs.sock --ird 2").unwrap();
        assert_eq!(application.daemon, Some("/run/verbs.sock".into()));
        let v6 = parse("-s -a ::0 --config x").unwrap();
        assert_eq!(v6.endpoint(), Ok("[::]:7174".parse().unwrap()));
    }

    #[test]
    fn regions_are_reached_as_with_iwarpctl() {
        let args = parse("put file 10.0.0.1:7400/lab+4k --verify --config x").unwrap();
        let Some(Region::Put(With { what, .. })) = args.region else { panic!("{args:?}") };
        assert_eq!((what.target.port, what.target.offset, what.verify), (7400, 4096, true));
        assert!(
            parse("ping 10.0.0.1:7400/lab -c 9 -s 64 --driver tap --interface i --address 10.0.0.2/24")
                .is_ok()
        );
    }

    #[test]
    fn contradictory_arguments_are_refused() {
        for line in [
            "",
            "-s -c -a 10.0.0.1 --config x",
            "-c --config x",
            "-s -C 3 --config x",
            "-c -P -a 10.0.0.1 --config x",
            "-s -S 15 --config x",
            "-s --rtr write --config x",
            "-c -a 10.0.0.1 --rtr atomic --config x",
            "-s -S 17M --config x",
            "-s",
            "-s --config x --driver tap --interface i --address 10.0.0.1/24",
            "-s --driver tap --interface iw0",
            "-s --daemon x --config x",
            "-s --daemon x --driver tap --interface i --address 10.0.0.1/24",
            "-s --daemon x --markers",
            "-s --daemon x --crc off",
            "-c -a 10.0.0.1 --daemon x --rtr write",
            "ping 10.0.0.1:7400/lab --daemon x",
            "put file 10.0.0.1:7400/lab",
            "-s ping 10.0.0.1:7400/lab --config x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
