//! `copies`: copies and CPU time per byte that an application receives (the question of RFC 4297).
//!
//! Three transports from one application's buffer to another's, 64 MiB each: the kernel's TCP, our TCP with a copy
//! into the buffer, and RDMA Writes into the region. RFC 5532 §4.1 estimates them at 1.00×, 1.25× and 2.00×.

mod kernel;

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::clock::thread_cpu_time;
use crate::hosts::{Host, HostPair, Initiator, Sizes, Target, TcpReceiver, TcpSender, prefaulted};
use crate::peers::{NotMeasured, VethConfig};
use crate::{Cores, Progress, Report, Samples, bandwidth_gbps};

/// Bytes of each application's buffer.
const REGION: usize = 64 << 20;
/// Bytes of an RDMA Write.
const MESSAGE: u32 = 64 << 10;
/// Writes that the initiator keeps posted.
const POSTED: u64 = 16;
/// Longest wait for a connection.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time before the first run.
const WARM_UP: Duration = Duration::from_millis(200);

/// Command-line flags of `copies`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Duration of a run, seconds.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 1.0)]
    duration: f64,
    /// Runs per row; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Largest IP packet, bytes.
    #[arg(short, long, value_delimiter = ',', default_value = "1500,9000")]
    mtu: Vec<u16>,
    /// CPUs: sender, receiver. Transports of our own run on the first alone.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
    /// The kernel's congestion control.
    #[arg(long, default_value = "cubic")]
    congestion_control: String,
}

/// A transport between two applications' buffers.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Kernel TCP over a veth pair without offloads: write(), read().
    Kernel,
    /// Kernel TCP over a veth pair with offloads.
    KernelOffloads,
    /// Our TCP, with a copy into packets and one out of them ("TCP offload").
    Tcp,
    /// RDMA Write, CRC on ("RDMA offload").
    Rdma,
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel TCP",
            Self::KernelOffloads => "kernel TCP, offloads on",
            Self::Tcp => "our TCP and a copy",
            Self::Rdma => "RDMA Write",
        }
    }
}

/// Result of one run.
#[derive(Clone, Copy, Debug)]
struct RunResult {
    /// Bytes in the receiver's buffer.
    delivered: u64,
    /// Bytes copied by sender and by receiver.
    copied: [u64; 2],
    seconds: f64,
    /// CPU time at work: of the sender's thread, of the receiver's, and of the kernel's threads beside them.
    cpu: [Duration; 3],
    /// CPU time of idle polls.
    idle: Duration,
}

impl RunResult {
    fn per_gib(&self, time: Duration) -> f64 {
        time.as_secs_f64() * f64::from(1 << 30) / self.delivered.max(1) as f64
    }
}

/// Result of one transport at one MTU.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CopiesRow {
    /// Transport of the payload in this row.
    #[serde(rename = "way")]
    pub transport: Transport,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Goodput, Gbit/s: kernel TCP on two cores, the others with both hosts on one.
    pub gbps: Samples,
    /// Bytes copied by the sender, per byte delivered.
    pub copied_by_sender: f64,
    /// Bytes copied by the receiver, per byte delivered.
    pub copied_by_receiver: f64,
    /// CPU seconds at work per GiB delivered, of both hosts and the kernel's threads.
    pub cpu_s_per_gib: Samples,
    /// CPU seconds of the sender per GiB delivered.
    pub sender_s_per_gib: Samples,
    /// CPU seconds of the receiver per GiB delivered.
    pub receiver_s_per_gib: Samples,
    /// CPU seconds of idle polls per GiB delivered, not included above; the kernel's threads sleep instead.
    pub idle_s_per_gib: Samples,
    /// CPU time of kernel TCP without offloads at the same MTU, divided by this one's: the factor of RFC 5532 §4.1.
    pub factor: Option<f64>,
}

/// The result rows of `copies`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct CopiesReport {
    /// One row for each transport and MTU.
    pub rows: Vec<CopiesRow>,
    /// Transports without a result.
    pub absent: Vec<NotMeasured>,
}

/// Measures every transport at every MTU. If there is no veth pair, the report says so.
///
/// # Errors
/// Our own hosts do not connect, or a CPU is not available.
pub fn run(options: &Options) -> Result<CopiesReport> {
    ensure!(options.duration.is_finite() && options.duration > 0.0, "a duration of {} s", options.duration);
    let progress = Progress::new(options.mtu.len() * 4);
    let mut report = CopiesReport::default();
    for &mtu in &options.mtu {
        for (transport, offloads) in [(Transport::Kernel, false), (Transport::KernelOffloads, true)] {
            progress.step(format!("{}, MTU {mtu}", transport.name()));
            match kernel::measure_over(options, VethConfig { mtu, offloads }) {
                Ok(runs) => report.rows.push(row(transport, mtu, &runs)?),
                Err(error) => {
                    let what = format!("{}, MTU {mtu}", transport.name());
                    report.absent.push(NotMeasured { what, why: format!("{error:#}") });
                }
            }
        }
        options.cores.pin_first()?;
        progress.step(format!("{}, MTU {mtu}", Transport::Tcp.name()));
        report.rows.push(row(Transport::Tcp, mtu, &tcp(options, mtu)?)?);
        progress.step(format!("{}, MTU {mtu}", Transport::Rdma.name()));
        report.rows.push(row(Transport::Rdma, mtu, &rdma(options, mtu)?)?);
    }
    compare(&mut report.rows);
    Ok(report)
}

fn row(transport: Transport, mtu: u16, runs: &[RunResult]) -> Result<CopiesRow> {
    let samples = |of: &dyn Fn(&RunResult) -> f64| Samples::new(runs.iter().map(of).collect());
    let share = |side: fn(&RunResult) -> u64| {
        let (copied, delivered): (u64, u64) =
            (runs.iter().map(side).sum(), runs.iter().map(|run| run.delivered).sum());
        copied as f64 / delivered.max(1) as f64
    };
    Ok(CopiesRow {
        transport,
        mtu,
        gbps: samples(&|run| bandwidth_gbps(run.delivered, run.seconds))?,
        copied_by_sender: share(|run| run.copied[0]),
        copied_by_receiver: share(|run| run.copied[1]),
        cpu_s_per_gib: samples(&|run| run.per_gib(run.cpu.iter().sum()))?,
        sender_s_per_gib: samples(&|run| run.per_gib(run.cpu[0]))?,
        receiver_s_per_gib: samples(&|run| run.per_gib(run.cpu[1]))?,
        idle_s_per_gib: samples(&|run| run.per_gib(run.idle))?,
        factor: None,
    })
}

/// Sets the factor of every row, relative to kernel TCP without offloads at the same MTU.
fn compare(rows: &mut [CopiesRow]) {
    let kernels: Vec<(u16, f64)> = rows
        .iter()
        .filter(|row| row.transport == Transport::Kernel)
        .map(|row| (row.mtu, row.cpu_s_per_gib.median))
        .collect();
    for row in rows {
        let kernel = kernels.iter().find(|(mtu, _)| *mtu == row.mtu);
        row.factor =
            kernel.map(|(_, cpu)| cpu / row.cpu_s_per_gib.median).filter(|factor| factor.is_finite());
    }
}

fn sizes(mtu: u16) -> Sizes {
    Sizes { mtu, connections: 4, buffers: 4096 }
}

/// Bytes delivered, and bytes copied by sender and receiver.
type Counted = (u64, [u64; 2]);

/// Measures a connected pair. `poll` posts work and polls the pair; `count` reads its counters.
fn runs<S: Host, R: Host>(
    options: &Options,
    pair: &mut HostPair<S, R>,
    mut poll: impl FnMut(&mut HostPair<S, R>) -> Result<()>,
    count: impl Fn(&mut HostPair<S, R>) -> Counted,
) -> Result<Vec<RunResult>> {
    let mut run_for = |pair: &mut HostPair<S, R>, time: Duration| {
        let begin = pair.elapsed();
        while pair.elapsed().saturating_sub(begin) < time {
            poll(pair)?;
        }
        anyhow::Ok(pair.elapsed().saturating_sub(begin).as_secs_f64())
    };
    run_for(pair, WARM_UP)?;
    (0..options.runs)
        .map(|_| {
            let (before, spent_before, used) = (count(pair), pair.spent(), thread_cpu_time());
            let seconds = run_for(pair, Duration::from_secs_f64(options.duration))?;
            let used = thread_cpu_time().saturating_sub(used);
            let after = count(pair);
            // One thread runs both hosts: its CPU time is split in proportion to the time of their steps. In idle
            // steps a host with a thread of its own would have slept or done other work.
            let share = |side: usize| {
                let spent = |times: [Duration; 3]| times.get(side).copied().unwrap_or_default();
                let all: f64 = pair
                    .spent()
                    .iter()
                    .zip(spent_before)
                    .map(|(now, then)| (*now - then).as_secs_f64())
                    .sum();
                used.mul_f64(
                    (spent(pair.spent()) - spent(spent_before)).as_secs_f64() / all.max(f64::MIN_POSITIVE),
                )
            };
            let delivered = after.0 - before.0;
            ensure!(delivered > 0, "nothing was delivered");
            Ok(RunResult {
                delivered,
                copied: [after.1[0] - before.1[0], after.1[1] - before.1[1]],
                seconds,
                cpu: [share(0), share(1), Duration::ZERO],
                idle: share(2),
            })
        })
        .collect()
}

fn tcp(options: &Options, mtu: u16) -> Result<Vec<RunResult>> {
    let sizes = sizes(mtu);
    let receiver = TcpReceiver::new(&sizes, prefaulted(REGION))?;
    let mut pair = HostPair::new(&sizes, TcpSender::new(&sizes, prefaulted(REGION)), receiver)?;
    pair.sender().connect()?;
    ensure!(pair.run_until(TIMEOUT, |pair| pair.receiver().copied() > 0), "no connection");
    let poll = |pair: &mut HostPair<TcpSender, TcpReceiver>| {
        pair.poll();
        Ok(())
    };
    runs(options, &mut pair, poll, |pair| {
        let (sent, received) = (pair.sender().copied(), pair.receiver().copied());
        (received, [sent, received])
    })
}

fn rdma(options: &Options, mtu: u16) -> Result<Vec<RunResult>> {
    let sizes = sizes(mtu);
    let (sender, receiver) = (Initiator::new(&sizes, REGION)?, Target::new(&sizes, REGION)?);
    let mut pair = HostPair::new(&sizes, sender, receiver)?;
    let now = pair.elapsed();
    let stream = pair.sender().connect(now)?;
    ensure!(pair.run_until(TIMEOUT, |pair| pair.sender().granted() == 1), "no grant");
    let mut posted = 0;
    let poll = |pair: &mut HostPair<Initiator, Target>| {
        while posted < pair.sender().completed(stream) + POSTED {
            let at = posted * u64::from(MESSAGE) % REGION as u64;
            pair.sender().write(stream, at, MESSAGE)?;
            posted += 1;
        }
        pair.poll();
        match pair.sender().failure() {
            Some(failure) => bail!("{failure}"),
            None => Ok(()),
        }
    };
    runs(options, &mut pair, poll, |pair| {
        let sent = pair.sender().stats().rdmap.payload_bytes_fetched;
        let receiver = pair.receiver().stats();
        (receiver.rdmap.payload_bytes_placed, [sent, receiver.mpa.bytes_copied])
    })
}

impl Report for CopiesReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\nmedians; bytes copied per byte delivered; CPU time of both hosts at work, seconds per GiB delivered; \
             idle: polling"
        )?;
        writeln!(
            out,
            "{:<26} {:>5} {:>10} {:>10} {:>10} {:>24} {:>10} {:>10} {:>8} {:>9}",
            "transport",
            "MTU",
            "BW[Gb/s]",
            "copied by",
            "and by",
            "CPU[s/GiB]",
            "sender",
            "receiver",
            "idle",
            "factor"
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{:<26} {:>5} {:>10.2} {:>10.3} {:>10.3} {:>24} {:>10.3} {:>10.3} {:>8.3} {:>9}",
                row.transport.name(),
                row.mtu,
                row.gbps.median,
                row.copied_by_sender,
                row.copied_by_receiver,
                row.cpu_s_per_gib.show(3),
                row.sender_s_per_gib.median,
                row.receiver_s_per_gib.median,
                row.idle_s_per_gib.median,
                row.factor.map_or_else(|| "–".to_owned(), |factor| format!("{factor:.2}×"))
            )?;
        }
        for NotMeasured { what, why } in &self.absent {
            writeln!(out, "not measured: {what}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_delivers_and_copies_once_on_each_host() {
        let options = Options {
            duration: 0.2,
            runs: 1,
            mtu: vec![1500],
            cores: Cores([0, 0]),
            congestion_control: "cubic".to_owned(),
        };
        let report = run(&options).unwrap();
        assert_eq!(report.absent, []);
        let transports: Vec<Transport> = report.rows.iter().map(|row| row.transport).collect();
        assert_eq!(
            transports,
            [Transport::Kernel, Transport::KernelOffloads, Transport::Tcp, Transport::Rdma]
        );
        for row in &report.rows {
            assert!((0.9999..1.0001).contains(&row.copied_by_receiver), "{row:?}");
            // Bytes in flight at the end were copied and not delivered.
            assert!((0.8..1.5).contains(&row.copied_by_sender), "{row:?}");
            assert!(row.cpu_s_per_gib.median > 0.0 && row.gbps.median > 0.0, "{row:?}");
        }
        assert_eq!(report.rows.first().unwrap().factor, Some(1.0));
    }
}
