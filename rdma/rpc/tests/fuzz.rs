//! Runs the fuzz target of `rdma/rpc/fuzz` on the stable toolchain, over its corpus and random inputs.

use iwarp_corpus::Corpora;
use iwarp_rpc::testutil::{messages, seeds};

fn corpora() -> Corpora {
    Corpora::of(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_messages_of_a_peer() {
    iwarp_corpus::run(messages, &corpora().read("messages", &seeds()), 20_000);
}

#[test]
fn the_corpus_is_small() {
    corpora().assert_small(["messages"]);
}
