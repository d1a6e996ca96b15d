//! Connections that wait for deferred copies ([`Reach`](crate::Reach)). The adapter calls [`Device::resume_next`] while
//! [`Device::deferred`] connections wait, and keeps what arrives for one that is [stalled](Device::is_stalled).

use core::time::Duration;
use std::collections::VecDeque;

use super::{CmId, Device};
use crate::endpoint::{Env, LoopedSegment};
use crate::memory::Memory;

/// Segments of a looped connection that wait because their receiver is stalled, as bytes: their sender may have
/// completed them, so that its memory may change.
pub(super) type HeldSegments = VecDeque<Box<[u8]>>;

impl<C: AsRef<[u8]>> Device<C> {
    /// Returns the number of connections that wait for copies.
    #[inline]
    pub fn deferred(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if a connection takes no more bytes before [`Self::resume_next`] has resumed it.
    pub fn is_stalled(&self, id: CmId) -> bool {
        let endpoint = self.ids.get(id.0).and_then(|entry| entry.endpoint.as_ref());
        endpoint.is_some_and(|endpoint| endpoint.is_stalled()) || self.holds_segments(id)
    }

    /// Returns true if a connection may be [stalled](Self::is_stalled).
    #[inline]
    pub fn has_stalled(&self) -> bool {
        !self.waiting.is_empty() || !self.without_buffer.is_empty()
    }

    /// Lets a connection go on whose next message waits for a receive buffer. Returns false if none does.
    #[inline]
    pub(super) fn give_buffer(&mut self, id: CmId) -> bool {
        if self.without_buffer.is_empty() || !self.without_buffer.remove(&id) {
            return false;
        }
        if let Some(endpoint) = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut()) {
            endpoint.queue_pair().wake();
        }
        self.note_deferred(id);
        true
    }

    /// Lists a connection for [`Self::resume_next`].
    #[cold]
    pub(super) fn note_deferred(&mut self, id: CmId) {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut());
        if endpoint.is_some_and(|endpoint| !core::mem::replace(endpoint.is_listed(), true)) {
            self.waiting.push_back(id);
        }
    }

    /// Checks the connection that was checked longest ago. Returns it if it goes on: what the adapter has kept for it
    /// is due, and its output. `None`: it waits on, or has ended.
    pub fn resume_next<M: Memory>(&mut self, now: Duration, env: &mut Env<'_, M>) -> Option<CmId> {
        let id = self.waiting.pop_front()?;
        let Some(endpoint) = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut()) else {
            self.held.retain(|(of, _)| *of != id);
            return None;
        };
        *endpoint.is_listed() = false;
        if !endpoint.resume_waits(env) {
            self.note_deferred(id);
            return None;
        }
        let mut held = self.take_segments(id);
        self.deliver(id, |endpoint| {
            endpoint.resumed(now, env);
            while let Some(ulpdu) = held.pop_front() {
                if !endpoint.receive_looped(now, LoopedSegment::Ulpdu(&ulpdu), env) {
                    held.push_front(ulpdu);
                    break;
                }
            }
            endpoint.chunks()
        });
        self.hold_segments(id, held);
        Some(id)
    }

    /// Takes bytes as [`Endpoint::receive_copied`](crate::Endpoint::receive_copied). Returns the number taken.
    pub fn receive_copied<M: Memory>(
        &mut self,
        id: CmId,
        now: Duration,
        offset: u64,
        bytes: &[u8],
        env: &mut Env<'_, M>,
    ) -> usize {
        let mut taken = bytes.len();
        self.deliver(id, |endpoint| {
            taken = endpoint.receive_copied(now, offset, bytes, env);
            endpoint.chunks()
        });
        taken
    }

    fn holds_segments(&self, id: CmId) -> bool {
        self.held.iter().any(|(of, _)| *of == id)
    }

    fn take_segments(&mut self, id: CmId) -> HeldSegments {
        let at = self.held.iter().position(|(of, _)| *of == id);
        at.map(|at| self.held.swap_remove(at).1).unwrap_or_default()
    }

    /// Keeps segments for a receiver that is stalled.
    pub(super) fn hold_segments(&mut self, id: CmId, segments: HeldSegments) {
        if !segments.is_empty() && self.ids.get(id.0).is_some_and(|entry| entry.endpoint.is_some()) {
            self.held.push((id, segments));
        }
    }
}
