//! Command line of `iwarp-nfsd`, parsed by `main`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Serves directories by NFS versions 3 and 4.1 over RDMA, as an application of iwarpd.
#[derive(Debug, Parser)]
#[command(
    name = "iwarp-nfsd",
    version,
    after_help = "SIGHUP reloads the exports: all of them, or, if the file has a mistake, none. SIGTERM ends the \
                  server.\n\nExit codes: 0 done, 1 failed or not possible on this machine, 2 mistakes in the \
                  configuration."
)]
pub struct Arguments {
    /// Path of the configuration file.
    #[arg(long, short, value_name = "FILE", default_value = "/etc/iwarpd/nfsd.toml")]
    pub config: PathBuf,
    /// Check the configuration and exit.
    #[arg(long)]
    pub check: bool,
    /// Check it against this machine too, as every start does: directories, groups.
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
