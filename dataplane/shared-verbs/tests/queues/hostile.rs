//! A program that writes random words into its shared memory, while it posts work, and an honest one beside it: the
//! honest program's work succeeds and its bytes arrive, whatever the other one writes.

use std::sync::atomic::Ordering;

use crate::common::{Lab, Program, connect, listen, pair};
use iwarp_shared_verbs::{Event, Request};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rdma::AtomicOp;
use rdma::testutil::verbs::{BASE, CAP, Node, Party, RTS, SEND, ends, rtr};
use rdma::verbs::*;

/// Operations per life of the hostile program.
const LIFE: u64 = 400;

/// Returns the operations of the test: `VERBS_OPERATIONS`, or this many.
fn operations() -> u64 {
    std::env::var("VERBS_OPERATIONS").map_or(200_000, |count| count.parse().expect("a number"))
}

fn random_op(rng: &mut SmallRng, peer: &Party) -> SendOp {
    let rkey = if rng.random() { peer.mr.mr.rkey } else { Stag(rng.random()) };
    let remote_addr = if rng.random() { BASE + rng.random_range(0..17_000) } else { rng.random() };
    match rng.random_range(0..9) {
        0 => SEND,
        8 => {
            let remote = core::net::Ipv6Addr::from_bits(rng.random()).into();
            let to = Destination { local: remote, remote, qp_num: QpNum(rng.random()), qkey: rng.random() };
            SendOp::Datagram { to, imm_data: None }
        }
        1 => SendOp::Send { invalidate: Some(rkey) },
        2 => SendOp::RdmaWrite { remote_addr, rkey },
        3 => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: [3; 8] },
        4 => SendOp::RdmaRead { remote_addr, rkey },
        5 => SendOp::Atomic { remote_addr, rkey, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
        6 => SendOp::LocalInvalidate { stag: rkey },
        _ => SendOp::BindMw {
            mw: MwId(rng.random()),
            rkey,
            bind: Bind {
                lkey: Stag(rng.random()),
                address: remote_addr,
                len: rng.random(),
                access: Access::REMOTE_WRITE,
                zero_based: rng.random(),
            },
        },
    }
}

/// Writes a word: anywhere, or into the lines of a ring's counts; random, or near a count.
fn corrupt(rng: &mut SmallRng, program: &Program) {
    let words = program.memory.len();
    let at = if rng.random() { rng.random_range(0..words) } else { rng.random_range(0..words.min(8192)) };
    let value = match rng.random_range(0..4) {
        0 => rng.random(),
        1 => rng.random_range(0..100),
        2 => u64::MAX - rng.random_range(0..100),
        _ => program.memory[at].load(Ordering::Relaxed) ^ (1 << rng.random_range(0..64)),
    };
    program.memory[at].store(value, Ordering::Relaxed);
}

/// Names a peer by number: the right one, or any.
fn random_rtr(rng: &mut SmallRng, peer: &Party) -> RtrAttr {
    let right = rtr(peer, 0);
    if rng.random() {
        return right;
    }
    let remote = core::net::Ipv6Addr::from_bits(rng.random()).into();
    RtrAttr { dest_qp_num: QpNum(rng.random()), rq_psn: rng.random(), remote, ..right }
}

/// Executes a request with handles of this and of other programs.
fn random_request(rng: &mut SmallRng, lab: &mut Lab, hostile: &Program, honest: &Program) {
    let of = if rng.random() { &hostile.party } else { &honest.party };
    let Party { pd, cq, recv_cq, qp, id, mr } = *of;
    let request = match rng.random_range(0..17) {
        0 => Request::ModifyQp(qp, if rng.random() { QpState::Error } else { QpState::Idle }),
        1 => Request::DestroyCq(cq),
        2 => Request::DestroyQp(QpNum(rng.random())),
        3 => Request::CreateCq(rng.random_range(0..10_000)),
        4 => {
            let qp_type = if rng.random() { QpType::Rc } else { QpType::Ud };
            let init = QpInit { cap: CAP, recv_cq, qp_type, ..QpInit::new(pd, cq) };
            Request::CreateQp(init)
        }
        5 => Request::AllocMw(pd),
        6 => Request::DeregMr(mr.mr.id),
        7 => Request::Disconnect(id),
        8 => Request::CreateSrq { pd, max_wr: rng.random(), max_sge: rng.random_range(0..20) },
        9 => Request::AllocPd,
        10 => Request::Reject { id, private_data: vec![1; rng.random_range(0..600)] },
        11 => Request::ResizeCq(cq, rng.random_range(0..10_000)),
        12 => Request::ReadyToReceive(qp, random_rtr(rng, of)),
        13 => Request::ReadyToSend(qp, RtsAttr { timeout: rng.random(), rnr_retry: rng.random(), ..RTS }),
        14 => Request::AwaitBuffers(qp),
        15 => Request::ReadyForDatagrams(if rng.random() { qp } else { QpNum(rng.random()) }, 1),
        _ => Request::DestroyId(CmId(rng.random())),
    };
    // Any answer is right, as long as nobody else is disturbed.
    let _ = lab.request(0, hostile.context, &request);
}

fn step(rng: &mut SmallRng, lab: &mut Lab, hostile: &mut Program, peer: &Party, honest: &Program) {
    match rng.random_range(0..10) {
        0..=4 => corrupt(rng, hostile),
        5 | 6 => {
            let sge = if rng.random() {
                hostile.party.mr.sge(rng.random_range(0..16_000), rng.random_range(0..3000))
            } else {
                Sge { addr: rng.random(), length: rng.random(), lkey: Stag(rng.random()) }
            };
            let (list, op) = ([sge], random_op(rng, peer));
            let wr = SendWr::new(rng.random(), op, &list);
            // Refused if the program has spoilt its own ring.
            let _ = hostile.send.push(&wr);
            hostile.send.ring();
        }
        7 => {
            let sge = Sge { addr: rng.random(), length: rng.random(), lkey: hostile.party.mr.mr.lkey };
            let _ = hostile.recv.push(&RecvWr { wr_id: 1, sg_list: &[sge] });
            hostile.recv.ring();
        }
        8 => {
            hostile.poll(rng.random());
            hostile.all_events();
        }
        _ => random_request(rng, lab, hostile, honest),
    }
}

#[test]
fn random_words_disturb_nobody_else() {
    let mut rng = SmallRng::seed_from_u64(20_261_123);
    let mut lab = Lab::new();
    lab.net.nodes[0].device.set_rendezvous(Rendezvous { port: 9000, key: (1, 2), datagram_max: 1024 });
    let (mut honest, mut honest_peer) = pair(&mut lab, 256);
    let mut done = 0;
    let mut refused = 0_u64;
    while done < operations() {
        let mut hostile = Program::new(&mut lab, 0, CAP, 64, 3);
        let mut peer = Program::new(&mut lab, 1, CAP, 64, 4);
        let listener = lab.net.nodes[1].listener;
        let own_listener = listen(&mut lab, &peer);
        connect(&mut lab, &mut hostile, &mut peer);
        for _ in 0..LIFE {
            step(&mut rng, &mut lab, &mut hostile, &peer.party, &honest);
            done += 1;
            if rng.random_range(0..8) == 0 {
                lab.run();
            }
            if rng.random_range(0..40) == 0 {
                exchange(&mut rng, &mut lab, &mut honest, &mut honest_peer);
            }
        }
        let state = lab.net.nodes[0].device.query_qp(hostile.party.qp).map(|attr| attr.state);
        refused += u64::from(state != Ok(QpState::Rts));
        lab.request(1, peer.context, &Request::DestroyId(own_listener)).unwrap();
        for (at, context) in [(0, hostile.context), (1, peer.context)] {
            let Node { device, stags, .. } = &mut lab.net.nodes[at];
            lab.contexts[at].close(context, device, stags, &mut |_| {}).unwrap();
        }
        lab.run();
        lab.net.nodes[1].listener = listener;
        lab.net.drop_closed();
    }
    assert_eq!(lab.net.nodes[0].memory.faults(), 0);
    assert!(refused > done / LIFE / 2, "the words did no harm: {refused} of {} lives", done / LIFE);
    assert_eq!((honest.all_events(), honest_peer.all_events()), (Vec::<Event>::new(), Vec::new()));
}

/// Writes, sends and reads between the honest programs, and compares the bytes.
fn exchange(rng: &mut SmallRng, lab: &mut Lab, a: &mut Program, b: &mut Program) {
    let (from, to) = (rng.random_range(0..4000), 8192 + rng.random_range(0..4000));
    let length: u32 = rng.random_range(1..4000);
    b.post_recv(1, &[b.party.mr.sge(0, 64)]);
    a.post(1, b.party.write_to(to), &[a.party.mr.sge(from, length)]);
    a.post(2, SEND, &[a.party.mr.sge(from, 30)]);
    lab.run();
    assert_eq!(ends(&a.poll(false)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(ends(&b.poll(true)), [(1, WcStatus::Success)]);
    let range = |start: u64| start as usize..start as usize + length as usize;
    let [here, there] = [&*a, &*b].map(|side| lab.net.nodes[side.at].bytes(&side.party.mr));
    assert_eq!(here[range(from)], there[range(to)]);
    a.post(3, b.party.read_from(to), &[a.party.mr.sge(from, length)]);
    lab.run();
    assert_eq!(ends(&a.poll(false)), [(3, WcStatus::Success)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// All words at once: rings, counts, doorbells and arming.
    #[test]
    fn a_memory_full_of_one_word_ends_the_queue_pair_at_most(word: u64, seed: u64) {
        let mut lab = Lab::new();
        let (mut honest, mut honest_peer) = pair(&mut lab, 256);
        lab.net.nodes[1].listener = None;
        let mut hostile = Program::new(&mut lab, 0, CAP, 64, 3);
        let mut peer = Program::new(&mut lab, 1, CAP, 64, 4);
        listen(&mut lab, &peer);
        connect(&mut lab, &mut hostile, &mut peer);
        let mut rng = SmallRng::seed_from_u64(seed);
        for _ in 0..10 {
            for place in hostile.memory.iter() {
                place.store(word, Ordering::Relaxed);
            }
            for _ in 0..rng.next_u32() % 4 {
                lab.poll(0);
            }
            exchange(&mut rng, &mut lab, &mut honest, &mut honest_peer);
        }
    }
}
