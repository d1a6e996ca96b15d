//! The command line of Ironwarp, iwarpctl.
//!
//! ```text
//!  args ──► command ──┬─► iwarp_control::Client ──► iwarpd's control socket     (status, region, conn, …)
//!                     │     watch: the same again and again; top: live on a terminal
//!                     ├─► iwarp_config                                          (config check, doctor)
//!                     ├─► iwarp_remote: a device in this process (iwarp_verbs) ──► any iWARP peer
//!                     └─► iwarp_verbs: a device in this process ◄── peers that ask for regions (serve)
//!            └─► render/<noun>: the reply as text  ─┐
//!                serde_json: the reply as it is    ─┴─► output ─► stdout
//! ```
//!
//! iwarpctl is a client of the control socket: a script can send the same requests.
//! It links no DPDK and needs no privileges of its own.
#![forbid(unsafe_code)]

mod args;
mod capture;
mod command;
mod complete;
mod doctor;
mod monitor;
mod render;
mod reserve;
mod serve;
mod stats;
mod top;
mod wait;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use iwarp_terminal::{Failure, Output};

use crate::args::Args;

/// Runs the command line of this process and returns its exit code ([`iwarp_control::Exit`]).
pub fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    complete::if_asked();
    let exit = match Args::try_parse() {
        Ok(args) => {
            let output = args.global.output();
            command::run(&args, &output).unwrap_or_else(|failure| output.fail(&failure))
        }
        Err(error) => misused(&error),
    };
    ExitCode::from(exit.code())
}

/// Returns the definition of the command line, for manual pages and completions.
pub fn command() -> clap::Command {
    Args::command()
}

/// Writes the script that completes iwarpctl's command line in a shell; the script asks iwarpctl for candidates.
///
/// # Errors
/// `to` cannot be written.
pub fn write_completion(shell: clap_complete::Shell, to: &mut dyn std::io::Write) -> std::io::Result<()> {
    complete::write_script(shell, to)
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
