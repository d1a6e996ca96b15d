//! The fuzz target `rpc_messages`: see `iwarp_rpc::testutil`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| iwarp_rpc::testutil::messages(data));
