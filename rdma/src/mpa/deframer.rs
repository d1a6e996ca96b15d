//! FPDUs on their way in (RFC 5044 §6): located by the chain of lengths, verified, then lent out.
//!
//! The stream comes in chunks, each an owned thing such as a received segment. An FPDU that lies in one
//! chunk is lent as a slice of it. One that is split keeps its chunks, moved and not copied, until the rest
//! has come, and is lent as a row of slices. Chunks are dropped as soon as they hold nothing that is still
//! wanted.
//!
//! A peer may cut its stream into single octets, or begin a long FPDU and never end it, on every connection that it
//! may have. So that chunks, whose buffers come from a pool that reception lives on, are not all held for that, a
//! few are; what comes behind them and does not complete the FPDU is copied into a buffer that the deframer was
//! given at the start. FPDUs as long as a segment, which is what a sender should make of them, are never copied.
//!
//! Every reader goes through [`Pieces`]; markers, once asked for, are octets that it leaves out.

use super::crc::{Crc32c, crc32c};
use super::{CRC_LEN, FPDU_LEN_MAX, LENGTH_LEN, MpaStats, fpdu_len};
use core::fmt;
use std::collections::{VecDeque, vec_deque};

/// Chunks held while an FPDU is not complete. One that is no longer than a segment lies in two, or in three if it is
/// not aligned, the last of which completes it.
pub const CHUNKS_MAX: usize = 2;
/// Octets below which a chunk is copied aside although fewer are held.
const TINY: usize = 64;
/// Between two chunks, and behind the last, there is at most one run of octets copied aside; one chunk more completes
/// the FPDU.
const PIECES_MAX: usize = 2 * (CHUNKS_MAX + 1);

/// Octets of the copy-aside buffer that no legal stream overflows.
pub const SPILL_MAX: usize = FPDU_LEN_MAX + TINY;

/// Why no more FPDUs come out of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpduError {
    /// The CRC does not match (RFC 5044 §8, code 2).
    Crc,
    /// More small pieces of one FPDU than the copy-aside buffer takes; cannot be with [`SPILL_MAX`] octets.
    Fragmented,
    /// A chunk does not follow the one before it: a mistake of the caller's.
    Gap {
        /// The stream position that was due.
        expected: u64,
        /// The stream position of the chunk.
        offset: u64,
    },
    /// A chunk was offered before the FPDUs already held were taken out: a mistake of the caller's.
    Undrained,
}

impl fmt::Display for FpduError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crc => f.write_str("the FPDU's CRC does not match"),
            Self::Fragmented => f.write_str("the FPDU came in too many small pieces"),
            Self::Gap { expected, offset } => {
                write!(f, "octets at stream position {offset} where {expected} was due")
            }
            Self::Undrained => f.write_str("octets offered while whole FPDUs were waiting"),
        }
    }
}

impl core::error::Error for FpduError {}

#[derive(Debug)]
enum Piece<C> {
    Chunk(C),
    /// So many octets of the copy-aside buffer, behind those of the pieces before.
    Spill(usize),
}

/// Cuts the received half of a stream into FPDUs.
///
/// Offer a chunk with [`push`](Self::push), then take FPDUs with [`next_fpdu`](Self::next_fpdu) until there
/// is none. RFC 5044 §8: "Once MPA delivers an error of any type, it MUST NOT pass or deliver any additional
/// FPDUs on that half connection": after an error chunks are dropped and nothing comes out.
#[derive(Debug)]
pub struct Deframer<C> {
    crc: bool,
    failed: bool,
    pieces: VecDeque<Piece<C>>,
    chunks: usize,
    /// Octets of the first piece that are used up; zero unless it is a chunk.
    used: usize,
    /// Octets in the pieces that are not used up.
    held: usize,
    /// Octets of the FPDU that was lent out last.
    lent: usize,
    /// The stream position of the first octet held.
    position: u64,
    spill: Vec<u8>,
    spill_max: usize,
    /// Octets of `spill` that are used up.
    spill_used: usize,
}

impl<C: AsRef<[u8]>> Deframer<C> {
    /// A deframer whose first FPDU begins at stream position `start`. It verifies CRCs where `crc` says so,
    /// and may copy up to `spill_max` octets aside; [`SPILL_MAX`] suffices for every legal stream.
    ///
    /// This is the only place where it allocates.
    #[must_use]
    pub fn new(start: u64, crc: bool, spill_max: usize) -> Self {
        Self {
            crc,
            failed: false,
            pieces: VecDeque::with_capacity(PIECES_MAX),
            chunks: 0,
            used: 0,
            held: 0,
            lent: 0,
            position: start,
            spill: Vec::with_capacity(spill_max),
            spill_max,
            spill_used: 0,
        }
    }

    /// The stream position behind all that was offered.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.position.saturating_add(self.held as u64)
    }

    /// Octets held back because their FPDU is not complete.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.held.saturating_sub(self.lent)
    }

    /// Takes the chunk at stream position `offset`, which must follow what came before. The first chunk may
    /// begin earlier, with octets that belong to the startup frames: those are left out.
    ///
    /// # Errors
    /// Where the chunk does not follow, does not fit, or came before the FPDUs held were taken. The error is
    /// final and counted; the chunk is dropped.
    #[inline]
    pub fn push(&mut self, offset: u64, chunk: C, stats: &mut MpaStats) -> Result<(), FpduError> {
        if self.failed {
            return Ok(());
        }
        self.settle();
        match self.try_push(offset, chunk, stats) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error, stats)),
        }
    }

    fn try_push(&mut self, offset: u64, chunk: C, stats: &mut MpaStats) -> Result<(), FpduError> {
        let gap = FpduError::Gap { expected: self.end(), offset };
        let before = self.end().checked_sub(offset).ok_or(gap)?;
        let Some(fresh) = usize::try_from(before).ok().and_then(|before| chunk.as_ref().get(before..)) else {
            return if self.held == 0 { Ok(()) } else { Err(gap) };
        };
        if before > 0 && self.held > 0 {
            return Err(gap);
        }
        if fresh.is_empty() {
            return Ok(());
        }
        if self.held >= FPDU_LEN_MAX {
            return Err(FpduError::Undrained);
        }
        let len = fresh.len();
        let aside = len < TINY || (self.chunks >= CHUNKS_MAX && !self.completes(len));
        if aside && self.held > 0 {
            self.spill(chunk.as_ref())?;
            stats.octets_spilled = stats.octets_spilled.wrapping_add(len as u64);
        } else {
            if self.held == 0 {
                self.used = chunk.as_ref().len().saturating_sub(len);
            }
            self.pieces.push_back(Piece::Chunk(chunk));
            self.chunks = self.chunks.saturating_add(1);
        }
        self.held = self.held.saturating_add(len);
        Ok(())
    }

    /// Whether so many octets more complete the FPDU at the front.
    fn completes(&self, len: usize) -> bool {
        let due = self.ulpdu_length().map(|ulpdu_len| fpdu_len(ulpdu_len.into()));
        due.is_some_and(|due| self.held.saturating_add(len) >= due)
    }

    fn spill(&mut self, octets: &[u8]) -> Result<(), FpduError> {
        if self.spill_max.saturating_sub(self.spill.len()) < octets.len() {
            self.spill.drain(..self.spill_used.min(self.spill.len()));
            self.spill_used = 0;
            if self.spill_max.saturating_sub(self.spill.len()) < octets.len() {
                return Err(FpduError::Fragmented);
            }
        }
        self.spill.extend_from_slice(octets);
        match self.pieces.back_mut() {
            Some(Piece::Spill(run)) => *run = run.saturating_add(octets.len()),
            _ => self.pieces.push_back(Piece::Spill(octets.len())),
        }
        Ok(())
    }

    /// Lends the next FPDU, or `None` where it is not complete yet. The chunks of the one lent before are
    /// dropped here.
    #[inline]
    pub fn next_fpdu<'a>(&'a mut self, stats: &mut MpaStats) -> Option<Result<Fpdu<'a, C>, FpduError>> {
        self.settle();
        if self.failed {
            return None;
        }
        let ulpdu_len = usize::from(self.ulpdu_length()?);
        let len = fpdu_len(ulpdu_len);
        if self.held < len {
            return None;
        }
        let whole = self.first().get(..len).is_some();
        if self.crc && !self.crc_matches(len) {
            return Some(Err(self.fail(FpduError::Crc, stats)));
        }
        stats.fpdus_in = stats.fpdus_in.wrapping_add(1);
        stats.ulpdu_octets_in = stats.ulpdu_octets_in.wrapping_add(ulpdu_len as u64);
        if !whole {
            stats.fpdus_in_split = stats.fpdus_in_split.wrapping_add(1);
        }
        self.lent = len;
        let offset = self.position;
        Some(Ok(Fpdu { offset, ulpdu: self.octets(LENGTH_LEN, ulpdu_len), len: ulpdu_len }))
    }

    /// The ULPDU_Length at the front.
    #[inline]
    fn ulpdu_length(&self) -> Option<u16> {
        if let Some((length, _)) = self.first().split_first_chunk::<LENGTH_LEN>() {
            return Some(u16::from_be_bytes(*length));
        }
        let mut octets = self.octets(0, LENGTH_LEN).flatten();
        Some(u16::from_be_bytes([*octets.next()?, *octets.next()?]))
    }

    #[inline]
    fn crc_matches(&self, len: usize) -> bool {
        let covered = len.saturating_sub(CRC_LEN);
        if let Some((covered, field)) = self.first().get(..len).and_then(<[u8]>::split_last_chunk) {
            return crc32c(covered) == *field;
        }
        let mut crc = Crc32c::new();
        self.octets(0, covered).for_each(|piece| crc.update(piece));
        self.octets(covered, CRC_LEN).flatten().eq(crc.finish().iter())
    }

    /// The octets of the first piece that are not used up.
    #[inline]
    fn first(&self) -> &[u8] {
        match self.pieces.front() {
            Some(Piece::Chunk(chunk)) => chunk.as_ref().get(self.used..).unwrap_or_default(),
            Some(Piece::Spill(run)) => self.spilled().get(..*run).unwrap_or_default(),
            None => &[],
        }
    }

    #[inline]
    fn spilled(&self) -> &[u8] {
        self.spill.get(self.spill_used..).unwrap_or_default()
    }

    /// `len` of the octets held, from the `skip`th on.
    #[inline]
    fn octets(&self, skip: usize, len: usize) -> Pieces<'_, C> {
        let skipped = self.used.saturating_add(skip);
        Pieces { pieces: self.pieces.iter(), spill: self.spilled(), skip: skipped, left: len }
    }

    /// Drops what was lent out.
    #[inline]
    fn settle(&mut self) {
        let mut left = core::mem::take(&mut self.lent);
        if left == 0 {
            return;
        }
        self.position = self.position.saturating_add(left as u64);
        self.held = self.held.saturating_sub(left);
        while left > 0 {
            match self.pieces.front_mut() {
                Some(Piece::Chunk(chunk)) => {
                    let rest = chunk.as_ref().len().saturating_sub(self.used);
                    if rest > left {
                        self.used = self.used.saturating_add(left);
                        return;
                    }
                    left = left.saturating_sub(rest);
                    self.used = 0;
                    self.chunks = self.chunks.saturating_sub(1);
                }
                Some(Piece::Spill(run)) => {
                    let part = left.min(*run);
                    *run = run.saturating_sub(part);
                    left = left.saturating_sub(part);
                    self.spill_used = self.spill_used.saturating_add(part);
                    if self.spill_used == self.spill.len() {
                        self.spill.clear();
                        self.spill_used = 0;
                    }
                    if *run > 0 {
                        return;
                    }
                }
                None => return,
            }
            self.pieces.pop_front();
        }
    }

    #[cold]
    fn fail(&mut self, error: FpduError, stats: &mut MpaStats) -> FpduError {
        stats.count_fpdu_error(error);
        self.failed = true;
        self.pieces.clear();
        self.spill.clear();
        (self.chunks, self.used, self.held, self.spill_used) = (0, 0, 0, 0);
        error
    }
}

/// A verified FPDU, lent until the deframer is called again.
#[derive(Debug)]
pub struct Fpdu<'a, C> {
    offset: u64,
    len: usize,
    ulpdu: Pieces<'a, C>,
}

impl<'a, C: AsRef<[u8]>> Fpdu<'a, C> {
    /// The stream position of its ULPDU_Length field.
    #[inline]
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Octets of its ULPDU, 0–65535.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether its ULPDU has no octets.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ULPDU, where it lies in one piece: the ordinary case.
    #[inline]
    #[must_use]
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        let piece = self.pieces(0).next().unwrap_or_default();
        (piece.len() == self.len).then_some(piece)
    }

    /// Copies the first octets of the ULPDU, as many as there are and fit, and returns their number.
    #[inline]
    pub fn copy_prefix(&self, out: &mut [u8]) -> usize {
        let mut copied = 0usize;
        for piece in self.pieces(0) {
            let Some(rest) = out.get_mut(copied..) else { break };
            let part = piece.len().min(rest.len());
            if let (Some(to), Some(from)) = (rest.get_mut(..part), piece.get(..part)) {
                to.copy_from_slice(from);
            }
            copied = copied.saturating_add(part);
            if copied == out.len() {
                break;
            }
        }
        copied
    }

    /// The pieces of the ULPDU in order, without its first `skip` octets. None is empty.
    #[inline]
    #[must_use]
    pub fn pieces(&self, skip: usize) -> Pieces<'a, C> {
        let Pieces { pieces, spill, skip: before, left } = &self.ulpdu;
        Pieces {
            pieces: pieces.clone(),
            spill,
            skip: before.saturating_add(skip),
            left: left.saturating_sub(skip),
        }
    }
}

/// A run of received octets, slice by slice.
#[derive(Debug)]
pub struct Pieces<'a, C> {
    pieces: vec_deque::Iter<'a, Piece<C>>,
    spill: &'a [u8],
    skip: usize,
    left: usize,
}

impl<'a, C: AsRef<[u8]>> Iterator for Pieces<'a, C> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left > 0 {
            let piece = match self.pieces.next()? {
                Piece::Chunk(chunk) => chunk.as_ref(),
                Piece::Spill(run) => {
                    let (piece, rest) = self.spill.split_at_checked(*run)?;
                    self.spill = rest;
                    piece
                }
            };
            let Some(fresh) = piece.get(self.skip..).filter(|fresh| !fresh.is_empty()) else {
                self.skip = self.skip.saturating_sub(piece.len());
                continue;
            };
            self.skip = 0;
            let wanted = fresh.get(..self.left).unwrap_or(fresh);
            self.left = self.left.saturating_sub(wanted.len());
            return Some(wanted);
        }
        None
    }
}
