//! Memory of received bytes, and of segments to send.

use std::sync::Arc;

use tcp_stack::{Buf, BufClass, BufPool};

/// Bytes of a buffer of [`Chunks`].
const SEGMENT_BYTES: usize = 64 << 10;

/// Bytes of one read. A connection of which the engine has not consumed as many is not read.
pub(super) const READ_BYTES: usize = 256 << 10;
/// Read buffers beside the one that is read to next: a message that goes on in the next read keeps one.
const OTHERS_MAX: usize = 3;

/// Buffers of reads. Of those that were read to before, the engine may keep bytes.
#[derive(Debug)]
pub(super) struct ReadBuffers {
    next: Arc<[u8]>,
    others: Vec<Arc<[u8]>>,
}

fn read_buffer() -> Arc<[u8]> {
    std::iter::repeat_n(0, READ_BYTES).collect()
}

impl Default for ReadBuffers {
    fn default() -> Self {
        Self { next: read_buffer(), others: Vec::new() }
    }
}

impl ReadBuffers {
    /// Returns a buffer of which nothing is kept.
    pub(super) fn free(&mut self) -> &mut Arc<[u8]> {
        if Arc::get_mut(&mut self.next).is_none() {
            let free = self.others.iter_mut().find(|buffer| Arc::strong_count(buffer) == 1);
            if let Some(free) = free {
                std::mem::swap(&mut self.next, free);
            } else {
                let kept = std::mem::replace(&mut self.next, read_buffer());
                if self.others.len() < OTHERS_MAX {
                    self.others.push(kept);
                }
            }
        }
        &mut self.next
    }
}

/// Handle on consecutive bytes of a buffer.
#[derive(Debug)]
pub struct Chunk {
    buffer: Arc<[u8]>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// Returns a handle on the first `len` bytes of a buffer.
    pub(super) fn first(buffer: &Arc<[u8]>, len: usize) -> Self {
        Self { buffer: Arc::clone(buffer), start: 0, end: len.min(buffer.len()) }
    }
}

impl Buf for Chunk {
    fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.buffer)?.get_mut(self.start..self.end)
    }

    fn prepend(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.start.checked_sub(len)?;
        let bytes = Arc::get_mut(&mut self.buffer)?.get_mut(start..self.start)?;
        self.start = start;
        Some(bytes)
    }

    fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.end.checked_add(len)?;
        let bytes = Arc::get_mut(&mut self.buffer)?.get_mut(self.end..end)?;
        self.end = end;
        Some(bytes)
    }

    fn trim_front(&mut self, len: usize) -> bool {
        let fits = len <= self.end.saturating_sub(self.start) && !self.is_shared();
        if fits {
            self.start = self.start.saturating_add(len);
        }
        fits
    }

    fn truncate(&mut self, len: usize) -> bool {
        let fits = len <= self.end.saturating_sub(self.start) && !self.is_shared();
        if fits {
            self.end = self.start.saturating_add(len);
        }
        fits
    }

    fn share(&self) -> Self {
        Self { buffer: Arc::clone(&self.buffer), ..*self }
    }

    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.buffer) > 1
    }

    fn tailroom(&self) -> usize {
        self.buffer.len().saturating_sub(self.end)
    }

    fn true_size(&self) -> usize {
        self.buffer.len()
    }
}

/// Source of buffers to send. FPDUs need none: [`Transport::append`](super::Transport::append) takes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunks;

impl BufPool for Chunks {
    type Buf = Chunk;

    fn alloc(&mut self, _: BufClass) -> Option<Chunk> {
        Some(Chunk { buffer: vec![0; SEGMENT_BYTES].into(), start: 0, end: 0 })
    }

    fn data_room(&self) -> usize {
        SEGMENT_BYTES
    }
}
