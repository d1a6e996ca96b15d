//! Receive buffers and their pool. `kernel.rs` reads the socket into them.

use std::cell::RefCell;
use std::rc::Rc;

/// The capacity of one buffer in bytes.
const CAPACITY: usize = 256 << 10;
/// Free buffers that the pool keeps.
const KEPT: usize = 8;

/// A pool of free buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool(Rc<RefCell<Vec<Vec<u8>>>>);

impl Pool {
    /// Takes an empty buffer from the pool, or allocates one.
    pub(super) fn take(&self) -> Chunk {
        let kept = self.0.borrow_mut().pop();
        Chunk { bytes: kept.unwrap_or_else(|| Vec::with_capacity(CAPACITY)), pool: self.clone() }
    }
}

/// A receive buffer; returns to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    pool: Pool,
}

impl Chunk {
    /// Returns the bytes, to be extended up to the capacity.
    pub(super) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut kept = self.pool.0.borrow_mut();
        if kept.len() < KEPT {
            bytes.clear();
            kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty() {
        let pool = Pool::default();
        let mut chunk = pool.take();
        chunk.bytes_mut().extend_from_slice(b"abc");
        let at = chunk.as_ref().as_ptr();
        drop(chunk);
        let chunk = pool.take();
        assert_eq!((chunk.as_ref().as_ptr(), chunk.as_ref().len()), (at, 0));
        drop((0..20).map(|_| pool.take()).collect::<Vec<_>>());
        assert_eq!(pool.0.borrow().len(), KEPT);
    }
}
