//! Runs the fuzz target of `configs/schema/fuzz` on the stable toolchain, over its corpus and random inputs.

use iwarp_config::testutil;
use iwarp_corpus::Corpora;

fn corpora() -> Corpora {
    Corpora::of(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn files() {
    iwarp_corpus::run(testutil::files, &corpora().read("files", &testutil::seeds()), 4_000);
}

#[test]
fn the_corpus_is_small() {
    corpora().assert_small(["files"]);
}
