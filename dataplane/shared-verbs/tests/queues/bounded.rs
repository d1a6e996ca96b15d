//! Work of a worker for its programs is bounded: requests are executed in parts, and users have turns.

use core::task::Poll;
use std::sync::Arc;

use crate::common::{LIMITS, Lab, Memory, shared_memory};
use iwarp_shared_verbs::worker::{ContextId, UserId};
use iwarp_shared_verbs::{Request, Response, testutil};
use rdma::testutil::verbs::*;
use rdma::verbs::*;

/// A program whose queue pair is in error: its receive buffers complete at once.
struct Flushing {
    context: ContextId,
    objects: testutil::Program<Memory>,
    /// Buffers posted.
    posted: u64,
}

fn flushing(lab: &mut Lab, user: u32, cqe: u32) -> Flushing {
    let memory = shared_memory();
    let context = lab.contexts[0].open(Arc::clone(&memory), UserId(user), LIMITS).unwrap();
    let region = lab.net.nodes[0].memory.add(vec![0; 64]).unwrap();
    let setup = testutil::Setup {
        cap: QpCap { max_recv_wr: 4096, ..QpCap::default() },
        cqe,
        local: address(0),
        region: (region, 64),
        base: AddressBase::Zero,
        access: Access::LOCAL_READ,
    };
    let objects = testutil::Program::new(memory, &setup, &mut |request| lab.request(0, context, request));
    lab.request(0, context, &Request::ModifyQp(objects.qp, QpState::Error)).unwrap();
    Flushing { context, objects, posted: 0 }
}

impl Flushing {
    fn post(&mut self, count: u64) {
        for _ in 0..count {
            self.objects.post_recv(self.posted, &[]);
            self.posted += 1;
        }
    }

    /// Returns the numbers of the completions in the ring.
    fn poll(&mut self) -> Vec<u64> {
        self.objects.poll(true).iter().map(|wc| wc.wr_id).collect()
    }

    /// Executes a part of a request.
    fn part(&self, lab: &mut Lab, request: &Request) -> Poll<Result<Response, VerbsError>> {
        let Node { device, stags, .. } = &mut lab.net.nodes[0];
        lab.contexts[0].execute_part(self.context, request, device, stags, lab.net.now)
    }

    /// Executes a request in parts, and polls the worker after each. Returns the number of parts.
    fn parts(&self, lab: &mut Lab, request: &Request) -> (usize, Response) {
        for parts in 1.. {
            if let Poll::Ready(done) = self.part(lab, request) {
                return (parts, done.unwrap());
            }
            lab.poll(0);
        }
        unreachable!("the request ends")
    }
}

/// Polls the worker until it has nothing left that it can do at once.
fn settle(lab: &mut Lab) {
    while lab.poll(0) || lab.contexts[0].has_undelivered() {}
}

#[test]
fn a_queue_with_many_completions_is_resized_in_parts_and_keeps_all() {
    let mut lab = Lab::new();
    let mut program = flushing(&mut lab, 1, 4096);
    program.post(3000);
    settle(&mut lab);
    assert!(program.objects.recv_cq.begin_resize(4000));
    // Later completions wait until the queue is at its new place.
    program.post(500);
    let cq = program.objects.cqs[1];
    let (parts, response) = program.parts(&mut lab, &Request::ResizeCq(cq, 4000));
    assert!(parts >= 3000 / 256, "{parts} parts");
    let Response::Cq(_, place) = response else { panic!("{response:?}") };
    assert!(program.objects.recv_cq.end_resize(place));
    settle(&mut lab);
    assert_eq!(program.poll(), (0..3500).collect::<Vec<_>>());
}

#[test]
fn a_queue_is_not_resized_to_fewer_entries_than_come_meanwhile() {
    let mut lab = Lab::new();
    let mut program = flushing(&mut lab, 1, 4096);
    program.post(2000);
    settle(&mut lab);
    let request = Request::ResizeCq(program.objects.cqs[1], 2100);
    assert!(program.part(&mut lab, &request).is_pending());
    program.post(200);
    settle(&mut lab);
    let refused = loop {
        if let Poll::Ready(done) = program.part(&mut lab, &request) {
            break done;
        }
    };
    assert_eq!(refused, Err(VerbsError::Invalid));
    settle(&mut lab);
    assert_eq!(program.poll(), (0..2200).collect::<Vec<_>>());
}

#[test]
fn a_queue_pair_is_reset_and_destroyed_in_parts_beside_completions_of_others() {
    for destroy in [false, true] {
        let mut lab = Lab::new();
        let mut program = flushing(&mut lab, 1, 1024);
        let recv_cq = program.objects.cqs[1];
        let init = QpInit { recv_cq, ..QpInit::new(program.objects.pd, program.objects.cqs[0]) };
        let Response::Qp(other, _) = lab.request(0, program.context, &Request::CreateQp(init)).unwrap()
        else {
            panic!()
        };
        lab.request(0, program.context, &Request::ModifyQp(other, QpState::Error)).unwrap();
        // The ring is full, and so is the queue behind it, but for one completion of the other queue pair at its end.
        program.post(2047);
        settle(&mut lab);
        let device = &mut lab.net.nodes[0].device;
        device.post_recv(other, &RecvWr { wr_id: 9, sg_list: &[] }).unwrap();
        let request =
            if destroy { Request::DestroyQp(other) } else { Request::ModifyQp(other, QpState::Idle) };
        let (parts, response) = program.parts(&mut lab, &request);
        assert!((4..=6).contains(&parts) && response == Response::Done, "{parts} parts");
        let mut all = Vec::new();
        while all.len() < 2047 {
            all.extend(program.poll());
            settle(&mut lab);
        }
        assert_eq!(all, (0..2047).collect::<Vec<_>>());
    }
}

#[test]
fn a_context_is_closed_in_parts_and_others_are_served_between_them() {
    let mut lab = Lab::new();
    let mut closed = flushing(&mut lab, 1, 4096);
    let mut other = flushing(&mut lab, 2, 64);
    let init = QpInit::new(closed.objects.pd, closed.objects.cqs[0]);
    for _ in 0..60 {
        lab.request(0, closed.context, &Request::CreateQp(init)).unwrap();
    }
    closed.post(4096);
    settle(&mut lab);
    let (mut parts, mut served, mut released) = (0, 0, 0);
    loop {
        let Node { device, stags, .. } = &mut lab.net.nodes[0];
        let part = lab.contexts[0].close_part(closed.context, device, stags, &mut |_| released += 1);
        parts += 1;
        if let Poll::Ready(done) = part {
            assert_eq!(done, Ok(()));
            break;
        }
        other.post(1);
        lab.poll(0);
        served += other.poll().len();
        // The context answers no request, and its rings are not looked at.
        assert_eq!(closed.part(&mut lab, &Request::AllocPd), Poll::Ready(Err(VerbsError::NoSuchObject)));
    }
    // 61 queue pairs, two completion queues, a memory region, an id, a protection domain; the begin and the end.
    assert_eq!((parts, released, served), (68, 1, 67));
    let Node { device, stags, .. } = &mut lab.net.nodes[0];
    assert_eq!(lab.contexts[0].close(other.context, device, stags, &mut |_| {}), Ok(()));
    assert!(stags.is_empty());
}

#[test]
fn users_have_turns_however_many_contexts_each_has() {
    let mut lab = Lab::new();
    let mut many: Vec<_> = (0..14).map(|_| flushing(&mut lab, 1, 4096)).collect();
    let mut one = flushing(&mut lab, 2, 4096);
    many.iter_mut().for_each(|program| program.post(4000));
    one.post(1000);
    // Work of the one user is posted and delivered in each poll.
    let mut polls = 0;
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        lab.poll(0);
        polls += 1;
        seen.extend(one.poll());
        assert!(
            polls <= 1000_usize.div_ceil(64) + 1,
            "{} of 1000 completions after {polls} polls",
            seen.len()
        );
    }
    let of_many: usize = many.iter_mut().map(|program| program.poll().len()).sum();
    assert!((500..=1100).contains(&of_many), "{of_many} completions of the other user");
    // Nobody else has work: the other user has all of the worker's time.
    lab.poll(0);
    let more: usize = many.iter_mut().map(|program| program.poll().len()).sum();
    assert!(more >= 64, "{more} completions in one poll");
}

#[test]
fn doorbells_of_queues_without_entries_are_work() {
    let mut lab = Lab::new();
    let program = flushing(&mut lab, 1, 64);
    let _other = flushing(&mut lab, 2, 64);
    let init = QpInit::new(program.objects.pd, program.objects.cqs[0]);
    let places: Vec<_> = (0..60)
        .map(|_| match lab.request(0, program.context, &Request::CreateQp(init)) {
            Ok(Response::Qp(_, places)) => places,
            other => panic!("{other:?}"),
        })
        .collect();
    let doorbells = iwarp_shared_queues::Doorbells::new(
        &program.objects.memory,
        iwarp_shared_queues::LINE_WORDS,
        iwarp_shared_queues::DOORBELL_QUEUES_MAX,
    )
    .unwrap();
    for place in &places {
        doorbells.ring(place.send.doorbell);
        doorbells.ring(place.recv.unwrap().doorbell);
    }
    // 120 queues: 64 in the first poll, the rest in the next one.
    assert_eq!([lab.poll(0), lab.poll(0)], [true, false]);
}
