//! Pipelined RDMA Reads, delivered in order. `get` reads a region with them, and `put --verify` what it wrote.

use iwarp_control::Exit;
use iwarp_terminal::{Failure, Output};

use super::session::{RegionRange, RegionSession};
use super::source::Sources;
use super::{WINDOW_BYTES, progress};

/// RDMA Reads in flight, at most; fewer if the peer's IRD is smaller.
const DEPTH: u32 = 16;

/// Consumes the bytes at an offset of the range.
type Consumer<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Failure> + 'a;

/// Reads the whole range with the window full of RDMA Reads in flight, and passes each piece to `consume` in order,
/// with its offset in the range.
pub(super) fn each(
    session: &mut RegionSession,
    range: &RegionRange,
    consume: &mut Consumer<'_>,
) -> Result<(), Failure> {
    let depth = session.reads_max().clamp(1, DEPTH);
    let piece = WINDOW_BYTES / depth;
    let place = |number: u64| number % u64::from(depth) * u64::from(piece);
    let (mut asked, mut posted, mut got) = (0, 0u64, 0);
    for number in 0.. {
        while asked < range.length && posted.saturating_sub(number) < depth.into() {
            let length = u32::try_from(range.length.saturating_sub(asked)).unwrap_or(piece).min(piece);
            session.post_read(posted, place(posted), length, range.offset(asked))?;
            asked = asked.saturating_add(length.into());
            posted = posted.saturating_add(1);
        }
        if got >= range.length {
            break;
        }
        let done = session.wait_completion()?;
        consume(got, session.window(done.offset, done.length)?)?;
        got = got.saturating_add(done.length.into());
    }
    Ok(())
}

/// Reads the range back from its byte `verified` and compares it with the files. Advances `verified`.
pub(super) fn verify(
    session: &mut RegionSession,
    range: &RegionRange,
    sources: &mut Sources<'_>,
    verified: &mut u64,
    output: &Output,
) -> Result<(), Failure> {
    let bar = progress::of_bytes(output, "verify", range.length);
    bar.set_position(*verified);
    let mut expected = Vec::new();
    each(session, &range.behind(*verified), &mut |_, bytes| {
        expected.resize(bytes.len(), 0);
        sources.next(&mut expected, *verified)?;
        if let Some(differs) = expected.iter().zip(bytes).position(|(ours, theirs)| ours != theirs) {
            let place = sources.place(verified.saturating_add(differs as u64));
            let message = format!("the peer does not hold what was put: {place} differs");
            return Err(Failure::new(Exit::Failed, "differs", message)
                .with_help("somebody else may be writing to the region"));
        }
        *verified = verified.saturating_add(bytes.len() as u64);
        bar.inc(bytes.len() as u64);
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok(())
}
