//! Runs the fuzz targets `tcp_…` on the stable toolchain.

use iwarp_corpus::Corpora;
use proptest::prelude::*;
use tcp_stack::testutil::fuzz::{TARGETS, prediction, seeds};

fn corpora() -> Corpora {
    Corpora::of("tcp")
}

fn run(name: &str, cases: u32) {
    let (_, target) = TARGETS.into_iter().find(|(target, _)| *target == name).unwrap();
    iwarp_corpus::run(target, &corpora().read(name, &seeds(name)), cases);
}

#[test]
fn frame() {
    run("frame", 1_000);
}

#[test]
fn operations() {
    run("operations", 1_000);
}

#[test]
fn options() {
    run("options", 10_000);
}

/// Returns operations of a connection that lives: those that end it are rare.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let op = |op: u8, bytes: usize| {
        proptest::collection::vec(any::<u8>(), bytes..=bytes)
            .prop_map(move |rest| [&[op], &rest[..]].concat())
    };
    let in_order = any::<[u8; 3]>().prop_map(|[a, b, marks]| vec![8, a, b, marks | 8]);
    // Data ahead of RCV.NXT and before it: a gap, and a part of what follows it.
    let gap = any::<[u8; 5]>().prop_map(|[flags, a, b, len, more]| {
        vec![11, 0x10 | (flags & 0xc8), 0xff, 0xff, 3 + (more & 1), a & 15, b, 0, 0, 0, 0, len & 3, more]
    });
    let sack = any::<[u8; 3]>().prop_map(|[a, b, len]| {
        vec![11, 0x10, 0xff, 0xff, 0, 4, a & 15, b, 0, 0, 0x40, 4, a & 7, b, len & 7, b, 0, 0]
    });
    // Several segments that leave in one poll, or as many as the windows allow.
    let train =
        proptest::collection::vec(op(0, 2), 2..8).prop_map(|sends| [&sends.concat()[..], &[14]].concat());
    let pause = (0_u8..6).prop_map(|pause| vec![5, pause]);
    let polls = prop_oneof![Just(vec![14]), Just(vec![7])];
    let step = prop_oneof![
        30 => in_order,
        15 => op(10, 2).prop_map(|ack| [&ack[..], &[14]].concat()),
        12 => op(0, 2),
        12 => train,
        6 => op(1, 1),
        10 => op(2, 2),
        20 => polls,
        6 => pause,
        8 => gap,
        3 => sack,
        1 => op(3, 0),
    ];
    let begin = proptest::collection::vec(any::<u8>(), 16);
    (begin, proptest::collection::vec(step, 100..300)).prop_map(|(mut input, steps)| {
        // A SYN, its answer, and the acknowledgment of that.
        let ecn = input.first().map_or(0, |first| first & 2);
        input.extend([12, ecn, 255, 255, 14, 10, 255, 255, 14]);
        input.extend(steps.concat());
        input
    })
}

/// Header prediction gives the same results as the general path.
#[test]
fn prediction_changes_no_result() {
    for (_, input) in corpora().read("operations", &seeds("operations")) {
        prediction(&input);
    }
    iwarp_corpus::run_chosen(prediction, conversation(), 300);
}

#[test]
fn corpora_are_small() {
    corpora().assert_small(TARGETS.map(|(name, _)| name));
}
