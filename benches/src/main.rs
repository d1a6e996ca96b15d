//! `iwarp-bench`: one subcommand per benchmark.

use std::process::ExitCode;

use benches::plot::readme;
use benches::verbs::{self, Operation, bandwidth, fpdus, latency, lossy};
use benches::{Output, compare, copies, peers, roofline, slow_clients, suite};
use clap::{Parser, Subcommand};
use dataplane::prefetch;
use per_packet as tcp;
use tracing_subscriber::filter::LevelFilter;

/// Measures Ironwarp, beside the machine's limits and beside its peers.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The machine's limits: hand-off between two cores without a protocol, copies, CRC32c.
    Roofline(roofline::Options),
    /// Bandwidth of RDMA Writes.
    WriteBw(bandwidth::Options),
    /// Bandwidth of RDMA Reads.
    ReadBw(bandwidth::Options),
    /// Bandwidth of Sends into posted buffers.
    SendBw(bandwidth::Options),
    /// Rate of Writes and Sends of 8 and 64 bytes.
    MsgRate(bandwidth::Options),
    /// Round trips of RDMA Writes.
    WriteLat(latency::Options),
    /// Round trips of RDMA Reads.
    ReadLat(latency::Options),
    /// Round trips of Sends.
    SendLat(latency::Options),
    /// Goodput under loss and reordering, with out-of-order placement and without.
    Lossy(lossy::Options),
    /// Writes with both nodes on one thread, for a profiler.
    Fpdus(fpdus::Options),
    /// The TCP stack alone: bulk receive, one copy.
    TcpRx(tcp::rx::RxOptions),
    /// The TCP stack alone: one-byte requests and their answers.
    TcpEcho(tcp::echo::EchoOptions),
    /// The TCP stack alone: memory and cost of many connections.
    Conns(tcp::conns::ConnsOptions),
    /// The kernel's TCP, UCX and sockperf over a veth pair, on the same cores.
    Peers(peers::Options),
    /// Copies and CPU time per byte delivered: the kernel's TCP, our TCP, RDMA Write.
    Copies(copies::Options),
    /// Goodput of fast clients beside many slow ones.
    SlowClients(slow_clients::Options),
    /// All benchmarks, each in a process of its own, into one page and one JSON file.
    Suite(suite::Options),
    /// Compare the results of two runs.
    Compare(compare::Options),
    /// The SVG files of README.md, from a suite's report.
    Plots(readme::Options),
    /// The target of a memif link; a benchmark starts it.
    #[command(hide = true)]
    Target,
}

fn main() -> ExitCode {
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
        Command::Fpdus(options) => output.write("fpdus", options, fpdus::run),
        Command::Peers(options) => output.write("peers", options, peers::run),
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
