//! Packet buffers and a buffer pool on the heap, for tests that run without a driver.

use crate::buf::{Buf, BufClass, BufPool, HEADROOM};
use alloc::boxed::Box;
use alloc::rc::{Rc, Weak};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;

/// Memory of one buffer, and the pool that it returns to.
struct Memory {
    bytes: Vec<u8>,
    pool: Weak<Shared>,
}

/// A handle on a buffer, with the sharing rules of [`Buf`]. The last handle that is dropped returns the buffer to its
/// pool.
pub struct HeapBuf {
    /// `None` only inside `drop`.
    memory: Option<Rc<Memory>>,
    start: usize,
    end: usize,
    /// Next buffer of the same frame.
    next: Option<Box<Self>>,
}

impl HeapBuf {
    /// Iterates over the bytes of the frame that begins with this buffer, buffer by buffer.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::successors(Some(self), |part| part.next.as_deref()).map(Buf::bytes)
    }

    /// Returns a buffer outside of any pool that holds `bytes` after the usual headroom and has `tailroom` bytes left.
    pub fn with_room(bytes: &[u8], tailroom: usize) -> Self {
        let mut all = vec![0; HEADROOM];
        all.extend_from_slice(bytes);
        let end = all.len();
        all.resize(end.saturating_add(tailroom), 0);
        let memory = Memory { bytes: all, pool: Weak::new() };
        Self { memory: Some(Rc::new(memory)), start: HEADROOM, end, next: None }
    }

    /// Returns a buffer as [`Self::with_room`] does, without tailroom.
    pub fn new(bytes: &[u8]) -> Self {
        Self::with_room(bytes, 0)
    }

    fn all(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory.bytes)
    }

    /// Returns the memory for writing, or `None` while it is shared.
    fn unique(&mut self) -> Option<&mut Vec<u8>> {
        Some(&mut Rc::get_mut(self.memory.as_mut()?)?.bytes)
    }
}

impl fmt::Debug for HeapBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapBuf({} bytes{})", self.bytes().len(), if self.is_shared() { ", shared" } else { "" })
    }
}

impl Drop for HeapBuf {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if Rc::strong_count(&memory) == 1
            && let Some(pool) = memory.pool.upgrade()
        {
            pool.live.set(pool.live.get().saturating_sub(1));
            pool.free.borrow_mut().push(memory);
        }
    }
}

impl Buf for HeapBuf {
    fn bytes(&self) -> &[u8] {
        self.all().get(self.start..self.end).unwrap_or(&[])
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let range = self.start..self.end;
        self.unique()?.get_mut(range)
    }

    fn prepend(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.start.checked_sub(len)?;
        self.unique()?;
        let range = start..self.start;
        self.start = start;
        self.unique()?.get_mut(range)
    }

    fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.end.checked_add(len)?;
        if end > self.unique()?.len() {
            return None;
        }
        let range = self.end..end;
        self.end = end;
        self.unique()?.get_mut(range)
    }

    fn trim_front(&mut self, len: usize) -> bool {
        let may = self.unique().is_some() && len <= self.end.saturating_sub(self.start);
        if may {
            self.start = self.start.saturating_add(len);
        }
        may
    }

    fn truncate(&mut self, len: usize) -> bool {
        let may = self.unique().is_some() && len <= self.end.saturating_sub(self.start);
        if may {
            self.end = self.start.saturating_add(len);
        }
        may
    }

    fn share(&self) -> Self {
        Self { memory: self.memory.clone(), start: self.start, end: self.end, next: None }
    }

    fn is_shared(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| Rc::strong_count(memory) > 1)
    }

    fn tailroom(&self) -> usize {
        self.all().len().saturating_sub(self.end)
    }

    fn true_size(&self) -> usize {
        self.all().len()
    }

    fn link(&mut self, next: Self) -> Result<(), Self> {
        let mut end = &mut self.next;
        while let Some(part) = end {
            end = &mut part.next;
        }
        *end = Some(Box::new(next));
        Ok(())
    }
}

/// State that a pool and its buffers share.
struct Shared {
    free: RefCell<Vec<Rc<Memory>>>,
    live: Cell<usize>,
}

/// A pool of a fixed number of buffers, all allocated when it is made.
pub struct HeapPool {
    shared: Rc<Shared>,
    capacity: usize,
    reserve: usize,
    data_room: usize,
    refused: u64,
}

impl HeapPool {
    /// Returns a pool of `capacity` buffers of `data_room` bytes each; the last `reserve` are for [`BufClass::Control`]
    /// only.
    pub fn new(capacity: usize, reserve: usize, data_room: usize) -> Self {
        let shared = Rc::new(Shared { free: RefCell::new(Vec::with_capacity(capacity)), live: Cell::new(0) });
        for _ in 0..capacity {
            let bytes = vec![0; HEADROOM.saturating_add(data_room)];
            let memory = Memory { bytes, pool: Rc::downgrade(&shared) };
            shared.free.borrow_mut().push(Rc::new(memory));
        }
        Self { shared, capacity, reserve, data_room, refused: 0 }
    }

    /// Returns the number of buffers in use.
    pub fn live(&self) -> usize {
        self.shared.live.get()
    }

    /// Returns the number of buffers in use and free together, which differs from [`Self::capacity`] only if one
    /// leaked.
    pub fn total(&self) -> usize {
        self.live().saturating_add(self.shared.free.borrow().len())
    }

    /// Returns the number of buffers that the pool was made with.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of allocations that failed.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns a buffer that holds a copy of `bytes`, or `None` if the pool is exhausted or they do not fit.
    pub fn copy(&mut self, bytes: &[u8]) -> Option<HeapBuf> {
        let mut buf = self.alloc(BufClass::Control)?;
        buf.append(bytes.len())?.copy_from_slice(bytes);
        Some(buf)
    }
}

impl fmt::Debug for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapPool({} of {} in use)", self.live(), self.capacity)
    }
}

impl BufPool for HeapPool {
    type Buf = HeapBuf;

    fn alloc(&mut self, class: BufClass) -> Option<HeapBuf> {
        let kept = if class == BufClass::Data { self.reserve } else { 0 };
        let mut free = self.shared.free.borrow_mut();
        let memory = if free.len() > kept { free.pop() } else { None };
        let Some(memory) = memory else {
            self.refused = self.refused.saturating_add(1);
            return None;
        };
        self.shared.live.set(self.shared.live.get().saturating_add(1));
        Some(HeapBuf { memory: Some(memory), start: HEADROOM, end: HEADROOM, next: None })
    }

    fn data_room(&self) -> usize {
        self.data_room
    }

    fn available(&self) -> u32 {
        u32::try_from(self.capacity.saturating_sub(self.live())).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_buffer_is_read_only() {
        let mut a = HeapBuf::with_room(b"abc", 4);
        let b = a.share();
        assert!(a.is_shared() && b.is_shared());
        assert_eq!(a.bytes_mut(), None);
        assert_eq!(a.prepend(1), None);
        assert_eq!(a.append(1), None);
        assert!(!a.trim_front(1) && !a.truncate(1));
        assert_eq!((a.bytes(), b.bytes()), (&b"abc"[..], &b"abc"[..]));
        drop(b);
        assert!(a.trim_front(1));
        assert_eq!(a.bytes(), b"bc");
    }

    #[test]
    fn room_is_respected() {
        let mut buf = HeapBuf::with_room(b"abc", 4);
        assert_eq!(buf.tailroom(), 4);
        assert_eq!(buf.append(5), None);
        buf.append(4).unwrap().copy_from_slice(b"defg");
        assert_eq!((buf.bytes(), buf.tailroom()), (&b"abcdefg"[..], 0));
        assert_eq!(buf.prepend(HEADROOM + 1), None);
        assert_eq!(buf.prepend(HEADROOM).map(|bytes| bytes.len()), Some(HEADROOM));
        assert!(!buf.trim_front(HEADROOM + 8) && buf.trim_front(HEADROOM + 1));
        assert!(!buf.truncate(7) && buf.truncate(2));
        assert_eq!(buf.bytes(), b"bc");
        assert_eq!(buf.true_size(), HEADROOM + 7);
    }

    #[test]
    fn a_pool_keeps_its_reserve_and_all_buffers_return() {
        let mut pool = HeapPool::new(3, 1, 100);
        let first = pool.alloc(BufClass::Data).unwrap();
        let second = pool.alloc(BufClass::Data).unwrap();
        assert!(pool.alloc(BufClass::Data).is_none());
        let third = pool.copy(&[7; 100]).unwrap();
        assert!(pool.copy(&[]).is_none());
        assert_eq!((pool.live(), pool.total(), pool.refused()), (3, 3, 2));
        let other = third.share();
        drop(third);
        assert_eq!(pool.live(), 3);
        drop((first, second, other));
        assert_eq!((pool.live(), pool.total()), (0, 3));
        let mut again = pool.alloc(BufClass::Data).unwrap();
        assert_eq!((again.bytes().len(), again.tailroom()), (0, 100));
        assert!(again.prepend(HEADROOM).is_some());
    }
}
