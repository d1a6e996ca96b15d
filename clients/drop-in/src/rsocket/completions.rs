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
use crate::sleepers::Sleepers;

/// A completion queue and the channel of its events.
#[derive(Debug)]
pub(super) struct Completions {
    queue: CompletionQueue,
    events: Arc<Queue<Arc<CqState>>>,
    /// True while the queue is armed, or its event waits.
    armed: bool,
    // Objects of `Box::into_raw`, until the end.
    cq: AtomicPtr<Cq>,
    channel: AtomicPtr<Channel>,
}

impl Completions {
    /// Creates a queue whose events wake `sleepers`.
    pub(super) fn new(open: &OpenContext, entries: u32, sleepers: &Arc<Sleepers>) -> Result<Self, c_int> {
        let last_error = || errno::errno().0;
        let entries = c_int::try_from(entries).map_err(|_| libc::EINVAL)?;
        let channel = ibv_create_comp_channel(Some(open)).ok_or_else(last_error)?;
        let events = Arc::clone(&channel.queue);
        events.wake_instead(sleepers);
        let channel = Box::into_raw(channel);
        let cq = ibv_create_cq(Some(open), entries, ptr::null_mut(), object(channel), 0);
        let Some(cq) = cq else {
            let error = last_error();
            ibv_destroy_comp_channel(channel);
            return Err(error);
        };
        let queue = cq.cq.clone();
        let (cq, channel) = (AtomicPtr::new(Box::into_raw(cq)), AtomicPtr::new(channel));
        Ok(Self { queue, events, armed: false, cq, channel })
    }

    pub(super) fn cq(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Takes the event of the queue, if it has come.
    pub(super) fn take_event(&mut self) {
        while self.events.pop().is_some() {
            self.armed = false;
        }
    }

    /// Arms the queue. Returns false if it was not armed: the caller polls once more before it sleeps.
    pub(super) fn arm(&mut self) -> bool {
        let was_armed = std::mem::replace(&mut self.armed, true);
        if !was_armed {
            self.queue.req_notify(false);
        }
        was_armed
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        ibv_destroy_cq(*self.cq.get_mut());
        ibv_destroy_comp_channel(*self.channel.get_mut());
    }
}
