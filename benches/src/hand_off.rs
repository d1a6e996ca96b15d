//! Time that a cache line takes from one of the two CPUs to the other: the unit of an application's cost.
//!
//! A posted request and its completion cross from core to core in a few lines each. On a virtual machine this time may
//! grow fourfold within a second, when the hypervisor moves one CPU to another part of the processor.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::samples::median;
use crate::{Cores, Stopwatch, on_two_cores};

/// Round trips of one sample, and samples.
const ROUND_TRIPS: u64 = 200;
const SAMPLES: u64 = 25;

/// Word that has a cache line, and the one that the processor may fetch with it, to itself.
#[repr(align(128))]
struct Line(AtomicU64);

/// Returns half of the median round trip of one word between two spinning threads, nanoseconds.
///
/// # Errors
/// A CPU is not available.
pub(crate) fn hand_off_ns(cores: Cores) -> Result<f64> {
    let line = Line(AtomicU64::new(0));
    let total = ROUND_TRIPS * SAMPLES;
    let wait = |value: u64| {
        while line.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    let (samples, ()) = on_two_cores(
        cores,
        || {
            let sample = |number: u64| {
                let watch = Stopwatch::start();
                for trip in number * ROUND_TRIPS..(number + 1) * ROUND_TRIPS {
                    line.0.store(2 * trip + 1, Ordering::Release);
                    wait(2 * trip + 2);
                }
                watch.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64
            };
            Ok((0..SAMPLES).map(sample).collect::<Vec<_>>())
        },
        || {
            for trip in 0..total {
                wait(2 * trip + 1);
                line.0.store(2 * trip + 2, Ordering::Release);
            }
            Ok(())
        },
    )?;
    Ok(median(&samples))
}
