//! Measures copies, CRC32c, and both on one core, from each level of the memory hierarchy.

use std::hint::black_box;

use rdma::mpa::crc::crc32c;
use serde::Serialize;

use super::Options;
use crate::{Machine, PAYLOADS, Progress, Stopwatch, bandwidth_gbps, median};

/// Levels of the memory hierarchy.
pub(super) const LEVELS: usize = 3;
/// Payloads between two readings of the clock.
const BATCH: usize = 64;

/// Result of one payload size from one level.
#[derive(Clone, Debug, Serialize)]
pub struct CopyRow {
    /// Bytes copied by one operation.
    pub payload: usize,
    /// Level of the source: `L2`, `LLC`, `DRAM`.
    pub from: &'static str,
    /// Bytes of the source, read cyclically.
    pub working_set_bytes: usize,
    /// Bandwidth of the copy alone, Gbit/s.
    pub copy_gbps: f64,
    /// Copy, then CRC32c over the copy, Gbit/s.
    pub copy_crc_gbps: f64,
    /// CRC32c of the source alone, Gbit/s.
    pub crc_gbps: f64,
}

/// Returns working sets in bytes: a quarter of L2; well beyond L2 and within the LLC; twice the LLC.
fn levels(machine: &Machine) -> [(&'static str, usize); LEVELS] {
    let or = |bytes: u64, default: usize| {
        usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(default)
    };
    let (l2, llc) = (or(machine.l2_bytes, 1 << 20), or(machine.llc_bytes, 32 << 20));
    let between = l2.saturating_mul(8).min(llc / 2).max(l2);
    [("L2", l2 / 4), ("LLC", between), ("DRAM", llc.saturating_mul(2).min(1 << 30))]
}

pub(super) fn measure(options: &Options, machine: &Machine, progress: &Progress) -> Vec<CopyRow> {
    let mut rows = Vec::new();
    for (from, working_set_bytes) in levels(machine) {
        let source = vec![0x5a_u8; working_set_bytes];
        for payload in PAYLOADS {
            progress.step(format!("copy from {from}, {payload} bytes"));
            let mut frame = vec![0; payload];
            let copy_gbps = median_rate(options, &source, payload, |bytes| frame.copy_from_slice(bytes));
            let copy_crc_gbps = median_rate(options, &source, payload, |bytes| {
                frame.copy_from_slice(bytes);
                black_box(crc32c(&frame));
            });
            let crc_gbps = median_rate(options, &source, payload, |bytes| {
                black_box(crc32c(bytes));
            });
            rows.push(CopyRow { payload, from, working_set_bytes, copy_gbps, copy_crc_gbps, crc_gbps });
        }
    }
    rows
}

/// Returns the median of the runs, Gbit/s.
fn median_rate(options: &Options, source: &[u8], payload: usize, mut work: impl FnMut(&[u8])) -> f64 {
    let seconds = options.duration / 4.0;
    let rates: Vec<f64> = (0..options.runs).map(|_| rate(source, payload, seconds, &mut work)).collect();
    median(&rates)
}

fn rate(source: &[u8], payload: usize, seconds: f64, work: &mut impl FnMut(&[u8])) -> f64 {
    let mut payloads = source.chunks_exact(payload).cycle();
    // One pass warms the caches.
    for bytes in payloads.by_ref().take(source.len() / payload.max(1)) {
        work(black_box(bytes));
    }
    let (watch, mut bytes_done) = (Stopwatch::start(), 0_u64);
    loop {
        for bytes in payloads.by_ref().take(BATCH) {
            work(black_box(bytes));
            bytes_done = bytes_done.wrapping_add(bytes.len() as u64);
        }
        let elapsed = watch.seconds();
        if elapsed >= seconds {
            return bandwidth_gbps(bytes_done, elapsed);
        }
    }
}
