//! Memory of the objects of contexts. `configs/schema/src/plan.rs` states the same bytes.

use core::time::Duration;

use crate::common::{Memory, shared_memory};
use iwarp_alloc_counter::{live_bytes, watched};
use iwarp_shared_verbs::worker::{ContextId, Contexts, ObjectLimits, UserId};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{Device, Limits, QpCap, QpInit};
use rdma::{EndpointConfig, StagTable};

/// Bytes of a queue pair without entries, with two completion queues, a shared receive queue and two ids.
const QUEUE_PAIR: i64 = 4096;
/// Bytes of an entry of a queue, with one element.
const QUEUE_ENTRY: i64 = 192;
const QPS: u16 = 100;

/// Creates the objects of 100 queue pairs with this many entries per queue.
fn objects(entries: u16) -> (Device<Vec<u8>>, Contexts<Memory>) {
    let count = u32::from(QPS);
    let limits = Limits {
        pds: QPS,
        mrs: 1,
        mws: 1,
        cqs: QPS * 2,
        qps: QPS,
        srqs: QPS,
        ids: count * 2,
        ..Limits::default()
    };
    let (ids, ids_of_all) = (count * 2, count * 2);
    let of =
        ObjectLimits { pds: count, mrs: 1, mws: 1, cqs: count * 2, qps: count, srqs: count, ids, ids_of_all };
    let (mut device, mut contexts) =
        (Device::new(limits, EndpointConfig::default()), Contexts::new(1, limits.cqs));
    let context = contexts.open(shared_memory(), UserId(0), of).unwrap();
    let mut stags = StagTable::new(1, [0; 32]);
    let mut ask = |request: Request| execute(&mut contexts, context, &request, &mut device, &mut stags);
    for _ in 0..QPS {
        let Response::Pd(pd) = ask(Request::AllocPd) else { panic!() };
        let mut create_cq = || match ask(Request::CreateCq(u32::from(entries))) {
            Response::Cq(cq, _) => cq,
            other => panic!("{other:?}"),
        };
        let (send_cq, recv_cq) = (create_cq(), create_cq());
        ask(Request::CreateSrq { pd, max_wr: entries, max_sge: 1 });
        let cap = QpCap { max_send_wr: entries, max_recv_wr: entries, ..QpCap::default() };
        ask(Request::CreateQp(QpInit { recv_cq, cap, ..QpInit::new(pd, send_cq) }));
        ask(Request::CreateId(None));
        ask(Request::CreateId(None));
    }
    (device, contexts)
}

fn execute(
    contexts: &mut Contexts<Memory>,
    context: ContextId,
    request: &Request,
    device: &mut Device<Vec<u8>>,
    stags: &mut StagTable,
) -> Response {
    contexts.execute(context, request, device, stags, Duration::ZERO).unwrap()
}

#[test]
fn objects_take_no_more_memory_than_the_plan_says() {
    for entries in [1_u16, 16, 64] {
        let before = live_bytes();
        let objects = watched(|| objects(entries));
        // The queues themselves are in memory that the program shares; the test has that on its heap.
        let shared = shared_memory().len() * 8;
        let bytes = live_bytes() - before - i64::try_from(shared).unwrap();
        drop(objects);
        let (each, of_entries) = (bytes / i64::from(QPS), 5 * i64::from(entries) * QUEUE_ENTRY);
        println!("{entries} entries: {each} bytes per queue pair");
        assert!(each <= QUEUE_PAIR + of_entries, "{each} bytes, {of_entries} for entries");
        assert!(each * 3 > QUEUE_PAIR + of_entries, "the plan states far too much: {each} bytes");
    }
}
