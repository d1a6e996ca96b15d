//! Measures independent cache misses on one core: the cost of connections that no cache holds.

use std::hint::black_box;

use iwarp_engine::prefetch::LINE;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::Options;
use crate::{Progress, Stopwatch, median};

/// Memory of 100,000 connections, rounded to a power of two, bytes.
const BYTES: usize = 128 << 20;
/// Lines between two readings of the clock.
const BATCH: usize = 4096;

/// Cost of a miss in a working set.
#[derive(Clone, Debug, Serialize)]
pub struct LinesRow {
    /// Working set in ordinary pages, bytes.
    pub working_set_bytes: usize,
    /// Time per independent miss, nanoseconds.
    pub ns: f64,
}

pub(super) fn measure(options: &Options, progress: &Progress) -> LinesRow {
    progress.step("independent cache misses".to_owned());
    let lines = vec![[1_u8; LINE]; BYTES / LINE];
    let seconds = options.duration / 4.0;
    let runs: Vec<f64> = (0..options.runs).map(|_| each_ns(&lines, seconds)).collect();
    LinesRow { working_set_bytes: BYTES, ns: median(&runs) }
}

#[allow(clippy::cast_precision_loss, reason = "it is a mean")]
fn each_ns(lines: &[[u8; LINE]], seconds: f64) -> f64 {
    let mut random = SmallRng::seed_from_u64(1);
    let (watch, mut count, mut sum) = (Stopwatch::start(), 0_usize, 0_u64);
    loop {
        for _ in 0..BATCH {
            let line = lines.get(random.random_range(0..lines.len()));
            sum = sum.wrapping_add(line.map_or(0, |line| u64::from(line[0])));
        }
        black_box(sum);
        count = count.wrapping_add(BATCH);
        let elapsed = watch.seconds();
        if elapsed >= seconds {
            return elapsed * 1e9 / count as f64;
        }
    }
}
