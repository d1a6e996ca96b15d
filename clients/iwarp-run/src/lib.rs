//! `iwarp-run PROGRAM ARGS…` runs an unmodified verbs program on `iwarpd`: it finds the daemon, and lets the program
//! load Ironwarp's libibverbs and librdmacm instead of the system's.

pub mod args;
mod binary;
mod check;
mod launch;
mod private;
mod system;
mod tree;

use iwarp_control::Exit;
use iwarp_terminal::{Failure, Output};

use args::Args;

/// Runs or checks a program. Returns only if the program was checked.
///
/// # Errors
/// The program, the libraries or the daemon cannot be used.
pub fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    match &args.check {
        Some(program) => check::check(program, output),
        None => launch::launch(args),
    }
}
