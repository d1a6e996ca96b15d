//! Benchmarks of Ironwarp, beside the machine's limits and beside its peers. `main.rs` is the program `iwarp-bench`.
//!
//! ```text
//! iwarp-bench COMMAND ──▶ one module's run(&Options) ──▶ a Report: text, JSON, plots, histograms
//!                                                          └─ Machine: hardware, build and date
//! ```
//! Each benchmark is a module with `Options` (its flags), `run`, and a [`Report`] of its own.
#![forbid(unsafe_code)]

pub mod args;
mod clock;
pub mod compare;
pub mod copies;
mod cores;
pub mod document;
mod hand_off;
pub mod hosts;
mod machine;
pub mod peers;
mod placement;
pub mod plot;
pub mod programs;
mod report;
pub mod roofline;
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
pub(crate) use placement::Placement;
pub use report::{Output, Progress, Report};
pub use samples::{Samples, bandwidth_gbps, median, size};
