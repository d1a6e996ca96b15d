//! The kernel's TCP over a veth pair that drops packets: the peer of `lossy`.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::process::{Program, is_installed};
use super::veth::{Veth, VethConfig};
use super::{Budget, iperf};
use crate::{Cores, Placement, Samples, Stopwatch, median};

/// Bytes of a write() and of a read().
const MESSAGE: u64 = 64 << 10;

/// Result of the kernel's TCP at one MTU and fraction of packets lost.
#[derive(Clone, Debug, Serialize)]
pub struct LossyPeerRow {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Fraction of packets dropped in each direction.
    pub loss: f64,
    /// The sender's congestion control.
    pub congestion_control: String,
    /// Goodput at the receiver, Gbit/s.
    pub gbps: Samples,
    /// Median goodput divided by that without loss.
    pub of_baseline: f64,
    /// Retransmission timeouts per GiB received.
    pub timeouts_per_gib: f64,
    /// Tail loss probes per GiB received.
    pub probes_per_gib: f64,
    /// Lost retransmissions per GiB received.
    pub lost_retransmits_per_gib: f64,
}

/// Measures the kernel's TCP without offloads, at each fraction of `losses`, of which the first is the baseline.
///
/// # Errors
/// A program is not installed or fails, or this process may not make namespaces.
pub(crate) fn measure(
    (mtu, losses): (u16, &[f64]),
    (cores, control): (Cores, &str),
    (runs, duration): (usize, Duration),
    placement: &mut Placement<impl FnMut() -> Result<f64>>,
) -> Result<Vec<LossyPeerRow>> {
    for (program, package) in [("iperf3", "iperf3"), ("nft", "nftables")] {
        ensure!(is_installed(program), "{program} is not installed: apt-get install {package}");
    }
    let veth = Veth::new(VethConfig { mtu, offloads: false })?;
    // iperf3 takes whole seconds.
    let whole = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    let seconds = u32::try_from(whole)?.clamp(1, 30);
    let budget = Budget { watch: Stopwatch::start(), limit_s: 600 };
    let program = Program { veth: &veth, cores, name: "iperf3", environment: &[], budget: &budget };
    let mut rows: Vec<LossyPeerRow> = Vec::new();
    for loss in losses {
        const COUNTERS: [&str; 3] = ["TCPTimeouts", "TCPLossProbes", "TCPLostRetransmit"];
        let counters = || COUNTERS.iter().map(|name| veth.tcp_counter(name)).collect::<Result<Vec<_>>>();
        veth.lose(*loss)?;
        let (before, mut gbps, mut name) = (counters()?, Vec::new(), String::new());
        for _ in 0..runs {
            let run = placement.measure(|| iperf::once(&program, MESSAGE, seconds, control))?;
            gbps.push(run.gbps);
            name = run.congestion_control;
        }
        let after = counters()?;
        let gib = gbps.iter().sum::<f64>() * f64::from(seconds) * 1e9 / 8.0 / f64::from(1 << 30);
        let mut per_gib =
            before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before) as f64 / gib);
        let mut next = || per_gib.next().unwrap_or(0.0);
        let [timeouts_per_gib, probes_per_gib, lost_retransmits_per_gib] = [next(), next(), next()];
        let rate = median(&gbps);
        let baseline = rows.first().map_or(rate, |row| row.gbps.median);
        rows.push(LossyPeerRow {
            mtu,
            loss: *loss,
            congestion_control: name,
            gbps: Samples::new(gbps)?,
            of_baseline: rate / baseline,
            timeouts_per_gib,
            probes_per_gib,
            lost_retransmits_per_gib,
        });
    }
    Ok(rows)
}
