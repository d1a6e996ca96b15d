//! `iwarp-nfsd`: serves directories by NFS versions 3 and 4.1, over RDMA through `iwarpd`, and over the kernel's TCP.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser as _;
use iwarp_config::{ConfigErrors, Machine, Nfsd};
use iwarp_nfsd::args::Arguments;
use iwarp_terminal::ErrorFormat;

fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    let Arguments { options } = Arguments::parse();
    let config = if options.check && !options.machine {
        Nfsd::load(&options.config)
    } else {
        Nfsd::load_on(&options.config, &Machine::this())
    };
    let config = match config {
        Ok(config) => config,
        Err(errors) => return refuse(&errors, options.format),
    };
    if options.check {
        println!("{}: ok, {} exports", options.config.display(), config.exports.len());
        return ExitCode::SUCCESS;
    }
    match iwarp_nfsd::daemon::run(&options.config, &config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwarp-nfsd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Reports every mistake. The exit code is 1 if the file is correct and only this machine lacks something, else 2.
fn refuse(errors: &ConfigErrors, format: ErrorFormat) -> ExitCode {
    match format {
        ErrorFormat::Full => eprint!("{}", errors.render(std::io::stderr().is_terminal())),
        ErrorFormat::Short => eprint!("{}", errors.short()),
    }
    if errors.only_of_the_machine() { ExitCode::FAILURE } else { ExitCode::from(2) }
}
