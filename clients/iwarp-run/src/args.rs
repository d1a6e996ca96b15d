//! Command line of `iwarp-run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use ipnet::IpNet;
use iwarp_control::parse_prefix;

/// Runs an unmodified libibverbs or librdmacm program over iWARP.
///
/// The program loads Ironwarp's libraries instead of the system's, which stay as they are. Its devices are the ports of
/// iwarpd: iwarp0, iwarp1 and so on. Where no daemon listens, its device is inside the program, over the kernel's TCP
/// and the addresses of this machine, without a privilege. Exit codes 1 to 6 are those of iwarpctl if the program could
/// not be started; otherwise the exit code is the program's.
#[derive(Debug, Parser)]
#[command(name = "iwarp-run", version, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// List the symbols that a program imports from the two libraries, and whether each is there; name copies of the
    /// libraries that the program comes with
    #[arg(long, value_name = "PROGRAM")]
    pub check: Option<PathBuf>,
    /// Report as one line of JSON
    #[arg(long, short)]
    pub json: bool,
    /// Verbs socket of the daemon
    #[arg(long, value_name = "PATH", env = "IWARP_VERBS_SOCKET", default_value = iwarp_verbs::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Require the daemon: fail where none listens
    #[arg(long, conflicts_with = "embedded")]
    pub daemon: bool,
    /// Use a device inside the program, whether there is a daemon or not
    #[arg(long)]
    pub embedded: bool,
    /// Show the devices as those of RoCE v2, for programs that look at that, and let messages wait for receive buffers.
    /// Connections by queue pair number need no switch
    #[arg(long)]
    pub roce: bool,
    /// Let messages wait for receive buffers on connections of librdmacm, too, as InfiniBand does, instead of ending
    /// the connection. The receiving end decides. On with --roce
    #[arg(long)]
    pub await_buffers: bool,
    /// Run a program of plain sockets: its TCP sockets become rsockets, which connect to others over RDMA
    #[arg(long, requires = "program")]
    pub preload: bool,
    /// Peers whose sockets become rsockets, and own addresses where these are accepted; all others stay the kernel's.
    /// With --preload, --embedded needs some
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', requires = "preload", value_parser = parse_prefix)]
    pub peers: Vec<IpNet>,
    /// Run a program that comes with a copy of the libraries by another name, as wheels of Python do: calls of the copy
    /// go to Ironwarp's libraries. --check tells
    #[arg(long, requires = "program")]
    pub bundled: bool,
    /// Folder of the libraries; by default the one that was installed with this program
    #[arg(long, value_name = "FOLDER", env = "IWARP_RUN_LIBRARIES")]
    pub libraries: Option<PathBuf>,
    /// Program to run, and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "check",
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}
