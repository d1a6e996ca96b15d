//! The noun `nfs`: iwarp-nfsd.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use iwarp_control::nfs;
use iwarp_terminal::examples;

use super::View;

#[derive(Debug, ClapArgs)]
pub(crate) struct Nfs {
    /// The control socket of iwarp-nfsd.
    #[arg(long, global = true, value_name = "PATH", env = "IWARPCTL_NFS_SOCKET", default_value = nfs::DEFAULT_SOCKET)]
    pub(crate) server: PathBuf,
    #[command(subcommand)]
    pub(crate) command: NfsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NfsCommand {
    /// Shows the server's state on one screen.
    #[command(after_help = examples!["iwarpctl nfs status", "iwarpctl -j nfs status | jq .opens"])]
    Status(View),
    /// Lists the exports with the rights of their clients.
    #[command(after_help = examples!["iwarpctl nfs exports", "iwarpctl -j nfs exports | jq '.[].path'"])]
    Exports(View),
    /// Lists the clients: connections, and the state of NFS 4.1.
    #[command(after_help = examples![
        "iwarpctl nfs clients",
        "iwarpctl -j nfs clients | jq '.nfs4[] | select(.silent_ms > 60000)'",
    ])]
    Clients(View),
    /// Shows calls by procedure with bytes and times, errors by reason, and the counters of the transports.
    #[command(
        after_help = examples![
            "Text leaves out counters that are zero; JSON has them all. A time is that of a call's execution, \
             without its\ntransfer.";
            "iwarpctl nfs stats",
            "iwarpctl -j nfs stats | jq '.errors[]'",
        ]
    )]
    Stats(View),
    /// Loads the exports of the configuration file again: all of them, or, if the file has a mistake, none.
    #[command(after_help = examples!["iwarpctl nfs reload"])]
    Reload,
}
