//! A thousand random networks, each with every invariant checked after every poll.
//!
//! `TCP_SEED=7 cargo test -p tcp-stack --test netsim thousand` runs the network of that seed again.

use crate::harness::{expect_good_order, expect_honest_in_good_order, run_and, seeds};
use crate::random::{Kind, network};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tcp_stack::testutil::{LinkCounts, Report};

const SEEDS: u64 = 1_000;
/// Least simulated time of all networks together, hours.
const HOURS_MIN: u64 = 16;

fn run(seed: u64) -> Report {
    let network = network(seed);
    run_and(&network, seed, |report| {
        let kind = Kind::of(seed);
        if kind.is_in_good_order() {
            expect_good_order(report);
        } else if kind == Kind::Crowded {
            expect_honest_in_good_order(&network, report);
        }
    })
}

/// TCP counters that stay zero in all networks: they take a flood of SYNs, a path that changes, a reused port, or a
/// driver without headroom, which scripts and other tests have.
const NEVER_COUNTED: [&str; 4] = ["no_headroom", "path_mtu_doubted", "syn_acks_withheld", "time_wait_reused"];

/// Sums over the reports of some networks.
#[derive(Debug, Default)]
struct Sum {
    seeds: u64,
    busy: u64,
    simulated: Duration,
    frames: u64,
    bytes: u64,
    established: u64,
    /// Digest of all traces, independent of their order.
    digest: u64,
    links: LinkCounts,
    /// TCP counters of all stacks, by name.
    tcp: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, seed: u64, report: &Report) {
        let bytes = report.outcomes.iter().flatten().map(|outcome| outcome.received).sum::<u64>();
        self.seeds += 1;
        self.busy += u64::from(Kind::of(seed) == Kind::Busy && bytes > 1_000);
        self.simulated += report.end - report.start;
        self.frames += report.links.sent;
        self.bytes += bytes;
        let established = report.outcomes.iter().flatten().filter(|outcome| outcome.established.is_some());
        self.established += u64::try_from(established.count()).unwrap();
        self.digest ^= report.trace.wrapping_mul(seed | 1);
        self.links.add(&report.links);
        for stats in &report.stats {
            stats.tcp.visit(&mut |name, _, value| *self.tcp.entry(name).or_default() += value);
        }
    }

    fn join(mut self, other: &Self) -> Self {
        self.seeds += other.seeds;
        self.busy += other.busy;
        self.simulated += other.simulated;
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.established += other.established;
        self.digest ^= other.digest;
        self.links.add(&other.links);
        for (name, value) in &other.tcp {
            *self.tcp.entry(name).or_default() += value;
        }
        self
    }

    /// Checks that every impairment and every mechanism of the stack occurred: networks without adversity prove
    /// nothing.
    fn expect_adversity(&self) {
        let LinkCounts { lost, overflowed, too_large, duplicated, corrupted, held, marked, .. } = self.links;
        for count in [lost, overflowed, too_large, duplicated, corrupted, held, marked] {
            assert!(count > 100, "{:?}", self.links);
        }
        let never: Vec<_> =
            self.tcp.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
        assert_eq!(never, NEVER_COUNTED);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the summary says how long it took")]
fn a_thousand_networks() {
    let begun = Instant::now();
    let range = seeds(0..SEEDS);
    let next = AtomicU64::new(range.start);
    let work = || {
        let mut sum = Sum::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= range.end {
                return sum;
            }
            sum.add(seed, &run(seed));
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let sum = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let sums = threads.into_iter().map(|thread| thread.join().expect("a network failed, see above"));
        sums.fold(Sum::default(), |sum, other| sum.join(&other))
    });
    println!(
        "{} networks ({} busy), {:.1} h simulated, {} frames, {} MB delivered, {} ends of connections, \
         digest {:016x}, in {:.1} s",
        sum.seeds,
        sum.busy,
        sum.simulated.as_secs_f64() / 3600.0,
        sum.frames,
        sum.bytes / 1_000_000,
        sum.established,
        sum.digest,
        begun.elapsed().as_secs_f64(),
    );
    if range == (0..SEEDS) {
        assert!(sum.simulated.as_secs() >= HOURS_MIN * 3600, "{sum:?}");
        assert!(sum.busy * 3 >= SEEDS, "{sum:?}");
        sum.expect_adversity();
    }
}

#[test]
fn a_seed_determines_its_network() {
    let mut digests = Vec::new();
    for seed in seeds(0..48) {
        let (first, second) = (run(seed), run(seed));
        assert_eq!((first.trace, first.end, first.steps), (second.trace, second.end, second.steps));
        assert_eq!((first.outcomes, first.stats), (second.outcomes, second.stats), "{seed}");
        digests.push(first.trace);
    }
    let count = digests.len();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), count, "two seeds, one network");
}
