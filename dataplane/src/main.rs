//! `iwarpd`: reads its arguments and its configuration, then runs the daemon.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;
use dataplane::args::Arguments;
use dataplane::daemon::Ended;
use dataplane::log::say;
use iwarp_config::{Config, ConfigErrors, Machine};
use iwarp_terminal::ErrorFormat;

/// Exit code after a drain that cut connections off.
const CUT_OFF: u8 = 3;

fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    let Arguments { options } = Arguments::parse();
    let config = if options.check && !options.machine {
        Config::load(&options.config)
    } else {
        Config::load_on(&options.config, &Machine::this())
    };
    let config = match config {
        Ok(config) => config,
        Err(errors) => return refuse(&errors, options.format),
    };
    if options.check {
        return show(&options.config, &config);
    }
    match dataplane::daemon::run(&options.config, &config) {
        Ok(Ended::Stopped) => ExitCode::SUCCESS,
        Ok(Ended::CutOff) => ExitCode::from(CUT_OFF),
        Err(error) => {
            say(&format!("iwarpd: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Reports every error. The exit code is 1 if the file is correct and only this machine lacks something, else 2.
fn refuse(errors: &ConfigErrors, format: ErrorFormat) -> ExitCode {
    match format {
        ErrorFormat::Full => say(&errors.render(std::io::stderr().is_terminal())),
        ErrorFormat::Short => say(&errors.short()),
    }
    if errors.only_of_the_machine() { ExitCode::FAILURE } else { ExitCode::from(2) }
}

/// Prints the memory that a valid configuration needs.
fn show(file: &Path, config: &Config) -> ExitCode {
    let mut text = format!("{}: ok\n", file.display());
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
