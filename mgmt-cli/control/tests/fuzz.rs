//! The target `control_requests` on the stable toolchain.

use iwarp_control::testutil;
use iwarp_corpus::Corpora;

fn corpora() -> Corpora {
    Corpora::of("control")
}

#[test]
fn requests() {
    iwarp_corpus::run(testutil::requests, &corpora().read("requests", &testutil::seeds()), 4_000);
}

#[test]
fn the_corpus_is_small() {
    corpora().assert_small(["requests"]);
}
