//! Hugepages whose pieces are small buffers. Each buffer is a memory region of its own, with its own keys and bounds.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::context::lock;
use crate::mapping::Mapping;

/// Alignment of a piece, bytes: that of a page, as of other memory of the daemon.
const ALIGNMENT: usize = 4096;

/// Hugepages of one context.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Mutex<Vec<Block>>);

#[derive(Debug)]
struct Block {
    /// Number of its memory.
    memory: u32,
    whole: Arc<Mapping>,
    /// Pieces in use, ascending.
    used: Vec<Range<usize>>,
    /// End of the bytes that were ever in use. Those after it are zero.
    touched: usize,
}

/// Piece of a hugepage, until it is given back. One that is not stays in use as long as the context.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Number of the memory that it is a part of.
    pub(crate) memory: u32,
    /// Offset in the memory, bytes.
    pub(crate) offset: usize,
}

impl Blocks {
    /// Takes a piece of `bytes` bytes, zeroed, and returns it with its memory; `None` if no hugepage has room.
    pub(crate) fn cut(&self, bytes: u64) -> Option<(Piece, Mapping)> {
        lock(&self.0).iter_mut().find_map(|block| block.cut(bytes))
    }

    /// Adds a hugepage and takes the first piece of it; `None` if the hugepage is too small.
    pub(crate) fn add(&self, memory: u32, whole: Mapping, bytes: u64) -> Option<(Piece, Mapping)> {
        let mut block = Block { memory, whole: Arc::new(whole), used: Vec::new(), touched: 0 };
        let cut = block.cut(bytes)?;
        lock(&self.0).push(block);
        Some(cut)
    }

    /// Gives back a piece. Returns the number of the memory if it was the last: the hugepage has been removed then.
    pub(crate) fn give_back(&self, piece: &Piece) -> Option<u32> {
        let mut blocks = lock(&self.0);
        let at = blocks.iter().position(|block| block.memory == piece.memory)?;
        let block = blocks.get_mut(at)?;
        block.used.retain(|used| used.start != piece.offset);
        if !block.used.is_empty() {
            return None;
        }
        Some(blocks.swap_remove(at).memory)
    }
}

impl Block {
    fn cut(&mut self, bytes: u64) -> Option<(Piece, Mapping)> {
        let bytes = usize::try_from(bytes).ok()?;
        let length = bytes.checked_next_multiple_of(ALIGNMENT)?;
        let (mut offset, mut at) = (0_usize, 0);
        for used in &self.used {
            if used.start.saturating_sub(offset) >= length {
                break;
            }
            (offset, at) = (used.end, at + 1);
        }
        let end = offset.checked_add(length).filter(|end| *end as u64 <= self.whole.len())?;
        let mapping = Mapping::part(&self.whole, offset, bytes)?;
        if offset < self.touched {
            mapping.clear();
        }
        self.touched = self.touched.max(end);
        self.used.insert(at, offset..end);
        Some((Piece { memory: self.memory, offset }, mapping))
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "sizes are small, and numbers are patterns")]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    const HUGEPAGE: u64 = 2 << 20;
    const BUFFER: u64 = 8192;

    fn whole() -> Mapping {
        let fd = memfd_create("block", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, HUGEPAGE).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        Mapping::of_daemon(&fd, HUGEPAGE, 4096).unwrap()
    }

    /// Takes pieces of one hugepage until it has no more.
    fn fill(blocks: &Blocks) -> Vec<(Piece, Mapping)> {
        let mut pieces = vec![blocks.add(7, whole(), BUFFER).unwrap()];
        pieces.extend(std::iter::from_fn(|| blocks.cut(BUFFER)));
        pieces
    }

    #[test]
    fn buffers_share_a_hugepage_and_do_not_overlap() {
        let blocks = Blocks::default();
        assert!(blocks.cut(BUFFER).is_none(), "there is no hugepage yet");
        let pieces = fill(&blocks);
        assert_eq!(pieces.len() as u64, HUGEPAGE / BUFFER);
        for (at, (_, mapping)) in pieces.iter().enumerate() {
            assert_eq!((mapping.len(), mapping.address().addr().get() % 4096), (BUFFER, 0));
            mapping.write(0, &vec![at as u8; BUFFER as usize]).unwrap();
        }
        let mut bytes = vec![0; BUFFER as usize];
        for (at, (_, mapping)) in pieces.iter().enumerate() {
            mapping.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == at as u8), "{at}");
            assert!(mapping.read(1, &mut bytes).is_err() && mapping.write(BUFFER, &[1]).is_err());
        }
    }

    #[test]
    fn freed_space_is_used_again_and_is_zero() {
        let blocks = Blocks::default();
        let mut pieces = fill(&blocks);
        pieces.iter().for_each(|(_, mapping)| mapping.write(0, &[0xAA; BUFFER as usize]).unwrap());
        // Room for two buffers of another size, in the middle.
        for (piece, _) in pieces.drain(10..13) {
            assert_eq!(blocks.give_back(&piece), None);
        }
        let taken = [blocks.cut(BUFFER + 1).unwrap(), blocks.cut(4096).unwrap(), blocks.cut(1).unwrap()];
        let offsets = taken.each_ref().map(|(piece, _)| piece.offset as u64);
        assert_eq!(offsets, [10 * BUFFER, 10 * BUFFER + 12_288, 10 * BUFFER + 16_384]);
        assert_eq!(taken.each_ref().map(|(_, mapping)| mapping.len()), [BUFFER + 1, 4096, 1]);
        for (_, mapping) in &taken {
            let mut bytes = vec![1; mapping.len() as usize];
            mapping.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        // The neighbors are as they were.
        for (_, mapping) in &pieces {
            let mut bytes = [0; BUFFER as usize];
            mapping.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0xAA; BUFFER as usize]);
        }
        pieces.extend(taken);
        let last = pieces.pop().unwrap();
        pieces.iter().for_each(|(piece, _)| assert_eq!(blocks.give_back(piece), None));
        assert_eq!(blocks.give_back(&last.0), Some(7), "the hugepage is free");
        assert!(blocks.cut(1).is_none());
        // A mapping in use stays valid.
        last.1.write(0, &[1]).unwrap();
    }

    #[test]
    fn a_hugepage_that_is_too_small_is_refused() {
        let blocks = Blocks::default();
        assert!(blocks.add(1, whole(), HUGEPAGE + 1).is_none());
        assert!(blocks.add(1, whole(), u64::MAX).is_none() && blocks.add(1, whole(), 0).is_none());
        assert!(blocks.cut(1).is_none(), "nothing was added");
    }
}
