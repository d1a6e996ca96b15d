//! `iwarp-manual FOLDER` writes manual pages and completions of all programs below a folder: `make man` runs it.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Writes manual pages and shell completions of all programs.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The folder to write to; it is made as /usr/share is.
    folder: PathBuf,
}

fn main() -> ExitCode {
    let Arguments { folder } = Arguments::parse();
    match iwarp_manual::write_all(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwarp-manual: cannot write below {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
