//! Command line of `iwarpd`, parsed by `main`.

use clap::Parser;
use iwarp_terminal::ConfigOptions;

/// Turns a DPDK port into an RDMA NIC that speaks iWARP.
#[derive(Debug, Parser)]
#[command(
    name = "iwarpd",
    version,
    after_help = "Try it without hardware, as root: iwarpd --config tap.toml, one of the example configurations.\n\n\
                  Exit codes: 0 stopped, 1 failed or the machine lacks something, 2 wrong configuration or command\n\
                  line, 3 stopped by a drain that cut connections off.",
    mut_args(ConfigOptions::of(
        "/etc/iwarpd/iwarpd.toml",
        "Check the configuration, print the memory it needs, and exit",
        "Check it against this machine too, as every start does: cores, interfaces, groups, hugepages"
    ))
)]
pub struct Arguments {
    /// The options about the configuration.
    #[command(flatten)]
    pub options: ConfigOptions,
}
