//! Runs the fuzz target of `configs/schema/fuzz` on the stable toolchain, over its corpus and random inputs.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../../tcp-stack/tests/corpus/mod.rs"]
mod corpus;
mod seeds;
mod target;

#[test]
fn files() {
    corpus::run(target::files, &corpus::corpus("files", &seeds::seeds()), 4_000);
}

#[test]
fn the_corpus_is_small() {
    corpus::assert_small(["files"]);
}
