//! libFuzzer entry point; the target is in `rdma/tests/fuzz/targets`.
#![no_main]
#![allow(dead_code, reason = "each program uses a part of what they share")]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzz/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::fpdu_stream(data));
