//! Events of completion queues and of the port, as programs receive them.

use crate::common::*;
use iwarp_shared_verbs::program::Events;
use iwarp_shared_verbs::{Event, Request, Response};
use rdma::verbs::{AsyncEvent, QpState, WorkCompletion};

/// Programs of libibverbs arm, poll a few completions, and wait for the next event: the others raise it.
#[test]
fn a_completion_that_is_left_in_an_armed_queue_is_an_event_of_its_own() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    let poll_one = |a: &mut Program| {
        let mut out = [WorkCompletion::default()];
        assert_eq!(a.cq.poll(&mut out), Ok(1));
        out[0].wr_id
    };
    for wr_id in 0..3 {
        a.post(wr_id, b.party.write_to(0), &[]);
    }
    lab.run();
    assert!(!a.cq.take_left_event(), "not armed");
    a.cq.req_notify(false);
    assert_eq!((poll_one(&mut a), a.cq.take_left_event(), a.cq.take_left_event()), (0, true, false));
    a.cq.req_notify(true);
    assert_eq!((poll_one(&mut a), a.cq.take_left_event()), (1, false), "what is left is not solicited");
    a.cq.req_notify(false);
    assert_eq!((poll_one(&mut a), a.cq.take_left_event()), (2, false), "nothing is left");
    for wr_id in 3..5 {
        a.post(wr_id, b.party.write_to(0), &[]);
        lab.run();
    }
    assert_eq!(a.cq.events(), 1, "the worker raises the event of the last arming, once");
    assert!(!a.cq.take_left_event(), "the arming is used up");
    // A failure counts as solicited.
    a.post_recv(5, &[]);
    lab.request(0, a.context, &Request::ModifyQp(a.party.qp, QpState::Error)).unwrap();
    lab.run();
    a.recv_cq.req_notify(true);
    assert!(a.recv_cq.take_left_event());
}

#[test]
fn every_program_learns_how_the_link_is_and_one_that_does_not_listen_learns_the_last_state() {
    let mut lab = Lab::new();
    let (mut a, _b) = pair(&mut lab, 64);
    let (idle, _memory) = lab.open(0);
    lab.request(0, idle, &Request::AllocPd).unwrap();
    let (unserved, memory) = lab.open(0);
    for up in [false, true] {
        lab.contexts[0].set_link(up, &mut lab.raised[0]);
    }
    assert_eq!(core::mem::take(&mut lab.raised[0]).events.len(), 2);
    assert_eq!(a.all_events(), [Event::PortDown, Event::PortActive]);
    for round in 0..1000 {
        lab.contexts[0].set_link(round % 2 == 0, &mut lab.raised[0]);
    }
    let mut events = a.all_events();
    assert!(events.len() < 1000, "the ring is full");
    lab.run();
    events.extend(a.all_events());
    assert_eq!(events.last(), Some(&Event::PortDown));
    // A context that made no request has the last state of the link with the first.
    lab.raised[0].events.clear();
    lab.request(0, unserved, &Request::AllocPd).unwrap();
    lab.run();
    assert_eq!(lab.raised[0].events.len(), 1);
    let mut ring = Events::new(memory).unwrap();
    assert_eq!((ring.poll(), ring.poll()), (Some(Event::PortDown), None));
}

/// Creates a shared receive queue of the first program, which is empty.
fn srq(lab: &mut Lab, a: &Program) -> rdma::verbs::SrqId {
    let create = Request::CreateSrq { pd: a.party.pd, max_wr: 4, max_sge: 1 };
    let Ok(Response::Srq(srq, _)) = lab.request(0, a.context, &create) else { panic!("no queue") };
    srq
}

/// Arms the limit of an empty queue, which raises the event at once, and delivers it.
fn reach(lab: &mut Lab, a: &Program, srq: rdma::verbs::SrqId) {
    lab.request(0, a.context, &Request::ModifySrq(srq, 2)).unwrap();
    lab.run();
}

/// Takes all events of a program, and those that the ring has had no room for.
fn all_events(lab: &mut Lab, a: &mut Program) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        let some = a.all_events();
        if some.is_empty() {
            return all;
        }
        all.extend(some);
        lab.run();
    }
}

/// The ring of events and one event per object is all that a program can make the worker keep.
#[test]
fn an_event_that_nobody_takes_waits_once_for_its_object() {
    let mut lab = Lab::new();
    let (mut a, _b) = pair(&mut lab, 64);
    let queues = [srq(&mut lab, &a), srq(&mut lab, &a)];
    for _ in 0..5000 {
        queues.iter().for_each(|queue| reach(&mut lab, &a, *queue));
    }
    let events = all_events(&mut lab, &mut a);
    let of = |queue| {
        events.iter().filter(|event| **event == Event::Async(AsyncEvent::SrqLimitReached(queue))).count()
    };
    assert!(events.len() <= 64 + 2, "{} events of {}", events.len(), 10_000);
    assert!(queues.iter().all(|queue| of(*queue) > 1), "each queue has its own event");
    // It is raised again once it was taken.
    reach(&mut lab, &a, queues[0]);
    assert_eq!(all_events(&mut lab, &mut a), [Event::Async(AsyncEvent::SrqLimitReached(queues[0]))]);
}

#[test]
fn events_of_objects_that_are_gone_do_not_wait() {
    let mut lab = Lab::new();
    let (mut a, _b) = pair(&mut lab, 64);
    for _ in 0..5000 {
        let queue = srq(&mut lab, &a);
        reach(&mut lab, &a, queue);
        lab.request(0, a.context, &Request::DestroySrq(queue)).unwrap();
    }
    let events = all_events(&mut lab, &mut a);
    assert!((1..=64).contains(&events.len()), "{} events", events.len());
    // The program is woken for an event that reaches the ring, and for no other.
    let queue = srq(&mut lab, &a);
    core::mem::take(&mut lab.raised[0]);
    reach(&mut lab, &a, queue);
    assert!(lab.raised[0].events.contains(&a.context));
}
