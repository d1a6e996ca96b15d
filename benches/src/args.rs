//! Command line of `iwarp-bench`, parsed by `main`.

use clap::{Parser, Subcommand};
use per_packet as tcp;

use crate::plot::readme;
use crate::verbs::{application, bandwidth, fpdus, latency, lossy};
use crate::{Output, compare, copies, peers, programs, roofline, slow_clients, suite};

/// Measures Ironwarp, beside the machine's limits and beside its peers.
#[derive(Debug, Parser)]
#[command(name = "iwarp-bench", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    /// The benchmark to run.
    pub command: Command,
    #[command(flatten)]
    /// Files that the results go to.
    pub output: Output,
}

/// A benchmark, or what reads the results of benchmarks.
#[derive(Debug, Subcommand)]
pub enum Command {
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
    /// Work of an application of `iwarpd`, beside the same work in process.
    Application(application::Options),
    /// The TCP stack alone: bulk receive, one copy.
    TcpRx(tcp::rx::RxOptions),
    /// The TCP stack alone: one-byte requests and their answers.
    TcpEcho(tcp::echo::EchoOptions),
    /// The TCP stack alone: memory and cost of many connections.
    Conns(tcp::conns::ConnsOptions),
    /// The kernel's TCP, UCX and sockperf over a veth pair, on the same cores.
    Peers(peers::Options),
    /// Unmodified verbs programs and NFS on interfaces of the kernel, beside kernel TCP.
    Programs(programs::Options),
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
