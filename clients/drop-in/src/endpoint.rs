//! Synchronous ids, whose calls wait for their event, and queue pairs that belong to an id.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use crate::abi::{QpInitAttr, SrqInitAttr};
use crate::abi_ex::{QpInitAttrEx, SrqInitAttrEx};
use crate::addrinfo::{AddrInfo, PASSIVE};
use crate::cm::{self, CONNECT_REQUEST, CmEvent, Id, PORT_SPACE_TCP, REJECTED};
use crate::cm_calls::{answer, rdma_bind_addr, rdma_create_id, rdma_resolve_route, resolve};
use crate::context::lock;
use crate::event_channel::EventChannel;
use crate::objects::{
    Channel, Cq, Pd, ibv_create_comp_channel, ibv_create_cq, ibv_create_srq, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_srq,
};
use crate::qp::{self, QPT_RC, SEND_SLOTS_MIN};
use crate::qp_ex;
use crate::raw::{export_waiting, object, take};

/// Time limit for the resolution of an endpoint's peer, as librdmacm's.
const RESOLVE_LIMIT: Duration = Duration::from_secs(2);
// Bits of `comp_mask` in `struct ibv_srq_init_attr_ex`.
const SRQ_TYPE: u32 = 1;
const SRQ_PD: u32 = 2;
// `IBV_SRQT_BASIC`
const SRQ_BASIC: c_int = 0;

/// Parameters of the queue pairs of a listener's connections.
#[derive(Debug)]
pub(crate) struct QpInit(QpInitAttr);

fn last_error() -> c_int {
    errno::errno().0
}

/// Completes a call: a synchronous id waits for the event, and keeps it.
pub(crate) fn complete(id: &Id) -> Result<(), c_int> {
    if !id.is_sync() {
        return Ok(());
    }
    let event = next_event(id)?;
    let (kind, status) = (event.head.event, event.head.status);
    id.head.event.store(Box::into_raw(event), Ordering::Release);
    match status {
        0 => Ok(()),
        _ if kind == REJECTED => Err(libc::ECONNREFUSED),
        status => Err(status.saturating_abs()),
    }
}

/// Waits for the next event of a synchronous id. The one before is acknowledged.
fn next_event(id: &Id) -> Result<Box<CmEvent>, c_int> {
    if let Some(before) = take(id.head.event.swap(ptr::null_mut(), Ordering::AcqRel)) {
        cm::acknowledge(before);
    }
    let channel = object::<EventChannel>(id.head.channel.load(Ordering::Acquire)).ok_or(libc::EINVAL)?;
    let entry = channel.take().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    Ok(cm::event(entry, channel))
}

/// Creates a completion queue with a channel of its own, unless the program has named one.
fn own_cq(
    id: &Id,
    given: *const Cq,
    entries: u32,
    channel_place: &AtomicPtr<Channel>,
    place: &AtomicPtr<Cq>,
) -> Result<*const Cq, c_int> {
    if !given.is_null() || entries == 0 {
        return Ok(given);
    }
    let channel = ibv_create_comp_channel(id.verbs()).ok_or_else(last_error)?;
    let channel = Box::into_raw(channel);
    channel_place.store(channel, Ordering::Release);
    let context = ptr::from_ref(id).cast_mut().cast();
    let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
    let cq = ibv_create_cq(id.verbs(), entries, context, object(channel), 0).ok_or_else(last_error)?;
    let cq = Box::into_raw(cq);
    place.store(cq, Ordering::Release);
    Ok(cq)
}

fn destroy_cqs(id: &Id) {
    let head = &id.head;
    let pairs = [(&head.recv_cq, &head.recv_cq_channel), (&head.send_cq, &head.send_cq_channel)];
    for (cq, channel) in pairs {
        ibv_destroy_cq(cq.swap(ptr::null_mut(), Ordering::AcqRel));
        ibv_destroy_comp_channel(channel.swap(ptr::null_mut(), Ordering::AcqRel));
    }
}

fn create_qp(id: &Id, pd: Option<&Pd>, init: &mut QpInitAttr, operations: Option<u64>) -> Result<(), c_int> {
    // Connections have queue pairs of one type.
    let is_new = id.head.qp.load(Ordering::Acquire).is_null() && id.verbs().is_some();
    if !is_new || init.qp_type != QPT_RC {
        return Err(libc::EINVAL);
    }
    let pd = pd.or_else(|| object(id.head.pd.load(Ordering::Acquire)));
    // A protection domain of another context does not fit.
    let of_device = |pd: &&Pd| ptr::eq(pd.head.context, id.head.verbs.load(Ordering::Acquire));
    let pd = pd.filter(of_device).ok_or(libc::EINVAL)?;
    let head = &id.head;
    if init.srq.is_null() {
        init.srq = head.srq.load(Ordering::Acquire);
    }
    let made = (|| {
        // An entry for each slot.
        let (send, recv) = (init.cap.max_send_wr.max(SEND_SLOTS_MIN), init.cap.max_recv_wr.max(1));
        init.send_cq = own_cq(id, init.send_cq, send, &head.send_cq_channel, &head.send_cq)?;
        init.recv_cq = own_cq(id, init.recv_cq, recv, &head.recv_cq_channel, &head.recv_cq)?;
        qp::create(pd, init, operations)
    })();
    match made {
        Ok(qp) => {
            qp.head.state.store(qp::INIT, Ordering::Release);
            *lock(&qp.connection) = Some(Arc::clone(&id.state));
            head.pd.store(ptr::from_ref(pd).cast_mut(), Ordering::Release);
            head.qp.store(Box::into_raw(qp), Ordering::Release);
            Ok(())
        }
        Err(error) => {
            destroy_cqs(id);
            Err(error)
        }
    }
}

fn destroy_qp(id: &Id) {
    if let Some(qp) = take(id.head.qp.swap(ptr::null_mut(), Ordering::AcqRel)) {
        qp::destroy(qp);
    }
    destroy_cqs(id);
}

/// Resolves the addresses of an endpoint, and creates its queue pair.
fn prepare(id: &Id, info: &AddrInfo, pd: *mut Pd, init: Option<&mut QpInitAttr>) -> Result<(), c_int> {
    if info.head.flags & PASSIVE != 0 {
        if rdma_bind_addr(Some(id), info.head.src_addr.cast()) != 0 {
            return Err(last_error());
        }
        if !pd.is_null() {
            id.head.pd.store(pd, Ordering::Release);
        }
        lock(&id.state.inner).qp_init = init.map(|init| QpInit(QpInitAttr { qp_type: QPT_RC, ..*init }));
        return Ok(());
    }
    let source = object(info.head.src_addr).and_then(crate::abi_cm::Address::get);
    let peer = object(info.head.dst_addr).and_then(crate::abi_cm::Address::get).ok_or(libc::EINVAL)?;
    resolve(id, source, peer, RESOLVE_LIMIT)?;
    if rdma_resolve_route(Some(id), 0) != 0 {
        return Err(last_error());
    }
    match init {
        Some(init) => {
            init.qp_type = QPT_RC;
            create_qp(id, object(pd), init, None)
        }
        None => Ok(()),
    }
}

fn get_request(listener: &Id) -> Result<*const Id, c_int> {
    if !listener.is_sync() {
        return Err(libc::EINVAL);
    }
    let event = next_event(listener)?;
    if event.head.event != CONNECT_REQUEST {
        cm::acknowledge(event);
        return Err(libc::EINVAL);
    }
    let id = event.head.id;
    let new = object(id).ok_or(libc::EINVAL)?;
    let init = lock(&listener.state.inner).qp_init.as_ref().map(|init| init.0);
    let made = match init {
        // For want of descriptors, it has no channel of its own: its calls would not wait.
        _ if !new.is_sync() => Err(libc::EMFILE),
        Some(mut init) => {
            let pd = object(listener.head.pd.load(Ordering::Acquire));
            // The protection domain of another device does not fit.
            let pd = pd.filter(|pd: &&Pd| ptr::eq(pd.head.context, new.head.verbs.load(Ordering::Acquire)));
            create_qp(new, pd, &mut init, None)
        }
        None => Ok(()),
    };
    if let Err(error) = made {
        cm::acknowledge(event);
        take(id.cast_mut()).into_iter().for_each(cm::destroy);
        return Err(error);
    }
    new.head.event.store(Box::into_raw(event), Ordering::Release);
    Ok(id)
}

/// Endpoint that the program does not have yet: destroyed if a step of its preparation fails, or the thread is canceled
/// while it waits.
struct Unfinished(*const Id);

impl Drop for Unfinished {
    fn drop(&mut self) {
        rdma_destroy_ep(take(self.0.cast_mut()));
    }
}

/// Creates the shared receive queue of an id.
fn create_srq(id: &Id, pd: Option<&Pd>, init: Option<&mut SrqInitAttr>) -> c_int {
    let pd = pd.or_else(|| object(id.head.pd.load(Ordering::Acquire)));
    match ibv_create_srq(pd, init) {
        Some(srq) => {
            id.head.srq.store(Box::into_raw(srq), Ordering::Release);
            0
        }
        None => -1,
    }
}

export_waiting! {
    fn rdma_create_qp(id: Option<&Id>, pd: Option<&Pd>, init: Option<&mut QpInitAttr>) -> c_int {
        let Some((id, init)) = id.zip(init) else { return answer(Err(libc::EINVAL)) };
        answer(create_qp(id, pd, init, None))
    }

    fn rdma_create_qp_ex(id: Option<&Id>, init: Option<&mut QpInitAttrEx>) -> c_int {
        let Some((id, init)) = id.zip(init) else { return answer(Err(libc::EINVAL)) };
        let created = qp_ex::parameters(init).and_then(|(pd, operations)| {
            let mut plain = qp_ex::plain(init);
            let created = create_qp(id, pd, &mut plain, operations);
            (init.send_cq, init.recv_cq, init.cap) = (plain.send_cq, plain.recv_cq, plain.cap);
            created
        });
        answer(created)
    }

    fn rdma_destroy_qp(id: Option<&Id>) {
        id.into_iter().for_each(destroy_qp);
    }

    fn rdma_create_srq(id: Option<&Id>, pd: Option<&Pd>, init: Option<&mut SrqInitAttr>) -> c_int {
        let Some(id) = id else { return answer(Err(libc::EINVAL)) };
        create_srq(id, pd, init)
    }

    fn rdma_create_srq_ex(id: Option<&Id>, init: Option<&mut SrqInitAttrEx>) -> c_int {
        let Some((id, init)) = id.zip(init) else { return answer(Err(libc::EINVAL)) };
        let is_basic = init.comp_mask & SRQ_TYPE == 0 || init.srq_type == SRQ_BASIC;
        if init.comp_mask & !(SRQ_TYPE | SRQ_PD) != 0 || !is_basic {
            return answer(Err(libc::EOPNOTSUPP));
        }
        let pd = if init.comp_mask & SRQ_PD != 0 { object(init.pd) } else { None };
        let mut plain = SrqInitAttr { srq_context: init.srq_context, attr: init.attr };
        let created = create_srq(id, pd, Some(&mut plain));
        init.attr = plain.attr;
        created
    }

    fn rdma_destroy_srq(id: Option<&Id>) {
        if let Some(id) = id {
            ibv_destroy_srq(id.head.srq.swap(ptr::null_mut(), Ordering::AcqRel));
        }
    }

    fn rdma_create_ep(
        out: Option<&mut *const Id>,
        info: Option<&AddrInfo>,
        pd: *mut Pd,
        init: Option<&mut QpInitAttr>,
    ) -> c_int {
        let Some((out, info)) = out.zip(info) else { return answer(Err(libc::EINVAL)) };
        let mut id = ptr::null();
        if rdma_create_id(None, Some(&mut id), ptr::null_mut(), PORT_SPACE_TCP) != 0 {
            return -1;
        }
        let unfinished = Unfinished(id);
        let prepared = object(id).ok_or(libc::EINVAL).and_then(|id| prepare(id, info, pd, init));
        if prepared.is_ok() {
            std::mem::forget(unfinished);
            *out = id;
        } else {
            drop(unfinished);
        }
        answer(prepared)
    }

    fn rdma_destroy_ep(id: Option<Box<Id>>) {
        let Some(id) = id else { return };
        destroy_qp(&id);
        rdma_destroy_srq(Some(&id));
        cm::destroy(id);
    }

    fn rdma_get_request(listener: Option<&Id>, out: Option<&mut *const Id>) -> c_int {
        let Some((listener, out)) = listener.zip(out) else { return answer(Err(libc::EINVAL)) };
        answer(get_request(listener).map(|id| *out = id))
    }
}
