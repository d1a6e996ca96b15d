//! The command line of Ironwarp, iwarpctl.
//!
//! ```text
//!  args ──► command ──┬─► iwarp_control::Client ──► iwarpd's control socket     (status, region, conn, …)
//!                     ├─► iwarp_config                                          (config check)
//!                     └─► iwarp_remote: rdma::Endpoint over a kernel TCP socket ──► any iWARP peer
//!            └─► render/<noun>: the reply as text  ─┐
//!                serde_json: the reply as it is    ─┴─► output ─► stdout
//! ```
//!
//! iwarpctl is a client of the control socket: a script can send the same requests.
//! It links no DPDK and needs no privileges of its own.
#![forbid(unsafe_code)]

mod args;
mod command;
mod render;

use std::process::ExitCode;

use clap::Parser;
use iwarp_terminal::{Failure, Output};

use crate::args::Args;

/// Runs the command line of this process and returns its exit code ([`iwarp_control::Exit`]).
pub fn main() -> ExitCode {
    let exit = match Args::try_parse() {
        Ok(args) => {
            let output = args.global.output();
            command::run(&args, &output).unwrap_or_else(|failure| output.fail(&failure))
        }
        Err(error) => misused(&error),
    };
    ExitCode::from(exit.code())
}

/// Help and version go to stdout and succeed; a wrong command line is a usage error, in JSON if `--json` was given.
/// clap has not parsed the option then, so the arguments are searched for it.
fn misused(error: &clap::Error) -> iwarp_control::Exit {
    let asked_for_json = std::env::args_os().any(|argument| argument == "--json" || argument == "-j");
    if error.use_stderr() && asked_for_json {
        let message = error.render().to_string();
        return Output::json().fail(&Failure::usage(message.trim_end().trim_start_matches("error: ")));
    }
    // A closed stdout is no failure.
    let _ = error.print();
    if error.use_stderr() { iwarp_control::Exit::Usage } else { iwarp_control::Exit::Ok }
}
