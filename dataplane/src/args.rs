//! Command line of `iwarpd`, parsed by `main`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Turns a DPDK port into an RDMA NIC that speaks iWARP.
#[derive(Debug, Parser)]
#[command(
    name = "iwarpd",
    version,
    after_help = "Try it without hardware, as root: iwarpd --config tap.toml, one of the example configurations.\n\n\
                  Exit codes: 0 stopped, 1 failed or the machine lacks something, 2 wrong configuration or command\n\
                  line, 3 stopped by a drain that cut connections off."
)]
pub struct Arguments {
    /// Path of the configuration file.
    #[arg(long, short, value_name = "FILE", default_value = "/etc/iwarpd/iwarpd.toml")]
    pub config: PathBuf,
    /// Check the configuration, print the memory it needs, and exit.
    #[arg(long)]
    pub check: bool,
    /// Check it against this machine too, as every start does: cores, interfaces, groups, hugepages.
    #[arg(long, requires = "check")]
    pub machine: bool,
    /// Format of error reports.
    #[arg(long, value_enum, default_value_t = Format::Full)]
    pub format: Format,
}

/// Format of error reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The line of the file, the allowed values, and what to do.
    Full,
    /// One line each: file:line:column: message.
    Short,
}
