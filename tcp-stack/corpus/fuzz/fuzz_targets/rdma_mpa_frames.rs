//! The fuzz target `rdma_mpa_frames`: see `rdma::testutil::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma::testutil::fuzz::mpa_frames(data));
