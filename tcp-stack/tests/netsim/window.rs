//! Receivers that advertise tiny windows.

use crate::harness::{MS, PERCENT, conn, run, seeds, two_hosts};
use tcp_stack::testutil::{Liar, Lie, LinkConfig, Plan, Scenario};
use tcp_stack::{Duration, TcpConfig};

/// RFC 9293 §3.8.6.2.1: a receiver that advertises one byte gets one segment per override timeout, 0.2 s, at any rate
/// of acknowledgments and for any window in its SYN. Without the rule it would get tens of thousands of segments a
/// second.
#[test]
fn a_window_of_one_byte_gets_five_segments_a_second() {
    const SECONDS: u32 = 20;
    for ipv6 in [false, true] {
        for (window_scale, syn_window) in [(false, 256 << 10), (false, 1024), (true, 256 << 10)] {
            let mut scenario =
                two_hosts(LinkConfig::CLEAN, vec![conn(ipv6, Plan::bulk(8 << 20), Plan::sink())]);
            for host in &mut scenario.hosts {
                host.tcp = TcpConfig { window_scale, ..host.tcp };
                (host.receive_window_bytes, host.receive_window_initial_bytes) = (syn_window, syn_window);
            }
            let liar = Some(Liar { host: 1, chance: 100 * PERCENT, lies: vec![Lie::Sliver] });
            let abort_at = Some(Duration::from_secs(SECONDS.into()));
            let scenario = Scenario { liar, abort_at, ..scenario };
            for seed in seeds(0..2) {
                let report = run(&scenario, seed);
                let tcp = &report.stats[0].tcp;
                let segments = tcp.data_segments_out + tcp.retransmits;
                // The receiver may delay each acknowledgment by 40 ms.
                let (least, most) = (u64::from(SECONDS) * 4, u64::from(SECONDS) * 5);
                let what = format!("IPv6 {ipv6}, scale {window_scale}, SYN {syn_window}: {tcp:?}");
                let shortened = tcp.window_splits;
                assert!((least..=most).contains(&shortened), "{shortened}, {what}");
                // Besides them, the initial window, for which the window of the SYN had room.
                assert!(segments - shortened <= 10, "{segments}, {what}");
                assert!(
                    report.end.saturating_since(report.start) + MS >= Duration::from_secs(SECONDS.into())
                );
            }
        }
    }
}
