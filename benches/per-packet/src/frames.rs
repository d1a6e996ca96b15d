//! Frame buffers as cheap as a driver's: a handle is a pointer, and the pool reuses the buffer freed last.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use tcp_stack::{Buf, BufClass, BufPool, HEADROOM};

/// Bytes of a buffer after its headroom: the default of DPDK.
pub(super) const ROOM: usize = 2048;

thread_local! {
    /// Free buffers; the one freed last is at the end.
    static FREE: RefCell<Vec<Rc<Memory>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer: offsets of its used bytes, on the cache line of the reference counts, then the bytes.
#[repr(C)]
struct Memory {
    start: u16,
    end: u16,
    bytes: [u8; HEADROOM + ROOM],
}

/// A handle on a frame.
pub(super) struct Frame {
    memory: Rc<Memory>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.bytes().len())
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        if Rc::strong_count(&self.memory) == 1 {
            FREE.with_borrow_mut(|free| free.push(Rc::clone(&self.memory)));
        }
    }
}

impl Frame {
    /// Returns the buffer for writing; `None` while it is shared.
    #[inline]
    fn unique(&mut self) -> Option<&mut Memory> {
        Rc::get_mut(&mut self.memory)
    }

    /// Loads the beginning of the frame into the cache, as a port's driver does.
    #[inline]
    pub(super) fn touch(&self) -> u8 {
        self.bytes().first().copied().unwrap_or(0)
    }
}

impl Buf for Frame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        let memory = &self.memory;
        memory.bytes.get(memory.start.into()..memory.end.into()).unwrap_or(&[])
    }

    #[inline]
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let Memory { bytes, start, end } = self.unique()?;
        bytes.get_mut((*start).into()..(*end).into())
    }

    #[inline]
    fn prepend(&mut self, len: usize) -> Option<&mut [u8]> {
        let Memory { bytes, start, .. } = self.unique()?;
        let front = start.checked_sub(u16::try_from(len).ok()?)?;
        *start = front;
        bytes.get_mut(front.into()..)?.get_mut(..len)
    }

    #[inline]
    fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        let Memory { bytes, end, .. } = self.unique()?;
        let before = usize::from(*end);
        let room = bytes.get_mut(before..before.checked_add(len)?)?;
        *end = end.checked_add(u16::try_from(len).ok()?)?;
        Some(room)
    }

    #[inline]
    fn trim_front(&mut self, len: usize) -> bool {
        let Some(Memory { start, end, .. }) = self.unique() else { return false };
        match u16::try_from(len).ok().and_then(|len| start.checked_add(len)).filter(|front| *front <= *end) {
            Some(front) => *start = front,
            None => return false,
        }
        true
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> bool {
        let Some(Memory { start, end, .. }) = self.unique() else { return false };
        match u16::try_from(len).ok().and_then(|len| start.checked_add(len)).filter(|back| *back <= *end) {
            Some(back) => *end = back,
            None => return false,
        }
        true
    }

    #[inline]
    fn share(&self) -> Self {
        Self { memory: Rc::clone(&self.memory) }
    }

    #[inline]
    fn is_shared(&self) -> bool {
        Rc::strong_count(&self.memory) > 1
    }

    #[inline]
    fn tailroom(&self) -> usize {
        self.memory.bytes.len().saturating_sub(self.memory.end.into())
    }

    #[inline]
    fn true_size(&self) -> usize {
        HEADROOM + ROOM
    }
}

/// Allocates frames from the free buffers of this thread, or from the heap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pool;

impl BufPool for Pool {
    type Buf = Frame;

    #[inline]
    fn alloc(&mut self, _class: BufClass) -> Option<Frame> {
        let mut memory = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(fresh);
        let at = u16::try_from(HEADROOM).ok()?;
        let Memory { start, end, .. } = Rc::get_mut(&mut memory)?;
        (*start, *end) = (at, at);
        Some(Frame { memory })
    }

    fn data_room(&self) -> usize {
        ROOM
    }
}

#[cold]
fn fresh() -> Rc<Memory> {
    Rc::new(Memory { start: 0, end: 0, bytes: [0; HEADROOM + ROOM] })
}
