//! One core: lines from random places, all of which are asked for at once: what many connections have to wait for.

use std::hint::black_box;

use dataplane::prefetch::LINE;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::Options;
use crate::{Progress, Stopwatch, median};

/// What 100,000 connections take, in powers of two.
const BYTES: usize = 128 << 20;
/// Lines between two looks at the clock.
const BATCH: usize = 4096;

/// Lines from random places of so much memory.
#[derive(Clone, Debug, Serialize)]
pub struct LinesRow {
    /// The memory that they lie in, in ordinary pages.
    pub working_set_bytes: usize,
    /// A line, where none waits for another, nanoseconds.
    pub ns: f64,
}

pub(super) fn measure(options: &Options, progress: &Progress) -> LinesRow {
    progress.step("lines from random places".to_owned());
    let lines = vec![[1_u8; LINE]; BYTES / LINE];
    let seconds = options.duration / 4.0;
    let runs: Vec<f64> = (0..options.runs).map(|_| each_ns(&lines, seconds)).collect();
    LinesRow { working_set_bytes: BYTES, ns: median(&runs) }
}

#[allow(clippy::cast_precision_loss, reason = "it is a mean")]
fn each_ns(lines: &[[u8; LINE]], seconds: f64) -> f64 {
    let mut place = SmallRng::seed_from_u64(1);
    let (watch, mut count, mut sum) = (Stopwatch::start(), 0_usize, 0_u64);
    loop {
        for _ in 0..BATCH {
            let line = lines.get(place.random_range(0..lines.len()));
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
