//! `peers`: measures the kernel's TCP, UCX and sockperf over a veth pair, on the same two cores as Ironwarp.
//!
//! A peer that is not installed, or fails, is listed in [`PeersReport::absent`].

mod iperf;
mod lossy;
mod process;
mod sockperf;
mod ucx;
mod veth;

use std::io::{self, Write};

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{Cores, Progress, Report, Stopwatch, size};

pub use iperf::IperfReport;
pub use lossy::LossyPeerRow;
pub(crate) use lossy::measure as measure_lossy;
pub use sockperf::SockperfReport;
pub use ucx::{UcxReport, UcxTest};
pub use veth::{CLIENT, Host, SERVER, Veth, VethConfig};

/// The programs, each with its Debian package.
const PROGRAMS: [(&str, &str); 3] =
    [("iperf3", "iperf3"), ("ucx_perftest", "ucx-utils"), ("sockperf", "sockperf")];

/// Command-line flags of `peers`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// CPUs of client and server, pinned.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
    /// Runs per result; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Seconds of a run, approximately.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=30))]
    duration: u32,
    /// Largest IP packet, bytes.
    #[arg(short, long, value_delimiter = ',', default_value = "1500,9000")]
    mtu: Vec<u16>,
    /// Bytes of a message: measures only iperf3 and UCX puts, with each size. Without it every program runs with its
    /// usual sizes.
    #[arg(short = 's', long, value_name = "BYTES,…", value_parser = size, value_delimiter = ',')]
    size: Vec<u64>,
    /// Seconds after which the running program is killed and no other starts.
    #[arg(long, value_name = "SECONDS", default_value_t = 150)]
    limit: u64,
    /// The kernel's congestion control for iperf3.
    #[arg(long, default_value = "cubic")]
    congestion_control: String,
}

/// A benchmark or program without a result.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct NotMeasured {
    /// Name of the benchmark or program.
    pub what: String,
    /// Reason why there is no result.
    pub why: String,
}

/// Time limit of all programs together.
#[derive(Debug)]
pub(crate) struct Budget {
    watch: Stopwatch,
    limit_s: u64,
}

impl Budget {
    /// Returns the remaining seconds.
    fn left_s(&self) -> u64 {
        self.limit_s.saturating_sub(self.watch.elapsed().as_secs())
    }
}

/// Results of the peers.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PeersReport {
    /// Goodput of the kernel's TCP.
    pub iperf3: Vec<IperfReport>,
    /// One-sided operations over the kernel's TCP.
    pub ucx: Vec<UcxReport>,
    /// Round trips of the kernel's TCP.
    pub sockperf: Vec<SockperfReport>,
    /// Programs without a result.
    pub absent: Vec<NotMeasured>,
}

/// Measures every installed peer over every veth configuration.
///
/// # Errors
/// No peer could be measured.
pub fn run(options: &Options) -> Result<PeersReport> {
    let mut report = PeersReport::default();
    for (program, package) in PROGRAMS {
        if !process::is_installed(program) {
            let why = format!("not installed: apt-get install {package}");
            report.absent.push(NotMeasured { what: program.to_owned(), why });
        }
    }
    let progress = Progress::new(options.mtu.len() * 2 * PROGRAMS.len());
    let budget = Budget { watch: Stopwatch::start(), limit_s: options.limit };
    for mtu in &options.mtu {
        for offloads in [false, true] {
            let wire = VethConfig { mtu: *mtu, offloads };
            match Veth::new(wire) {
                Ok(veth) => measure(options, &veth, (&progress, &budget), &mut report),
                Err(error) => report.absent.push(not_measured(wire.to_string(), &error)),
            }
        }
    }
    let PeersReport { iperf3, ucx, sockperf, absent } = &report;
    if iperf3.is_empty() && ucx.is_empty() && sockperf.is_empty() {
        bail!("no peer could be measured: {absent:?}");
    }
    Ok(report)
}

fn measure(
    options: &Options,
    veth: &Veth,
    (progress, budget): (&Progress, &Budget),
    report: &mut PeersReport,
) {
    let wire = veth.wire();
    let mut failed = Vec::new();
    for (program, _) in PROGRAMS {
        progress.step(format!("{program}, {wire}"));
        if !process::is_installed(program) {
            continue;
        }
        let outcome = match program {
            "iperf3" => iperf::run(options, veth, wire, budget).map(|rows| report.iperf3.extend(rows)),
            "ucx_perftest" => ucx::run(options, veth, wire, budget).map(|rows| report.ucx.extend(rows)),
            _ if !options.size.is_empty() => continue,
            _ => sockperf::run(options, veth, wire, budget).map(|rows| report.sockperf.extend(rows)),
        };
        failed.extend(outcome.err().map(|error| not_measured(format!("{program}, {wire}"), &error)));
    }
    report.absent.append(&mut failed);
}

fn not_measured(what: String, error: &anyhow::Error) -> NotMeasured {
    NotMeasured { what, why: format!("{error:#}") }
}

impl Report for PeersReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { iperf3, ucx, sockperf, absent } = self;
        writeln!(out, "\nmedians, and in brackets the least and the greatest of the runs")?;
        let heads = ["peer", "over", "#bytes", "BW[Gb/s]", "messages[1/s]"];
        let [peer, over, bytes, bandwidth, messages] = heads;
        writeln!(out, "{peer:<20} {over:<30} {bytes:>7} {bandwidth:>24} {messages:>28}")?;
        for row in iperf3 {
            let (name, wire) = (format!("iperf3, {}", row.congestion_control), row.wire.to_string());
            writeln!(out, "{name:<20} {wire:<30} {:>7} {:>24}", row.message_bytes, row.gbps.show(2))?;
        }
        for row in ucx.iter().filter(|row| row.round_trip_us.is_none()) {
            let (name, wire) = (format!("UCX {}", row.test), row.wire.to_string());
            let (gbps, rate) = (row.gbps.show(2), row.messages_per_second.show(0));
            writeln!(out, "{name:<20} {wire:<30} {:>7} {gbps:>24} {rate:>28}", row.message_bytes)?;
        }
        writeln!(out, "\n{peer:<20} {over:<30} {bytes:>7} {:>24} {:>28}", "median[us]", "99.9%[us]")?;
        for row in ucx {
            let Some(round_trip) = &row.round_trip_us else { continue };
            let (name, wire) = (format!("UCX {}", row.test), row.wire.to_string());
            writeln!(out, "{name:<20} {wire:<30} {:>7} {:>24}", row.message_bytes, round_trip.show(2))?;
        }
        for row in sockperf {
            let name = if row.spins { "sockperf, spinning" } else { "sockperf, sleeping" };
            let (wire, p50, p999) = (row.wire.to_string(), row.p50_us.show(2), row.p999_us.show(2));
            writeln!(out, "{name:<20} {wire:<30} {:>7} {p50:>24} {p999:>28}", row.message_bytes)?;
        }
        for NotMeasured { what, why } in absent {
            writeln!(out, "not measured: {what}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
