//! Repeats one operation for an instruction counter: see `benches/per-packet/tests/instructions.rs`.
#![forbid(unsafe_code)]

use clap::Parser;
use per_packet::instructions::{Case, run};

/// Repeats one operation for valgrind
#[derive(Debug, Parser)]
struct Args {
    /// Operation to repeat and count
    case: Case,
    /// Bursts of 32 operations
    #[arg(default_value_t = 100)]
    bursts: u32,
}

fn main() -> Result<(), per_packet::TcpError> {
    let Args { case, bursts } = Args::parse();
    println!("{}", run(case, bursts)?);
    Ok(())
}
