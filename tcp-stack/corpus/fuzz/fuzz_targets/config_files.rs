//! The fuzz target `config_files`: see `iwarp_config::testutil`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| iwarp_config::testutil::files(data));
