//! Writes a file or a stream into a peer's region: RDMA Writes, then an RDMA Read that proves their placement.

use iwarp_terminal::{Failure, Output, clock::Clock};
use rdma::Access;

use super::report::Transfer;
use super::session::{RegionRange, RegionSession};
use super::source::Source;
use super::{Context, progress, readback, refusal};
use crate::options::Put;

/// Bytes of one RDMA Write.
const PIECE: u32 = 512 << 10;
/// Writes in flight; each has its part of the window.
const PIECES: u32 = 4;

pub(super) fn run(put: &Put, context: &mut Context<'_>) -> Result<Transfer, Failure> {
    let output = context.output;
    let Put { file: path, target, immediate, verify, connect: options } = put;
    let mut source = Source::open(path)?;
    if *verify && source.length.is_none() {
        let message = "--verify reads the file a second time, which a stream does not allow";
        return Err(
            Failure::usage(message).with_help("put a regular file, or read the region back with `get`")
        );
    }
    let access = if *verify { Access::REMOTE_WRITE | Access::REMOTE_READ } else { Access::REMOTE_WRITE };
    let window = if *verify { super::WINDOW_BYTES } else { PIECE * PIECES };
    let mut session = RegionSession::open(target, options, access, window, context)?;
    let range = match source.length {
        Some(length) => session.range(target.offset, length)?,
        None => session.range_to_end(target.offset)?,
    };
    let clock = Clock::start();
    let length = write(&mut session, &mut source, &range, output)?;
    if let Some(number) = *immediate {
        session.post_immediate(PIECES.into(), number)?;
        session.wait_completion().map_err(|failure| explain(failure, *immediate))?;
    }
    // RFC 5040 §5.5 rule 12: "RDMA Read Request Messages, including zero-length RDMA Read Requests, MUST NOT start
    // processing at the Remote Peer until they have been Delivered to RDMAP by DDP", and so not before the Writes
    // that went ahead of them were placed.
    session.post_read(PIECES.into(), 0, 0, range.tagged_offset(0))?;
    session.wait_completion().map_err(|failure| explain(failure, *immediate))?;
    let mut transfer = Transfer::new("put", session.peer(target), target, length, clock.now());
    if source.has_more(length, &range)? {
        return Err(refusal::longer_than_region(target, length));
    }
    transfer.immediate = *immediate;
    if *verify {
        readback::verify(&mut session, &range, &source.file, path, output)?;
        transfer.verified = Some(true);
    }
    session.close();
    Ok(transfer)
}

/// Explains a failure behind Immediate Data, for which there is no buffer unless a program watches the region.
fn explain(failure: Failure, immediate: Option<u64>) -> Failure {
    match immediate {
        Some(_) => failure.with_help("--immediate needs a program there that watches the region"),
        None => failure,
    }
}

/// Fills free parts of the window and posts their Writes until the source ends or the region is full. Returns the bytes
/// written.
fn write(
    session: &mut RegionSession<'_>,
    source: &mut Source<'_>,
    range: &RegionRange,
    output: &Output,
) -> Result<u64, Failure> {
    let bar = match source.length {
        Some(length) => progress::of_bytes(output, "put", length),
        None => progress::of_stream(output, "put"),
    };
    let mut free: Vec<u32> = (0..PIECES).collect();
    let (mut at, mut ended) = (0, range.length == 0);
    while !ended || free.len() < PIECES as usize {
        match free.pop() {
            Some(piece) if !ended => {
                let left = u32::try_from(range.length.saturating_sub(at)).unwrap_or(PIECE).min(PIECE);
                let offset = u64::from(piece) * u64::from(PIECE);
                let mut taken = 0;
                session.fill(offset, left, &mut |room| {
                    taken = source.next(room, at)?;
                    Ok(())
                })?;
                let taken = u32::try_from(taken).unwrap_or(left);
                if taken > 0 {
                    session.post_write(piece.into(), offset, taken, range.tagged_offset(at))?;
                } else {
                    free.push(piece);
                }
                at = at.saturating_add(taken.into());
                ended = taken < left || at >= range.length;
            }
            taken => {
                free.extend(taken);
                let done = session.wait_completion()?;
                free.extend(u32::try_from(done.wr_id));
                bar.inc(done.bytes.into());
            }
        }
    }
    bar.finish_and_clear();
    Ok(at)
}
