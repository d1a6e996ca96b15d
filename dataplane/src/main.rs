//! `iwarpd`: reads its arguments and its configuration, then runs the daemon.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use iwarp_config::Config;

/// Turns a DPDK port into an RDMA NIC that speaks iWARP.
#[derive(Debug, Parser)]
#[command(version, after_help = "Try it without hardware: iwarpd --config configs/tap.toml (as root)")]
struct Arguments {
    /// The configuration.
    #[arg(long, short, value_name = "FILE", default_value = "/etc/iwarpd/iwarpd.toml")]
    config: PathBuf,
    /// Check the configuration, say what it takes in memory, and end.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(errors) => {
            eprint!("{}", errors.render(std::io::stderr().is_terminal()));
            return ExitCode::from(2);
        }
    };
    if arguments.check {
        for item in iwarp_config::memory_plan(&config).items() {
            println!("{:>8} KiB  {}", item.bytes.div_ceil(1024), item.what);
        }
        return ExitCode::SUCCESS;
    }
    match dataplane::daemon::run(&arguments.config, &config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwarpd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
