//! A program that learns of the end of a connection finds the completions before it in their rings.

use std::sync::Arc;

use crate::common::{Lab, Program, pair};
use iwarp_shared_verbs::program::{RecvQueue, Slots};
use iwarp_shared_verbs::{Event, Request, Response};
use rdma::testutil::verbs::*;
use rdma::verbs::*;

/// Queue pairs beside the connection, and receive buffers of each that complete before its message.
const FLUSHED_QPS: u64 = 20;
const FLUSHED: u64 = 32;

/// Has receive buffers of other queue pairs complete to the program's queue.
fn complete_many(lab: &mut Lab, program: &mut Program) {
    let Party { pd, cq: send_cq, recv_cq, .. } = program.party;
    let (at, context) = (program.at, program.context);
    for _ in 0..FLUSHED_QPS {
        let init = QpInit { recv_cq, cap: CAP, sq_sig_all: false, ..QpInit::new(pd, send_cq) };
        let Ok(Response::Qp(qp, places)) = lab.request(at, context, &Request::CreateQp(init)) else {
            panic!()
        };
        let slots = Slots::new(false);
        program.recv_cq.add_qp(qp, slots.clone());
        let (memory, depth) = (Arc::clone(&program.memory), (CAP.max_recv_wr, CAP.max_recv_sge));
        let mut queue = RecvQueue::new(memory, places.recv.unwrap(), depth, Some(slots)).unwrap();
        (0..FLUSHED).for_each(|wr_id| queue.push(&RecvWr { wr_id, sg_list: &[] }).unwrap());
        queue.ring();
        while lab.contexts[at].post(&mut lab.net.nodes[at].device) {}
        lab.request(at, context, &Request::ModifyQp(qp, QpState::Error)).unwrap();
    }
}

/// Returns two programs of which the second has received message 1, and then the end of the connection; the worker has
/// delivered neither.
fn ended(lab: &mut Lab, cqe: u32, is_busy: bool) -> (Program, Program) {
    let (mut a, mut b) = pair(lab, cqe);
    b.post_recv(1, &[]);
    lab.run();
    if is_busy {
        complete_many(lab, &mut b);
    }
    a.post(2, SEND, &[]);
    lab.poll(0);
    lab.net.run();
    lab.request(0, a.context, &Request::Disconnect(a.party.id)).unwrap();
    lab.net.run();
    (a, b)
}

fn end_of(program: &Program) -> Event {
    Event::Cm(CmEvent { id: program.party.id, kind: CmEventKind::Disconnected })
}

/// Passes connection events to the contexts of node 1, as a worker does amid its poll.
fn pass_events(lab: &mut Lab) {
    let Lab { net, contexts, raised } = lab;
    let Node { device, cm, .. } = &mut net.nodes[1];
    for event in cm.drain(..).chain(core::iter::from_fn(|| device.poll_cm_event())).collect::<Vec<_>>() {
        assert_eq!(contexts[1].cm_event(event, device, &mut raised[1]), None);
    }
}

#[test]
fn an_end_waits_for_completions_that_are_delivered_later_in_the_same_poll() {
    let mut lab = Lab::new();
    let (_, mut b) = ended(&mut lab, 64, false);
    pass_events(&mut lab);
    assert_eq!(b.all_events(), [], "the message is not there");
    lab.poll(1);
    assert_eq!(b.all_events(), [end_of(&b)]);
    assert_eq!(ends(&b.poll(true)), [(1, WcStatus::Success)]);
}

#[test]
fn an_end_waits_for_completions_behind_more_than_one_poll_moves() {
    let mut lab = Lab::new();
    let (_, mut b) = ended(&mut lab, 4096, true);
    let (mut polls, mut arrived) = (0, Vec::new());
    loop {
        lab.poll(1);
        let has_ended = b.all_events() == [end_of(&b)];
        arrived.extend(ends(&b.poll(true)));
        if has_ended {
            break;
        }
        assert!(lab.contexts[1].has_undelivered(), "the worker goes on");
        polls += 1;
    }
    assert!(polls > 1, "{polls}");
    assert_eq!(arrived.len() as u64, FLUSHED_QPS * FLUSHED + 1);
    assert_eq!(arrived.last(), Some(&(1, WcStatus::Success)));
    assert!(!lab.contexts[1].has_undelivered());
}

#[test]
fn an_end_does_not_wait_for_a_program_that_does_not_poll() {
    let mut lab = Lab::new();
    let (_, mut b) = ended(&mut lab, 700, true);
    // The ring has room for some of the completions only.
    let shorter = b.objects.cqs[1];
    assert!(lab.net.nodes[1].device.queued_completions(shorter).unwrap() > 512);
    let mut polls = 0;
    while b.all_events() != [end_of(&b)] {
        lab.poll(1);
        polls += 1;
        assert!(polls < 10);
    }
}

#[test]
fn an_end_whose_id_or_context_is_gone_is_told_to_nobody() {
    for closes in [false, true] {
        let mut lab = Lab::new();
        let (_, mut b) = ended(&mut lab, 4096, true);
        lab.poll(1);
        if closes {
            let Node { device, stags, .. } = &mut lab.net.nodes[1];
            lab.contexts[1].close(b.context, device, stags, &mut |_| {}).unwrap();
        } else {
            lab.request(1, b.context, &Request::DestroyId(b.party.id)).unwrap();
        }
        while lab.contexts[1].has_undelivered() {
            lab.poll(1);
        }
        assert_eq!(b.all_events(), []);
    }
}
