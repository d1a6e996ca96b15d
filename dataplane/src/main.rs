//! `iwarpd`: reads its arguments and its configuration, then runs the daemon.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use dataplane::log::say;
use iwarp_config::{Config, ConfigErrors, Machine};

/// Turns a DPDK port into an RDMA NIC that speaks iWARP.
#[derive(Debug, Parser)]
#[command(
    name = "iwarpd",
    version,
    after_help = "Try it without hardware: iwarpd --config configs/tap.toml (as root)"
)]
struct Arguments {
    /// Path of the configuration file.
    #[arg(long, short, value_name = "FILE", default_value = "/etc/iwarpd/iwarpd.toml")]
    config: PathBuf,
    /// Check the configuration, print the memory it needs, and exit.
    #[arg(long)]
    check: bool,
    /// Check it against this machine too, as every start does: cores, interfaces, groups, hugepages.
    #[arg(long, requires = "check")]
    machine: bool,
    /// Format of error reports.
    #[arg(long, value_enum, default_value_t = Format::Full)]
    format: Format,
}

/// Format of error reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The line of the file, the allowed values, and what to do.
    Full,
    /// One line each: file:line:column: message.
    Short,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = if arguments.check && !arguments.machine {
        Config::load(&arguments.config)
    } else {
        Config::load_on(&arguments.config, &Machine::this())
    };
    let config = match config {
        Ok(config) => config,
        Err(errors) => return refuse(&errors, arguments.format),
    };
    if arguments.check {
        return show(&arguments, &config);
    }
    match dataplane::daemon::run(&arguments.config, &config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("iwarpd: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Reports every error. The exit code is 1 if the file is correct and only this machine lacks something, else 2.
fn refuse(errors: &ConfigErrors, format: Format) -> ExitCode {
    match format {
        Format::Full => say(&errors.render(std::io::stderr().is_terminal())),
        Format::Short => say(&errors.short()),
    }
    if errors.only_of_the_machine() { ExitCode::FAILURE } else { ExitCode::from(2) }
}

/// Prints the memory that a valid configuration needs.
fn show(arguments: &Arguments, config: &Config) -> ExitCode {
    let mut text = format!("{}: ok\n", arguments.config.display());
    for item in iwarp_config::memory_plan(config).items() {
        text.push_str(&format!("{:>8} KiB  {}\n", item.bytes.div_ceil(1024), item.what));
    }
    text.push_str(&format!("{}\n", iwarp_config::connection_window_line(config)));
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("iwarpd: cannot write the result: {error}\n"));
            ExitCode::FAILURE
        }
    }
}
