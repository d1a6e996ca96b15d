//! Writes files or a stream into a peer's region: RDMA Writes, then an RDMA Read that proves their placement.

use std::collections::VecDeque;
use std::time::Duration;

use indicatif::ProgressBar;
use iwarp_terminal::{Failure, clock::Clock};
use iwarp_verbs::Access;

use super::report::{Part, Peer, Transfer};
use super::resume::{self, Resumable};
use super::session::{RegionRange, RegionSession};
use super::source::Sources;
use super::{Context, progress, readback, refusal};
use crate::options::Put;

/// Bytes of one RDMA Write.
const PIECE: u32 = 512 << 10;
/// Writes in flight; each has its part of the window.
const PIECES: u32 = 4;
/// Bytes between two RDMA Reads that prove the placement of what was written before, with `--resume`.
const CHECKPOINT: u64 = 16 << 20;
/// The identifier of work requests other than Writes, which have the number of their part of the window.
const PROOF: u64 = PIECES as u64;

/// Bytes that the peer holds, as far as is known.
struct Writing<'a> {
    put: &'a Put,
    sources: Sources<'a>,
    bar: ProgressBar,
    /// Started when the region was granted first.
    clock: Option<Clock>,
    /// Bytes whose placement is proved.
    placed: u64,
    /// The time at which the placement of all bytes was proved.
    done: Option<Duration>,
    /// Bytes that were read back and found to be the same.
    verified: u64,
}

pub(super) fn run(put: &Put, context: &Context<'_>) -> Result<Transfer, Failure> {
    let sources = Sources::open(&put.files)?;
    let again = [(put.verify, "--verify"), (put.resume.resume, "--resume")].into_iter().find(|(set, _)| *set);
    if let (Some((_, option)), Some(_)) = (again, sources.stream()) {
        let message = format!("{option} reads the file a second time, which a stream does not allow");
        return Err(
            Failure::usage(message).with_help("put a regular file, or read the region back with `get`")
        );
    }
    let bar = match sources.stream() {
        None => progress::of_bytes(context.output, "put", sources.known()),
        Some(_) => progress::of_stream(context.output, "put"),
    };
    let mut writing = Writing { put, sources, bar, clock: None, placed: 0, done: None, verified: 0 };
    let (peer, resumed) = resume::run(&mut writing, &put.resume, context)?;
    let Writing { sources, placed, done, .. } = writing;
    let mut transfer = Transfer::new("put", peer, &put.target, placed, done.unwrap_or_default());
    transfer.files = sources
        .parts(placed)
        .map(|(path, start, bytes)| Part::new(path, put.target.offset.saturating_add(start), bytes))
        .collect();
    transfer.immediate = put.immediate;
    transfer.verified = put.verify.then_some(true);
    transfer.resumed = put.resume.resume.then_some(resumed);
    Ok(transfer)
}

impl Resumable for Writing<'_> {
    fn attempt(&mut self, context: &Context<'_>) -> Result<Peer, Failure> {
        let Put { target, verify, connect, .. } = self.put;
        let access = if *verify { Access::REMOTE_WRITE | Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let window = if *verify { super::WINDOW_BYTES } else { PIECE * PIECES };
        let output = context.output;
        let mut session = RegionSession::open(target, connect, access, window, context)?;
        let mut range = session.range(target.offset, self.sources.known())?;
        if self.sources.stream().is_some() {
            range = session.range_to_end(target.offset)?;
        }
        let clock = *self.clock.get_or_insert_with(Clock::start);
        if self.done.is_none() {
            self.place(&mut session, &range)?;
            self.done = Some(clock.now());
        }
        if *verify {
            readback::verify(&mut session, &range, &mut self.sources, &mut self.verified, output)?;
        }
        let peer = session.peer(target);
        Ok(peer)
    }

    fn progress(&self) -> Option<u64> {
        self.clock.as_ref().map(|_| self.placed.saturating_add(self.verified))
    }

    fn bar(&self) -> &ProgressBar {
        &self.bar
    }
}

impl Writing<'_> {
    /// Writes everything behind the bytes whose placement is proved, and proves the placement of the rest.
    fn place(&mut self, session: &mut RegionSession, range: &RegionRange) -> Result<(), Failure> {
        let immediate = self.put.immediate;
        let length = self.write(session, range)?;
        if let Some(number) = immediate {
            session.post_immediate(PROOF, number)?;
            session.wait_completion().map_err(|failure| explain(failure, immediate))?;
        }
        prove(session, range)?;
        session.wait_completion().map_err(|failure| explain(failure, immediate))?;
        self.placed = length;
        if length == range.length && self.sources.has_more(length)? {
            return Err(refusal::longer_than_region(&self.put.target, length));
        }
        Ok(())
    }

    /// Fills free parts of the window and posts their Writes until the source ends or the region is full. Returns the
    /// bytes of the source.
    fn write(&mut self, session: &mut RegionSession, range: &RegionRange) -> Result<u64, Failure> {
        let mut free: Vec<u32> = (0..PIECES).collect();
        let mut proofs = VecDeque::new();
        let mut at = self.placed;
        let mut ended = at >= range.length;
        self.bar.set_position(at);
        while !ended || free.len() < PIECES as usize || !proofs.is_empty() {
            match free.pop() {
                Some(piece) if !ended => {
                    let left = u32::try_from(range.length.saturating_sub(at)).unwrap_or(PIECE).min(PIECE);
                    let taken = self.post(session, range, (piece, left), at)?;
                    if taken == 0 {
                        free.push(piece);
                    }
                    at = at.saturating_add(taken.into());
                    ended = taken < left || at >= range.length;
                    let proved = proofs.back().copied().unwrap_or(self.placed);
                    if self.put.resume.resume && at.saturating_sub(proved) >= CHECKPOINT {
                        prove(session, range)?;
                        proofs.push_back(at);
                    }
                }
                taken => {
                    free.extend(taken);
                    let done = session.wait_completion()?;
                    match u32::try_from(done.wr_id) {
                        Ok(piece) if piece < PIECES => free.push(piece),
                        _ => self.placed = proofs.pop_front().unwrap_or(self.placed),
                    }
                    self.bar.inc(done.length.into());
                }
            }
        }
        self.bar.finish_and_clear();
        Ok(at)
    }

    /// Fills a part of the window from position `at` and posts its Write. Returns the bytes posted; fewer than `left`
    /// only at the end of the source.
    fn post(
        &mut self,
        session: &mut RegionSession,
        range: &RegionRange,
        (piece, left): (u32, u32),
        at: u64,
    ) -> Result<u32, Failure> {
        let offset = u64::from(piece) * u64::from(PIECE);
        let taken = self.sources.next(session.window(offset, left)?, at)?;
        let taken = u32::try_from(taken).unwrap_or(left);
        if taken > 0 {
            session.post_write(piece.into(), offset, taken, range.offset(at))?;
        }
        Ok(taken)
    }
}

/// Posts an RDMA Read of no bytes, whose completion proves that the peer has placed all Writes posted before.
///
/// RFC 5040 §5.5 rule 12: "RDMA Read Request Messages, including zero-length RDMA Read Requests, MUST NOT start
/// processing at the Remote Peer until they have been Delivered to RDMAP by DDP", and so not before the Writes that
/// went ahead of them were placed.
pub(super) fn prove(session: &mut RegionSession, range: &RegionRange) -> Result<(), Failure> {
    session.post_read(PROOF, 0, 0, range.offset(0))
}

/// Explains a failure behind Immediate Data, for which there is no buffer unless a program watches the region.
fn explain(failure: Failure, immediate: Option<u64>) -> Failure {
    match immediate {
        Some(_) => failure.with_help("--immediate needs a program there that watches the region"),
        None => failure,
    }
}
