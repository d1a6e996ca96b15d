//! Contexts: an open device has a thread that distributes its events. All contexts of a device that the process opens
//! share one connection to the daemon, and those of all interfaces share the device inside the process, so that ids
//! reach the queue pairs of any of them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use iwarp_verbs::{
    AsyncEvent, ClientError, CmId, CqId, Error, Event, QpNum, QpState, QueuePair, start_thread, uncanceled,
};

use crate::abi;
use crate::abi_ex::Extended;
use crate::addresses::device_at;
use crate::cm::{self, Entry, IdState};
use crate::device_list::{Device, is_embedded, socket};
use crate::devices::{self, PORT};
use crate::foreground;
use crate::objects::{self, CqState};
use crate::qp::Qp;
use crate::queue::Queue;
use crate::raw::{object, take_context};
use crate::users::Users;
use crate::{cq_ex, qp_ex, unplaced, work};

/// Longest sleep of the thread, after which it looks if the context is closed.
const SLEEP: Duration = Duration::from_secs(1);
/// Sleep while requests wait for a place in a backlog.
const PLACES: Duration = Duration::from_millis(10);
/// Bytes of the queues of a context. The kernel provides those that are used.
const QUEUE_BYTES: u64 = 64 << 20;

/// Locks a mutex. Each change that a thread makes under a lock is a single one, so that a panic leaves it consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error number of a failed call.
pub(crate) fn number(error: &Error) -> c_int {
    use iwarp_verbs::VerbsError::{Busy, Invalid, NoResources, NoSuchObject, NotPermitted, State};
    match error {
        Error::Refused { cause: NoResources, .. } => libc::ENOMEM,
        Error::Refused { cause: Busy, .. } => libc::EBUSY,
        Error::Refused { cause: NotPermitted, .. } => libc::EACCES,
        Error::Refused { cause: NoSuchObject | Invalid | State, .. } => libc::EINVAL,
        Error::Memory { .. } => libc::EFAULT,
        Error::Lost | Error::RegionGone(_) => libc::EIO,
        Error::System { cause, .. } | Error::Listen { cause, .. } | Error::Map(cause) => {
            cause.raw_os_error().unwrap_or(libc::EIO)
        }
        Error::File { .. } => libc::EBADF,
        Error::Daemon(error) => refusal(error),
        Error::Protocol(_) => libc::EPROTO,
    }
}

/// Returns the error number of a call of the control socket.
const fn refusal(error: &ClientError) -> c_int {
    use iwarp_verbs::ErrorKind as Kind;
    match error {
        ClientError::Unreachable { .. } => libc::ENODEV,
        ClientError::Denied { .. } => libc::EACCES,
        ClientError::RequestTooLong { .. } => libc::E2BIG,
        ClientError::Timeout { .. } => libc::ETIMEDOUT,
        ClientError::Lost { .. } => libc::EIO,
        ClientError::Malformed { .. } => libc::EPROTO,
        ClientError::Refused(refused) => match refused.data.kind {
            Kind::InvalidParams | Kind::NoSuchObject | Kind::InvalidConfig => libc::EINVAL,
            Kind::Exists => libc::EEXIST,
            Kind::InUse => libc::EBUSY,
            Kind::NotPermitted => libc::EACCES,
            Kind::NoResources | Kind::TooLarge => libc::ENOMEM,
            Kind::InvalidRequest | Kind::UnknownMethod | Kind::NeedsRestart => libc::EPROTO,
            Kind::Internal | Kind::Unknown => libc::EIO,
        },
    }
}

/// Sets `errno` and returns `None`, which C sees as a null pointer.
pub(crate) fn null<T>(number: c_int) -> Option<T> {
    errno::set_errno(errno::Errno(number));
    None
}

/// Sets `errno` to the number of an error, and returns −1.
pub(crate) fn failed_read(error: &std::io::Error) -> c_int {
    errno::set_errno(errno::Errno(error.raw_os_error().unwrap_or(libc::EIO)));
    -1
}

/// An open device, as the library allocates it: `struct verbs_context`, and what the library keeps behind it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Whole {
    extended: Extended,
    pub(crate) open: OpenContext,
}

/// An open device from `struct ibv_context` on, to which the program has a pointer.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct OpenContext {
    pub(crate) head: abi::Context,
    pub(crate) device: &'static Device,
    pub(crate) shared: Arc<Shared>,
    /// Asynchronous events of the context's objects, and of the port.
    pub(crate) asyncs: Arc<Queue<AsyncEntry>>,
    /// Protection domain that `rdma_create_qp` uses if the program names none.
    pub(crate) pd: OnceLock<usize>,
    /// Protection domains, completion channels and completion queues.
    pub(crate) users: Users,
}

/// An asynchronous event: address of the object or number of the port, and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncEntry {
    pub(crate) element: usize,
    pub(crate) kind: c_int,
}

impl AsyncEntry {
    /// Returns true for the event of a completion queue, a queue pair or a shared receive queue.
    pub(crate) const fn is_of_object(self) -> bool {
        matches!(self.kind, 0..=3 | 15 | 16)
    }
}

/// Queue pair of a number: its address in the program, and the queue pair.
#[derive(Debug)]
pub(crate) struct QpRoute {
    pub(crate) address: usize,
    pub(crate) qp: QueuePair,
}

/// Connection to the daemon, or the device inside this process: state that the contexts of a port, or of all
/// interfaces, share with a thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) context: iwarp_verbs::Context,
    /// The port; the interface that was opened first.
    device: &'static Device,
    pub(crate) cqs: Mutex<HashMap<CqId, Arc<CqState>>>,
    pub(crate) qps: Mutex<HashMap<QpNum, QpRoute>>,
    /// Addresses of shared receive queues.
    pub(crate) srqs: Mutex<HashMap<u32, usize>>,
    pub(crate) ids: Mutex<HashMap<CmId, Arc<IdState>>>,
    /// Requests that wait for a place in their listener's backlog, since when.
    pub(crate) unplaced: Mutex<Vec<(Instant, Entry)>>,
    /// Addresses of the open contexts, and their asynchronous events.
    opens: Mutex<Vec<(usize, Arc<Queue<AsyncEntry>>)>>,
    /// Asynchronous events that the program has received and not acknowledged, by the address of their object.
    received: Mutex<HashMap<usize, u32>>,
    acknowledged: Condvar,
    closing: AtomicBool,
    /// True once the daemon has ended.
    lost: AtomicBool,
    dispatching: Mutex<()>,
}

/// Connections to the daemon that this process and its parents have opened.
static CONNECTIONS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Returns the connection of a device, a new one if there is none.
fn connect(
    connections: &mut Vec<Weak<Shared>>,
    device: &'static Device,
) -> Result<(Arc<Shared>, bool), c_int> {
    let usable = |shared: &Arc<Shared>| {
        (is_embedded() || std::ptr::eq(shared.device, device))
            && shared.context.is_open()
            && !shared.closing.load(Ordering::Acquire)
    };
    connections.retain(|shared| shared.strong_count() > 0);
    if let Some(shared) = connections.iter().filter_map(Weak::upgrade).find(usable) {
        return Ok((shared, false));
    }
    let context = if is_embedded() {
        iwarp_verbs::Context::embedded_without_thread(QUEUE_BYTES)
    } else {
        iwarp_verbs::Context::open_sized(socket(), Some(&device.info().name), Some(QUEUE_BYTES))
            .or_else(|_| iwarp_verbs::Context::open(socket(), Some(&device.info().name)))
    };
    let context = context.map_err(|error| number(&error))?;
    let shared = Arc::new(Shared {
        context,
        device,
        cqs: Mutex::default(),
        qps: Mutex::default(),
        srqs: Mutex::default(),
        ids: Mutex::default(),
        unplaced: Mutex::default(),
        opens: Mutex::default(),
        received: Mutex::default(),
        acknowledged: Condvar::new(),
        closing: AtomicBool::new(false),
        lost: AtomicBool::new(false),
        dispatching: Mutex::new(()),
    });
    connections.push(Arc::downgrade(&shared));
    if is_embedded() {
        foreground::begin(&shared);
        iwarp_verbs::survive_unmapped_memory();
    }
    Ok((shared, true))
}

/// Starts the thread that distributes the events of a connection.
fn distribute(shared: Arc<Shared>) -> Result<(), c_int> {
    let run = move || {
        while !shared.closing.load(Ordering::Acquire) {
            let sleep = if unplaced::settle_requests(&shared) { PLACES } else { SLEEP };
            let ended = shared.context.help(sleep).is_err();
            shared.dispatch();
            if ended {
                break;
            }
        }
        shared.context.stop_helping();
    };
    start_thread("iwarp-events", run).map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))
}

/// Opens a device. The program gets the address of the [`OpenContext`].
pub(crate) fn open(device: &'static Device) -> Result<&'static OpenContext, c_int> {
    let asyncs = Arc::new(Queue::new().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?);
    let mut connections = lock(&CONNECTIONS);
    let (shared, is_new) = connect(&mut connections, device)?;
    if is_new {
        distribute(Arc::clone(&shared))?;
    }
    let head = abi::Context {
        device,
        ops: operations(),
        cmd_fd: -1,
        async_fd: asyncs.fd(),
        num_comp_vectors: 1,
        mutex: abi::Mutex::default(),
        // The mark of a context that begins with `struct verbs_context`.
        abi_compat: usize::MAX,
    };
    let extended = Extended {
        first: [0; 25],
        create_cq_ex: cq_ex::create_cq_ex,
        private: 0,
        query_device_ex: devices::query_device_ex,
        flows: [0; 5],
        create_qp_ex: qp_ex::create_qp_ex,
        rest: [0; 5],
        size: size_of::<Extended>() + size_of::<abi::Context>(),
    };
    let (own, users) = (Arc::clone(&asyncs), Users::default());
    let open = OpenContext { head, device, shared, asyncs: own, pd: OnceLock::new(), users };
    let whole = Box::leak(Box::new(Whole { extended, open }));
    let address = std::ptr::from_ref(&whole.open).expose_provenance();
    lock(&whole.open.shared.opens).push((address, asyncs));
    Ok(&whole.open)
}

/// Closes a context: the queue pairs that the program has left are in error. Objects that are left can still be
/// destroyed; the memory of the context stays then. With the last context of a device, its thread ends. `EBUSY` for a
/// context of librdmacm, whose ids share it.
pub(crate) fn close(context: *mut OpenContext) -> Result<(), c_int> {
    let open = object(context).ok_or(libc::EINVAL)?;
    if lock(&OPENED).iter().any(|opened| std::ptr::eq(*opened, open)) {
        return Err(libc::EBUSY);
    }
    let shared = &open.shared;
    let _connections = lock(&CONNECTIONS);
    let mut opens = lock(&shared.opens);
    let before = opens.len();
    opens.retain(|(_, of)| !Arc::ptr_eq(of, &open.asyncs));
    if opens.len() == before {
        return Err(libc::EINVAL);
    }
    if opens.is_empty() {
        shared.closing.store(true, Ordering::Release);
    }
    drop(opens);
    shared.context.wake_helper();
    let is_own = |route: &&QpRoute| {
        let qp = object(std::ptr::with_exposed_provenance::<Qp>(route.address));
        qp.is_some_and(|qp| std::ptr::eq(qp.head.context, open))
    };
    let left: Vec<_> = lock(&shared.qps).values().filter(is_own).map(|route| route.qp.clone()).collect();
    for qp in left {
        // Fails only if the daemon has ended.
        let _ = qp.modify(QpState::Error);
    }
    if open.users.is_empty() {
        drop(take_context(context));
    }
    Ok(())
}

const fn operations() -> abi::ContextOps {
    abi::ContextOps {
        compat_first: [0; 7],
        alloc_mw: objects::alloc_mw,
        bind_mw: objects::bind_mw,
        dealloc_mw: objects::dealloc_mw,
        compat_create_cq: 0,
        poll_cq: work::poll_cq,
        req_notify_cq: work::req_notify_cq,
        compat_cq: [0; 7],
        post_srq_recv: work::post_srq_recv,
        compat_qp: [0; 4],
        post_send: work::post_send,
        post_recv: work::post_recv,
        compat_last: [0; 5],
    }
}

impl Shared {
    /// Distributes all events and completions that have come.
    pub(crate) fn dispatch(self: &Arc<Self>) {
        // A thread of the parent may have had the lock when the process was forked.
        if self.context.is_inherited() {
            return;
        }
        let one = lock(&self.dispatching);
        uncanceled(|| self.dispatch_all());
        drop(one);
        self.hand_on();
    }

    /// Distributes the news of a device in this process, unless another thread does: a call of the program that runs
    /// the device need not have another thread woken for that.
    #[inline]
    pub(crate) fn hand_on(self: &Arc<Self>) {
        if self.context.has_news() {
            self.hand_on_news();
        }
    }

    /// A thread that distributes looks once more when it has ended, for those who have found it here.
    #[cold]
    fn hand_on_news(self: &Arc<Self>) {
        let unplaced = lock(&self.unplaced).len();
        while self.context.has_news()
            && let Ok(_one) = self.dispatching.try_lock()
        {
            uncanceled(|| {
                self.context.take_news();
                self.dispatch_all();
            });
        }
        // The helper looks after requests that wait for a place.
        if lock(&self.unplaced).len() > unplaced {
            self.context.wake_helper();
        }
    }

    fn dispatch_all(self: &Arc<Self>) {
        let mut next = self.context.next_event();
        while let Some(event) = next {
            match event {
                Event::Cm(event) => cm::dispatch(self, event),
                Event::Async(event) => self.dispatch_async(event),
                // `IBV_EVENT_PORT_ACTIVE`, `IBV_EVENT_PORT_ERR`
                Event::PortActive => self.report_port(9),
                Event::PortDown => self.report_port(10),
                Event::DeviceFatal => self.dispatch_fatal(),
            }
            // The engine keeps events for which the ring had no room: it runs once the ring is empty.
            next = self.context.poll_event();
        }
        while let Some(cq) = self.context.poll_completion() {
            // Under the lock of their table the objects exist: none has an event once it is destroyed.
            lock(&self.cqs).get(&cq).into_iter().for_each(CqState::notify);
        }
    }

    fn dispatch_async(&self, event: AsyncEvent) {
        // Under the lock of their table the objects exist.
        let report_qp = |number: QpNum, kind| {
            lock(&self.qps).get(&number).into_iter().for_each(|route| self.report(route.address, kind));
        };
        // Values of `enum ibv_event_type`.
        match event {
            AsyncEvent::CqError(cq) => {
                lock(&self.cqs).get(&cq).into_iter().for_each(|state| self.report(state.address(), 0));
            }
            AsyncEvent::QpFatal(number, _) | AsyncEvent::QpTerminated(number, _) => report_qp(number, 1),
            AsyncEvent::QpRequestError(number, _) => report_qp(number, 2),
            AsyncEvent::QpAccessError(number, _) => report_qp(number, 3),
            AsyncEvent::SrqLimitReached(srq) => {
                lock(&self.srqs).get(&srq.0).into_iter().for_each(|address| self.report(*address, 15));
            }
            AsyncEvent::QpLastWqeReached(number) => report_qp(number, 16),
        }
    }

    /// Reports an event of an object that is not destroyed meanwhile to its context. All objects begin with the address
    /// of their context.
    fn report(&self, address: usize, kind: c_int) {
        let object = std::ptr::with_exposed_provenance::<*const OpenContext>(address);
        let Some(context) = crate::raw::object(object).map(|context| context.addr()) else { return };
        if let Some((_, asyncs)) = lock(&self.opens).iter().find(|(open, _)| *open == context) {
            asyncs.push_once(AsyncEntry { element: address, kind });
        }
    }

    /// Reports an event of the port to all contexts.
    fn report_port(&self, kind: c_int) {
        for (_, asyncs) in lock(&self.opens).iter() {
            asyncs.push(AsyncEntry { element: PORT.into(), kind });
        }
    }

    /// Counts an event of an object as acknowledged.
    pub(crate) fn acknowledge_async(&self, address: usize) {
        let mut received = lock(&self.received);
        if let Some(count) = received.get_mut(&address) {
            *count = count.saturating_sub(1);
        }
        received.retain(|_, count| *count > 0);
        drop(received);
        self.acknowledged.notify_all();
    }

    /// The daemon has ended: `IBV_EVENT_DEVICE_FATAL`, and `RDMA_CM_EVENT_DEVICE_REMOVAL` of each id.
    fn dispatch_fatal(&self) {
        self.lost.store(true, Ordering::Release);
        self.report_port(8);
        let ids: Vec<_> = lock(&self.ids).values().cloned().collect();
        ids.iter().for_each(cm::device_removed);
        lock(&self.cqs).values().for_each(CqState::notify);
    }
}

impl OpenContext {
    /// Takes the oldest asynchronous event, and waits for it if the descriptor is blocking.
    pub(crate) fn take_async(&self) -> std::io::Result<AsyncEntry> {
        self.asyncs.take_noting(|entry| {
            if entry.is_of_object() {
                let mut received = lock(&self.shared.received);
                let count = received.entry(entry.element).or_default();
                *count = count.saturating_add(1);
            }
        })
    }

    /// Drops the events of an object that is destroyed, and waits until the program has acknowledged those that it has
    /// received (`ibv_ack_async_event`).
    pub(crate) fn end_asyncs(&self, address: usize) {
        self.asyncs.remove(|entry| entry.is_of_object() && entry.element == address);
        let received = lock(&self.shared.received);
        drop(self.shared.acknowledged.wait_while(received, |received| received.contains_key(&address)));
    }
}

/// Contexts that librdmacm has opened, one for each device, until the program ends.
static OPENED: Mutex<Vec<&'static OpenContext>> = Mutex::new(Vec::new());

/// Returns the context of a device for connections.
pub(crate) fn context_of(device: &'static Device) -> Result<&'static OpenContext, c_int> {
    let mut opened = lock(&OPENED);
    let usable = |open: &&&OpenContext| {
        // A child after fork opens its own.
        std::ptr::eq(open.device, device)
            && open.shared.context.is_open()
            && !open.shared.lost.load(Ordering::Acquire)
    };
    if let Some(open) = opened.iter().find(usable) {
        return Ok(open);
    }
    let new = open(device)?;
    opened.push(new);
    Ok(new)
}

/// Returns the context of a connection that has come in at an address of this machine.
pub(crate) fn context_at(shared: &Arc<Shared>, local: IpAddr) -> Option<&'static OpenContext> {
    let device = if is_embedded() { device_at(local) } else { Some(shared.device) };
    let found = device.and_then(|device| context_of(device).ok());
    // The address may have gone meanwhile, or there is no descriptor left: another interface has the same connection.
    found.or_else(|| lock(&OPENED).iter().find(|open| Arc::ptr_eq(&open.shared, shared)).copied())
}
