//! Runs the fuzz targets `rdma_…` on the stable toolchain, over their corpora and random inputs.

use iwarp_corpus::Corpora;
use rdma::testutil::fuzz::{TARGETS, seeds};

fn corpora() -> Corpora {
    Corpora::of("rdma")
}

fn run(name: &str, cases: u32) {
    let (_, target) = TARGETS.into_iter().find(|(target, _)| *target == name).unwrap();
    iwarp_corpus::run(target, &corpora().read(name, &seeds(name)), cases);
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
fn numbered() {
    run("numbered", 1_500);
}

#[test]
fn corpora_are_small() {
    corpora().assert_small(TARGETS.map(|(name, _)| name));
}
