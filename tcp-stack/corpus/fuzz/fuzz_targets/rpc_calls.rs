//! The fuzz target `rpc_calls`: see `iwarp_rpc::testutil`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| iwarp_rpc::testutil::calls(data));
