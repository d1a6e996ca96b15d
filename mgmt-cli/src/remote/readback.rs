//! Many RDMA Reads at a time, handed out in order.

use std::fs::File;
use std::path::Path;

use iwarp_control::Exit;

use super::link::{Link, Reach};
use super::{WINDOW, progress, put};
use crate::failure::Failure;
use crate::output::Output;

/// The most Reads outstanding; fewer where the peer takes fewer.
const DEPTH: u32 = 16;

/// What is done with the bytes at a place.
type Consumer<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Failure> + 'a;

/// Reads all that is in reach, the window full of outstanding Reads, and hands it to `consume` piece by piece,
/// in order, with the place of each from the start of the reach.
pub(super) fn each(link: &mut Link<'_>, reach: &Reach, consume: &mut Consumer<'_>) -> Result<(), Failure> {
    let depth = link.reads_max().clamp(1, DEPTH);
    let piece = WINDOW / depth;
    let place = |number: u64| number % u64::from(depth) * u64::from(piece);
    let (mut asked, mut posted, mut got) = (0, 0u64, 0);
    for number in 0.. {
        while asked < reach.length && posted.saturating_sub(number) < depth.into() {
            let length = u32::try_from(reach.length.saturating_sub(asked)).unwrap_or(piece).min(piece);
            link.read(posted, place(posted), length, reach.at(asked))?;
            asked = asked.saturating_add(length.into());
            posted = posted.saturating_add(1);
        }
        if got >= reach.length {
            break;
        }
        let done = link.completion()?;
        link.show(place(number), done.bytes, &mut |bytes| consume(got, bytes))?;
        got = got.saturating_add(done.bytes.into());
    }
    Ok(())
}

/// Reads back what was written and compares it with the file.
pub(super) fn verify(
    link: &mut Link<'_>,
    reach: &Reach,
    file: &File,
    path: &Path,
    output: &Output,
) -> Result<(), Failure> {
    let bar = progress::of_bytes(output, "verify", reach.length);
    let mut expected = Vec::new();
    each(link, reach, &mut |at, bytes| {
        expected.resize(bytes.len(), 0);
        put::read(file, path, &mut expected, at)?;
        if let Some(differs) = expected.iter().zip(bytes).position(|(ours, theirs)| ours != theirs) {
            let byte = at.saturating_add(differs as u64);
            let message = format!("the peer does not hold what was put: byte {byte} of the file differs");
            return Err(Failure::new(Exit::Failed, "differs", message)
                .with_help("somebody else may be writing to the region"));
        }
        bar.inc(bytes.len() as u64);
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok(())
}
