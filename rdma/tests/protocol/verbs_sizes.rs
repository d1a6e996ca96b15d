//! The memory that a device allocates for queues is what the accounts say, for queues of all sizes.

use iwarp_alloc_counter::{live_bytes, watched};
use rdma::EndpointConfig;
use rdma::verbs::{Device, Limits, QpCap, QpInit, SGE_MAX, cq_memory_bytes, srq_memory_bytes};

/// Asserts that the account is at least what was allocated, and not much more.
#[track_caller]
fn assert_covers(account: u64, allocated: u64, slack: u64) {
    assert!(allocated <= account + 512, "{allocated} bytes allocated, {account} in the account");
    assert!(account <= allocated + allocated / 2 + slack, "{account} in the account, {allocated} allocated");
}

/// Returns the result of `work`, and the bytes that it has allocated.
fn measured<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = live_bytes();
    let result = watched(work);
    (result, u64::try_from(live_bytes() - before).unwrap_or(0))
}

#[test]
fn accounts_cover_what_queues_allocate() {
    let mut device: Device<Vec<u8>> = Device::new(Limits::default(), EndpointConfig::default());
    let pd = device.alloc_pd().unwrap();
    let depths = [1_u16, 16, 500, 4096];
    for depth in depths {
        let (cq, allocated) = measured(|| device.create_cq(depth.into()).unwrap());
        assert!(allocated <= cq_memory_bytes(depth.into()) + (8 << 20), "{allocated}");
        for sges in [1, 4, u16::try_from(SGE_MAX).unwrap()] {
            let (srq, allocated) = measured(|| device.create_srq(pd, depth, sges).unwrap());
            assert_covers(srq_memory_bytes(depth, sges), allocated, 1024);
            for inline in [0, 64, 512] {
                for (srq, srq_sge) in [(None, None), (Some(srq), Some(sges))] {
                    let cap = QpCap {
                        max_send_wr: depth,
                        max_recv_wr: depth,
                        max_send_sge: sges,
                        max_recv_sge: sges,
                        max_inline_data: inline,
                    };
                    let init = QpInit { cap, srq, ..QpInit::new(pd, cq) };
                    let (qp, allocated) = measured(|| device.create_qp(init).unwrap());
                    assert_covers(init.memory_bytes(srq_sge), allocated, 4096);
                    device.destroy_qp(qp).unwrap();
                }
            }
            device.destroy_srq(srq).unwrap();
        }
        device.destroy_cq(cq).unwrap();
    }
}
