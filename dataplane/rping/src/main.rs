//! The binary `iwarp-rping`: parses arguments, loads the configuration and runs the program.
#![forbid(unsafe_code)]

mod host;
mod region;
mod run;

use std::process::ExitCode;

use clap::Parser as _;

use iwarp_rping::args::Args;

fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    let args = Args::parse();
    let level = if args.debug { tracing::Level::DEBUG } else { tracing::Level::WARN };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).without_time().init();
    match run::run(args) {
        Ok(exit) => exit,
        Err(error) => {
            eprintln!("iwarp-rping: {error:#}");
            ExitCode::FAILURE
        }
    }
}
