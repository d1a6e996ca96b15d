//! Paths with a smaller MTU than the link.

use crate::harness::{MS, both_families, conn, expect_all_delivered, two_hosts};
use tcp_stack::testutil::{LinkConfig, Plan};

/// A path that drops long packets silently: segments are split, and the search finds the largest size.
#[test]
fn a_black_hole_is_found_and_its_size_searched() {
    for mtu in [1400, 1300] {
        // A low rate gives the search time to end.
        let link = LinkConfig { mtu, rate: 4_000_000, queue: 64 << 10, ..LinkConfig::CLEAN };
        let scenario = two_hosts(link, both_families(Plan::bulk(12 << 20)));
        for report in expect_all_delivered(&scenario, 0..2) {
            let tcp = &report.stats[0].tcp;
            assert!((1..=4).contains(&tcp.path_black_holes), "{tcp:?}");
            assert!(tcp.path_mtu_raised >= 2 && tcp.path_probes_lost < 20, "{tcp:?}");
            assert!(tcp.timeouts <= 4 * tcp.path_black_holes, "{tcp:?}");
        }
    }
}

/// A router that reports its MTU costs no timeout.
#[test]
fn a_packet_too_big_report_costs_no_timeout() {
    for mtu in [1280, 1400, 1492] {
        let link = LinkConfig { mtu, reports_too_big: true, ..LinkConfig::CLEAN };
        for report in expect_all_delivered(&two_hosts(link, both_families(Plan::bulk(1 << 20))), 0..3) {
            let tcp = &report.stats[0].tcp;
            assert_eq!((tcp.path_black_holes, tcp.timeouts), (0, 0), "{tcp:?}");
            assert_eq!(tcp.path_mtu_lowered, 2, "{tcp:?}");
            assert!(report.links.too_large < 40, "{:?}", report.links);
        }
    }
}

/// Black holes in both directions, together with losses.
#[test]
fn a_black_hole_with_losses() {
    let link = LinkConfig { mtu: 1290, loss: 10_000, delay: MS, ..LinkConfig::CLEAN };
    let plan = Plan::bulk(300_000);
    expect_all_delivered(&two_hosts(link, vec![conn(false, plan, plan), conn(true, plan, plan)]), 0..4);
}
