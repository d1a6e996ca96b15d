//! Scenarios of two hosts, runs with seeds, and checks of the reports.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tcp_stack::testutil::{ConnPlan, LinkConfig, Outcome, Plan, Report, Scenario, Simulation};
use tcp_stack::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr};
use tcp_stack::{CloseReason, ConnOptions, Duration, EvictionPolicy, StackConfig};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const PERCENT: u32 = 10_000;

/// Returns the configuration of host number `index`.
pub(crate) fn host(index: u8) -> StackConfig {
    let number = index + 1;
    StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, number]),
        ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, number), 24),
        ipv6: Ipv6Cidr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()), 64),
        connections_max: 64,
        neighbors_max: 16,
        buffers_max: 4096,
        held_segments_max: 512,
        send_buffer_bytes: 256 << 10,
        receive_window_bytes: 256 << 10,
        ..StackConfig::default()
    }
}

pub(crate) fn conn(ipv6: bool, opener: Plan, listener: Plan) -> ConnPlan {
    ConnPlan {
        at: Duration::ZERO,
        from: 0,
        to: 1,
        ipv6,
        simultaneous: false,
        opener,
        listener,
        shares_listener_of: None,
        eviction: EvictionPolicy::Never,
    }
}

/// Returns a scenario of two hosts with a link between them.
pub(crate) fn two_hosts(link: LinkConfig, conns: Vec<ConnPlan>) -> Scenario {
    Scenario {
        hosts: vec![host(0), host(1)],
        link,
        link_back: None,
        switched: false,
        conns,
        conn_options: ConnOptions::default(),
        listener_connections_max: u32::MAX,
        buffers: 2048,
        further_buffers: 2048,
        poll_interval: Duration::from_micros(20),
        abort_at: None,
        attack: None,
        liar: None,
        wraps: false,
        hostile: false,
        steps_max: 3_000_000,
    }
}

/// Returns the seeds to run: `default`, or those in `TCP_SEED`, one number or a range.
pub(crate) fn seeds(default: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("TCP_SEED") else { return default };
    match given.split_once("..") {
        Some((first, end)) => first.parse().unwrap()..end.parse().unwrap(),
        None => {
            let seed = given.parse().unwrap();
            seed..seed + 1
        }
    }
}

/// Runs a scenario and checks its report. On failure the scenario runs again with a log, and the message has the seed
/// and the end of the log.
#[track_caller]
pub(crate) fn run_and(scenario: &Scenario, seed: u64, judge: impl Fn(&Report)) -> Report {
    let mut simulation = Simulation::new(scenario, seed).unwrap();
    let judged = catch_unwind(AssertUnwindSafe(|| simulation.run().inspect(|report| judge(report))));
    let error = match judged {
        Ok(Ok(report)) => return report,
        Ok(Err(error)) => error,
        Err(_) => "a panic, see above".into(),
    };
    let mut again = Simulation::new(scenario, seed).unwrap();
    again.keep_log(std::env::var("TCP_LOG").map_or(200, |lines| lines.parse().unwrap()));
    let _ = catch_unwind(AssertUnwindSafe(|| again.run()));
    let log: Vec<&str> = again.log().collect();
    panic!("{}\n{error}\nTCP_SEED={seed}\n{scenario:#?}", log.join("\n"));
}

#[track_caller]
pub(crate) fn run(scenario: &Scenario, seed: u64) -> Report {
    run_and(scenario, seed, |_| ())
}

pub(crate) fn is_normal(outcome: &Outcome) -> bool {
    matches!(outcome.closed, Some((_, CloseReason::Normal)))
}

/// Runs a scenario for some seeds and expects every connection to end in good order, with every byte delivered.
#[track_caller]
pub(crate) fn expect_all_delivered(scenario: &Scenario, default: Range<u64>) -> Vec<Report> {
    seeds(default).map(|seed| run_and(scenario, seed, expect_good_order)).collect()
}

pub(crate) fn expect_good_order(report: &Report) {
    report.outcomes.iter().for_each(expect_delivered);
}

/// Checks the same as [`expect_good_order`] for the connections between the first two hosts only.
pub(crate) fn expect_honest_in_good_order(scenario: &Scenario, report: &Report) {
    let pairs = scenario.conns.iter().zip(&report.outcomes);
    pairs.filter(|(plan, _)| plan.from < 2).for_each(|(_, pair)| expect_delivered(pair));
}

fn expect_delivered([opener, listener]: &[Outcome; 2]) {
    let what = format!("{opener:?} {listener:?}");
    assert!(is_normal(opener) && is_normal(listener), "{what}");
    assert_eq!((opener.sent, listener.sent), (listener.received, opener.received), "{what}");
}

/// Returns the bytes per second that the listener's side received, from establishment to the last byte.
pub(crate) fn goodput(outcome: &Outcome) -> f64 {
    let time = outcome.last_data.unwrap() - outcome.established.unwrap();
    outcome.received as f64 / time.as_secs_f64()
}

pub(crate) fn both_families(plan: Plan) -> Vec<ConnPlan> {
    vec![conn(false, plan, Plan::sink()), conn(true, plan, Plan::sink())]
}
