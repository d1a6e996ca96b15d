//! The binary of `iwarp-run`: parses the command line and reports failures.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use iwarp_terminal::Output;

fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    let args = iwarp_run::args::Args::parse();
    let output = if args.json { Output::json() } else { Output::plain() };
    let exit = iwarp_run::run(&args, &output).unwrap_or_else(|failure| output.fail(&failure));
    ExitCode::from(exit.code())
}
