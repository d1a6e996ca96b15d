//! The fuzz target `tcp_options`: see `tcp_stack::testutil::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tcp_stack::testutil::fuzz::options(data));
