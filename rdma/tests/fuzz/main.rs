//! Runs the fuzz targets of `rdma/fuzz` on the stable toolchain, over their corpora and random inputs.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "lengths are small, and a test may panic"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../tcp-stack/tests/corpus/mod.rs"]
mod corpus;
mod targets;

use targets::{TARGETS, seeds};

fn run(name: &str, cases: u32) {
    let (_, target) = TARGETS.into_iter().find(|(target, _)| *target == name).unwrap();
    corpus::run(target, &corpus::corpus(name, &seeds(name)), cases);
}

#[test]
fn mpa_frames() {
    run("mpa_frames", 4_000);
}

#[test]
fn fpdu_stream() {
    run("fpdu_stream", 1_500);
}

#[test]
fn operations() {
    run("operations", 4_000);
}

#[test]
fn corpora_are_small() {
    corpus::assert_small(TARGETS.map(|(name, _)| name));
}
