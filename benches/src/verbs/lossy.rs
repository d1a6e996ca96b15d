//! `lossy`: goodput under loss and reordering, with out-of-order data placed at once and with it held; and that of the
//! kernel's TCP with the same loss.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use dataplane::dpdk::Eal;
use dataplane::verbs::Node;
use iwarp_engine::Clock;
use rdma::CrcPolicy;
use serde::Serialize;
use tcp_stack::Instant;

use super::bandwidth::Bulk;
use super::baseline_guard::BaselineGuard;
use super::driver::TrafficSpec;
use super::load::{Link, Load, Operation};
use super::node::{BenchNode, PairSetup, Role};
use super::nodes;
use super::peer_process::Rendezvous;
use super::relay::{self, Impairments, Wire};
use crate::peers::{LossyPeerRow, NotMeasured, measure_lossy};
use crate::{Placement, Progress, Report, Samples, bandwidth_gbps, median, on_two_cores};

/// Fractions of frames dropped, of frames held back, and of frames with which a burst of loss begins: none, for the
/// baseline.
const UNIMPAIRED: (f64, f64, f64) = (0.0, 0.0, 0.0);
/// The same for the measured rows.
const IMPAIRMENTS: [(f64, f64, f64); 5] =
    [(0.0, 0.01, 0.0), (0.0, 0.05, 0.0), (0.001, 0.0, 0.0), (0.01, 0.0, 0.0), (0.0, 0.0, 0.000_1)];
/// Frames dropped in a burst: a window of CUBIC under random loss, several times.
const BURST_FRAMES: usize = 64;
/// Limit of the time that a burst lasts, microseconds. With a window of fewer frames, loss probes would be the rest of
/// the burst.
const BURST_US: u64 = 100;
/// Fractions of packets that the veth pair of the kernel's TCP drops; the first is the baseline.
const PEER_LOSSES: [f64; 3] = [0.0, 0.001, 0.01];
/// Default number of frames that overtake a held frame.
const HOLD: usize = 8;
/// Default limit of the time that a frame is held, microseconds: four times what eight frames take at MTU 9000 and 25
/// Gbit/s.
const HOLD_US: u64 = 100;
/// Time without a poll that counts as a pause of a node: nearly the least retransmission timeout of 5 ms. A node whose
/// CPU is taken away for so long answers nothing, and its peer's timer expires.
const PAUSE: Duration = Duration::from_millis(4);
/// Seed of the relay's random sequence.
const SEED: u64 = 5;
/// Bytes of a message.
const MESSAGE: u64 = 64 << 10;

/// Command-line flags of `lossy`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    load: Load,
    /// Frames that overtake a held frame.
    #[arg(long, default_value_t = HOLD)]
    hold_frames: usize,
    /// Longest time that a frame is held, microseconds.
    #[arg(long, default_value_t = HOLD_US)]
    hold_us: u64,
    /// Runs per row, alternating with the other rows of its MTU and placement; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Leave out the kernel's TCP over a veth pair (iperf3), which takes network namespaces and nftables.
    #[arg(long)]
    no_peer: bool,
}

/// Result of one MTU, placement and kind of impairment.
#[derive(Clone, Debug, Serialize)]
pub struct LossyRow {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Bytes of a message.
    pub size: u64,
    /// Impairments of the wire.
    #[serde(rename = "weather")]
    pub impairments: Impairments,
    /// True if out-of-order data was placed at once.
    pub out_of_order_placement: bool,
    /// Median of the runs, Gbit/s of payload.
    pub gbps: f64,
    /// Bandwidth of each run divided by the mean of the baselines before and after it, without loss and reordering.
    #[serde(rename = "of_fair")]
    pub of_baseline: Samples,
    /// Rounds of its MTU and placement that do not count, because the baselines before and after differ by more than
    /// half.
    #[serde(rename = "thrown_away")]
    pub discarded: u64,
    /// Bytes held until a gap closed, per byte placed.
    pub held_per_byte: f64,
    /// Bytes placed out of order, per byte placed.
    #[serde(rename = "early_per_byte")]
    pub out_of_order_per_byte: f64,
    /// Bytes copied by the receiver, per byte placed.
    pub copied_per_byte: f64,
    /// Bytes retransmitted, per byte sent for the first time.
    pub retransmitted_per_byte: f64,
    /// Retransmission timeouts, in all runs.
    pub timeouts: u64,
    /// Retransmission timeouts beyond the number of pauses of either node, in all runs.
    pub timeouts_without_pause: u64,
    /// Times at which either node did not poll for 4 ms, because its CPU was taken away, in all runs.
    pub pauses: u64,
    /// Retransmission timeouts per GiB placed.
    pub timeouts_per_gib: f64,
    /// Loss probes sent per GiB placed.
    pub probes_per_gib: f64,
    /// Retransmissions lost, too, per GiB placed.
    pub lost_retransmits_per_gib: f64,
}

/// The result rows of `lossy`.
#[derive(Clone, Debug, Serialize)]
pub struct LossyReport {
    /// Congestion control of the connections.
    pub congestion: String,
    /// Time that a cache line takes between the two CPUs, nanoseconds.
    pub hand_off_ns: f64,
    /// Runs that were repeated because the hypervisor had moved a CPU meanwhile.
    pub runs_repeated: u64,
    /// Times that the CPUs stayed elsewhere and further runs measured them there.
    pub cpus_moved: u64,
    /// One row for each combination.
    pub rows: Vec<LossyRow>,
    /// The kernel's TCP over a veth pair with the same random loss, on the same cores.
    pub peer: Vec<LossyPeerRow>,
    /// MTUs at which the kernel's TCP could not be measured.
    pub absent: Vec<NotMeasured>,
}

/// Measures the goodput of every combination.
///
/// # Errors
/// There is not enough memory, a CPU is not available, or a connection fails.
pub fn run(options: &Options) -> Result<LossyReport> {
    ensure!(options.load.link == Link::Ring, "--link: the relay that drops and reorders frames takes rings");
    let rows = options.load.rows(&[MESSAGE]);
    let peers = if options.no_peer { 0 } else { options.load.mtus().len() };
    let runs = rows.len() * 2 * (1 + (1 + IMPAIRMENTS.len()) * options.runs.max(1));
    let progress = Progress::new(runs + peers);
    let eal = nodes::start_dpdk(&options.load, &[Role::Initiator, Role::Target])?;
    let congestion = options.load.congestion.clone();
    let mut placement = Placement::survey(options.load.cores)?;
    let (mut measured, mut peer, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for of in rows {
        for out_of_order in [true, false] {
            measured.extend(rounds(&eal, options, (of, out_of_order), &mut placement, &progress)?);
        }
    }
    let peer_mtus = if options.no_peer { &[][..] } else { options.load.mtus() };
    for mtu in peer_mtus {
        let what = format!("the kernel's TCP at MTU {mtu}");
        progress.step(what.clone());
        match options.measure_peer(*mtu, &mut placement) {
            Ok(rows) => peer.extend(rows),
            Err(error) => absent.push(NotMeasured { what, why: format!("{error:#}") }),
        }
    }
    Ok(LossyReport {
        congestion,
        hand_off_ns: placement.reference_ns(),
        runs_repeated: placement.repeated(),
        cpus_moved: placement.moved(),
        rows: measured,
        peer,
        absent,
    })
}

/// Measures one MTU and placement in rounds: each has one run of every impairment, and a baseline before and after it.
fn rounds(
    eal: &Eal,
    options: &Options,
    (of, out_of_order): ((u16, CrcPolicy, u64), bool),
    placement: &mut Placement<impl FnMut() -> Result<f64>>,
    progress: &Progress,
) -> Result<Vec<LossyRow>> {
    let (mtu, _, size) = of;
    let mut run = |kind: (f64, f64, f64), round: usize| {
        let (loss, reorder, bursts) = kind;
        progress.step(format!("loss {loss}, reordering {reorder}, bursts {bursts} at MTU {mtu}"));
        let impairments = (options.impairments(kind), round as u64);
        placement.measure(|| RunTotals::measure(eal, options, of, impairments, out_of_order))
    };
    let (mut baseline, wanted) = (run(UNIMPAIRED, 0)?, options.runs.max(1));
    let mut guard = BaselineGuard::new(baseline.gbps(), wanted);
    let (mut totals, mut beside) = ([const { RunTotals::new() }; IMPAIRMENTS.len()], Vec::new());
    for round in 1.. {
        let results =
            IMPAIRMENTS.iter().map(|impairments| run(*impairments, round)).collect::<Result<Vec<_>>>()?;
        let after = run(UNIMPAIRED, round)?;
        let rate = guard.accept(after.gbps());
        baseline.add(after);
        let Some(rate) = rate else { continue };
        beside.push(rate);
        for (total, result) in totals.iter_mut().zip(results) {
            total.add(result);
        }
        if beside.len() == wanted {
            break;
        }
    }
    let row = |total: &RunTotals, kind, beside: &[f64]| {
        total.row((mtu, size), options.impairments(kind), (out_of_order, guard.discarded()), beside)
    };
    let unimpaired = row(&baseline, UNIMPAIRED, &baseline.rates);
    let others =
        IMPAIRMENTS.into_iter().zip(&totals).map(|(impairments, total)| row(total, impairments, &beside));
    [unimpaired].into_iter().chain(others).collect()
}

impl Options {
    fn impairments(&self, (loss, reorder, bursts): (f64, f64, f64)) -> Impairments {
        let Self { hold_frames, hold_us, .. } = *self;
        Impairments {
            loss,
            bursts,
            burst_frames: BURST_FRAMES,
            burst_us: BURST_US,
            reorder,
            hold_frames,
            hold_us,
        }
    }

    /// Measures the kernel's TCP with the congestion control of the same name.
    fn measure_peer(
        &self,
        mtu: u16,
        placement: &mut Placement<impl FnMut() -> Result<f64>>,
    ) -> Result<Vec<LossyPeerRow>> {
        let Load { congestion, cores, duration, .. } = &self.load;
        let control = if congestion == "newreno" { "reno" } else { congestion.as_str() };
        let duration = Duration::try_from_secs_f64(*duration)?;
        measure_lossy((mtu, &PEER_LOSSES), (*cores, control), (self.runs.max(1), duration), placement)
    }
}

/// Opens two nodes with a relay between them.
fn open(
    eal: &Eal,
    load: &Load,
    setup: &PairSetup,
    impairments: Impairments,
    seed: u64,
) -> Result<([BenchNode; 2], Wire)> {
    let clock = Clock::start();
    let (spec, pool) = (relay::spec(setup.mtu, load.descriptors), relay::few_buffers(eal, setup.mtu)?);
    let open = |role| {
        let config = nodes::config(load, setup.mtu, role)?;
        let options = nodes::options(&config, setup);
        Node::open_wired(eal, (&config, &options), (&spec, std::slice::from_ref(&pool)), &clock)
    };
    let ((initiator, initiator_port), (target, target_port)) = (open(Role::Initiator)?, open(Role::Target)?);
    let mut wire = Wire::new([initiator_port, target_port], impairments, seed)?;
    let ends = nodes::connect([initiator, target], load.region, setup, || wire.poll(clock.now()))?;
    Ok((ends, wire))
}

/// Counts the pauses of a node, between the first poll and the last.
#[derive(Debug, Default)]
struct PauseMeter {
    last: Option<Instant>,
    pauses: u64,
}

impl PauseMeter {
    /// Records a poll that began at `now`.
    fn poll(&mut self, now: Instant) {
        let before = self.last.replace(now);
        self.pauses += u64::from(before.is_some_and(|last| now.saturating_since(last) >= PAUSE));
    }
}

/// Sums over the runs of a row.
#[derive(Debug)]
struct RunTotals {
    /// Gbit/s of each run.
    rates: Vec<f64>,
    placed: u64,
    held: u64,
    out_of_order: u64,
    copied: u64,
    sent: u64,
    sent_again: u64,
    timeouts: u64,
    timeouts_without_pause: u64,
    pauses: u64,
    probes: u64,
    lost_again: u64,
}

impl RunTotals {
    const fn new() -> Self {
        Self {
            rates: Vec::new(),
            placed: 0,
            held: 0,
            out_of_order: 0,
            copied: 0,
            sent: 0,
            sent_again: 0,
            timeouts: 0,
            timeouts_without_pause: 0,
            pauses: 0,
            probes: 0,
            lost_again: 0,
        }
    }

    /// Measures one run, by the number of its round.
    fn measure(
        eal: &Eal,
        options: &Options,
        (mtu, crc, size): (u16, CrcPolicy, u64),
        (impairments, round): (Impairments, u64),
        out_of_order: bool,
    ) -> Result<Self> {
        const DEPTH: u16 = 128;
        let setup =
            PairSetup { mtu, crc, qps: 1, send_depth: DEPTH, receive_depth: 0, inline: 0, out_of_order };
        let limit = options.load.iters.unwrap_or(u64::MAX);
        let traffic = TrafficSpec {
            operation: Operation::Write,
            size: u32::try_from(size)?,
            depth: DEPTH,
            receive_depth: 0,
            limit,
            inline: false,
        };
        let ([mut left, mut right], mut wire) = open(eal, &options.load, &setup, impairments, SEED + round)?;
        let (bulk, rendezvous) = (Bulk::new(&options.load, &traffic, false), Rendezvous::default());
        let (mut left_pauses, mut right_pauses) = (PauseMeter::default(), PauseMeter::default());
        let [to_left, to_right] = &mut wire.relays;
        let poll_left = |now| {
            left_pauses.poll(now);
            to_left.poll(now);
        };
        let poll_right = |now| {
            right_pauses.poll(now);
            to_right.poll(now);
        };
        let (_, seen) = on_two_cores(
            options.load.cores,
            || rendezvous.guard(|| bulk.drive(&mut left, Role::Initiator, &rendezvous, poll_left)),
            || rendezvous.guard(|| bulk.drive(&mut right, Role::Target, &rendezvous, poll_right)),
        )?;
        let pauses = left_pauses.pauses + right_pauses.pauses;
        let (mpa, tcp) = (right.node.engine().rdma_stats().mpa, left.node.engine().stack().stats().tcp);
        let total = Self {
            rates: vec![bandwidth_gbps(seen.bytes, seen.seconds)],
            placed: right.placed(),
            held: mpa.bytes_held,
            out_of_order: mpa.bytes_placed_early,
            copied: mpa.bytes_copied,
            sent: tcp.bytes_out,
            sent_again: tcp.bytes_retransmitted,
            timeouts: tcp.timeouts,
            timeouts_without_pause: tcp.timeouts.saturating_sub(pauses),
            pauses,
            probes: tcp.loss_probes,
            lost_again: tcp.lost_retransmits,
        };
        Ok(total)
    }

    /// Adds the runs of another.
    fn add(&mut self, other: Self) {
        self.rates.extend(other.rates);
        self.placed += other.placed;
        self.held += other.held;
        self.out_of_order += other.out_of_order;
        self.copied += other.copied;
        self.sent += other.sent;
        self.sent_again += other.sent_again;
        self.timeouts += other.timeouts;
        self.timeouts_without_pause += other.timeouts_without_pause;
        self.pauses += other.pauses;
        self.probes += other.probes;
        self.lost_again += other.lost_again;
    }

    /// Returns the median of the runs, Gbit/s.
    fn gbps(&self) -> f64 {
        median(&self.rates)
    }

    /// Returns the row; `baseline` has the rate without impairments for each run.
    fn row(
        &self,
        (mtu, size): (u16, u64),
        impairments: Impairments,
        (out_of_order, discarded): (bool, u64),
        baseline: &[f64],
    ) -> Result<LossyRow> {
        let per = |bytes: u64, of: u64| if of > 0 { bytes as f64 / of as f64 } else { 0.0 };
        let per_gib = |count: u64| count as f64 * f64::from(1 << 30) / self.placed.max(1) as f64;
        let ratios = self.rates.iter().zip(baseline).map(|(rate, baseline)| rate / baseline).collect();
        Ok(LossyRow {
            mtu,
            size,
            impairments,
            out_of_order_placement: out_of_order,
            gbps: self.gbps(),
            of_baseline: Samples::new(ratios)?,
            discarded,
            held_per_byte: per(self.held, self.placed),
            out_of_order_per_byte: per(self.out_of_order, self.placed),
            copied_per_byte: per(self.copied, self.placed),
            retransmitted_per_byte: per(self.sent_again, self.sent),
            timeouts: self.timeouts,
            timeouts_without_pause: self.timeouts_without_pause,
            pauses: self.pauses,
            timeouts_per_gib: per_gib(self.timeouts),
            probes_per_gib: per_gib(self.probes),
            lost_retransmits_per_gib: per_gib(self.lost_again),
        })
    }
}

impl Report for LossyReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{}; RTOs, probes and lost retransmissions per GiB; pauses: RTOs", self.congestion)?;
        writeln!(out, "without a pause of a CPU of 4 ms, and pauses, in all runs")?;
        let Self { hand_off_ns, runs_repeated, cpus_moved, .. } = self;
        write!(
            out,
            "a cache line takes {hand_off_ns:.0} ns between the CPUs; a CPU was moved in {runs_repeated} runs,"
        )?;
        writeln!(out, " which were repeated, and {cpus_moved} times for good")?;
        let heads = ["MTU", "loss", "bursts", "reorder", "out-of-order", "BW[Gb/s]", "of baseline"];
        let [mtu, loss, bursts, reorder, placement, rate, baseline] = heads;
        write!(out, "{mtu:>5} {loss:>7} {bursts:>7} {reorder:>8} {placement:>12} {rate:>9} {baseline:>19} ")?;
        let heads = ["held", "ooo", "copied", "resent", "RTOs", "pauses", "probes", "lost again"];
        let [held, out_of_order, copied, resent, timeouts, pauses, probes, lost_again] = heads;
        write!(out, "{held:>7} {out_of_order:>7} {copied:>7} {resent:>7} ")?;
        writeln!(out, "{timeouts:>6} {pauses:>7} {probes:>8} {lost_again:>10}")?;
        for row in &self.rows {
            let placement = if row.out_of_order_placement { "placed" } else { "held" };
            let Impairments { loss, bursts, reorder, .. } = row.impairments;
            let (loss, bursts, reorder) = (loss * 100.0, bursts * 100.0, reorder * 100.0);
            write!(out, "{:>5} {loss:>6.2}% {bursts:>6.2}% {reorder:>7.2}% {placement:>12} ", row.mtu)?;
            write!(out, "{:>9.2} {:>19} ", row.gbps, row.of_baseline.show(2))?;
            write!(out, "{:>7.3} {:>7.3} ", row.held_per_byte, row.out_of_order_per_byte)?;
            write!(out, "{:>7.3} {:>7.4} ", row.copied_per_byte, row.retransmitted_per_byte)?;
            let pauses = format!("{}/{}", row.timeouts_without_pause, row.pauses);
            write!(out, "{:>6.2} {pauses:>7} ", row.timeouts_per_gib)?;
            writeln!(out, "{:>8.1} {:>10.1}", row.probes_per_gib, row.lost_retransmits_per_gib)?;
        }
        if !self.peer.is_empty() {
            writeln!(out, "\nthe kernel's TCP over a veth pair without offloads")?;
            let heads = ["MTU", "loss", "congestion", "BW[Gb/s]", "of baseline"];
            let [mtu, loss, control, rate, baseline] = heads;
            write!(out, "{mtu:>5} {loss:>7} {control:>10} {rate:>22} {baseline:>11} ")?;
            writeln!(out, "{timeouts:>8} {probes:>8} {lost_again:>10}")?;
        }
        for row in &self.peer {
            let (loss, rate) = (row.loss * 100.0, row.gbps.show(2));
            write!(out, "{:>5} {loss:>6.2}% {:>10} ", row.mtu, row.congestion_control)?;
            write!(out, "{rate:>22} {:>11.2} {:>8.2} ", row.of_baseline, row.timeouts_per_gib)?;
            writeln!(out, "{:>8.1} {:>10.1}", row.probes_per_gib, row.lost_retransmits_per_gib)?;
        }
        for NotMeasured { what, why } in &self.absent {
            writeln!(out, "not measured: {what}: {why}")?;
        }
        Ok(())
    }
}
