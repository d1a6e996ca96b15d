//! libFuzzer entry point; the target is in `configs/schema/tests/fuzz/target.rs`.
#![no_main]

#[path = "../../tests/fuzz/target.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::files(data));
