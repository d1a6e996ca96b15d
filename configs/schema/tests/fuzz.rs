//! Runs the fuzz target `config_files` on the stable toolchain, over its corpus and random inputs.

use iwarp_config::testutil;
use iwarp_corpus::Corpora;

fn corpora() -> Corpora {
    Corpora::of("config")
}

#[test]
fn files() {
    iwarp_corpus::run(testutil::files, &corpora().read("files", &testutil::seeds()), 4_000);
}

#[test]
fn the_corpus_is_small() {
    corpora().assert_small(["files"]);
}
