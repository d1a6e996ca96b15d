//! Runs the programs themselves for a second and checks that their output is understood.

use super::*;

const OPTIONS: fn() -> Options = || Options {
    cores: Cores([0, 0]),
    runs: 1,
    duration: 1,
    mtu: vec![1500],
    size: Vec::new(),
    limit: 60,
    congestion_control: "cubic".to_owned(),
};

fn budget(limit_s: u64) -> Budget {
    Budget { watch: Stopwatch::start(), limit_s }
}

/// Without offloads, frames have at most the MTU.
#[test]
fn iperf3_is_measured_without_offloads() {
    let wire = VethConfig { mtu: 1500, offloads: false };
    let veth = Veth::new(wire).unwrap();
    let outcome = iperf::run(&OPTIONS(), &veth, wire, &budget(60));
    if !process::is_installed("iperf3") {
        assert!(outcome.is_err());
        return;
    }
    let report = outcome.unwrap().remove(0);
    assert!(report.gbps.median > 0.05 && report.congestion_control == "cubic", "{report:?}");
    assert!((1400.0..=1514.0).contains(&report.frame_bytes), "{report:?}");
    let text = serde_json::to_string(&report).unwrap();
    let again: IperfReport = serde_json::from_str(&text).unwrap();
    assert_eq!(again.wire, report.wire);
    assert!((again.gbps.median - report.gbps.median).abs() < 1e-9);
}

/// A veth pair that cannot be made is reported, and the others are still measured.
#[test]
fn a_veth_pair_that_fails_is_reported() {
    let error = run(&Options { mtu: vec![1], ..OPTIONS() }).unwrap_err().to_string();
    assert!(error.contains("veth, MTU 1, offloads off") && error.contains("offloads on"), "{error}");
}

/// At the time limit the running program is killed, no other starts, and the report lists them.
#[test]
fn time_is_limited() {
    let veth = Veth::new(VethConfig { mtu: 1500, offloads: true }).unwrap();
    let installed = PROGRAMS.iter().filter(|(program, _)| process::is_installed(program)).count();
    for limit_s in [0, 1] {
        let (options, mut report) = (Options { duration: 30, ..OPTIONS() }, PeersReport::default());
        let budget = budget(limit_s);
        measure(&options, &veth, (&Progress::new(1), &budget), &mut report);
        assert!(report.iperf3.is_empty() && report.ucx.is_empty() && report.sockperf.is_empty());
        let not_begun = report.absent.iter().filter(|absent| absent.why == "no time was left for it").count();
        // One that fails at once leaves its time to the next.
        let most = if limit_s == 0 { installed } else { installed.saturating_sub(1) };
        assert!(not_begun <= most && (limit_s > 0 || not_begun == most), "{:?}", report.absent);
        assert!(budget.watch.elapsed().as_secs() < limit_s + 10);
    }
}
