//! The fuzz target `rdma_fpdu_stream`: see `rdma::testutil::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma::testutil::fuzz::fpdu_stream(data));
