//! Fuzzes requests; the target is in `mgmt-cli/control/tests/fuzz/target.rs`.
#![no_main]

#[path = "../../tests/fuzz/target.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::requests(data));
