//! `iwarp-bench`: one subcommand per benchmark.

use std::process::ExitCode;

use benches::args::{Arguments, Command};
use benches::plot::readme;
use benches::verbs::{self, Operation, application, bandwidth, fpdus, latency, lossy};
use benches::{compare, copies, peers, programs, roofline, slow_clients, suite};
use clap::Parser as _;
use iwarp_engine::prefetch;
use per_packet as tcp;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    iwarp_terminal::abort_on_panic();
    let Arguments { command, output } = Arguments::parse();
    // Warnings and errors of the libraries go to standard error.
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(std::io::stderr).init();
    let outcome = match &command {
        Command::Roofline(options) => output.write("roofline", options, roofline::run),
        Command::WriteBw(options) => {
            output.write("write-bw", options, |options| bandwidth::run(Operation::Write, options))
        }
        Command::ReadBw(options) => {
            output.write("read-bw", options, |options| bandwidth::run(Operation::Read, options))
        }
        Command::SendBw(options) => {
            output.write("send-bw", options, |options| bandwidth::run(Operation::Send, options))
        }
        Command::MsgRate(options) => output.write("msg-rate", options, bandwidth::message_rate),
        Command::TcpRx(options) => output.write("tcp-rx", options, |options| {
            let hints = tcp::rx::Hints { read_soon: prefetch::read_soon, write_soon: prefetch::write_soon };
            Ok(tcp::rx::run(options, &hints)?)
        }),
        Command::TcpEcho(options) => {
            output.write("tcp-echo", options, |options| Ok(tcp::echo::run(options)?))
        }
        Command::Conns(options) => output.write("conns", options, |options| Ok(tcp::conns::run(options)?)),
        Command::WriteLat(options) => {
            output.write("write-lat", options, |options| latency::run(Operation::Write, options))
        }
        Command::ReadLat(options) => {
            output.write("read-lat", options, |options| latency::run(Operation::Read, options))
        }
        Command::SendLat(options) => {
            output.write("send-lat", options, |options| latency::run(Operation::Send, options))
        }
        Command::Lossy(options) => output.write("lossy", options, lossy::run),
        Command::Application(options) => output.write("application", options, application::run),
        Command::Fpdus(options) => output.write("fpdus", options, fpdus::run),
        Command::Peers(options) => output.write("peers", options, peers::run),
        Command::Programs(options) => output.write("programs", options, programs::run),
        Command::Copies(options) => output.write("copies", options, copies::run),
        Command::SlowClients(options) => output.write("slow-clients", options, slow_clients::run),
        Command::Suite(options) => output.write("suite", options, suite::run),
        Command::Compare(options) => output.write("compare", options, compare::run),
        Command::Plots(options) => output.write("plots", options, readme::run),
        Command::Target => verbs::serve_target(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwarp-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
