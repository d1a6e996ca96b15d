//! Prints the changes that remote peers make to a region.
//!
//! ```text
//! watch lab                          each change: offset, length, digest
//! watch --once lab                   the first change, then exits
//! watch --digest --length N lab      the SHA-256 of the first N bytes, then exits
//! ```

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use iwarp_verbs::{OutOfBounds, Region, attach};
use sha2::{Digest, Sha256};

/// Bytes that share one digest.
const PAGE: usize = 4096;

/// Most lines per comparison; one more line sums up the rest.
const LINES_MAX: usize = 16;

#[derive(Parser)]
#[command(about = "Show how a region of iwarpd changes")]
struct Args {
    /// Name of the region
    name: String,
    /// The daemon's control socket
    #[arg(short = 'S', long, env = "IWARPCTL_SOCKET", default_value = iwarp_control::bounds::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Print the SHA-256 of the bytes and exit
    #[arg(long, conflicts_with = "once")]
    digest: bool,
    /// Exit after the first change
    #[arg(long)]
    once: bool,
    /// Offset of the first byte
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// Number of bytes [default: up to the region's end]
    #[arg(long)]
    length: Option<u64>,
    /// Milliseconds between two comparisons
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    interval_ms: u64,
}

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

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let region = attach(&args.socket, &args.name)?;
    let length = args.length.unwrap_or_else(|| region.len().saturating_sub(args.offset));
    if args.offset.checked_add(length).is_none_or(|end| end > region.len()) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        return Err(OutOfBounds { offset: args.offset, length, bytes: region.len() }.into());
    }
    if args.digest {
        return print(&format!("{}\n", sha256(&region, args.offset, length)?)).map(|_| ());
    }
    let mut pages = digests(&region, args.offset, length)?;
    print(&format!(
        "region {} {} bytes, peers may {}\n",
        region.name(),
        region.len(),
        region.access().names().collect::<Vec<_>>().join(", ")
    ))?;
    loop {
        pause(Duration::from_millis(args.interval_ms));
        let now = digests(&region, args.offset, length)?;
        let changes = runs(&pages, &now);
        pages = now;
        if changes.is_empty() {
            continue;
        }
        let open = print(&describe(&region, &changes, args.offset, length)?)?;
        if args.once || !open {
            return Ok(());
        }
    }
}

/// Returns one digest per page, to detect changed pages.
fn digests(region: &Region, offset: u64, length: u64) -> Result<Vec<u64>, OutOfBounds> {
    let mut digests = Vec::new();
    each_piece(region, offset, length, PAGE, |piece| {
        let mut hasher = DefaultHasher::new();
        hasher.write(piece);
        digests.push(hasher.finish());
    })?;
    Ok(digests)
}

fn sha256(region: &Region, offset: u64, length: u64) -> Result<String, OutOfBounds> {
    let mut hasher = Sha256::new();
    each_piece(region, offset, length, 64 * PAGE, |piece| hasher.update(piece))?;
    let mut text = String::new();
    for byte in hasher.finalize() {
        write!(text, "{byte:02x}").unwrap_or_default();
    }
    Ok(text)
}

/// Passes the bytes to `f`, `size` at a time.
fn each_piece(
    region: &Region,
    offset: u64,
    length: u64,
    size: usize,
    mut f: impl FnMut(&[u8]),
) -> Result<(), OutOfBounds> {
    let mut buffer = vec![0; size];
    let (mut at, mut left) = (offset, length);
    while left > 0 {
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(size);
        let piece = buffer.get_mut(..take).unwrap_or_default();
        region.read(at, piece)?;
        f(piece);
        let taken = u64::try_from(take).unwrap_or(left);
        at = at.saturating_add(taken);
        left = left.saturating_sub(taken);
    }
    Ok(())
}

/// Returns the runs of pages that differ: first page, number of pages.
fn runs(before: &[u64], now: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (page, _) in (0u64..).zip(before.iter().zip(now)).filter(|(_, (a, b))| a != b) {
        match runs.last_mut() {
            Some((first, count)) if first.checked_add(*count) == Some(page) => {
                *count = count.saturating_add(1)
            }
            _ => runs.push((page, 1)),
        }
    }
    runs
}

fn describe(
    region: &Region,
    changes: &[(u64, u64)],
    offset: u64,
    length: u64,
) -> Result<String, OutOfBounds> {
    let page = u64::try_from(PAGE).unwrap_or(u64::MAX);
    let mut text = String::new();
    for &(first, count) in changes.iter().take(LINES_MAX) {
        let skipped = first.saturating_mul(page);
        let bytes = count.saturating_mul(page).min(length.saturating_sub(skipped));
        let at = offset.saturating_add(skipped);
        let digest = sha256(region, at, bytes)?;
        writeln!(text, "changed offset {at} length {bytes} sha256 {digest}").unwrap_or_default();
    }
    let rest = changes.get(LINES_MAX..).unwrap_or_default();
    if !rest.is_empty() {
        let pages: u64 = rest.iter().map(|(_, count)| count).sum();
        writeln!(text, "changed elsewhere places {} pages {pages}", rest.len()).unwrap_or_default();
    }
    Ok(text)
}

/// Writes to stdout. Returns `false` if its reader is gone.
fn print(text: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).map_err(Into::into),
    }
}

#[allow(clippy::disallowed_methods, reason = "a program at the edge that polls at intervals")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
