//! Values of the exporter: every counter that the control socket reports, and gauges of the daemon, its ports and its
//! pools.

use std::time::Duration;

use iwarp_counters::Histogram;

use super::report;
use super::{ControlHandler, PortEntry, resident_bytes};
use crate::metrics::{Family, Kind, Sample, Source, merged};
use crate::worker::{Row, is_histogram};

/// Group of the values of a moment among the workers' counters.
const GAUGE_GROUP: &str = "now";

/// Group of the workers' histograms.
const HISTOGRAM_GROUP: &str = "verbs";

/// Longest wait for the list of regions.
pub(super) const LOCK_WAIT: Duration = Duration::from_millis(100);

iwarp_counters::counters! {
    /// Gauges of the daemon.
    struct DaemonGauges {
        /// Seconds since the daemon started.
        uptime_seconds,
        /// Connections that all workers together accept.
        connections_max,
        /// Resident memory of the process without hugepages, bytes.
        resident_bytes,
        /// Hugepages of 2 MiB that the machine has.
        hugepages,
        /// Hugepages of 2 MiB that are free.
        hugepages_free,
    }
}

iwarp_counters::counters! {
    /// Gauges that need the list of regions.
    struct RegionGauges {
        /// Reasons for which the daemon is degraded; `iwarpctl status` names them.
        degraded,
        /// Number of registered regions.
        regions,
        /// Bytes of the registered regions.
        regions_bytes,
    }
}

iwarp_counters::counters! {
    /// Counters of a port's device.
    struct PortCounters {
        /// Frames received by the device.
        rx_frames,
        /// Frames transmitted by the device.
        tx_frames,
        /// Bytes received by the device.
        rx_bytes,
        /// Bytes transmitted by the device.
        tx_bytes,
        /// Received frames that the device dropped because its queues were full.
        rx_missed,
        /// Received frames with errors.
        rx_errors,
        /// Frames that the device failed to transmit.
        tx_errors,
        /// Received frames dropped because there was no packet buffer.
        rx_no_buffer,
    }
}

iwarp_counters::counters! {
    /// Gauges of a port.
    struct PortGauges {
        /// 1 if the link is up, 0 if it is down or the interface is gone.
        link_up,
        /// Speed of the link in Mb/s; 0 if the device does not report it.
        speed_mbps,
    }
}

iwarp_counters::counters! {
    /// Gauges of a pool of packet buffers.
    struct PoolGauges {
        /// Packet buffers of the pool.
        buffers,
        /// Packet buffers in use.
        in_use,
        /// Packet buffers that data to be sent leaves to received frames and acknowledgments.
        reserve,
    }
}

impl Source for ControlHandler {
    async fn families(&self) -> Vec<Family> {
        let mut families = self.worker_families();
        for (group, visit) in self.own_blocks() {
            families.extend(Family::of_block(group, Kind::Counter, None, visit));
        }
        families.extend(self.daemon_families().await);
        let ports = self.ports.borrow();
        families.extend(merged(ports.iter().flat_map(port_families)));
        families.extend(merged(report::pools(&ports).into_iter().flat_map(|pool| {
            let gauges = PoolGauges { buffers: pool.buffers, in_use: pool.in_use, reserve: pool.reserve };
            Family::of_block("pool", Kind::Gauge, Some(("pool", &pool.name)), |f| gauges.visit(f))
        })));
        families
    }
}

impl ControlHandler {
    /// Returns the published counters and histograms, one sample per worker.
    fn worker_families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = Vec::new();
        for (worker, handle) in self.workers.iter().enumerate() {
            let totals = handle.published.totals();
            let same = |(row, _): &(Row, u64), (next, _): &(Row, u64)| {
                row.group == next.group && is_histogram(row.group)
            };
            for (at, rows) in totals.chunk_by(same).enumerate() {
                let label = Some(("worker", worker.to_string()));
                let Some(mut family) = family_of(rows, label) else { continue };
                // Every worker has every port, and so the same counters in the same order.
                match families.get_mut(at) {
                    Some(known) => known.samples.append(&mut family.samples),
                    None => families.push(family),
                }
            }
        }
        families
    }

    async fn daemon_families(&self) -> Vec<Family> {
        let hugepages = iwarp_engine::memory::hugepages();
        let gauges = DaemonGauges {
            uptime_seconds: self.clock.now().as_nanos() / 1_000_000_000,
            connections_max: self.info.connections_max,
            resident_bytes: resident_bytes(),
            hugepages: hugepages.total,
            hugepages_free: hugepages.free,
        };
        let mut families = Family::of_block("daemon", Kind::Gauge, None, |f| gauges.visit(f));
        // While a worker does not answer a request about a region, the list is locked, and these gauges are left out.
        if let Ok(regions) = tokio::time::timeout(LOCK_WAIT, self.regions.lock()).await {
            let (count, _, bytes) = regions.totals();
            let degraded = self.degraded(&regions).map_or(1, |(_, reasons)| reasons.len() as u64);
            let gauges = RegionGauges { degraded, regions: count as u64, regions_bytes: bytes };
            families.extend(Family::of_block("daemon", Kind::Gauge, None, |f| gauges.visit(f)));
        }
        families
    }
}

/// Returns the family of one counter or gauge, or of all values of a histogram.
fn family_of(rows: &[(Row, u64)], label: Option<(&'static str, String)>) -> Option<Family> {
    let (row, value) = rows.first()?;
    let help = row.help.trim().to_owned();
    if is_histogram(row.group) {
        let durations = Histogram::from_values(rows.iter().map(|(_, value)| *value));
        let sample = Sample { label, value: durations.count(), durations: Some(Box::new(durations)) };
        let (group, name) = (HISTOGRAM_GROUP.to_owned(), row.group.to_owned());
        return Some(Family { group, name, help, kind: Kind::Histogram, samples: vec![sample] });
    }
    let samples = vec![Sample { label, value: *value, durations: None }];
    let kind = if row.group == GAUGE_GROUP { Kind::Gauge } else { Kind::Counter };
    Some(Family { group: row.group.to_owned(), name: row.name.to_owned(), help, kind, samples })
}

/// Returns the values of a port. A device that does not answer has no counters.
fn port_families(entry: &PortEntry) -> Vec<Family> {
    let port = &entry.port;
    let label = Some(("port", port.name()));
    let link = port.link().ok().filter(|_| !port.is_gone());
    let gauges = PortGauges {
        link_up: link.is_some_and(|link| link.up).into(),
        speed_mbps: link.and_then(|link| link.megabits_per_second).map_or(0, u64::from),
    };
    let mut families = Family::of_block("port", Kind::Gauge, label, |f| gauges.visit(f));
    if let Ok(stats) = port.stats() {
        let counters = PortCounters {
            rx_frames: stats.rx_frames,
            tx_frames: stats.tx_frames,
            rx_bytes: stats.rx_bytes,
            tx_bytes: stats.tx_bytes,
            rx_missed: stats.rx_missed,
            rx_errors: stats.rx_errors,
            tx_errors: stats.tx_errors,
            rx_no_buffer: stats.rx_no_buffer,
        };
        families.extend(Family::of_block("port", Kind::Counter, label, |f| counters.visit(f)));
    }
    families
}
