//! Simulated networks in virtual time from one seed, for tests of this crate and of those above (feature `testutil`).

#[allow(missing_docs, missing_debug_implementations, reason = "parts of one simulation, read together")]
pub mod client;
pub mod hosts;
#[allow(missing_docs, missing_debug_implementations, reason = "parts of one simulation, read together")]
pub mod lab;
