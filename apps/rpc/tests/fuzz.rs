//! Runs the fuzz targets `rpc_…` on the stable toolchain, over their corpora and random inputs.

use iwarp_corpus::Corpora;
use iwarp_rpc::testutil::{argument_seeds, arguments, call_seeds, calls, messages, seeds};

fn corpora() -> Corpora {
    Corpora::of("rpc")
}

#[test]
fn the_messages_of_a_peer() {
    iwarp_corpus::run(messages, &corpora().read("messages", &seeds()), 20_000);
}

#[test]
fn the_headers_of_calls() {
    iwarp_corpus::run(calls, &corpora().read("calls", &call_seeds()), 20_000);
}

#[test]
fn the_arguments_of_calls() {
    iwarp_corpus::run(arguments, &corpora().read("arguments", &argument_seeds()), 20_000);
}

#[test]
fn the_corpora_are_small() {
    corpora().assert_small(["arguments", "calls", "messages"]);
}
