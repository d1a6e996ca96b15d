//! Writes a file or a stream into a peer's region: RDMA Writes, then an RDMA Read that proves their placement.

use iwarp_terminal::{Failure, Output, clock::Clock};
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use iwarp_control::Exit;
use rdma::Access;

use super::report::Transfer;
use super::session::{RegionRange, RegionSession};
use super::{Context, progress, readback, refusal};
use crate::options::Put;

/// Bytes of one RDMA Write.
const PIECE: u32 = 512 << 10;
/// Writes in flight; each has its part of the window.
const PIECES: u32 = 4;

/// The file or stream to write.
struct Source<'a> {
    file: File,
    path: &'a Path,
    /// The length of a regular file in bytes; `None` for a stream: stdin, a pipe, a device.
    length: Option<u64>,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        let unreadable = |error| Failure::file(path, "read", &error);
        if path == Path::new("-") {
            let file = io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?.into();
            return Ok(Self { file, path, length: None });
        }
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            return Err(unreadable(ErrorKind::IsADirectory.into()));
        }
        let length = metadata.is_file().then_some(metadata.len());
        Ok(Self { file, path, length })
    }

    /// Reads the next bytes; returns fewer than `room` holds only at the end.
    fn next(&mut self, room: &mut [u8], at: u64) -> Result<usize, Failure> {
        if self.length.is_some() {
            read(&self.file, self.path, room, at)?;
            return Ok(room.len());
        }
        let mut filled = 0;
        while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read(rest) {
                Ok(0) => break,
                Ok(more) => filled = filled.saturating_add(more),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::file(self.path, "read", &error)),
            }
        }
        Ok(filled)
    }

    /// Returns true if the stream has bytes left after the region is full.
    fn has_more(&mut self, taken: u64, range: &RegionRange) -> Result<bool, Failure> {
        Ok(self.length.is_none() && taken == range.length && self.next(&mut [0], taken)? > 0)
    }
}

pub(super) fn run(put: &Put, context: &mut Context<'_>) -> Result<Transfer, Failure> {
    let output = context.output;
    let Put { file: path, target, verify, connect: options } = put;
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
    // RFC 5040 §5.5 rule 12: "RDMA Read Request Messages, including zero-length RDMA Read Requests, MUST NOT start
    // processing at the Remote Peer until they have been Delivered to RDMAP by DDP", and so not before the Writes
    // that went ahead of them were placed.
    session.post_read(PIECES.into(), 0, 0, range.tagged_offset(0))?;
    session.wait_completion()?;
    let mut transfer = Transfer::new("put", session.peer(target), target, length, clock.now());
    if source.has_more(length, &range)? {
        return Err(refusal::longer_than_region(target, length));
    }
    if *verify {
        readback::verify(&mut session, &range, &source.file, path, output)?;
        transfer.verified = Some(true);
    }
    session.close();
    Ok(transfer)
}

/// Reads bytes of a regular file at a position.
pub(super) fn read(file: &File, path: &Path, bytes: &mut [u8], at: u64) -> Result<(), Failure> {
    file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            Failure::new(Exit::Failed, "file", format!("{} is shorter than it was", path.display()))
        }
        _ => Failure::file(path, "read", &error),
    })
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
