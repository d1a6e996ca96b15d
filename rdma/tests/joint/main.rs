//! Both crates together: two hosts, each with a TCP/IP stack and an RDMA engine, and a network that loses, repeats,
//! reorders, damages and resegments what they send. The owner of a stream has a bare endpoint or a queue pair of its
//! host's device, which may share completion queues and buffers with others. Work requests of all kinds are drawn at
//! random; a model of plain memory states the bytes that each must find and leave, also if it is placed out-of-order.
//!
//! A failure names its seed and shows the last events: `RDMA_SEED=7 cargo test -p iwarp-rdma --test joint` runs that
//! seed again, `RDMA_SEED=0..10000` runs a range, and `RDMA_LOG=…` sets the number of lines shown.
// A thousand networks: days under Miri.
#![cfg(not(miri))]
#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "lengths are small, and a test may panic"
)]

mod completion;
mod engine;
mod events;
mod hazard;
mod host;
mod model;
mod network;
mod scenario;
mod shared;
mod stream;
mod totals;
mod verbs;
mod verdict;
mod violation;
mod windows;
mod work;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use network::{Network, Report};
use totals::Totals;

/// Returns the seeds to run: the default, or those in `RDMA_SEED`, which is one seed or a range.
fn seeds(default: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("RDMA_SEED") else { return default };
    match given.split_once("..") {
        Some((first, end)) => first.parse().unwrap()..end.parse().unwrap(),
        None => {
            let seed = given.parse().unwrap();
            seed..seed + 1
        }
    }
}

/// Runs a seed. On failure, runs it again with a log and shows the end of that.
#[track_caller]
fn run(seed: u64) -> Report {
    let mut network = Network::new(seed, 0).unwrap();
    let error = match catch_unwind(AssertUnwindSafe(|| network.run())) {
        Ok(Ok(report)) => return report,
        Ok(Err(error)) => error,
        Err(_) => "a panic, told above".into(),
    };
    let lines = std::env::var("RDMA_LOG").map_or(200, |lines| lines.parse().unwrap());
    let mut again = Network::new(seed, lines).unwrap();
    let _ = catch_unwind(AssertUnwindSafe(|| again.run()));
    panic!("{}{:#?}\n{error}\nRDMA_SEED={seed}", again.log(), again.scenario);
}

/// Runs seeds, prints the totals, and fails if a feature was never exercised.
fn run_all(default: Range<u64>) {
    let seeds = seeds(default.clone());
    let mut totals = Totals::default();
    for seed in seeds.clone() {
        totals.add(&run(seed));
    }
    println!("{totals}");
    if seeds == default {
        totals.expect_all_tried();
    }
}

// Some features occur in one seed of a hundred: each half tries all of them.

#[test]
fn random_work_1() {
    run_all(0..500);
}

#[test]
fn random_work_2() {
    run_all(500..1000);
}

/// A seed is replayed exactly: every frame is the same, at the same time.
#[test]
fn the_same_seed_is_the_same_run() {
    for seed in seeds(0..12) {
        assert_eq!(run(seed), run(seed), "RDMA_SEED={seed}");
    }
    assert_ne!(run(1).digest, run(2).digest);
}
