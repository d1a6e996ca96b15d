//! Test tools that run `iwarpd` against the kernel's TCP: a link emulator, a SYN flood, and clients that measure,
//! verify and count. The system tests call them; each command prints one JSON object on its last line.
#![allow(clippy::disallowed_methods, reason = "a program at the edge: here time comes in")]

mod clients;
mod flood;
mod honest;
mod hostile;
mod load;
mod packet;
mod random;
mod relay;
mod rtr;
mod serve;
mod tcp_info;
mod transfer;
mod turns;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "A laboratory for TCP: a bad wire, a SYN flood, and peers that measure and verify")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Emulate a link between two interfaces: rate, delay, queue, loss and reordering, separately for each TCP
    /// connection.
    Relay(relay::Options),
    /// Send SYNs from random sources at a steady rate.
    Flood(flood::Options),
    /// Run clients that open, exchange, verify and close at a steady rate, and count the successful ones.
    Honest(honest::Options),
    /// Run many concurrent connections to echo, discard and chargen, and verify all data.
    Load(load::Options),
    /// Measure the goodput of bulk connections in one direction over a fixed time.
    Transfer(transfer::Options),
    /// Run a hostile local program of a daemon, or the honest programs beside it.
    Hostile(hostile::Options),
    /// Serve echo, discard and chargen over the kernel's TCP.
    Serve(serve::Options),
    /// Exchange data with a peer in ping-pong, as a program of a daemon, and verify all data.
    Turns(turns::Options),
    /// Start a stream to a peer's region with a ready-to-receive message, over the kernel's TCP.
    Rtr(rtr::Options),
}

fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    let result = match Arguments::parse().command {
        Command::Relay(options) => relay::run(&options),
        Command::Flood(options) => flood::run(&options),
        Command::Honest(options) => clients::block_on(honest::run(options)),
        Command::Load(options) => clients::block_on(load::run(options)),
        Command::Transfer(options) => clients::block_on(transfer::run(options)),
        Command::Hostile(options) => hostile::run(&options),
        Command::Serve(options) => clients::block_on(serve::run(options)),
        Command::Turns(options) => turns::run(&options),
        Command::Rtr(options) => rtr::run(&options),
    };
    match result {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
