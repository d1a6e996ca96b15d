//! Totals over many seeds.

use core::fmt;
use std::collections::BTreeMap;

use rdma::{CloseHow, ErrorCode};
use tcp_stack::{CloseReason, Duration, Instant};

use crate::network::Report;
use crate::stream::Outcome;

#[derive(Debug, Default)]
pub(crate) struct Totals {
    seeds: u64,
    connections: u64,
    established: u64,
    rejected: u64,
    /// Number of connections whose work requests all succeeded, on both sides.
    whole: u64,
    /// Number of work requests posted, succeeded and flushed; and by operation those that succeeded.
    work: [u64; 3],
    by_op: [u64; 7],
    /// Bytes placed out-of-order.
    early: u64,
    /// Number of seeds with each feature.
    features: BTreeMap<&'static str, u64>,
    received: u64,
    bytes: u64,
    accesses: [u64; 3],
    time: Duration,
    terminates: BTreeMap<(u8, u8, u8), (u64, &'static str)>,
    resets: u64,
    timeouts: u64,
    lost: u64,
    flips: u64,
    too_big: u64,
    invalidated: u64,
    pokes: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.time += report.end - Instant::ZERO;
        self.flips += report.flips;
        self.too_big += report.too_big;
        self.lost += report.links.lost + report.links.overflowed;
        self.invalidated += report.stats.rdmap.stags_invalidated;
        self.pokes += report.stats.rdmap.pokes;
        add(&mut self.accesses, report.accesses);
        self.early += report.stats.mpa.bytes_placed_early;
        for (feature, count) in features(report) {
            *self.features.entry(feature).or_default() += u64::from(count > 0);
        }
        for pair in &report.outcomes {
            self.connections += 1;
            let sides = pair.iter().flatten();
            self.whole += u64::from(sides.clone().filter(|side| side.is_whole()).count() == 2);
            for side in sides {
                self.established += u64::from(side.established);
                self.rejected += u64::from(side.rejected);
                add(&mut self.work, side.work.map(u64::from));
                add(&mut self.by_op, side.by_op.map(u64::from));
                self.received += u64::from(side.received);
                self.bytes += side.bytes;
                self.resets += u64::from(side.close == Some(CloseHow::Reset));
                self.timeouts += u64::from(side.tcp == Some(CloseReason::TimedOut));
                if let Some(code) = side.terminate_sent {
                    self.terminated(code);
                }
            }
        }
    }

    fn terminated(&mut self, code: ErrorCode) {
        let row = self.terminates.entry((code.layer, code.etype, code.code)).or_insert((0, code.name()));
        row.0 += 1;
    }

    /// Fails if these seeds exercised a feature too rarely.
    pub(crate) fn expect_all_tried(&self) {
        let all = [
            ("Writes", self.by_op[0]),
            ("Reads", self.by_op[1]),
            ("Sends", self.by_op[2]),
            ("atomic operations", self.by_op[3]),
            ("Immediate Data", self.by_op[4]),
            ("messages received", self.received),
            ("flushes", self.work[2]),
            ("rejections", self.rejected),
            ("invalidations", self.invalidated),
            ("resets", self.resets),
            ("timeouts", self.timeouts),
            ("losses", self.lost),
            ("flipped bits", self.flips),
            ("packets too big", self.too_big),
            ("pokes", self.pokes),
            ("bytes placed behind gaps", self.early),
            ("windows bound", self.by_op[5]),
            ("windows made invalid", self.by_op[6]),
        ];
        for (feature, seeds) in &self.features {
            assert!(*seeds > 0, "no seed with {feature}: {self}");
        }
        let crc_errors = self.terminates.get(&(2, 0, 2)).map_or(0, |(count, _)| *count);
        for (what, count) in all.into_iter().chain([("Terminates for a wrong CRC", crc_errors)]) {
            assert!(count > 0, "no {what}: {self}");
        }
        assert!(self.terminates.len() >= 8, "few kinds of Terminates: {self}");
        assert!(self.whole * 2 > self.connections, "few connections without a fault: {self}");
    }
}

/// Returns the use of each feature in a run.
fn features(report: &Report) -> [(&'static str, u64); 14] {
    let sides = || report.outcomes.iter().flatten().flatten();
    let sum = |of: fn(&Outcome) -> u64| sides().map(of).sum::<u64>();
    let mpa = &report.stats.mpa;
    let [shared, limits] = report.shared;
    let [both, one] = report.marked;
    [
        ("markers in both directions", both),
        ("markers in one", one),
        ("Writes placed behind gaps", mpa.bytes_placed_early),
        ("an FPDU behind a gap with a wrong CRC", if report.flips > 0 { mpa.early_refused_crc } else { 0 }),
        ("an FPDU behind a gap cut off", mpa.early_refused_incomplete),
        ("an end before what was placed was delivered", sum(|side| side.taken[1])),
        ("what was placed sent again in other segments", sum(|side| side.taken[2])),
        ("shared buffers", shared),
        ("a shared queue running low", limits),
        ("work that is not signaled", sum(|side| side.unsignaled)),
        ("inline data", sum(|side| side.inline)),
        ("lists", sum(|side| side.lists)),
        ("bound windows", sum(|side| side.by_op[5].into())),
        ("local invalidation", sum(|side| side.by_op[6].into())),
    ]
}

fn add<const N: usize>(to: &mut [u64; N], by: [u64; N]) {
    for (to, by) in to.iter_mut().zip(by) {
        *to += by;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [posted, succeeded, flushed] = self.work;
        let [writes, reads, sends, atomics, immediates, binds, invalidates] = self.by_op;
        let [placed, fetched, words] = self.accesses;
        write!(
            f,
            "{} seeds, {} connections ({} whole, {} rejected), {posted} work requests ({succeeded} done: {writes} \
             Writes, {reads} Reads, {sends} Sends, {atomics} atomic, {immediates} immediate, {binds} \
             binds, {invalidates} invalidations; {flushed} flushed), {} \
             messages received, {} bytes of work, {placed} placed ({} behind gaps), {fetched} fetched, \
             {words} words changed, {} s simulated, {} frames lost, {} bits flipped, {} packets too big, \
             {} resets; Terminates:",
            self.seeds,
            self.connections,
            self.whole,
            self.rejected,
            self.received,
            self.bytes,
            self.early,
            self.time.as_secs(),
            self.lost,
            self.flips,
            self.too_big,
            self.resets,
        )?;
        for ((layer, etype, code), (count, name)) in &self.terminates {
            write!(f, " {layer:x}/{etype:x}/{code:02x} {name} ×{count};")?;
        }
        f.write_str(" Seeds with")?;
        for (feature, count) in &self.features {
            write!(f, " {feature}: {count};")?;
        }
        Ok(())
    }
}
