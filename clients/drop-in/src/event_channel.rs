//! Event channels of librdmacm.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::cm::{CONNECT_REQUEST, CmEvent, Entry, Id, IdState, event};
use crate::context::lock;
use crate::queue::Queue;
use crate::raw::object;

/// Longest time for which a request of a peer waits in its channel for the program's answer to the one before. Threads
/// of `rping -s -P` hand over one request at a time, in a variable: the next one would overwrite it.
const ANSWER_WAIT: Duration = Duration::from_millis(200);
/// The same once the program has let one wait as long: it fetches requests before it answers earlier ones.
const ANSWER_WAIT_SHORT: Duration = Duration::from_millis(1);

/// Most destroyed channels whose memory stays.
const DESTROYED_MAX: usize = 64;
/// Time between two looks if the process ends, and their number.
const LATE_PAUSE: Duration = Duration::from_millis(1);
const LATE_PAUSES: u32 = 100;

/// Event channel (`struct rdma_event_channel`).
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
    queue: Mutex<Arc<Queue<Entry>>>,
    requested: Mutex<Requested>,
    /// True once the program has destroyed the channel.
    is_destroyed: AtomicBool,
}

/// Request that was delivered last.
#[derive(Debug, Default)]
struct Requested {
    /// Its id, if a thread has waited for it.
    id: Option<Arc<IdState>>,
    /// True if the program has let a request wait for the answer to the one before.
    is_slow: bool,
}

impl EventChannel {
    pub(crate) fn new() -> io::Result<Self> {
        let queue = Queue::new()?;
        Ok(Self {
            fd: queue.fd(),
            queue: Mutex::new(Arc::new(queue)),
            requested: Mutex::default(),
            is_destroyed: AtomicBool::new(false),
        })
    }

    /// Returns the queue of the channel's events.
    pub(crate) fn queue(&self) -> Arc<Queue<Entry>> {
        Arc::clone(&lock(&self.queue))
    }

    /// Takes an entry for [`event`], and counts it before [`cm::destroy`](crate::cm::destroy) can miss it.
    pub(crate) fn take(&self) -> io::Result<Entry> {
        if self.is_destroyed.load(Ordering::Acquire) {
            return Err(late());
        }
        // Without the lock of the id, under which others queue its events.
        self.queue().take_noting(|entry| {
            entry.state.unacknowledged.fetch_add(1, Ordering::AcqRel);
        })
    }

    /// Takes the next event. A thread that waits gets a request once the one before is answered, or
    /// [`ANSWER_WAIT`] is over.
    pub(crate) fn next(&self) -> io::Result<Box<CmEvent>> {
        let entry = self.take()?;
        if entry.kind != CONNECT_REQUEST || !self.queue().waits() {
            return Ok(event(entry, self));
        }
        let mut requested = lock(&self.requested);
        if let Some(id) = requested.id.take() {
            let longest = if requested.is_slow { ANSWER_WAIT_SHORT } else { ANSWER_WAIT };
            requested.is_slow |= !id.wait_answered(longest);
        }
        let event = event(entry, self);
        requested.id = object(event.head.id).map(|id: &Id| Arc::clone(&id.state));
        Ok(event)
    }

    /// Closes the channel of a program that destroys it. Its memory stays for a while: programs end while a thread of
    /// theirs is about to wait for the next event of a channel that is gone, which is not to end them otherwise.
    pub(crate) fn destroy(channel: Box<Self>) {
        channel.is_destroyed.store(true, Ordering::Release);
        let Ok(ended) = ENDED.get_or_init(|| Queue::new().map(Arc::new)) else { return };
        *lock(&channel.queue) = Arc::clone(ended);
        let mut destroyed = lock(&DESTROYED);
        if destroyed.len() >= DESTROYED_MAX {
            destroyed.pop_front();
        }
        destroyed.push_back(channel);
    }
}

/// Queue that takes the place of that of a destroyed channel, whose descriptor is closed.
static ENDED: OnceLock<io::Result<Arc<Queue<Entry>>>> = OnceLock::new();
/// Channels that were destroyed last.
static DESTROYED: Mutex<VecDeque<Box<EventChannel>>> = Mutex::new(VecDeque::new());

/// Returns the error of a call that comes after its channel was destroyed. In a process that ends it sleeps on: in the
/// kernel it would not have come so far.
#[allow(clippy::disallowed_methods, reason = "gives another thread the time to end the process")]
fn late() -> io::Error {
    for _ in 0..LATE_PAUSES {
        while iwarp_verbs::is_exiting() {
            std::thread::park();
        }
        std::thread::sleep(LATE_PAUSE);
    }
    io::Error::from_raw_os_error(libc::EBADF)
}
