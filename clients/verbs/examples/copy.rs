//! Copies the bytes of one peer's region to another peer's, on any machine, without a daemon there.
//!
//! ```text
//! iwarpctl serve --region from=image.raw &
//! copy 127.0.0.1:7400/from 10.77.0.2:7400/lab
//! ```

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use iwarp_verbs::{Access, RegionOptions, connect_region};

/// Bytes that are copied at a time.
const PART: usize = 4 << 20;

#[derive(Parser)]
#[command(about = "Copy the bytes of a peer's region to another peer's region")]
struct Args {
    /// Region to read, as HOST:PORT/NAME
    from: String,
    /// Region to write, as HOST:PORT/NAME
    to: String,
    /// Longest silence of a peer, in seconds
    #[arg(long, default_value_t = 10)]
    timeout: u64,
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr is ignored.
            writeln!(std::io::stderr().lock(), "error: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let options = |access| RegionOptions::new(access).with_timeout(Duration::from_secs(args.timeout));
    let mut from = connect_region(&args.from, &options(Access::REMOTE_READ))?;
    let mut to = connect_region(&args.to, &options(Access::REMOTE_WRITE))?;
    let (mut part, mut at) = (vec![0; PART], 0);
    while at < from.bytes() {
        let left = usize::try_from(from.bytes() - at).unwrap_or(PART).min(PART);
        from.read(at, &mut part[..left])?;
        to.write(at, &part[..left])?;
        at += left as u64;
    }
    writeln!(std::io::stdout().lock(), "{at} bytes from {} to {}", from.peer(), to.peer())?;
    Ok(())
}
