//! Loss recovery on paths with round trips of microseconds, where receivers acknowledge whole bursts at once.

use crate::harness::{PERCENT, conn, run, seeds, two_hosts};
use tcp_stack::testutil::{Burst, LinkConfig, Plan, Report, Scenario};
use tcp_stack::{Congestion, Duration, TcpConfig};

/// A path between two polled ports.
#[derive(Clone, Copy, Debug)]
struct Path {
    rtt_us: u64,
    gbps: u64,
    mtu: u16,
    /// Longest time between the arrival of a frame and the poll that receives it, microseconds.
    poll_us: u64,
    ipv6: bool,
}

/// Short round trips and long ones; polls that see single frames, and polls that see a whole window.
const PATHS: [Path; 8] = [
    Path { rtt_us: 4, gbps: 10, mtu: 1500, poll_us: 20, ipv6: false },
    Path { rtt_us: 4, gbps: 40, mtu: 1500, poll_us: 20, ipv6: true },
    Path { rtt_us: 10, gbps: 40, mtu: 1500, poll_us: 0, ipv6: false },
    Path { rtt_us: 10, gbps: 40, mtu: 1500, poll_us: 10, ipv6: true },
    Path { rtt_us: 50, gbps: 25, mtu: 1500, poll_us: 50, ipv6: false },
    Path { rtt_us: 4, gbps: 40, mtu: 9000, poll_us: 20, ipv6: false },
    Path { rtt_us: 50, gbps: 40, mtu: 9000, poll_us: 50, ipv6: true },
    Path { rtt_us: 100, gbps: 40, mtu: 9000, poll_us: 20, ipv6: false },
];

impl Path {
    /// Returns a bulk transfer with CUBIC for a time in milliseconds, without end, over a link with these impairments.
    fn transfer(&self, link: &LinkConfig, ms: u64) -> Scenario {
        self.transfer_with(link, ms, Congestion::Cubic)
    }

    /// Same as [`Self::transfer`], with another congestion control.
    fn transfer_with(&self, link: &LinkConfig, ms: u64, congestion: Congestion) -> Scenario {
        let link = LinkConfig {
            rate: self.gbps * 1_000_000_000,
            delay: Duration::from_nanos(self.rtt_us * 500),
            queue: 4 << 20,
            ..*link
        };
        let mut scenario = Scenario {
            buffers: 8192,
            further_buffers: 0,
            steps_max: u64::MAX,
            poll_interval: Duration::from_micros(self.poll_us),
            abort_at: Some(Duration::from_millis(ms)),
            ..two_hosts(link, vec![conn(self.ipv6, Plan::bulk(1 << 40), Plan::sink())])
        };
        for host in &mut scenario.hosts {
            host.mtu = self.mtu;
            (host.buffers_max, host.held_segments_max, host.held_bytes_max) = (8192, 1024, 4 << 20);
            (host.send_buffer_bytes, host.receive_window_bytes) = (1 << 20, 1 << 20);
            host.tcp = TcpConfig { congestion, ..TcpConfig::data_center() };
        }
        scenario
    }
}

/// Returns the goodput, Gbit/s.
fn gbps(report: &Report, ms: u64) -> f64 {
    report.outcomes[0][1].received as f64 * 8.0 / (ms as f64 * 1e6)
}

/// Returns the duration of a transfer: `default` milliseconds, or `TCP_SHORT_MS` of the environment, for surveys.
fn duration_ms(default: u64) -> u64 {
    std::env::var("TCP_SHORT_MS").map_or(default, |ms| ms.parse().unwrap())
}

/// Without probes in recoveries, one loss in a few hundred ends in a timeout where polls see whole windows.
#[test]
fn random_loss_causes_no_timeouts() {
    let ms = duration_ms(20);
    for path in PATHS {
        for loss in [PERCENT / 10, PERCENT] {
            let scenario = path.transfer(&LinkConfig { loss, ..LinkConfig::CLEAN }, ms);
            for seed in seeds(0..1) {
                let report = run(&scenario, seed);
                let (tcp, lost) = (&report.stats[0].tcp, report.links.lost);
                let (rate, timeouts, probes) = (gbps(&report, ms), tcp.timeouts, tcp.loss_probes);
                println!(
                    "{path:?} loss {loss} seed {seed}: {rate:.2} Gbit/s, {lost} lost, {timeouts} RTOs, {probes} probes"
                );
                assert!(lost > 5, "{path:?}: {lost}");
                // One in 100,000 may.
                assert!(tcp.timeouts <= lost / 100_000, "{path:?}, {loss}, seed {seed}: {tcp:?}");
            }
        }
    }
}

/// RFC 9438 §4.2, equation 1, with the constants of §4.3, the mean window of CUBIC at small round trips:
/// sqrt(alpha * (1 + beta) / (2 * (1 - beta) * p)) segments, for beta 0.7 and alpha 9/17.
fn response_segments(loss: f64) -> f64 {
    (9.0 / 17.0 * 1.7 / (0.6 * loss)).sqrt()
}

/// The response function limits CUBIC under random loss, and not the time that recovery takes: a poll
/// receives a frame after half of its interval, on either side.
#[test]
fn cubic_reaches_its_response_function() {
    let ms = duration_ms(60);
    for path in PATHS {
        for (loss, percent) in [(PERCENT / 10, 0.1), (PERCENT, 1.0)] {
            let scenario = path.transfer(&LinkConfig { loss, ..LinkConfig::CLEAN }, ms);
            for seed in seeds(0..1) {
                let rate = gbps(&run(&scenario, seed), ms);
                let headers = if path.ipv6 { 72.0 } else { 52.0 };
                let mss = f64::from(path.mtu) - headers;
                // A window takes time on the link, too.
                let window = response_segments(percent / 100.0);
                let sending_us = f64::from(path.mtu + 38) * 8.0 / (path.gbps as f64 * 1e3);
                let rtt_us = (path.rtt_us + path.poll_us) as f64 + sending_us;
                let link = path.gbps as f64 * mss / f64::from(path.mtu + 38);
                let expected = (window * mss * 8.0 / (rtt_us * 1e3)).min(link);
                println!("{path:?} loss {percent} %: {rate:.2} of {expected:.2} Gbit/s");
                assert!(rate > 0.8 * expected, "{path:?}, {percent} %: {rate} of {expected}");
            }
        }
    }
}

/// Bursts of loss that take whole windows: probes bridge those that are shorter than the timeout of 5 ms.
#[test]
fn bursts_of_loss_shorter_than_the_timeout_are_bridged_by_probes() {
    let ms = duration_ms(60);
    let burst = Burst { begins: 200, lasts: Duration::from_micros(100), loss: 100 * PERCENT };
    for path in PATHS {
        for congestion in [Congestion::Cubic, Congestion::Bbr] {
            let link = LinkConfig { burst: Some(burst), ..LinkConfig::CLEAN };
            let scenario = path.transfer_with(&link, ms, congestion);
            for seed in seeds(0..1) {
                let report = run(&scenario, seed);
                let tcp = &report.stats[0].tcp;
                let (lost, probes, rate) = (report.links.lost, tcp.loss_probes, gbps(&report, ms));
                println!("{path:?}, {congestion:?}: {rate:.2} Gbit/s, {lost} lost, {probes} probes");
                assert!(lost > 50, "{path:?}, {congestion:?}: {lost}");
                assert_eq!(tcp.timeouts, 0, "{path:?}, {congestion:?}, seed {seed}: {tcp:?}");
            }
        }
    }
}
