//! What Ironwarp costs and how fast it is, measured beside the machine's limits and beside its peers.
//!
//! ```text
//! iwarp-bench COMMAND ──▶ one module's run(&Options) ──▶ a Report: for people, as JSON, histograms
//!                                                          └─ Machine: where and when it was measured
//! ```
//! Each benchmark is a module with `Options` (its flags), `run`, and a [`Report`] of its own.
#![forbid(unsafe_code)]

mod clock;
pub mod compare;
pub mod copies;
mod cores;
mod cpu;
pub mod document;
mod machine;
pub mod pair;
pub mod peers;
mod plot;
mod progress;
mod report;
pub mod roofline;
mod rows;
mod samples;
pub mod slow_clients;
pub mod suite;
mod tcp;
pub mod verbs;

pub use clock::Stopwatch;
pub(crate) use cores::on_core;
pub use cores::{Cores, Gate, on_two_cores};
pub use machine::Machine;
pub use per_packet::{
    BURST, Expected, PAYLOADS, build_write, parse_frame, tcp_frame, write_header, write_len,
};
pub use progress::Progress;
pub use report::{Output, Report};
pub use rows::{bandwidth_gbps, median, size};
pub use samples::Samples;
