//! Completion queue of a stream, with a channel of its own.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use iwarp_verbs::CompletionQueue;

use crate::context::OpenContext;
use crate::objects::{
    Channel, Cq, CqState, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::queue::Queue;
use crate::raw::object;

/// A completion queue and the channel of its events.
#[derive(Debug)]
pub(super) struct Completions {
    queue: CompletionQueue,
    events: Arc<Queue<Arc<CqState>>>,
    // Objects of `Box::into_raw`, until the end.
    cq: AtomicPtr<Cq>,
    channel: AtomicPtr<Channel>,
}

impl Completions {
    pub(super) fn new(open: &OpenContext, entries: u32) -> Result<Self, c_int> {
        let last_error = || errno::errno().0;
        let entries = c_int::try_from(entries).map_err(|_| libc::EINVAL)?;
        let channel = ibv_create_comp_channel(Some(open)).ok_or_else(last_error)?;
        let events = Arc::clone(&channel.queue);
        let channel = Box::into_raw(channel);
        let cq = ibv_create_cq(Some(open), entries, ptr::null_mut(), object(channel), 0);
        let Some(cq) = cq else {
            let error = last_error();
            ibv_destroy_comp_channel(channel);
            return Err(error);
        };
        let queue = cq.cq.clone();
        Ok(Self { queue, events, cq: AtomicPtr::new(Box::into_raw(cq)), channel: AtomicPtr::new(channel) })
    }

    pub(super) fn cq(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Returns the events of the queue, with the descriptor that is readable while there are some.
    pub(super) fn events(&self) -> &Arc<Queue<Arc<CqState>>> {
        &self.events
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        ibv_destroy_cq(*self.cq.get_mut());
        ibv_destroy_comp_channel(*self.channel.get_mut());
    }
}
