//! Does one thing so often, for an instruction counter to count: see `benches/tests/instructions.rs`.
#![forbid(unsafe_code)]

use benches::tcp::instructions::{Case, run};
use clap::Parser;

/// Does one thing so often.
#[derive(Debug, Parser)]
struct Args {
    /// What
    case: Case,
    /// How often, in bursts of 32
    #[arg(default_value_t = 100)]
    bursts: u32,
}

fn main() -> Result<(), benches::tcp::TcpError> {
    let Args { case, bursts } = Args::parse();
    println!("{}", run(case, bursts)?);
    Ok(())
}
