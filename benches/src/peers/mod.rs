//! The peers: the kernel's TCP and what is built on it, on the same two cores as ours, over a veth pair.
//!
//! A peer that is not installed, or fails, is part of the report: see [`PeersReport::absent`].

mod iperf;
mod process;
mod sockperf;
mod ucx;
mod veth;

use std::io::{self, Write};

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{Cores, Progress, Report, Stopwatch};

pub use iperf::IperfReport;
pub use sockperf::SockperfReport;
pub use ucx::{UcxReport, UcxTest};
pub use veth::{FAR, NEAR, Side, Veth, Wire};

/// What is measured with, and the Debian package that has it.
const PROGRAMS: [(&str, &str); 3] =
    [("iperf3", "iperf3"), ("ucx_perftest", "ucx-utils"), ("sockperf", "sockperf")];

/// How the peers are measured.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// CPUs: client, server.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
    /// Runs per figure; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Seconds of a run, where a program can be told.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=30))]
    duration: u32,
    /// Bytes of an IP packet, at most.
    #[arg(short, long, value_delimiter = ',', default_value = "1500,9000")]
    mtu: Vec<u16>,
    /// Seconds after which nothing more is begun, and what runs is ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 150)]
    limit: u64,
    /// The kernel's congestion control for iperf3.
    #[arg(long, default_value = "cubic")]
    congestion_control: String,
}

/// Something that could not be measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Absent {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// The time for all of it.
#[derive(Debug)]
pub(crate) struct Budget {
    watch: Stopwatch,
    limit_s: u64,
}

impl Budget {
    /// Seconds that are left.
    fn left_s(&self) -> u64 {
        self.limit_s.saturating_sub(self.watch.elapsed().as_secs())
    }
}

/// What was measured of the peers.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PeersReport {
    /// The kernel's TCP, in bulk.
    pub iperf3: Vec<IperfReport>,
    /// One-sided operations over it.
    pub ucx: Vec<UcxReport>,
    /// Round trips over it.
    pub sockperf: Vec<SockperfReport>,
    /// What is not in this report.
    pub absent: Vec<Absent>,
}

/// Measures every peer that is installed, over every wire.
///
/// # Errors
/// None of them could be measured.
pub fn run(options: &Options) -> Result<PeersReport> {
    let mut report = PeersReport::default();
    for (program, package) in PROGRAMS {
        if !process::is_installed(program) {
            let why = format!("not installed: apt-get install {package}");
            report.absent.push(Absent { what: program.to_owned(), why });
        }
    }
    let progress = Progress::new(options.mtu.len() * 2 * PROGRAMS.len());
    let budget = Budget { watch: Stopwatch::start(), limit_s: options.limit };
    for mtu in &options.mtu {
        for offloads in [false, true] {
            let wire = Wire { mtu: *mtu, offloads };
            match Veth::new(wire) {
                Ok(veth) => measure(options, &veth, (&progress, &budget), &mut report),
                Err(error) => report.absent.push(absent(wire.to_string(), &error)),
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
            "iperf3" => iperf::run(options, veth, wire, budget).map(|it| report.iperf3.push(it)),
            "ucx_perftest" => ucx::run(options, veth, wire, budget).map(|it| report.ucx.extend(it)),
            _ => sockperf::run(options, veth, wire, budget).map(|it| report.sockperf.extend(it)),
        };
        failed.extend(outcome.err().map(|error| absent(format!("{program}, {wire}"), &error)));
    }
    report.absent.append(&mut failed);
}

fn absent(what: String, error: &anyhow::Error) -> Absent {
    Absent { what, why: format!("{error:#}") }
}

impl Report for PeersReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { iperf3, ucx, sockperf, absent } = self;
        writeln!(out, "\nmedians, and in brackets the least and the greatest of the runs")?;
        let heads = ["peer", "over", "#bytes", "BW[Gb/s]", "messages[1/s]"];
        let [peer, over, bytes, bandwidth, messages] = heads;
        writeln!(out, "{peer:<20} {over:<30} {bytes:>7} {bandwidth:>24} {messages:>28}")?;
        for it in iperf3 {
            let (name, wire) = (format!("iperf3, {}", it.congestion_control), it.wire.to_string());
            writeln!(out, "{name:<20} {wire:<30} {:>7} {:>24}", it.message_bytes, it.gbps.show(2))?;
        }
        for it in ucx.iter().filter(|it| it.round_trip_us.is_none()) {
            let (name, wire) = (format!("UCX {}", it.test), it.wire.to_string());
            let (gbps, rate) = (it.gbps.show(2), it.messages_per_second.show(0));
            writeln!(out, "{name:<20} {wire:<30} {:>7} {gbps:>24} {rate:>28}", it.message_bytes)?;
        }
        writeln!(out, "\n{peer:<20} {over:<30} {bytes:>7} {:>24} {:>28}", "median[us]", "99.9%[us]")?;
        for it in ucx {
            let Some(round_trip) = &it.round_trip_us else { continue };
            let (name, wire) = (format!("UCX {}", it.test), it.wire.to_string());
            writeln!(out, "{name:<20} {wire:<30} {:>7} {:>24}", it.message_bytes, round_trip.show(2))?;
        }
        for it in sockperf {
            let name = if it.spins { "sockperf, spinning" } else { "sockperf, sleeping" };
            let (wire, p50, p999) = (it.wire.to_string(), it.p50_us.show(2), it.p999_us.show(2));
            writeln!(out, "{name:<20} {wire:<30} {:>7} {p50:>24} {p999:>28}", it.message_bytes)?;
        }
        for Absent { what, why } in absent {
            writeln!(out, "not measured: {what}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
