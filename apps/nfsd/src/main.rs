//! `iwarp-nfsd`: serves directories by NFS versions 3 and 4.1, over RDMA through `iwarpd`, and over the kernel's TCP.

use std::process::ExitCode;

use clap::Parser as _;
use iwarp_nfsd::args::Arguments;
use iwarp_server::iwarp_config::Nfsd;
use iwarp_server::iwarp_terminal;
use iwarp_server::service::configuration;

fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    let Arguments { options } = Arguments::parse();
    let config = match configuration(&options, Nfsd::load, Nfsd::load_on) {
        Ok(config) => config,
        Err(code) => return code,
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
