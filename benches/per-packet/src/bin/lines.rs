//! Receives segments for a tracer of memory accesses: see `benches/per-packet/tests/lines.rs`.
#![forbid(unsafe_code)]

use clap::Parser;
use per_packet::lines::{Flow, marks, run};

/// Receives in-order segments for valgrind
#[derive(Debug, Parser)]
struct Args {
    /// Connection of the previous segment
    flow: Flow,
}

fn main() -> Result<(), per_packet::TcpError> {
    let Args { flow } = Args::parse();
    let [first, second, end] = marks();
    println!("{first} {second} {end} {}", run(flow)?);
    Ok(())
}
