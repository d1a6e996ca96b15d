//! FPDUs on their way in (RFC 5044 §6): located by the chain of lengths, verified, then lent out.
//!
//! The stream comes in chunks, each an owned thing such as a received segment. An FPDU that lies in one
//! chunk is lent as a slice of it, mostly before the chunk is taken at all ([`Deframer::next_whole`]). One that is split
//! keeps its chunks, moved and not copied, until the rest has come, and is lent as a row of slices. Chunks are dropped as
//! soon as they hold nothing that is still wanted.
//!
//! A peer may cut its stream into single bytes, or begin a long FPDU and never end it, on every connection that it
//! may have. So that chunks, whose buffers come from a pool that reception lives on, are not all held for that, no more
//! than [`DeframerConfig::chunks_max`] are; what comes behind them and does not complete the FPDU is copied into a buffer
//! that the deframer was given at the start, and so are the smallest of chunks, which would pin a buffer for a few bytes.
//!
//! What was placed while it lay behind a gap is remembered as [`PlacedRun`]s. When the stream gets there, its bytes are
//! left out, whether they come a second time or not at all ([`push_placed`](Deframer::push_placed)), and the run is
//! given out in their stead. An FPDU that does not end where a run begins shows that the run was none of the stream's.
//!
//! Every reader goes through [`Pieces`], which leave markers out.

use super::crc::{Crc32c, crc32c};
use super::fpdu::{Fpdu, Piece, Pieces};
use super::marker::{Layout, MARKER_LEN, pointer};
use super::out_of_order::{OutOfOrderFpdus, OutOfOrderPolicy, OutOfOrderRefusal, StreamShape};
use super::placed::{PlacedRun, PlacedRuns};
use super::{CRC_LEN, LENGTH_LEN, MARKED_LEN_MAX, MpaStats, fpdu_len};
use core::fmt;
use std::collections::VecDeque;

/// Chunks that suffice for the longest FPDU in segments of 1448 bytes, wherever in them it begins.
pub const CHUNKS_MAX: usize = 48;
/// Bytes below which a chunk that does not complete an FPDU is copied aside although fewer are held: an eighth of the least
/// buffer that ports receive into.
const TINY: usize = 256;
/// Bytes of the copy-aside buffer that no legal stream overflows.
pub const SPILL_MAX: usize = MARKED_LEN_MAX + TINY;
/// Bytes of the shortest FPDU.
const FPDU_LEN_MIN: u64 = fpdu_len(0) as u64;

/// What a deframer is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeframerConfig {
    /// Whether CRCs are verified.
    pub crc: bool,
    /// Whether the stream has markers.
    pub markers: bool,
    /// Chunks that may be held for an FPDU that is not complete: as many packet buffers.
    pub chunks_max: usize,
    /// Bytes that may be copied aside; [`SPILL_MAX`] suffices for every legal stream.
    pub spill_max: usize,
    /// How FPDUs behind a gap are looked for.
    pub out_of_order: OutOfOrderPolicy,
    /// Runs of such FPDUs that may be remembered.
    pub runs_max: usize,
}

impl Default for DeframerConfig {
    /// CRCs, no markers, everything in order.
    fn default() -> Self {
        Self {
            crc: true,
            markers: false,
            chunks_max: CHUNKS_MAX,
            spill_max: SPILL_MAX,
            out_of_order: OutOfOrderPolicy::Off,
            runs_max: 0,
        }
    }
}

/// Why no more FPDUs come out of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpduError {
    /// The CRC does not match (RFC 5044 §8, code 2).
    Crc,
    /// A marker does not point to the FPDU that it is in (RFC 5044 §8, code 3).
    Marker,
    /// The FPDU does not end where one was found before the gap closed (RFC 5044 §8, code 3).
    Boundary,
    /// More small pieces of one FPDU than the copy-aside buffer takes; cannot be with [`SPILL_MAX`] bytes.
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
            Self::Marker => f.write_str("a marker does not point to its FPDU"),
            Self::Boundary => f.write_str("the FPDU does not end where the next was found"),
            Self::Fragmented => f.write_str("the FPDU came in too many small pieces"),
            Self::Gap { expected, offset } => {
                write!(f, "bytes at stream position {offset} where {expected} was due")
            }
            Self::Undrained => f.write_str("bytes offered while whole FPDUs were waiting"),
        }
    }
}

impl core::error::Error for FpduError {}

/// Cuts the received half of a stream into FPDUs.
///
/// Offer a chunk with [`push`](Self::push), then take FPDUs with [`next_fpdu`](Self::next_fpdu) and runs with
/// [`next_placed`](Self::next_placed) until there is neither. RFC 5044 §8: "Once MPA delivers an error of any type, it
/// MUST NOT pass or deliver any additional FPDUs on that half connection": after an error chunks are dropped and nothing
/// comes out.
#[derive(Debug)]
pub struct Deframer<C> {
    shape: StreamShape,
    failed: bool,
    pieces: VecDeque<Piece<C>>,
    chunks: usize,
    chunks_max: usize,
    /// Bytes of the first piece that are used up; zero unless it is a chunk.
    used: usize,
    /// Bytes in the pieces that are not used up.
    held: usize,
    /// Bytes of the FPDU that was lent out last.
    lent: usize,
    /// The stream position of the first byte held.
    position: u64,
    spill: Vec<u8>,
    spill_max: usize,
    /// Bytes of `spill` that are used up.
    spill_used: usize,
    out_of_order: OutOfOrderPolicy,
    runs: PlacedRuns,
}

impl<C: AsRef<[u8]>> Deframer<C> {
    /// A deframer whose first FPDU begins at stream position `start`. This is the only place where it allocates.
    #[must_use]
    pub fn new(start: u64, config: DeframerConfig) -> Self {
        let DeframerConfig { crc, markers, chunks_max, spill_max, out_of_order, runs_max } = config;
        let runs_max = if out_of_order == OutOfOrderPolicy::Off { 0 } else { runs_max };
        // In front of each chunk, and behind the last, there is at most one run of bytes copied aside; one chunk more
        // completes the FPDU.
        let pieces_max = chunks_max.saturating_add(1).saturating_mul(2);
        Self {
            shape: StreamShape { start, crc, markers },
            failed: false,
            pieces: VecDeque::with_capacity(pieces_max),
            chunks: 0,
            chunks_max,
            used: 0,
            held: 0,
            lent: 0,
            position: start,
            spill: Vec::with_capacity(spill_max),
            spill_max,
            spill_used: 0,
            out_of_order,
            runs: PlacedRuns::new(runs_max),
        }
    }

    /// The stream position behind all that was offered.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.position.saturating_add(self.held as u64)
    }

    /// Bytes held back because their FPDU is not complete.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.held.saturating_sub(self.lent)
    }

    /// Chunks that are held: as many packet buffers.
    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.chunks
    }

    /// The stream position at which the FPDU begins that bytes are held back of; `None` where there are none.
    #[inline]
    #[must_use]
    pub fn incomplete_from(&self) -> Option<u64> {
        (self.pending() > 0).then(|| self.position.saturating_add(self.lent as u64))
    }

    /// Lets go of all chunks, of which the bytes that are still wanted are copied aside; or, where there is too little room
    /// for that, of none.
    #[cold]
    pub fn compact(&mut self, stats: &mut MpaStats) {
        self.settle();
        self.spill.drain(..self.spill_used.min(self.spill.len()));
        self.spill_used = 0;
        if self.spill_max.saturating_sub(self.spill.len()) < self.held.saturating_sub(self.spill.len()) {
            return;
        }
        let (mut at, mut used) = (0_usize, self.used);
        for piece in &mut self.pieces {
            match piece {
                Piece::Placed(_) => {}
                Piece::Spill(run) => at = at.saturating_add(*run),
                Piece::Chunk(chunk) => {
                    let bytes = chunk.as_ref().get(used..).unwrap_or_default();
                    let len = bytes.len();
                    self.spill.extend_from_slice(bytes);
                    if let Some(behind) = self.spill.get_mut(at..).filter(|behind| len <= behind.len()) {
                        behind.rotate_right(len);
                    }
                    at = at.saturating_add(len);
                    stats.bytes_spilled = stats.bytes_spilled.wrapping_add(len as u64);
                    stats.bytes_copied = stats.bytes_copied.wrapping_add(len as u64);
                    *piece = Piece::Spill(len);
                }
            }
            used = 0;
        }
        (self.chunks, self.used) = (0, 0);
    }

    /// Copies what is held back aside if it is little, compared with the packet buffers that it pins. To be called when
    /// no FPDU is left to be lent.
    #[inline]
    pub fn tidy(&mut self, stats: &mut MpaStats) {
        if self.chunks > 0 && self.pending() < self.chunks.saturating_mul(TINY) {
            self.compact(stats);
        }
    }

    /// Looks for FPDUs in a chunk at stream position `offset`, behind a gap.
    ///
    /// # Errors
    /// Where there can be none that may be placed.
    pub fn out_of_order_fpdus<'a>(
        &self,
        offset: u64,
        bytes: &'a [u8],
    ) -> Result<OutOfOrderFpdus<'a>, OutOfOrderRefusal> {
        if self.failed || self.out_of_order == OutOfOrderPolicy::Off || offset <= self.end() {
            return Err(OutOfOrderRefusal::Unlocated);
        }
        let mut fpdus = OutOfOrderFpdus::new(self.shape, offset, bytes, self.out_of_order)?;
        // The lengths lead behind it already: it is part of a payload.
        if fpdus.position() < self.front_end() {
            return Err(OutOfOrderRefusal::Unlocated);
        }
        fpdus.end_before(self.runs.free_until(fpdus.position()).ok_or(OutOfOrderRefusal::Runs)?);
        Ok(fpdus)
    }

    /// Remembers FPDUs that [`out_of_order_fpdus`](Self::out_of_order_fpdus) found and that were placed.
    pub fn placed(&mut self, run: PlacedRun) {
        if run.start < run.end && !self.failed {
            self.runs.add(run);
        }
    }

    /// Whether all bytes of this part of the stream were placed: nobody needs them any more.
    #[must_use]
    pub fn is_placed(&self, offset: u64, len: usize) -> bool {
        self.runs.covers(offset, offset.saturating_add(len as u64))
    }

    /// Takes the chunk at stream position `offset`, which must follow what came before. The first chunk may
    /// begin earlier, with bytes that belong to the startup frames: those are left out.
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

    /// Takes note that the stream goes on by `len` bytes that [`is_placed`](Self::is_placed) answered for, and that are
    /// not at hand.
    ///
    /// # Errors
    /// As [`Self::push`]; also where they were not placed.
    pub fn push_placed(&mut self, offset: u64, len: usize, stats: &mut MpaStats) -> Result<(), FpduError> {
        if self.failed {
            return Ok(());
        }
        self.settle();
        let expected = self.end();
        if offset != expected || !self.is_placed(offset, len) {
            return Err(self.fail(FpduError::Gap { expected, offset }, stats));
        }
        match self.pieces.back_mut() {
            Some(Piece::Placed(run)) => *run = run.saturating_add(len),
            _ => self.pieces.push_back(Piece::Placed(len)),
        }
        self.held = self.held.saturating_add(len);
        Ok(())
    }

    /// The stream position of the next FPDU, if it may be taken straight from a chunk: nothing is held before it, nothing
    /// behind it was placed early, and no marker cuts it.
    #[inline]
    pub(super) fn unheld_position(&self) -> Option<u64> {
        let unheld = self.held == 0 && self.runs.first().is_none() && !self.shape.markers && !self.failed;
        unheld.then_some(self.position)
    }

    /// Whether CRCs are verified.
    #[inline]
    pub(super) const fn has_crc(&self) -> bool {
        self.shape.crc
    }

    /// So many bytes of the stream went by without being held.
    #[inline]
    pub(super) fn pass(&mut self, bytes: usize) {
        self.position = self.position.saturating_add(bytes as u64);
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
        if self.held >= MARKED_LEN_MAX {
            return Err(FpduError::Undrained);
        }
        let len = fresh.len();
        let aside = len < TINY || self.chunks >= self.chunks_max;
        if aside && self.held > 0 && !self.completes(len) {
            self.spill(chunk.as_ref())?;
            stats.bytes_spilled = stats.bytes_spilled.wrapping_add(len as u64);
            stats.bytes_copied = stats.bytes_copied.wrapping_add(len as u64);
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

    /// Bytes of the FPDU at the front, once its length is there.
    fn front_len(&self) -> Option<usize> {
        self.ulpdu_length().map(|ulpdu_len| self.layout().fpdu_len(ulpdu_len.into()))
    }

    /// The stream position before which no FPDU begins that has not come, as far as the lengths tell.
    fn front_end(&self) -> u64 {
        self.position.saturating_add(self.front_len().unwrap_or(0) as u64)
    }

    /// Whether so many bytes more complete the FPDU at the front.
    fn completes(&self, len: usize) -> bool {
        self.front_len().is_some_and(|due| self.held.saturating_add(len) >= due)
    }

    fn spill(&mut self, bytes: &[u8]) -> Result<(), FpduError> {
        if self.spill_max.saturating_sub(self.spill.len()) < bytes.len() {
            self.spill.drain(..self.spill_used.min(self.spill.len()));
            self.spill_used = 0;
            if self.spill_max.saturating_sub(self.spill.len()) < bytes.len() {
                return Err(FpduError::Fragmented);
            }
        }
        self.spill.extend_from_slice(bytes);
        match self.pieces.back_mut() {
            Some(Piece::Spill(run)) => *run = run.saturating_add(bytes.len()),
            _ => self.pieces.push_back(Piece::Spill(bytes.len())),
        }
        Ok(())
    }

    /// Lends the next FPDU, or `None` where it is not complete yet, or where [`Self::next_placed`] is due. The chunks of
    /// the one lent before are dropped here.
    #[inline]
    pub fn next_fpdu<'a>(&'a mut self, stats: &mut MpaStats) -> Option<Result<Fpdu<'a, C>, FpduError>> {
        self.settle();
        if self.failed {
            return None;
        }
        let room = match self.runs.first() {
            None if self.held == 0 => return None,
            None => u64::MAX,
            Some(run) if run.start <= self.position => return None,
            Some(run) => run.start.saturating_sub(self.position),
        };
        if room < FPDU_LEN_MIN {
            return Some(Err(self.fail(FpduError::Boundary, stats)));
        }
        let ulpdu_len = usize::from(self.ulpdu_length()?);
        let layout = self.layout();
        let len = layout.fpdu_len(ulpdu_len);
        // RFC 5044 §8 code 3: "the check SHOULD be made when a gap creating an out-of-order sequence is closed".
        if room < len as u64 {
            return Some(Err(self.fail(FpduError::Boundary, stats)));
        }
        if self.held < len {
            return None;
        }
        if let Err(error) = self.verify(len, stats) {
            return Some(Err(self.fail(error, stats)));
        }
        stats.count_fpdu_in(ulpdu_len);
        if self.first().get(..len).is_none() {
            stats.fpdus_in_split = stats.fpdus_in_split.wrapping_add(1);
        }
        self.lent = len;
        Some(Ok(Fpdu::new(self.position, ulpdu_len, layout, self.first(), self.bytes(0, len))))
    }

    /// The run of FPDUs placed before that the stream has now reached the end of; `None` elsewhere.
    #[inline]
    pub fn next_placed(&mut self, stats: &mut MpaStats) -> Option<PlacedRun> {
        let run = *self.runs.first()?;
        self.settle();
        if self.position < run.start {
            return None;
        }
        let left = run.end.saturating_sub(self.position);
        self.lent = usize::try_from(left).map_or(self.held, |left| left.min(self.held));
        self.settle();
        if self.position < run.end {
            return None;
        }
        stats.fpdus_in = stats.fpdus_in.wrapping_add(run.fpdus.into());
        stats.ulpdu_bytes_in = stats.ulpdu_bytes_in.wrapping_add(run.ulpdu_bytes);
        self.runs.take_first()
    }

    /// CRC and markers of the FPDU at the front, which is whole.
    #[inline]
    fn verify(&self, len: usize, stats: &mut MpaStats) -> Result<(), FpduError> {
        if self.shape.crc && !self.crc_matches(len) {
            return Err(FpduError::Crc);
        }
        for (at, due) in self.layout().markers(len) {
            let mut marker = [0; MARKER_LEN];
            let bytes = self.bytes(at, MARKER_LEN).flatten();
            marker.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            if Some(pointer(marker)) != due {
                return Err(FpduError::Marker);
            }
            stats.markers_in = stats.markers_in.wrapping_add(1);
        }
        Ok(())
    }

    /// How markers cut the FPDU at the front.
    #[inline]
    const fn layout(&self) -> Layout {
        self.shape.layout(self.position)
    }

    /// The ULPDU_Length at the front.
    #[inline]
    fn ulpdu_length(&self) -> Option<u16> {
        let at = self.layout().length_at();
        if let Some(length) = self.first().get(at..).and_then(<[u8]>::first_chunk::<LENGTH_LEN>) {
            return Some(u16::from_be_bytes(*length));
        }
        let mut bytes = self.bytes(at, LENGTH_LEN).flatten();
        Some(u16::from_be_bytes([*bytes.next()?, *bytes.next()?]))
    }

    #[inline]
    fn crc_matches(&self, len: usize) -> bool {
        let covered = len.saturating_sub(CRC_LEN);
        if let Some((covered, field)) = self.first().get(..len).and_then(<[u8]>::split_last_chunk) {
            return crc32c(covered) == *field;
        }
        let mut crc = Crc32c::new();
        self.bytes(0, covered).for_each(|piece| crc.update(piece));
        self.bytes(covered, CRC_LEN).flatten().eq(crc.finish().iter())
    }

    /// The bytes of the first piece that are not used up.
    #[inline]
    fn first(&self) -> &[u8] {
        match self.pieces.front() {
            Some(Piece::Chunk(chunk)) => chunk.as_ref().get(self.used..).unwrap_or_default(),
            Some(Piece::Spill(run)) => self.spilled().get(..*run).unwrap_or_default(),
            Some(Piece::Placed(_)) | None => &[],
        }
    }

    #[inline]
    fn spilled(&self) -> &[u8] {
        self.spill.get(self.spill_used..).unwrap_or_default()
    }

    /// `len` of the bytes held, from the `skip`th on.
    #[inline]
    fn bytes(&self, skip: usize, len: usize) -> Pieces<'_, C> {
        let skipped = self.used.saturating_add(skip);
        Pieces::raw(self.pieces.iter(), self.spilled(), skipped, len)
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
                Some(Piece::Placed(run)) => {
                    let part = left.min(*run);
                    *run = run.saturating_sub(part);
                    left = left.saturating_sub(part);
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
    pub(super) fn fail(&mut self, error: FpduError, stats: &mut MpaStats) -> FpduError {
        stats.count_fpdu_error(error);
        self.failed = true;
        self.pieces.clear();
        self.spill.clear();
        self.runs.clear();
        (self.chunks, self.used, self.held, self.spill_used) = (0, 0, 0, 0);
        error
    }
}
