//! A received FPDU, whose ULPDU is read slice by slice. The deframer returns it to the DDP layer.

use super::LENGTH_LEN;
use super::marker::{BETWEEN, Layout, MARKER_LEN};
use std::collections::vec_deque;

/// A verified FPDU, borrowed from the deframer or from a chunk.
#[derive(Debug)]
pub struct Fpdu<'a, C> {
    offset: u64,
    len: usize,
    /// The ULPDU, if it lies in one slice.
    whole: Option<&'a [u8]>,
    ulpdu: Pieces<'a, C>,
}

impl<'a, C: AsRef<[u8]>> Fpdu<'a, C> {
    /// Describes the FPDU at stream position `offset` that `bytes` begins with. Its ULPDU has `len` bytes; `first` is
    /// the first slice of `bytes`.
    #[inline]
    pub(super) fn new(
        offset: u64,
        len: usize,
        layout: Layout,
        first: &'a [u8],
        bytes: Pieces<'a, C>,
    ) -> Self {
        let before = layout.length_at().saturating_add(LENGTH_LEN);
        let uncut = layout.until_marker(before) >= len;
        let whole = first.get(before..before.saturating_add(len)).filter(|_| uncut);
        let mut ulpdu = bytes;
        ulpdu.skip = ulpdu.skip.saturating_add(before);
        ulpdu.until_marker = layout.until_marker(before);
        ulpdu.left = len;
        Self { offset, len, whole, ulpdu }
    }

    /// Describes the FPDU at stream position `offset` whose ULPDU is `ulpdu`.
    #[inline]
    pub(crate) fn whole(offset: u64, ulpdu: &'a [u8]) -> Self {
        Self { offset, len: ulpdu.len(), whole: Some(ulpdu), ulpdu: Pieces::of(ulpdu) }
    }

    /// Returns the stream position of the ULPDU_Length field, or of the marker in front of it.
    #[inline]
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of the ULPDU in bytes, 0–65535.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the ULPDU has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ULPDU if it lies in one slice, the common case.
    #[inline]
    #[must_use]
    pub const fn contiguous(&self) -> Option<&'a [u8]> {
        self.whole
    }

    /// Copies the first bytes of the ULPDU, as many as exist and fit, and returns their number.
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

    /// Returns the slices of the ULPDU in order, without its first `skip` bytes. No slice is empty.
    #[inline]
    #[must_use]
    pub fn pieces(&self, skip: usize) -> Pieces<'a, C> {
        let Pieces { current, pieces, spill, skip: before, until_marker, left } = &self.ulpdu;
        let mut rest = Pieces {
            current,
            pieces: pieces.clone(),
            spill,
            skip: *before,
            until_marker: *until_marker,
            left: *left,
        };
        rest.leave_out(skip);
        rest
    }
}

/// Storage of consecutive received bytes in a deframer's queue.
#[derive(Debug)]
pub(super) enum Piece<C> {
    /// A chunk of the stream, held by the deframer.
    Chunk(C),
    /// Length in bytes of a part of the copy buffer. Parts follow each other there in the order of the queue.
    Spill(usize),
    /// Length in bytes of a part that was placed out-of-order and is not stored.
    Placed(usize),
}

/// Iterator over the slices of received bytes, without markers.
#[derive(Debug)]
pub struct Pieces<'a, C> {
    /// Unread rest of the current piece.
    current: &'a [u8],
    pieces: vec_deque::Iter<'a, Piece<C>>,
    spill: &'a [u8],
    /// Bytes to skip before the next byte returned.
    skip: usize,
    /// Bytes from there to the next marker; larger than `left` if there is none.
    until_marker: usize,
    left: usize,
}

impl<'a, C> Pieces<'a, C> {
    /// Returns `left` bytes of the pieces from the `skip`th on, markers included.
    #[inline]
    pub(super) fn raw(
        pieces: vec_deque::Iter<'a, Piece<C>>,
        spill: &'a [u8],
        skip: usize,
        left: usize,
    ) -> Self {
        Self { current: &[], pieces, spill, skip, until_marker: usize::MAX, left }
    }

    /// Returns the bytes of one slice.
    #[inline]
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self {
            current: bytes,
            pieces: vec_deque::Iter::default(),
            spill: &[],
            skip: 0,
            until_marker: usize::MAX,
            left: bytes.len(),
        }
    }

    /// Skips `bytes` more, not counting markers.
    #[inline]
    fn leave_out(&mut self, bytes: usize) {
        let bytes = bytes.min(self.left);
        self.left = self.left.saturating_sub(bytes);
        self.skip = self.skip.saturating_add(bytes);
        match bytes.checked_sub(self.until_marker) {
            None | Some(0) => self.until_marker = self.until_marker.saturating_sub(bytes),
            Some(behind) => {
                let last = behind.saturating_sub(1);
                let markers = (last / BETWEEN).saturating_add(1);
                self.skip = self.skip.saturating_add(markers.saturating_mul(MARKER_LEN));
                self.until_marker = BETWEEN.saturating_sub(1).saturating_sub(last % BETWEEN);
            }
        }
    }
}

impl<'a, C: AsRef<[u8]>> Iterator for Pieces<'a, C> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left > 0 {
            if self.current.is_empty() {
                self.current = match self.pieces.next()? {
                    Piece::Chunk(chunk) => chunk.as_ref(),
                    Piece::Spill(run) => {
                        let (piece, rest) = self.spill.split_at_checked(*run)?;
                        self.spill = rest;
                        piece
                    }
                    // An FPDU never extends into bytes placed out-of-order.
                    Piece::Placed(_) => return None,
                };
            }
            if self.until_marker == 0 {
                self.skip = self.skip.saturating_add(MARKER_LEN);
                self.until_marker = BETWEEN;
            }
            let (skipped, fresh) = self.current.split_at(self.skip.min(self.current.len()));
            self.skip = self.skip.saturating_sub(skipped.len());
            let wanted = fresh.len().min(self.left).min(self.until_marker);
            let (piece, rest) = fresh.split_at(wanted);
            self.current = rest;
            if !piece.is_empty() {
                self.left = self.left.saturating_sub(wanted);
                self.until_marker = self.until_marker.saturating_sub(wanted);
                return Some(piece);
            }
        }
        None
    }
}
