//! Deframer of the received stream (RFC 5044 §6): locates FPDUs by their lengths, verifies them, and returns them
//! borrowed. The [endpoint](crate::Endpoint) feeds it with the chunks that TCP delivers.
//!
//! The stream arrives in chunks, each an owned buffer such as a received segment. An FPDU inside one chunk is borrowed
//! from it, usually before the deframer takes the chunk at all ([`Deframer::next_whole`]). For an FPDU that spans
//! chunks, the deframer holds the chunks, moved and not copied, until the FPDU is complete, and returns it as a
//! sequence of slices. It drops a chunk as soon as all of its bytes are consumed.
//!
//! A peer may send single bytes, or begin a long FPDU and never end it, on every connection. The chunks' buffers come
//! from the packet pool, so the deframer holds at most [`DeframerConfig::chunks_max`] of them. It copies later bytes
//! that do not complete the FPDU into a copy buffer allocated at the start; it also copies tiny chunks there, which
//! would pin a packet buffer for a few bytes.
//!
//! FPDUs placed out-of-order are remembered as [`PlacedRun`]s. When the stream reaches a run, the deframer skips its
//! bytes, whether they were retransmitted or not ([`push_placed`](Deframer::push_placed)), and returns the run in
//! their place. If an FPDU does not end where a run begins, the run did not consist of FPDUs of this stream: the
//! stream fails.
//!
//! All readers use [`Pieces`], which skip markers.

use super::crc::{Crc32c, crc32c};
use super::fpdu::{Fpdu, Piece, Pieces};
use super::marker::{Layout, MARKER_LEN, pointer};
use super::out_of_order::{OutOfOrderFpdus, OutOfOrderPolicy, OutOfOrderRefusal, StreamShape};
use super::placed::{PlacedRun, PlacedRuns};
use super::{CRC_LEN, LENGTH_LEN, MARKED_LEN_MAX, MpaStats, fpdu_len};
use core::fmt;
use std::collections::VecDeque;

/// Number of chunks that hold the longest FPDU in segments of 1448 bytes, at any alignment.
pub const CHUNKS_MAX: usize = 48;
/// Length in bytes below which a chunk that does not complete an FPDU is copied even if fewer than `chunks_max` are
/// held: an eighth of the smallest receive buffer of a port.
const TINY: usize = 256;
/// Size of the copy buffer in bytes that no legal stream overflows.
pub const SPILL_MAX: usize = MARKED_LEN_MAX + TINY;
/// Bytes of the shortest FPDU, which carries an empty ULPDU.
const FPDU_LEN_MIN: u64 = fpdu_len(0) as u64;

/// Settings of a deframer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeframerConfig {
    /// True if CRCs are verified.
    pub crc: bool,
    /// True if the stream has markers.
    pub markers: bool,
    /// Chunks that may be held for an incomplete FPDU, each a packet buffer.
    pub chunks_max: usize,
    /// Size of the copy buffer in bytes; [`SPILL_MAX`] suffices for every legal stream.
    pub spill_max: usize,
    /// Policy for FPDUs behind a gap in the stream.
    pub out_of_order: OutOfOrderPolicy,
    /// Number of out-of-order runs that may be remembered.
    pub runs_max: usize,
}

impl Default for DeframerConfig {
    /// CRCs on, markers off, everything in order.
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

/// Reason why a stream has failed; no more FPDUs follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpduError {
    /// The CRC does not match (RFC 5044 §8, code 2).
    Crc,
    /// A marker does not point to the FPDU that it is in (RFC 5044 §8, code 3).
    Marker,
    /// The FPDU does not end where one was found before the gap closed (RFC 5044 §8, code 3).
    Boundary,
    /// One FPDU arrived in more small pieces than the copy buffer takes; impossible with [`SPILL_MAX`] bytes.
    Fragmented,
    /// A chunk does not follow the one before it: an error of the caller.
    Gap {
        /// The expected stream position.
        expected: u64,
        /// The stream position of the chunk.
        offset: u64,
    },
    /// A chunk was pushed before the complete FPDUs were taken: an error of the caller.
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

/// Splits the received half of a stream into FPDUs.
///
/// Push a chunk with [`push`](Self::push), then take FPDUs with [`next_fpdu`](Self::next_fpdu) and runs with
/// [`next_placed`](Self::next_placed) until both return `None`. RFC 5044 §8: "Once MPA delivers an error of any type,
/// it MUST NOT pass or deliver any additional FPDUs on that half connection": after an error the deframer drops all
/// chunks and returns nothing.
#[derive(Debug)]
pub struct Deframer<C> {
    shape: StreamShape,
    pub(super) failed: bool,
    pieces: VecDeque<Piece<C>>,
    chunks: usize,
    chunks_max: usize,
    /// Bytes consumed of the first piece; zero unless that piece is a chunk.
    used: usize,
    /// Bytes in all pieces that are not consumed.
    pub(super) held: usize,
    /// Bytes of the FPDU that was returned last; they are consumed by the next call.
    pub(super) borrowed: usize,
    /// Stream position of the first byte held.
    pub(super) position: u64,
    spill: Vec<u8>,
    spill_max: usize,
    /// Bytes consumed of `spill`.
    spill_used: usize,
    out_of_order: OutOfOrderPolicy,
    runs: PlacedRuns,
}

impl<C: AsRef<[u8]>> Deframer<C> {
    /// Creates a deframer whose first FPDU begins at stream position `start`. All allocation happens here.
    #[must_use]
    pub fn new(start: u64, config: DeframerConfig) -> Self {
        let DeframerConfig { crc, markers, chunks_max, spill_max, out_of_order, runs_max } = config;
        let runs_max = if out_of_order == OutOfOrderPolicy::Off { 0 } else { runs_max };
        // At most one part of the copy buffer precedes each chunk, and one follows the last chunk. The chunk that
        // completes the FPDU is one more.
        let pieces_max = chunks_max.saturating_add(1).saturating_mul(2);
        Self {
            shape: StreamShape { start, crc, markers },
            failed: false,
            pieces: VecDeque::with_capacity(pieces_max),
            chunks: 0,
            chunks_max,
            used: 0,
            held: 0,
            borrowed: 0,
            position: start,
            spill: Vec::with_capacity(spill_max),
            spill_max,
            spill_used: 0,
            out_of_order,
            runs: PlacedRuns::new(runs_max),
        }
    }

    /// Returns the stream position behind all bytes pushed.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.position.saturating_add(self.held as u64)
    }

    /// Returns the number of bytes held of an incomplete FPDU.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.held.saturating_sub(self.borrowed)
    }

    /// Returns the number of chunks held, each a packet buffer.
    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.chunks
    }

    /// Returns the stream position at which the incomplete FPDU begins; `None` if no bytes are held.
    #[inline]
    #[must_use]
    pub fn incomplete_from(&self) -> Option<u64> {
        (self.pending() > 0).then(|| self.position.saturating_add(self.borrowed as u64))
    }

    /// Moves all held bytes to the copy buffer and drops the chunks. Does nothing if the copy buffer is too small.
    #[cold]
    pub fn compact(&mut self, stats: &mut MpaStats) {
        self.release_borrowed();
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

    /// Compacts if the bytes held are few compared with the packet buffers that they pin. Called when no complete FPDU
    /// is left.
    #[inline]
    pub fn compact_if_small(&mut self, stats: &mut MpaStats) {
        if self.chunks > 0 && self.pending() < self.chunks.saturating_mul(TINY) {
            self.compact(stats);
        }
    }

    /// Searches a chunk behind a gap, at stream position `offset`, for FPDUs.
    ///
    /// # Errors
    /// `Unlocated` or `Runs`: the chunk holds no FPDU that may be placed.
    pub fn out_of_order_fpdus<'a>(
        &self,
        offset: u64,
        bytes: &'a [u8],
    ) -> Result<OutOfOrderFpdus<'a>, OutOfOrderRefusal> {
        if self.failed || self.out_of_order == OutOfOrderPolicy::Off || offset <= self.end() {
            return Err(OutOfOrderRefusal::Unlocated);
        }
        let mut fpdus = OutOfOrderFpdus::new(self.shape, offset, bytes, self.out_of_order)?;
        // The lengths already known lead past this position: it lies inside an FPDU's payload.
        if fpdus.position() < self.front_end() {
            return Err(OutOfOrderRefusal::Unlocated);
        }
        fpdus.end_before(self.runs.free_until(fpdus.position()).ok_or(OutOfOrderRefusal::Runs)?);
        Ok(fpdus)
    }

    /// Remembers a run of FPDUs that [`out_of_order_fpdus`](Self::out_of_order_fpdus) found and that were placed.
    pub fn placed(&mut self, run: PlacedRun) {
        if run.start < run.end && !self.failed {
            self.runs.add(run);
        }
    }

    /// Returns true if all `len` bytes from stream position `offset` were placed out-of-order; TCP need not keep them.
    #[must_use]
    pub fn is_placed(&self, offset: u64, len: usize) -> bool {
        self.runs.covers(offset, offset.saturating_add(len as u64))
    }

    /// Takes the chunk at stream position `offset`, which must follow the bytes pushed before. The first chunk may
    /// begin earlier, with bytes of the startup frames, which are skipped.
    ///
    /// # Errors
    /// `Gap`, `Undrained` or `Fragmented`: the chunk does not follow, was pushed too soon, or does not fit. The error
    /// is final and counted; the chunk is dropped.
    #[inline]
    pub fn push(&mut self, offset: u64, chunk: C, stats: &mut MpaStats) -> Result<(), FpduError> {
        if self.failed {
            return Ok(());
        }
        self.release_borrowed();
        match self.try_push(offset, chunk, stats) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error, stats)),
        }
    }

    /// Advances the end of the stream by `len` bytes for which [`is_placed`](Self::is_placed) returned true, and which
    /// the caller no longer has.
    ///
    /// # Errors
    /// As [`Self::push`]; also `Gap` if the bytes were not placed.
    pub fn push_placed(&mut self, offset: u64, len: usize, stats: &mut MpaStats) -> Result<(), FpduError> {
        if self.failed {
            return Ok(());
        }
        self.release_borrowed();
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

    /// Returns the stream position of the next FPDU if it may be borrowed from a chunk: no bytes and no out-of-order
    /// runs are held, and the stream has no markers.
    #[inline]
    pub(super) fn unheld_position(&self) -> Option<u64> {
        let unheld = self.held == 0 && self.runs.first().is_none() && !self.shape.markers && !self.failed;
        unheld.then_some(self.position)
    }

    /// Returns true if CRCs are verified.
    #[inline]
    pub(super) const fn has_crc(&self) -> bool {
        self.shape.crc
    }

    /// Advances the stream position by `bytes` that were never held.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
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

    /// Returns the length in bytes of the FPDU at the front; `None` until its length field has arrived.
    fn front_len(&self) -> Option<usize> {
        self.ulpdu_length().map(|ulpdu_len| self.layout().fpdu_len(ulpdu_len.into()))
    }

    /// Returns the end of the FPDU at the front, as far as its length is known. No other FPDU begins before this
    /// stream position.
    fn front_end(&self) -> u64 {
        self.position.saturating_add(self.front_len().unwrap_or(0) as u64)
    }

    /// Returns true if `len` more bytes complete the FPDU at the front.
    fn completes(&self, len: usize) -> bool {
        self.front_len().is_some_and(|due| self.held.saturating_add(len) >= due)
    }

    pub(super) fn spill(&mut self, bytes: &[u8]) -> Result<(), FpduError> {
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

    /// Returns the next FPDU, borrowed; `None` if it is incomplete or if [`Self::next_placed`] is due. Drops the
    /// chunks of the FPDU returned before.
    #[inline]
    pub fn next_fpdu<'a>(&'a mut self, stats: &mut MpaStats) -> Option<Result<Fpdu<'a, C>, FpduError>> {
        self.release_borrowed();
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
        self.borrowed = len;
        Some(Ok(Fpdu::new(self.position, ulpdu_len, layout, self.first(), self.bytes(0, len))))
    }

    /// Returns the out-of-order run whose end the stream has now reached; `None` otherwise.
    #[inline]
    pub fn next_placed(&mut self, stats: &mut MpaStats) -> Option<PlacedRun> {
        let run = *self.runs.first()?;
        self.release_borrowed();
        if self.position < run.start {
            return None;
        }
        let left = run.end.saturating_sub(self.position);
        self.borrowed = usize::try_from(left).map_or(self.held, |left| left.min(self.held));
        self.release_borrowed();
        if self.position < run.end {
            return None;
        }
        stats.fpdus_in = stats.fpdus_in.wrapping_add(run.fpdus.into());
        stats.ulpdu_bytes_in = stats.ulpdu_bytes_in.wrapping_add(run.ulpdu_bytes);
        self.runs.take_first()
    }

    /// Checks the CRC and the markers of the complete FPDU at the front.
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

    /// Returns the positions of markers in the FPDU at the front.
    #[inline]
    const fn layout(&self) -> Layout {
        self.shape.layout(self.position)
    }

    /// Returns the ULPDU_Length of the FPDU at the front; `None` until it has arrived.
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

    /// Returns the bytes of the first piece that are not consumed.
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

    /// Returns `len` of the bytes held, from the `skip`th on.
    #[inline]
    fn bytes(&self, skip: usize, len: usize) -> Pieces<'_, C> {
        let skipped = self.used.saturating_add(skip);
        Pieces::raw(self.pieces.iter(), self.spilled(), skipped, len)
    }

    /// Consumes the bytes of the FPDU that was returned last, and drops chunks that are fully consumed.
    #[inline]
    pub(super) fn release_borrowed(&mut self) {
        let mut left = core::mem::take(&mut self.borrowed);
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
