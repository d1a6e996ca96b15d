//! The binary `iwarp-rping`: parses arguments, loads the configuration and runs the program.
#![forbid(unsafe_code)]

mod args;
mod device;
mod region;
mod run;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Region, With};

fn main() -> ExitCode {
    let args = args::Args::parse();
    let level = if args.debug { tracing::Level::DEBUG } else { tracing::Level::WARN };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).without_time().init();
    let device = match &args.region {
        None => &args.device,
        Some(
            Region::Put(With { over, .. }) | Region::Get(With { over, .. }) | Region::Ping(With { over, .. }),
        ) => &over.device,
    };
    let config = match device.config() {
        Ok(config) => config,
        Err(message) => {
            eprint!("{message}");
            return ExitCode::from(2);
        }
    };
    match run::run(args, &config) {
        Ok(exit) => exit,
        Err(error) => {
            eprintln!("iwarp-rping: {error:#}");
            ExitCode::FAILURE
        }
    }
}
