//! The targets of `tcp-stack/fuzz` on the stable toolchain: every input of the committed corpora, and a bounded
//! number of others that chance makes of them. `make fuzz` goes on from there.
//!
//! `UPDATE_CORPUS=1 cargo test -p tcp-stack --test fuzz` writes the inputs that the corpora begin with.

#![allow(clippy::unwrap_used, reason = "what a test builds is right")]

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::path::PathBuf;
use std::{env, fmt, fs};
use tcp_stack::testutil::fuzz::{TARGETS, prediction, seeds};

/// All corpora together, bytes.
const CORPORA_MAX: u64 = 200 << 10;

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder(target);
    if env::var_os("UPDATE_CORPUS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (index, seed) in seeds(target).iter().enumerate() {
            fs::write(folder.join(format!("seed-{index:02}")), seed).unwrap();
        }
    }
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= seeds(target).len(), "{target} has no corpus: see the head of this file");
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// An input, shown as digits.
#[derive(Clone)]
struct Hex(Vec<u8>);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is done to an input: octets overwritten, a piece of another one put in, the rest cut off.
type Mutation = (Vec<(Index, u8)>, (Index, Index, Index), Option<Index>);

fn mutate(corpus: &[(PathBuf, Vec<u8>)], at: &Index, mutation: &Mutation) -> Vec<u8> {
    let (writes, (from, begin, to), cut) = mutation;
    let mut input = at.get(corpus).1.clone();
    let piece = &from.get(corpus).1;
    if !piece.is_empty() && !input.is_empty() {
        let to = to.index(input.len());
        input.splice(to..to, piece[begin.index(piece.len())..].iter().copied());
    }
    for (at, value) in writes.iter().filter(|_| !piece.is_empty()) {
        let len = input.len().max(1);
        if let Some(byte) = input.get_mut(at.index(len)) {
            *byte = *value;
        }
    }
    if let Some(cut) = cut {
        input.truncate(cut.index(input.len().max(1)));
    }
    input
}

fn run(name: &str, cases: u32) {
    let (_, target) = TARGETS.into_iter().find(|(target, _)| *target == name).unwrap();
    let corpus = corpus(name);
    for (path, input) in &corpus {
        println!("{}", path.display());
        target(input);
    }
    let index = any::<Index>;
    let writes = proptest::collection::vec((index(), any::<u8>()), 0..8);
    let mutation = (writes, (index(), index(), index()), proptest::option::of(index()));
    let mutated = (index(), mutation).prop_map(|(at, mutation)| mutate(&corpus, &at, &mutation));
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..1000);
    // The same inputs each time: to look further is what `make fuzz` is for.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new_with_rng(config, random).run(
        &prop_oneof![3 => mutated, 1 => any_bytes].prop_map(Hex),
        |input| {
            target(&input.0);
            Ok(())
        },
    );
    if let Err(error) = tested {
        panic!("{error}");
    }
}

#[test]
fn frame() {
    run("frame", 1_000);
}

#[test]
fn operations() {
    run("operations", 1_000);
}

/// Operations of a connection that lives, mostly: those that end it are rare.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let op = |op: u8, bytes: usize| {
        proptest::collection::vec(any::<u8>(), bytes..=bytes)
            .prop_map(move |rest| [&[op], &rest[..]].concat())
    };
    let in_order = any::<[u8; 3]>().prop_map(|[a, b, marks]| vec![8, a, b, marks | 8]);
    // Ahead of what the stack expects, and behind: a gap, and a part of what lies behind it.
    let gap = any::<[u8; 5]>().prop_map(|[flags, a, b, len, more]| {
        vec![11, 0x10 | (flags & 0xc8), 0xff, 0xff, 3 + (more & 1), a & 15, b, 0, 0, 0, 0, len & 3, more]
    });
    let sack = any::<[u8; 3]>().prop_map(|[a, b, len]| {
        vec![11, 0x10, 0xff, 0xff, 0, 4, a & 15, b, 0, 0, 0x40, 4, a & 7, b, len & 7, b, 0, 0]
    });
    let pause = (0_u8..6).prop_map(|pause| vec![5, pause]);
    let polls = prop_oneof![Just(vec![14]), Just(vec![7])];
    let step = prop_oneof![
        30 => in_order,
        15 => op(10, 2).prop_map(|ack| [&ack[..], &[14]].concat()),
        12 => op(0, 2),
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
        // A SYN, what answers it, and the acknowledgement of that.
        let ecn = input.first().map_or(0, |first| first & 2);
        input.extend([12, ecn, 255, 255, 14, 10, 255, 255, 14]);
        input.extend(steps.concat());
        input
    })
}

/// What is taken the short way is taken as it would have been otherwise.
#[test]
fn what_is_expected_changes_nothing_but_the_cost() {
    for (_, input) in corpus("operations") {
        prediction(&input);
    }
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new_with_rng(config, random).run(&conversation().prop_map(Hex), |input| {
        prediction(&input.0);
        Ok(())
    });
    if let Err(error) = tested {
        panic!("{error}");
    }
}

#[test]
fn options() {
    run("options", 10_000);
}

#[test]
fn corpora_are_small() {
    let files = TARGETS.into_iter().flat_map(|(name, _)| fs::read_dir(folder(name)).unwrap());
    let bytes: u64 = files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= CORPORA_MAX, "{bytes} bytes of corpora");
}
