//! Protection domains, memory regions and windows, completion channels and queues, shared receive queues, and
//! asynchronous events.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use iwarp_verbs::{Access, CompletionQueue, CqId, MemoryWindow, ProtectionDomain, SharedReceiveQueue};

use crate::abi::{
    self, AsyncEvent, ChannelHead, CqHead, MrHead, MwHead, PdHead, SrqAttr, SrqHead, SrqInitAttr,
};
use crate::abi_ex::{CqCalls, CqTail};
use crate::context::{AsyncEntry, OpenContext, failed_read, lock, null, number};
use crate::cq_ex::Iterator;
use crate::devices::CQE_MAX;
use crate::queue::Queue;
use crate::raw::{export, export_waiting, object, take, write};
use crate::users::{Use, Users, status, unused};

// `IBV_MW_TYPE_2`
const MW_TYPE_2: c_int = 2;
// Bits of `enum ibv_srq_attr_mask`.
const SRQ_MAX_WR: c_int = 1;
const SRQ_LIMIT: c_int = 2;
// Bits of `enum ibv_rereg_mr_flags`.
const REREG_TRANSLATION: c_int = 1;
const REREG_PD: c_int = 2;
const REREG_ACCESS: c_int = 4;
// `IBV_REREG_MR_ERR_INPUT`: the old memory region is valid.
const REREG_INPUT: c_int = -1;
/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore.
const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) head: PdHead,
    pub(crate) pd: ProtectionDomain,
    /// Memory regions and windows, queue pairs and shared receive queues.
    pub(crate) users: Users,
    context: Use,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) head: MrHead,
    pub(crate) mr: iwarp_verbs::Mr,
    /// Rights, bits of `enum ibv_access_flags`.
    access: u32,
    pd: Use,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mw {
    pub(crate) head: MwHead,
    pub(crate) mw: MemoryWindow,
    pd: Use,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) head: ChannelHead,
    pub(crate) queue: Arc<Queue<Arc<CqState>>>,
    context: Use,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) head: CqHead,
    /// Set for queues of `ibv_create_cq_ex`.
    pub(crate) tail: CqTail,
    pub(crate) iterator: Iterator,
    pub(crate) cq: CompletionQueue,
    pub(crate) state: Arc<CqState>,
    /// Queue pairs, once for each of their queues that completes here.
    pub(crate) users: Users,
    context: Use,
}

/// Events of a completion queue.
#[derive(Debug)]
pub(crate) struct CqState {
    /// Address of the [`Cq`].
    address: AtomicUsize,
    queue: CompletionQueue,
    channel: Option<Arc<Queue<Arc<Self>>>>,
    /// Events that the program has received and not acknowledged.
    unacknowledged: Mutex<u32>,
    /// True once a thread waits for the last of them to be acknowledged.
    is_ending: AtomicBool,
    acknowledged: Condvar,
}

impl CqState {
    pub(crate) fn address(&self) -> usize {
        self.address.load(Ordering::Acquire)
    }

    /// Counts an event that the program receives.
    fn count_received(&self) {
        let mut unacknowledged = lock(&self.unacknowledged);
        *unacknowledged = unacknowledged.saturating_add(1);
    }

    /// Queues an event of this queue, which its table holds: a queue that is destroyed has left it.
    pub(crate) fn notify(self: &Arc<Self>) {
        if let Some(channel) = &self.channel {
            channel.push(Arc::clone(self));
        }
    }
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) head: SrqHead,
    pub(crate) srq: SharedReceiveQueue,
    /// Number of buffers, and elements of each.
    pub(crate) size: (u16, u16),
    /// Queue pairs that take its buffers.
    pub(crate) users: Users,
    pd: Use,
}

/// Raises the events of completions that the program has left in armed queues. Some programs arm a queue, poll as many
/// completions as their array has room for, and wait. Not earlier: others poll until nothing is left, and do not expect
/// an event for what they have polled.
fn raise_left_events(channel: &Channel) {
    let Some(context) = object(channel.head.context).filter(|_| channel.queue.is_empty()) else { return };
    // An event that the daemon has counted comes first. One raised beside it would be one too many for a program that
    // waits for a queue and takes the events of another one for it.
    context.shared.dispatch();
    if !channel.queue.is_empty() {
        return;
    }
    let is_here = |state: &&Arc<CqState>| {
        state.channel.as_ref().is_some_and(|queue| Arc::ptr_eq(queue, &channel.queue))
    };
    // Under the lock of their table, as all events.
    for state in
        lock(&context.shared.cqs).values().filter(is_here).filter(|state| state.queue.take_left_event())
    {
        state.notify();
    }
}

/// Returns the rights of `enum ibv_access_flags`; `None` for flags that are not known and not optional, or for
/// addresses from 0 on.
pub(crate) fn access(flags: u32) -> Option<Access> {
    let known = [
        (1, Access::LOCAL_WRITE),
        (2, Access::REMOTE_WRITE),
        (4, Access::REMOTE_READ),
        (8, Access::REMOTE_ATOMIC),
        (16, Access::WINDOW_BIND),
        // On-demand paging and hugepages are requests to the device, which may do without them.
        (64, Access::NONE),
        (128, Access::NONE),
    ];
    let mut access = Access::LOCAL_READ;
    let mut rest = flags & !ACCESS_OPTIONAL;
    for (flag, right) in known {
        if flags & flag != 0 {
            access = access | right;
            rest &= !flag;
        }
    }
    (rest == 0).then_some(access)
}

fn register(pd: Option<&Pd>, addr: *mut c_void, length: usize, iova: u64, flags: u32) -> Option<Box<Mr>> {
    let (Some(pd), Some(start)) = (pd, NonNull::new(addr.cast::<u8>())) else { return null(libc::EINVAL) };
    let Some(access) = access(flags) else { return null(libc::EOPNOTSUPP) };
    let mr = crate::raw::register(&pd.pd, start, length, iova, access);
    let mr = match mr {
        Ok(mr) => mr,
        Err(error) => return null(number(&error)),
    };
    let head = MrHead {
        context: pd.head.context,
        pd,
        addr,
        length,
        handle: mr.region().id.0,
        lkey: mr.lkey().0,
        rkey: mr.rkey().0,
    };
    Some(Box::new(Mr { head, mr, access: flags, pd: pd.users.enter() }))
}

/// Changes what the flags name: the memory is registered anew, with new keys, and then the old registration ends. After
/// a failure, as of a memory region with bound windows, the old one is valid.
fn reregister(
    mr: &mut Mr,
    flags: c_int,
    pd: Option<&Pd>,
    memory: (*mut c_void, usize),
    access: u32,
) -> c_int {
    let has = |flag: c_int| flags & flag != 0;
    if flags == 0 || flags & !(REREG_TRANSLATION | REREG_PD | REREG_ACCESS) != 0 {
        return null(libc::EINVAL).unwrap_or(REREG_INPUT);
    }
    let pd = if has(REREG_PD) { pd } else { object(mr.head.pd) };
    let ((addr, length), iova) = if has(REREG_TRANSLATION) {
        (memory, memory.0.addr() as u64)
    } else {
        ((mr.head.addr.cast_mut(), mr.head.length), mr.mr.addr())
    };
    let access = if has(REREG_ACCESS) { access } else { mr.access };
    let Some(new) = register(pd, addr, length, iova, access) else { return REREG_INPUT };
    if let Err(error) = mr.mr.deregister() {
        return null(number(&error)).unwrap_or(REREG_INPUT);
    }
    *mr = *new;
    0
}

/// Creates a completion queue, with the functions of an extended one. `vector` is the number of an interrupt of the
/// device.
pub(crate) fn create_cq(
    context: &OpenContext,
    (cqe, vector): (u32, u32),
    cq_context: *mut c_void,
    channel: Option<&Channel>,
    calls: CqCalls,
) -> Result<Box<Cq>, c_int> {
    let is_vector = c_int::try_from(vector).is_ok_and(|vector| vector < context.head.num_comp_vectors);
    if !is_vector || cqe > CQE_MAX || channel.is_some_and(|channel| !ptr::eq(channel.head.context, context)) {
        return Err(libc::EINVAL);
    }
    let cq = context.shared.context.create_cq(cqe).map_err(|error| number(&error))?;
    let state = Arc::new(CqState {
        address: AtomicUsize::new(0),
        queue: cq.clone(),
        channel: channel.map(|channel| Arc::clone(&channel.queue)),
        unacknowledged: Mutex::new(0),
        is_ending: AtomicBool::new(false),
        acknowledged: Condvar::new(),
    });
    if let Some(channel) = channel {
        channel.head.refcnt.fetch_add(1, Ordering::AcqRel);
    }
    let id = cq.id();
    let head = CqHead {
        context,
        channel: channel.map_or(ptr::null(), ptr::from_ref),
        cq_context: AtomicPtr::new(cq_context),
        handle: id.0,
        cqe: AtomicI32::new(c_int::try_from(cqe).unwrap_or(c_int::MAX)),
        mutex: abi::Mutex::default(),
        cond: abi::Cond::default(),
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let (tail, iterator) = (CqTail { calls, ..CqTail::default() }, Iterator::default());
    let (users, of) = (Users::default(), context.users.enter());
    let cq = Box::new(Cq { head, tail, iterator, cq, state: Arc::clone(&state), users, context: of });
    state.address.store(ptr::from_ref(cq.as_ref()).expose_provenance(), Ordering::Release);
    lock(&context.shared.cqs).insert(id, state);
    Ok(cq)
}

export_waiting! {
    fn ibv_get_cq_event(
        channel: Option<&Channel>,
        cq: Option<&mut usize>,
        cq_context: Option<&mut *mut c_void>,
    ) -> c_int {
        let (Some(channel), Some(cq), Some(cq_context)) = (channel, cq, cq_context) else {
            return null::<()>(libc::EINVAL).map_or(-1, |()| 0);
        };
        raise_left_events(channel);
        let state = match channel.queue.take_noting(|state| state.count_received()) {
            Ok(state) => state,
            Err(error) => return failed_read(&error),
        };
        *cq = state.address();
        let pointer = ptr::with_exposed_provenance::<Cq>(*cq);
        *cq_context = object(pointer).map_or(ptr::null_mut(), |cq| cq.head.cq_context.load(Ordering::Acquire));
        0
    }

    fn ibv_get_async_event(context: Option<&OpenContext>, out: *mut AsyncEvent) -> c_int {
        let Some(context) = context.filter(|_| !out.is_null()) else { return -1 };
        let AsyncEntry { element, kind } = match context.take_async() {
            Ok(entry) => entry,
            Err(error) => return failed_read(&error),
        };
        write(out, 0, AsyncEvent { element, event_type: kind });
        0
    }
}

export! {
    fn ibv_alloc_pd(context: Option<&OpenContext>) -> Option<Box<Pd>> {
        let Some(context) = context else { return null(libc::EINVAL) };
        match context.shared.context.alloc_pd() {
            Ok(pd) => {
                let head = PdHead { context, handle: pd.id().0 };
                Some(Box::new(Pd { head, pd, users: Users::default(), context: context.users.enter() }))
            }
            Err(error) => null(number(&error)),
        }
    }

    fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
        let context = object(pd).and_then(|pd| object(pd.head.context));
        // All ids of librdmacm have this one.
        if context.is_some_and(|context| context.pd.get() == Some(&pd.addr())) {
            return libc::EBUSY;
        }
        status(unused(pd, |pd| &pd.users).map(drop))
    }

    fn ibv_reg_mr(pd: Option<&Pd>, addr: *mut c_void, length: usize, access: c_int) -> Option<Box<Mr>> {
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned())
    }

    fn ibv_reg_mr_iova(
        pd: Option<&Pd>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> Option<Box<Mr>> {
        register(pd, addr, length, iova, access.cast_unsigned())
    }

    fn ibv_reg_mr_iova2(
        pd: Option<&Pd>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: u32,
    ) -> Option<Box<Mr>> {
        register(pd, addr, length, iova, access)
    }

    fn ibv_rereg_mr(
        mr: Option<&mut Mr>,
        flags: c_int,
        pd: Option<&Pd>,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int {
        let Some(mr) = mr else { return null(libc::EINVAL).unwrap_or(REREG_INPUT) };
        reregister(mr, flags, pd, (addr, length), access.cast_unsigned())
    }

    fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
        let Some(mut region) = take(mr) else { return libc::EINVAL };
        match region.mr.deregister() {
            Ok(()) => 0,
            Err(error) => {
                // A memory window is bound to it: the program keeps it.
                Box::leak(region);
                number(&error)
            }
        }
    }

    fn ibv_create_comp_channel(context: Option<&OpenContext>) -> Option<Box<Channel>> {
        let Some(context) = context else { return null(libc::EINVAL) };
        match Queue::new() {
            Ok(queue) => {
                let head = ChannelHead { context, fd: queue.fd(), refcnt: AtomicI32::new(0) };
                Some(Box::new(Channel { head, queue: Arc::new(queue), context: context.users.enter() }))
            }
            Err(error) => null(error.raw_os_error().unwrap_or(libc::EMFILE)),
        }
    }

    fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
        match object(channel) {
            None => libc::EINVAL,
            Some(channel) if channel.head.refcnt.load(Ordering::Acquire) > 0 => libc::EBUSY,
            Some(_) => {
                drop(take(channel));
                0
            }
        }
    }

    fn ibv_create_cq(
        context: Option<&OpenContext>,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: Option<&Channel>,
        vector: c_int,
    ) -> Option<Box<Cq>> {
        let sizes = u32::try_from(cqe).ok().zip(u32::try_from(vector).ok());
        let Some((context, sizes)) = context.zip(sizes) else { return null(libc::EINVAL) };
        create_cq(context, sizes, cq_context, channel, CqCalls::default()).map_or_else(null, Some)
    }

    fn ibv_resize_cq(cq: Option<&Cq>, cqe: c_int) -> c_int {
        let entries = u32::try_from(cqe).ok().filter(|entries| *entries <= CQE_MAX);
        let Some((cq, entries)) = cq.zip(entries) else { return libc::EINVAL };
        match cq.cq.resize(entries) {
            Ok(()) => {
                cq.head.cqe.store(cqe, Ordering::Release);
                0
            }
            Err(error) => number(&error),
        }
    }

    fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
        let cq = match unused(cq, |cq| &cq.users) {
            Ok(cq) => cq,
            Err(error) => return error,
        };
        if let Some(context) = object(cq.head.context) {
            let id: CqId = cq.cq.id();
            lock(&context.shared.cqs).remove(&id);
            context.end_asyncs(cq.state.address());
        }
        if let Some(channel) = &cq.state.channel {
            channel.remove(|state| Arc::ptr_eq(state, &cq.state));
        }
        let mut unacknowledged = lock(&cq.state.unacknowledged);
        cq.state.is_ending.store(true, Ordering::Relaxed);
        while *unacknowledged > 0 {
            unacknowledged = cq.state.acknowledged.wait(unacknowledged).unwrap_or_else(|error| error.into_inner());
        }
        drop(unacknowledged);
        if let Some(channel) = object(cq.head.channel) {
            channel.head.refcnt.fetch_sub(1, Ordering::AcqRel);
        }
        0
    }

    fn ibv_ack_cq_events(cq: Option<&Cq>, count: u32) {
        if let Some(cq) = cq {
            let mut unacknowledged = lock(&cq.state.unacknowledged);
            *unacknowledged = unacknowledged.saturating_sub(count);
            // Each notification is a call of the kernel.
            if cq.state.is_ending.load(Ordering::Relaxed) {
                cq.state.acknowledged.notify_all();
            }
        }
    }

    fn ibv_ack_async_event(event: Option<&AsyncEvent>) {
        let Some(&AsyncEvent { element, event_type: kind }) = event else { return };
        if (AsyncEntry { element, kind }).is_of_object() {
            // Each of these objects begins with the address of its context.
            let context = object(ptr::with_exposed_provenance::<*const OpenContext>(element));
            if let Some(context) = context.and_then(|context| object(*context)) {
                context.shared.acknowledge_async(element);
            }
        }
    }

    fn ibv_create_srq(pd: Option<&Pd>, init: Option<&mut SrqInitAttr>) -> Option<Box<Srq>> {
        let Some((pd, init)) = pd.zip(init) else { return null(libc::EINVAL) };
        let size = (u16::try_from(init.attr.max_wr.max(1)), u16::try_from(init.attr.max_sge.max(1)));
        let (Ok(wr), Ok(sge)) = size else { return null(libc::EINVAL) };
        let srq = match pd.pd.create_srq(wr, sge) {
            Ok(srq) => srq,
            Err(error) => return null(number(&error)),
        };
        (init.attr.max_wr, init.attr.max_sge) = (wr.into(), sge.into());
        let id = srq.id().0;
        let head = SrqHead {
            context: pd.head.context,
            srq_context: AtomicPtr::new(init.srq_context),
            pd,
            handle: id,
            mutex: abi::Mutex::default(),
            cond: abi::Cond::default(),
            events_completed: 0,
        };
        let (users, of) = (Users::default(), pd.users.enter());
        let srq = Box::new(Srq { head, srq, size: (wr, sge), users, pd: of });
        if let Some(context) = object(pd.head.context) {
            lock(&context.shared.srqs).insert(id, ptr::from_ref(srq.as_ref()).expose_provenance());
        }
        Some(srq)
    }

    fn ibv_modify_srq(srq: Option<&Srq>, attr: Option<&SrqAttr>, mask: c_int) -> c_int {
        let Some((srq, attr)) = srq.zip(attr) else { return libc::EINVAL };
        match (mask, u16::try_from(attr.srq_limit)) {
            (0, _) => 0,
            (SRQ_LIMIT, Ok(limit)) => srq.srq.modify(limit).map_or_else(|error| number(&error), |()| 0),
            (SRQ_LIMIT, Err(_)) => libc::EINVAL,
            // The size stays as it was created.
            (mask, _) if mask & !(SRQ_MAX_WR | SRQ_LIMIT) == 0 => libc::EOPNOTSUPP,
            _ => libc::EINVAL,
        }
    }

    fn ibv_query_srq(srq: Option<&Srq>, out: *mut SrqAttr) -> c_int {
        let Some(srq) = srq.filter(|_| !out.is_null()) else { return libc::EINVAL };
        match srq.srq.query() {
            Ok(attr) => {
                let attr = SrqAttr {
                    max_wr: attr.max_wr.into(),
                    max_sge: attr.max_sge.into(),
                    srq_limit: attr.srq_limit.into(),
                };
                write(out, 0, attr);
                0
            }
            Err(error) => number(&error),
        }
    }

    fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
        let srq = match unused(srq, |srq| &srq.users) {
            Ok(srq) => srq,
            Err(error) => return error,
        };
        if let Some(context) = object(srq.head.context) {
            let address = lock(&context.shared.srqs).remove(&srq.srq.id().0);
            address.into_iter().for_each(|address| context.end_asyncs(address));
        }
        0
    }
}

/// Allocates a memory window of type 2, which work requests bind (`ibv_alloc_mw`).
pub(crate) extern "C" fn alloc_mw(pd: Option<&Pd>, kind: c_int) -> Option<Box<Mw>> {
    let Some(pd) = pd else { return null(libc::EINVAL) };
    if kind != MW_TYPE_2 {
        return null(libc::EOPNOTSUPP);
    }
    match pd.pd.alloc_mw() {
        Ok(mw) => {
            let window = mw.window();
            let (rkey, handle) = (AtomicU32::new(window.rkey.0), window.id.0);
            let head = MwHead { context: pd.head.context, pd, rkey, handle, kind };
            Some(Box::new(Mw { head, mw, pd: pd.users.enter() }))
        }
        Err(error) => null(number(&error)),
    }
}

/// Refuses to bind a window of type 1 (`ibv_bind_mw`).
pub(crate) extern "C" fn bind_mw(
    _qp: Option<&crate::qp::Qp>,
    _mw: Option<&Mw>,
    _bind: *const c_void,
) -> c_int {
    libc::EOPNOTSUPP
}

/// Deallocates a memory window (`ibv_dealloc_mw`).
pub(crate) extern "C" fn dealloc_mw(mw: Option<Box<Mw>>) -> c_int {
    if mw.is_some() { 0 } else { libc::EINVAL }
}
