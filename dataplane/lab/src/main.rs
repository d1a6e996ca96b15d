//! The laboratory that sets `iwarpd` against the kernel's TCP: a bad wire between two interfaces, a SYN flood, and
//! peers that measure, verify and count. Every command prints one JSON object on its last line.
#![allow(clippy::disallowed_methods, reason = "a program at the edge: here time comes in")]

mod clients;
mod flood;
mod honest;
mod load;
mod packet;
mod random;
mod relay;
mod serve;
mod tcp_info;
mod transfer;

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
    /// A bad wire between two interfaces: rate, delay, queue, loss and reordering, for each TCP connection apart.
    Relay(relay::Options),
    /// SYNs from random sources at a steady rate.
    Flood(flood::Options),
    /// Clients that open, exchange, verify and close at a steady rate, and how many of them succeed.
    Honest(honest::Options),
    /// Many connections to echo, discard and chargen at once, all of them verified.
    Load(load::Options),
    /// Goodput of bulk connections in one direction over a fixed time.
    Transfer(transfer::Options),
    /// The services echo, discard and chargen over the kernel's TCP.
    Serve(serve::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Relay(options) => relay::run(&options),
        Command::Flood(options) => flood::run(&options),
        Command::Honest(options) => clients::block_on(honest::run(options)),
        Command::Load(options) => clients::block_on(load::run(options)),
        Command::Transfer(options) => clients::block_on(transfer::run(options)),
        Command::Serve(options) => clients::block_on(serve::run(options)),
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
