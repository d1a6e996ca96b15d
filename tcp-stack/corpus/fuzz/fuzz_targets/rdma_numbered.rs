//! The fuzz target `rdma_numbered`: see `rdma::testutil::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma::testutil::fuzz::numbered(data));
