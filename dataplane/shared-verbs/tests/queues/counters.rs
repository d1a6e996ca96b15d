//! Counters of contexts and of completion queues.

use crate::common::*;
use iwarp_shared_verbs::Request;
use iwarp_shared_verbs::worker::{ContextStats, CqStats};
use rdma::testutil::verbs::{CAP, SEND};
use rdma::verbs::*;

fn stats(lab: &Lab, program: &Program) -> ContextStats {
    lab.contexts[program.at].stats(program.context).unwrap()
}

fn cq_stats(lab: &Lab, program: &Program) -> [CqStats; 2] {
    program.cqs.map(|cq| lab.contexts[program.at].cq_stats(program.context, cq).unwrap())
}

#[test]
fn work_requests_and_completions_are_counted_once() {
    let mut lab = Lab::new();
    let (mut a, mut b) = pair(&mut lab, 64);
    let none = ContextStats::default();
    assert_eq!([stats(&lab, &a), stats(&lab, &b)], [none; 2]);
    for sends in [1, 5, 14] {
        for wr_id in 0..sends {
            b.post_recv(wr_id, &[b.party.mr.sge(0, 100)]);
            a.post(wr_id, SEND, &[a.party.mr.sge(5, 60)]);
        }
        let unsignaled = SendWr { flags: SendFlags::default(), ..SendWr::new(99, b.party.write_to(0), &[]) };
        a.send.push(&unsignaled).unwrap();
        a.post(100, b.party.write_to(0), &[]);
        lab.run();
        a.poll(false);
        b.poll(true);
    }
    // Each round has one request more that is signaled, and one that is not.
    let all = 1 + 5 + 14;
    let of = |work_requests, completions| ContextStats { work_requests, completions, errors: 0 };
    assert_eq!([stats(&lab, &a), stats(&lab, &b)], [of(all + 6, all + 3), of(all, all)]);
    let none = CqStats::default();
    assert_eq!(cq_stats(&lab, &a), [CqStats { completions: all + 3, ..none }, none]);
    assert_eq!(cq_stats(&lab, &b), [none, CqStats { completions: all, ..none }]);
}

#[test]
fn flushed_work_is_counted_as_errors() {
    let mut lab = Lab::new();
    let (a, mut b) = pair(&mut lab, 64);
    (0..7).for_each(|wr_id| b.post_recv(wr_id, &[]));
    lab.run();
    assert_eq!(stats(&lab, &b), ContextStats { work_requests: 7, completions: 0, errors: 0 });
    lab.request(0, a.context, &Request::ModifyQp(a.party.qp, QpState::Error)).unwrap();
    lab.run();
    assert_eq!(stats(&lab, &b), ContextStats { work_requests: 7, completions: 7, errors: 7 });
    assert_eq!(cq_stats(&lab, &b)[1], CqStats { completions: 7, errors: 7, events: 0 });
}

#[test]
fn work_that_waits_for_a_stream_is_counted_when_it_is_taken() {
    let mut lab = Lab::new();
    let mut a = Program::new(&mut lab, 0, CAP, 64, 1);
    let mut b = Program::new(&mut lab, 1, CAP, 64, 2);
    listen(&mut lab, &b);
    a.send.set_ready(true);
    for wr_id in 0..3 {
        a.post(wr_id, b.party.write_to(0), &[a.party.mr.sge(0, 10)]);
    }
    for _ in 0..5 {
        lab.run();
        assert_eq!(stats(&lab, &a), ContextStats::default());
    }
    connect(&mut lab, &mut a, &mut b);
    for _ in 0..5 {
        lab.run();
    }
    assert_eq!(stats(&lab, &a), ContextStats { work_requests: 3, completions: 3, errors: 0 });
}

#[test]
fn an_event_is_counted_per_arming() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    for armed in [false, true, true, false, true] {
        if armed {
            a.cq.req_notify(false);
        }
        for wr_id in 0..3 {
            a.post(wr_id, b.party.write_to(0), &[]);
        }
        lab.run();
        a.poll(false);
    }
    assert_eq!(cq_stats(&lab, &a)[0], CqStats { completions: 15, errors: 0, events: 3 });
}

#[test]
fn counters_outlive_their_queues_and_belong_to_one_context() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    let other = Program::new(&mut lab, 0, CAP, 64, 3);
    a.post(1, b.party.write_to(0), &[]);
    lab.run();
    assert_eq!(stats(&lab, &other), ContextStats::default());
    let [cq, _] = a.cqs;
    assert_eq!(lab.contexts[0].cq_stats(other.context, cq), None, "another context's queue");
    for request in [Request::DestroyId(a.party.id), Request::DestroyQp(a.party.qp), Request::DestroyCq(cq)] {
        lab.request(0, a.context, &request).unwrap();
    }
    assert_eq!(lab.contexts[0].cq_stats(a.context, cq), None);
    assert_eq!(stats(&lab, &a), ContextStats { work_requests: 1, completions: 1, errors: 0 });
}
