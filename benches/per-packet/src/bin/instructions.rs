//! Does one thing so often, for an instruction counter to count: see `benches/per-packet/tests/instructions.rs`.
#![forbid(unsafe_code)]

use clap::Parser;
use per_packet::instructions::{Case, run};

/// Does one thing so often.
#[derive(Debug, Parser)]
struct Args {
    /// What
    case: Case,
    /// How often, in bursts of 32
    #[arg(default_value_t = 100)]
    bursts: u32,
}

fn main() -> Result<(), per_packet::TcpError> {
    let Args { case, bursts } = Args::parse();
    println!("{}", run(case, bursts)?);
    Ok(())
}
