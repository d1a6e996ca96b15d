//! Events of completion queues and of the port, as programs receive them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::*;
use iwarp_shared_verbs::{Event, Request};
use rdma::verbs::{QpState, WorkCompletion};

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
    let (_, _memory) = lab.open(0);
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
}
