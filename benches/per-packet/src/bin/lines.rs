//! Receives segments for a tracer of memory accesses. `benches/per-packet/tests/lines.rs` runs it under valgrind and
//! reads its output: the addresses of the three marks and the number of marked segments.
#![forbid(unsafe_code)]

use clap::Parser;
use per_packet::lines::{Flow, marks, run};

/// Receives in-order segments for valgrind
#[derive(Debug, Parser)]
struct Args {
    /// Flow of the previous segment: the same connection, or another
    flow: Flow,
}

fn main() -> Result<(), per_packet::TcpError> {
    let Args { flow } = Args::parse();
    let [first, second, end] = marks();
    println!("{first} {second} {end} {}", run(flow)?);
    Ok(())
}
