//! Command line of `iwarp-nfsd`, parsed by `main`.

use clap::Parser;
use iwarp_server::iwarp_terminal::ConfigOptions;

/// Serves directories by NFS versions 3 and 4.1 over RDMA, as an application of iwarpd.
#[derive(Debug, Parser)]
#[command(
    name = "iwarp-nfsd",
    version,
    after_help = "SIGHUP reloads the exports: all of them, or, if the file has a mistake, none. SIGTERM ends the \
                  server.\n\nExit codes: 0 done, 1 failed or not possible on this machine, 2 mistakes in the \
                  configuration.",
    mut_args(ConfigOptions::of(
        "/etc/iwarpd/nfsd.toml",
        "Check the configuration and exit",
        "Check it against this machine too, as every start does: directories, groups"
    ))
)]
pub struct Arguments {
    /// The options about the configuration.
    #[command(flatten)]
    pub options: ConfigOptions,
}
