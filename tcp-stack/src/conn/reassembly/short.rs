//! Copies short segments out of their packet buffers, so that these are not pinned for a few bytes each. `reassembly`
//! calls it for each segment that it holds.
//!
//! A short segment that continues a run is appended to the run's last segment. One between two gaps is put into the
//! connection's *slab*: the packet buffer of the first such segment, in which the payloads of the later ones follow.
//! The slab is a node of the pool, in no run. Each payload in it keeps a node of its own, and gets a handle of its own
//! on the slab's buffer when it is delivered. A full slab is replaced by the buffer of the next segment; the last
//! payload that leaves a slab frees it. Each payload counts as one retained buffer, so that segments of one byte are
//! limited as long ones are.

use core::ops::Range;

use super::node::{insert, insert_node};
use super::{HoldLimits, Payload, Reassembly, RxNode};
use crate::buf::Buf;
use crate::pool::{NIL, Pool};
use crate::seq::SeqNum;

/// A payload is short if it fills at most this fraction (1/n) of its buffer.
const SMALL_PART: usize = 8;

/// True if a payload is short.
pub(super) fn is_short<B: Buf>(payload: &Payload<B>) -> bool {
    len_of(payload).saturating_mul(SMALL_PART) <= payload.buf.true_size()
}

/// Returns the node of the buffer that the payload of the node `index` lies in, and that buffer.
fn buffer_of<B>(pool: &Pool<RxNode<B>>, index: u32) -> Option<(u32, &B)> {
    let node = pool.get(index)?;
    let at = if node.slab == NIL { index } else { node.slab };
    Some((at, pool.get(at)?.buf.as_ref()?))
}

/// Returns the payload of the node `index`, unless the application has taken it.
pub(super) fn bytes_of<B: Buf>(pool: &Pool<RxNode<B>>, index: u32) -> Option<&[u8]> {
    let (node, (_, buf)) = (pool.get(index)?, buffer_of(pool, index)?);
    buf.bytes().get(usize::from(node.at)..usize::from(node.at).saturating_add(node.len.into()))
}

/// True if a short payload continues the run `index` and fits behind the run's last segment in its buffer.
pub(super) fn can_merge<B: Buf>(
    pool: &Pool<RxNode<B>>,
    index: u32,
    payload: &Payload<B>,
    limits: &HoldLimits,
) -> bool {
    let Some(run) = pool.get(index).filter(|run| run.run_end == payload.seq) else { return false };
    let Some(tail) = pool.get(run.run_tail) else { return false };
    let Some((_, buf)) = buffer_of(pool, run.run_tail).filter(|(_, buf)| !buf.is_shared()) else {
        return false;
    };
    let sum = usize::from(tail.len).saturating_add(len_of(payload));
    // Bytes behind the payload in a buffer of its own, such as padding, are overwritten.
    let is_last =
        tail.slab == NIL || usize::from(tail.at).saturating_add(tail.len.into()) == buf.bytes().len();
    let room = buf.tailroom().saturating_add(buf.bytes().len());
    is_last && sum <= usize::from(limits.merged) && usize::from(tail.at).saturating_add(sum) <= room
}

/// Appends a copy of the payload to the last segment of the run `index`; returns that segment's node.
pub(super) fn merge<B: Buf>(pool: &mut Pool<RxNode<B>>, index: u32, payload: &Payload<B>) -> Option<u32> {
    let (end, at) = (payload.end(), pool.get(index)?.run_tail);
    let bytes = text_of(payload)?;
    let (buffer, _) = buffer_of(pool, at)?;
    let tail = pool.get(at)?;
    let used = usize::from(tail.at).saturating_add(tail.len.into());
    let buf = pool.get_mut(buffer)?.buf.as_mut()?;
    if !buf.truncate(used) {
        return None;
    }
    buf.append(bytes.len())?.copy_from_slice(bytes);
    let tail = pool.get_mut(at)?;
    tail.len = tail.len.saturating_add(u16::try_from(bytes.len()).unwrap_or(u16::MAX));
    pool.get_mut(index)?.run_end = end;
    Some(at)
}

fn len_of<B>(payload: &Payload<B>) -> usize {
    usize::try_from(payload.len()).unwrap_or(usize::MAX)
}

fn text_of<B: Buf>(payload: &Payload<B>) -> Option<&[u8]> {
    payload.buf.bytes().get(usize::from(payload.range.start)..usize::from(payload.range.end))
}

impl Reassembly {
    /// Returns the node of the slab that short segments are copied into; [`NIL`] if there is none.
    fn slab<B>(&self, pool: &Pool<RxNode<B>>) -> u32 {
        pool.get(self.first_run).map_or(NIL, |first| first.run_slab)
    }

    pub(super) fn set_slab<B>(&self, pool: &mut Pool<RxNode<B>>, slab: u32) {
        if let Some(first) = pool.get_mut(self.first_run) {
            first.run_slab = slab;
        }
    }

    /// Makes `index` the first run. It keeps the slab.
    pub(super) fn set_first_run<B>(&mut self, pool: &mut Pool<RxNode<B>>, index: u32) {
        let slab = self.slab(pool);
        self.first_run = index;
        self.set_slab(pool, slab);
    }

    /// True if a short payload fits into the slab.
    pub(super) fn slab_has_room<B: Buf>(&self, pool: &Pool<RxNode<B>>, payload: &Payload<B>) -> bool {
        let buf = pool.get(self.slab(pool)).and_then(|slab| slab.buf.as_ref());
        buf.is_some_and(|buf| !buf.is_shared() && len_of(payload) <= buf.tailroom())
    }

    /// Stores an out-of-order segment in a node of its own, and counts it. A short one goes into the slab; if that has
    /// no room, the segment's buffer becomes the slab. Returns the node and the slab, which must be
    /// [set](Self::set_slab) once the node is in a run; `None`, dropping the segment, if the pool is full.
    pub(super) fn store<B: Buf>(
        &mut self,
        pool: &mut Pool<RxNode<B>>,
        mut payload: Payload<B>,
    ) -> Option<(u32, u32)> {
        let (short, mut slab) = (is_short(&payload), self.slab(pool));
        let index = if short && self.slab_has_room(pool, &payload) {
            let bytes = text_of(&payload)?;
            let buf = pool.get_mut(slab)?.buf.as_mut()?;
            let start = u16::try_from(buf.bytes().len()).ok()?;
            buf.append(bytes.len())?.copy_from_slice(bytes);
            let end = start.saturating_add(payload.range.end.saturating_sub(payload.range.start));
            insert_packed(pool, payload.seq, start..end, slab)?
        } else if short
            && pool.available() >= 2
            && payload.buf.truncate(payload.range.end.into())
            && len_of(&payload) <= payload.buf.tailroom()
        {
            let Payload { seq, range, buf } = payload;
            self.held_bytes = self.held_bytes.saturating_add(size_of(&buf));
            slab = insert(pool, Payload { seq, range: 0..0, buf })?;
            insert_packed(pool, seq, range, slab)?
        } else {
            self.held_bytes = self.held_bytes.saturating_add(size_of(&payload.buf));
            insert(pool, payload)?
        };
        self.held_segments = self.held_segments.saturating_add(1);
        self.held_payloads = self.held_payloads.saturating_add(1);
        Some((index, slab))
    }

    /// Takes a handle on the buffer of the segment `index`, which is counted no longer. Returns `None` if the
    /// application has taken the payload.
    pub(super) fn take_buffer<B: Buf>(&mut self, pool: &mut Pool<RxNode<B>>, index: u32) -> Option<B> {
        let node = pool.get_mut(index)?;
        let at = core::mem::replace(&mut node.slab, NIL);
        let own = node.buf.take();
        if own.is_some() || at != NIL {
            self.held_payloads = self.held_payloads.saturating_sub(1);
        }
        let buf = match pool.get_mut(at) {
            Some(slab) => {
                slab.len = slab.len.saturating_sub(1);
                if slab.len > 0 {
                    return slab.buf.as_ref().map(Buf::share);
                }
                if self.slab(pool) == at {
                    self.set_slab(pool, NIL);
                }
                pool.remove(at)?.buf?
            }
            None => own?,
        };
        self.held_bytes = self.held_bytes.saturating_sub(size_of(&buf));
        Some(buf)
    }
}

/// Returns the node of a payload in a slab.
fn insert_packed<B>(pool: &mut Pool<RxNode<B>>, seq: SeqNum, range: Range<u16>, at: u32) -> Option<u32> {
    let index = insert_node(pool, seq, range, None, at)?;
    let slab = pool.get_mut(at)?;
    slab.len = slab.len.saturating_add(1);
    Some(index)
}

/// Returns the true size of a buffer, bytes.
pub(super) fn size_of<B: Buf>(buf: &B) -> u32 {
    u32::try_from(buf.true_size()).unwrap_or(u32::MAX)
}
