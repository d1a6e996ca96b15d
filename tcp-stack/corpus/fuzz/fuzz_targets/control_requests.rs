//! The fuzz target `control_requests`: see `iwarp_control::testutil`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| iwarp_control::testutil::requests(data));
