//! Reads a peer's region into files by RDMA Reads.

use std::time::Duration;

use indicatif::ProgressBar;
use iwarp_terminal::{Failure, clock::Clock};
use iwarp_verbs::Access;

use super::destination::Destination;
use super::report::{Part, Peer, Transfer};
use super::resume::{self, Resumable};
use super::session::RegionSession;
use super::{Context, WINDOW_BYTES, progress, readback};
use crate::options::Get;

/// Bytes that were read and written to the files.
struct Reading<'a> {
    get: &'a Get,
    /// The files, each with its length in bytes. The last one takes what is left: its length may be unknown.
    files: Vec<(Destination, Option<u64>)>,
    bar: ProgressBar,
    /// Started when the region was granted first, with the bytes to read.
    started: Option<(Clock, u64)>,
    got: u64,
    /// The time at which all bytes were written to the files.
    done: Duration,
}

pub(super) fn run(get: &Get, context: &Context<'_>) -> Result<Transfer, Failure> {
    let Get { target, files, length: lengths, resume: options, .. } = get;
    if lengths.len() > files.len() || lengths.len().saturating_add(1) < files.len() {
        let message = format!("{} files and {} lengths", files.len(), lengths.len());
        return Err(
            Failure::usage(message).with_help("--length has one length for each file, joined by commas")
        );
    }
    let lengths = lengths.iter().copied().map(Some).chain([None]);
    let opened = files.iter().zip(lengths).map(|(path, length)| Ok((Destination::open(path)?, length)));
    let opened = opened.collect::<Result<Vec<_>, Failure>>()?;
    let bar = progress::of_bytes(context.output, "get", 0);
    let mut reading = Reading { get, files: opened, bar, started: None, got: 0, done: Duration::ZERO };
    let (peer, resumed) = resume::run(&mut reading, options, context)?;
    let mut transfer = Transfer::new("get", peer, target, reading.got, reading.done);
    let mut at = 0u64;
    for ((destination, length), path) in reading.files.into_iter().zip(files) {
        let bytes = length.unwrap_or(transfer.bytes.saturating_sub(at));
        transfer.files.push(Part::new(path, target.offset.saturating_add(at), bytes));
        at = at.saturating_add(bytes);
        destination.finish()?;
    }
    transfer.resumed = options.resume.then_some(resumed);
    Ok(transfer)
}

impl Resumable for Reading<'_> {
    fn attempt(&mut self, context: &Context<'_>) -> Result<Peer, Failure> {
        let Get { target, connect, .. } = self.get;
        let mut session = RegionSession::open(target, connect, Access::REMOTE_READ, WINDOW_BYTES, context)?;
        let mut wanted = self.files.iter().map(|(_, length)| *length);
        // None if the region's end decides.
        let sum = wanted.try_fold(0u64, |sum, length| Some(sum.saturating_add(length?)));
        let known = self.started.map(|(_, length)| length).or(sum);
        let range = match known {
            Some(length) => session.range(target.offset, length)?,
            None => {
                let lengths = self.files.iter().filter_map(|(_, length)| *length);
                session.range(target.offset, lengths.fold(0, u64::saturating_add))?;
                session.range_to_end(target.offset)?
            }
        };
        self.bar.set_length(range.length);
        let (clock, _) = *self.started.get_or_insert_with(|| (Clock::start(), range.length));
        readback::each(&mut session, &range.behind(self.got), &mut |_, bytes| {
            self.bar.inc(bytes.len() as u64);
            write(&mut self.files, self.got, bytes)?;
            self.got = self.got.saturating_add(bytes.len() as u64);
            Ok(())
        })?;
        self.bar.finish_and_clear();
        self.done = clock.now();
        let peer = session.peer(target);
        Ok(peer)
    }

    fn progress(&self) -> Option<u64> {
        self.started.map(|_| self.got)
    }

    fn bar(&self) -> &ProgressBar {
        &self.bar
    }
}

/// Writes the bytes at a position of the range to the files that they belong to.
fn write(files: &mut [(Destination, Option<u64>)], at: u64, mut bytes: &[u8]) -> Result<(), Failure> {
    let mut from = at;
    for (destination, length) in files {
        let left = length.map_or(u64::MAX, |length| length.saturating_sub(from));
        let (here, behind) = bytes.split_at(usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len()));
        if !here.is_empty() {
            destination.write(here)?;
        }
        // The position in the next file.
        from = from.saturating_sub(length.unwrap_or(from));
        bytes = behind;
    }
    Ok(())
}
