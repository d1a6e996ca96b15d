//! Simulated networks in virtual time from one seed, for tests of this crate and of those above (feature `testutil`).

#[allow(missing_docs, missing_debug_implementations, reason = "parts of one simulation, read together")]
pub mod client;
pub mod hosts;
#[allow(missing_docs, missing_debug_implementations, reason = "parts of one simulation, read together")]
pub mod lab;

use tcp_stack::Duration;
use tcp_stack::testutil::LinkConfig;

/// Frames in a burst.
const BURST: usize = 32;
/// Virtual time of one poll of both hosts.
const POLL_INTERVAL: Duration = Duration::from_micros(2);
/// Frames that a port holds until they are transmitted.
const DESCRIPTORS: usize = 256;

/// A link that loses nothing.
pub const CLEAN: LinkConfig = LinkConfig {
    rate: 10_000_000_000,
    delay: Duration::from_micros(20),
    queue: 64 << 20,
    ..LinkConfig::CLEAN
};
/// A link that loses 1 % of all frames, and delivers 2 % of them late.
pub const ROUGH: LinkConfig =
    LinkConfig { loss: 10_000, reorder: 20_000, hold: Duration::from_micros(300), ..CLEAN };
