//! Payload of a received DDP Segment, which the receive path copies to its checked destination: bytes of an FPDU, or
//! bytes that the other end of a looped connection has in the same memory.

use crate::memory::{Fetch, Memory, Placement};
use crate::mpa::Fpdu;
use crate::qp::Tokens;

/// Source of the copy that places a segment.
pub(super) trait Payload: Sized {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Copies the payload to a place of the same length. Returns false if memory has gone.
    fn place<M: Memory>(self, at: Placement, memory: &mut M) -> bool;

    /// Copies the payload to the places of a list, in order. Returns false if memory has gone.
    fn scatter<M: Memory>(self, places: Tokens<Placement>, memory: &mut M) -> bool;
}

/// Bytes of an FPDU behind the DDP header.
pub(super) struct FpduPayload<'p, 'a, C> {
    pub(super) fpdu: &'p Fpdu<'a, C>,
    /// Length of the DDP header, bytes.
    pub(super) skip: usize,
}

impl<C: AsRef<[u8]>> Payload for FpduPayload<'_, '_, C> {
    #[inline]
    fn len(&self) -> usize {
        self.fpdu.len().saturating_sub(self.skip)
    }

    #[inline]
    fn place<M: Memory>(self, mut at: Placement, memory: &mut M) -> bool {
        if let Some(bytes) = self.fpdu.contiguous().and_then(|ulpdu| ulpdu.get(self.skip..)) {
            return memory.place(at, bytes);
        }
        for piece in self.fpdu.pieces(self.skip) {
            let (here, behind) = at.split_at(piece.len());
            if !memory.place(here, piece) {
                return false;
            }
            at = behind;
        }
        true
    }

    fn scatter<M: Memory>(self, places: Tokens<Placement>, memory: &mut M) -> bool {
        let mut places = places.into_iter();
        let mut at = places.next();
        for mut piece in self.fpdu.pieces(self.skip) {
            while let Some(place) = at.take().filter(|_| !piece.is_empty()) {
                let (here, behind) = place.split_at(piece.len());
                let Some((bytes, rest)) = piece.split_at_checked(here.len()) else { return true };
                if !memory.place(here, bytes) {
                    return false;
                }
                at = if behind.len() > 0 { Some(behind) } else { places.next() };
                piece = rest;
                if piece.is_empty() {
                    break;
                }
            }
        }
        true
    }
}

impl Payload for Fetch {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn place<M: Memory>(self, at: Placement, memory: &mut M) -> bool {
        memory.copy(self, at)
    }

    fn scatter<M: Memory>(mut self, places: Tokens<Placement>, memory: &mut M) -> bool {
        for place in places {
            let (here, behind) = self.split_at(place.len());
            let (place, _) = place.split_at(here.len());
            if !memory.copy(here, place) {
                return false;
            }
            self = behind;
        }
        true
    }
}
