//! The programs themselves, for a second: what they print is what is read.

use super::*;

const OPTIONS: fn() -> Options = || Options {
    cores: Cores([0, 0]),
    runs: 1,
    duration: 1,
    mtu: vec![1500],
    limit: 60,
    congestion_control: "cubic".to_owned(),
};

fn budget(limit_s: u64) -> Budget {
    Budget { watch: Stopwatch::start(), limit_s }
}

/// The kernel's TCP in one direction, in frames of the MTU.
#[test]
fn iperf3_is_measured_over_a_plain_wire() {
    let wire = Wire { mtu: 1500, offloads: false };
    let veth = Veth::new(wire).unwrap();
    let outcome = iperf::run(&OPTIONS(), &veth, wire, &budget(60));
    if !process::is_installed("iperf3") {
        assert!(outcome.is_err());
        return;
    }
    let report = outcome.unwrap();
    assert!(report.gbps.median > 0.05 && report.congestion_control == "cubic", "{report:?}");
    assert!((1400.0..=1514.0).contains(&report.frame_bytes), "{report:?}");
    let text = serde_json::to_string(&report).unwrap();
    let again: IperfReport = serde_json::from_str(&text).unwrap();
    assert_eq!(again.wire, report.wire);
    assert!((again.gbps.median - report.gbps.median).abs() < 1e-9);
}

/// A wire that cannot be made takes nothing else with it, and is told.
#[test]
fn what_is_missing_is_said() {
    let error = run(&Options { mtu: vec![1], ..OPTIONS() }).unwrap_err().to_string();
    assert!(error.contains("veth, MTU 1, offloads off") && error.contains("offloads on"), "{error}");
}

/// When the time is up, what runs is ended, what is left is not begun, and that is told.
#[test]
fn time_is_limited() {
    let veth = Veth::new(Wire { mtu: 1500, offloads: true }).unwrap();
    let installed = PROGRAMS.iter().filter(|(program, _)| process::is_installed(program)).count();
    for (limit_s, begun) in [(0, 0), (1, 1)] {
        let (options, mut report) = (Options { duration: 30, ..OPTIONS() }, PeersReport::default());
        let budget = budget(limit_s);
        measure(&options, &veth, (&Progress::new(1), &budget), &mut report);
        assert!(report.iperf3.is_empty() && report.ucx.is_empty() && report.sockperf.is_empty());
        let not_begun = report.absent.iter().filter(|it| it.why == "no time was left for it").count();
        assert_eq!(not_begun, installed.saturating_sub(begun), "{:?}", report.absent);
        assert!(budget.watch.elapsed().as_secs() < limit_s + 10);
    }
}
