//! Queue pairs: created, changed, queried, destroyed.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};

use iwarp_verbs::{Access, Error, QpOptions, QpState, QpType, QueuePair, SendOp, VerbsError};

use crate::abi::{self, QpAttr, QpCap, QpHead, QpInitAttr};
use crate::abi_ex::QpTail;
use crate::cm::IdState;
use crate::context::{QpRoute, lock, null, number};
use crate::datagrams;
use crate::device_list::{awaits_buffers, is_roce};
use crate::devices::{PORT, mtu};
use crate::numbered::{Change, Numbered, is_by_number};
use crate::objects::{Pd, access};
use crate::qp_ex::{self, Builder};
use crate::raw::{export, object, write};
use crate::users::{Use, Users, status};

/// `IBV_QPT_RC`, the type of queue pairs that have a connection, as all of iWARP.
pub(crate) const QPT_RC: c_int = 2;
/// `IBV_QPT_UD`, the type of those that send datagrams.
pub(crate) const QPT_UD: c_int = 4;
// Bits of `enum ibv_qp_attr_mask`.
pub(crate) const MASK_STATE: c_int = 1;
pub(crate) const MASK_CUR_STATE: c_int = 1 << 1;
pub(crate) const MASK_ACCESS: c_int = 1 << 3;
pub(crate) const MASK_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const MASK_PORT: c_int = 1 << 5;
pub(crate) const MASK_AV: c_int = 1 << 7;
pub(crate) const MASK_DEST_QPN: c_int = 1 << 20;
/// Attributes that a program can change of a queue pair that librdmacm connects.
const MASK_KNOWN: c_int = MASK_STATE | MASK_CUR_STATE | MASK_ACCESS | MASK_PKEY_INDEX | MASK_PORT;
/// Bits that are not those of all devices.
const MASK_PARTICULAR: c_int = !((1 << 21) - 1);
/// Most bytes of inline data.
pub(crate) const INLINE_MAX: usize = 512;
/// Bytes of inline data that every queue pair takes: some programs use them without asking.
const INLINE_MIN: u32 = 64;

/// Rights of a queue pair until the program sets others, bits of `enum ibv_access_flags`. Those of memory are its own.
pub(crate) const ACCESS: u32 = 0x0f;

// Values of `enum ibv_qp_state`.
pub(crate) const RESET: u32 = 0;
pub(crate) const INIT: u32 = 1;
pub(crate) const RTR: u32 = 2;
pub(crate) const RTS: u32 = 3;
pub(crate) const ERROR: u32 = 6;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) head: QpHead,
    /// Set for queue pairs with the `ibv_wr_*` calls.
    pub(crate) tail: QpTail,
    /// Requests of the `ibv_wr_*` calls; `None` for a queue pair without them.
    pub(crate) builder: Option<Box<Mutex<Builder>>>,
    pub(crate) qp: QueuePair,
    cap: QpCap,
    signal_all: bool,
    /// Id that the queue pair was made for, or whose connection was made with the queue pair.
    pub(crate) connection: Mutex<Option<Arc<IdState>>>,
    /// Connection by number, from RTR on.
    numbered: Mutex<Option<Numbered>>,
    /// Attributes of a queue pair that sends datagrams.
    datagrams: Option<Mutex<QpAttr>>,
    /// Inbound reads at a time of the connection.
    inbound_reads: AtomicU8,
    /// Outbound reads at a time of the connection.
    outbound_reads: AtomicU8,
    /// Protection domain, completion queues and shared receive queue, which stay as long.
    uses: [Option<Use>; 4],
}

impl Qp {
    /// Notes that the queue pair has a connection, with its inbound and outbound reads at a time.
    pub(crate) fn established(&self, (inbound, outbound): (u8, u8)) {
        self.inbound_reads.store(inbound, Ordering::Release);
        self.outbound_reads.store(outbound, Ordering::Release);
        self.head.state.store(RTS, Ordering::Release);
    }

    /// Returns true if a request has an operation that the queue pair does not have: Send with Immediate Data, unless
    /// it is connected by number.
    pub(crate) fn lacks(&self, op: &SendOp) -> bool {
        matches!(op, SendOp::SendWithImm { .. }) && self.datagrams.is_none() && lock(&self.numbered).is_none()
    }

    /// Returns true for a queue pair of datagrams that is in `IBV_QPS_RESET`.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.datagrams.is_some() && self.head.state.load(Ordering::Relaxed) == RESET
    }

    /// Returns true for a queue pair that sends datagrams.
    #[inline]
    pub(crate) const fn sends_datagrams(&self) -> bool {
        self.datagrams.is_some()
    }
}

/// Fewest slots of a send queue. Devices round the size up, and programs that ask for one slot rely on that:
/// ib_send_lat with events takes those of both its completion queues from one channel, and posts a request before it
/// has polled the completion of the last.
pub(crate) const SEND_SLOTS_MIN: u32 = 16;

/// Returns the size of a queue pair; `None` beyond what a device may have.
fn size(cap: &QpCap) -> Option<iwarp_verbs::QpCap> {
    let at_least_one = |value: u32| u16::try_from(value.max(1)).ok();
    let inline = cap.max_inline_data.max(INLINE_MIN);
    Some(iwarp_verbs::QpCap {
        max_send_wr: at_least_one(cap.max_send_wr.max(SEND_SLOTS_MIN))?,
        max_recv_wr: at_least_one(cap.max_recv_wr)?,
        max_send_sge: at_least_one(cap.max_send_sge)?,
        max_recv_sge: at_least_one(cap.max_recv_sge)?,
        max_inline_data: u16::try_from(inline).ok().filter(|bytes| usize::from(*bytes) <= INLINE_MAX)?,
    })
}

/// Has the device create a queue pair, which lets messages wait for receive buffers if it is asked for that.
fn made(pd: &Pd, options: &QpOptions<'_>) -> Result<QueuePair, Error> {
    let qp = pd.pd.create_qp(options)?;
    if awaits_buffers() && options.qp_type == QpType::Rc {
        qp.await_buffers()?;
    }
    Ok(qp)
}

/// Returns the type of a queue pair.
const fn type_of(init: &QpInitAttr) -> Result<QpType, c_int> {
    match init.qp_type {
        QPT_RC => Ok(QpType::Rc),
        QPT_UD => Ok(QpType::Ud),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// Creates a queue pair, and writes its size into the parameters. With `operations`, programs post by the `ibv_wr_*`
/// calls, too.
pub(crate) fn create(pd: &Pd, init: &mut QpInitAttr, operations: Option<u64>) -> Result<Box<Qp>, c_int> {
    let (Some(send_cq), Some(recv_cq)) = (object(init.send_cq), object(init.recv_cq)) else {
        return Err(libc::EINVAL);
    };
    let qp_type = type_of(init)?;
    if [send_cq, recv_cq].into_iter().any(|cq| !ptr::eq(cq.head.context, pd.head.context)) {
        return Err(libc::EINVAL);
    }
    let srq = object(init.srq);
    let mut cap = size(&init.cap).ok_or(libc::EINVAL)?;
    if let Some(srq) = srq {
        // A queue pair may take all buffers.
        (cap.max_recv_wr, cap.max_recv_sge) = srq.size;
    }
    let options = QpOptions {
        send_cq: &send_cq.cq,
        recv_cq: &recv_cq.cq,
        srq: srq.map(|srq| &srq.srq),
        cap,
        sq_sig_all: init.sq_sig_all != 0,
        qp_type,
    };
    let qp = made(pd, &options).map_err(|error| number(&error))?;
    init.cap = QpCap {
        max_send_wr: cap.max_send_wr.into(),
        max_recv_wr: if srq.is_some() { 0 } else { cap.max_recv_wr.into() },
        max_send_sge: cap.max_send_sge.into(),
        max_recv_sge: if srq.is_some() { 0 } else { cap.max_recv_sge.into() },
        max_inline_data: cap.max_inline_data.into(),
    };
    let number = qp.num();
    let head = QpHead {
        context: pd.head.context,
        qp_context: AtomicPtr::new(init.qp_context),
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: number.0,
        qp_num: number.0,
        state: AtomicU32::new(RESET),
        qp_type: init.qp_type,
        mutex: abi::Mutex::default(),
        cond: abi::Cond::default(),
        events_completed: 0,
    };
    let (cap, signal_all, connection) = (init.cap, init.sq_sig_all != 0, Mutex::default());
    let tail = operations.map_or_else(QpTail::default, qp_ex::tail);
    let builder = operations.map(|_| Box::default());
    let users = [Some(&pd.users), Some(&send_cq.users), Some(&recv_cq.users), srq.map(|srq| &srq.users)];
    let qp = Box::new(Qp {
        head,
        tail,
        builder,
        qp,
        cap,
        signal_all,
        connection,
        numbered: Mutex::default(),
        datagrams: (qp_type == QpType::Ud).then(Mutex::default),
        inbound_reads: AtomicU8::new(0),
        outbound_reads: AtomicU8::new(0),
        uses: users.map(|users| users.map(Users::enter)),
    });
    if let Some(context) = object(pd.head.context) {
        let address = ptr::from_ref(qp.as_ref()).expose_provenance();
        lock(&context.shared.qps).insert(number, QpRoute { address, qp: qp.qp.clone() });
    }
    Ok(qp)
}

/// Destroys a queue pair, after the connection that the program has closed.
pub(crate) fn destroy(qp: Box<Qp>) {
    let connection = lock(&qp.connection).take();
    if let Some(connection) = connection {
        connection.settle();
        connection.forget_qp(&qp);
    }
    if let Some(context) = object(qp.head.context) {
        lock(&context.shared.qps).remove(&qp.qp.num());
        context.end_asyncs(ptr::from_ref(qp.as_ref()).addr());
    }
    drop(qp);
}

/// Returns the state of a queue pair, and the rights of its peer. Before its connection the state is `IBV_QPS_INIT`, as
/// that of soft-iWARP: iWARP knows neither of the two next to it.
fn query(qp: &Qp) -> Result<(u32, Access), c_int> {
    let attr = qp.qp.query().map_err(|error| number(&error))?;
    let numbered = *lock(&qp.numbered);
    let state = match (attr.state, numbered) {
        // Its stream comes and goes; the program does not see that.
        (QpState::Idle | QpState::Rts, Some(numbered)) => numbered.state,
        (QpState::Idle | QpState::Rts, None) if qp.sends_datagrams() => {
            let state = qp.head.state.load(Ordering::Acquire);
            if is_roce() { state } else { state.max(INIT) }
        }
        // A device of InfiniBand tells them apart. RTR before a connection of librdmacm has no effect.
        (QpState::Idle, None) if is_roce() => qp.head.state.load(Ordering::Acquire).min(INIT),
        (QpState::Idle, None) => INIT,
        (QpState::Rts, None) => RTS,
        (QpState::Closing | QpState::Terminate | QpState::Error, _) => ERROR,
    };
    Ok((state, attr.access))
}

/// Returns rights as bits of `enum ibv_access_flags`.
fn access_flags(access: Access) -> u32 {
    let remote = [(Access::REMOTE_WRITE, 2), (Access::REMOTE_READ, 4), (Access::REMOTE_ATOMIC, 8)];
    let granted = remote.into_iter().filter(|(right, _)| access.contains(*right));
    // `IBV_ACCESS_LOCAL_WRITE`, which a queue pair cannot deny.
    granted.fold(1, |flags, (_, flag)| flags | flag)
}

/// Returns the attributes that a program is to set on the way to a state, for its connection by librdmacm; `None` for a
/// state that is not on that way. The connection makes the last change.
pub(crate) const fn connection_mask(state: u32) -> Option<c_int> {
    match state {
        INIT | RTR => Some(MASK_STATE | MASK_ACCESS | MASK_PORT),
        RTS => Some(MASK_PORT),
        _ => None,
    }
}

/// Changes a queue pair as the mask names it, or nothing.
fn modify(qp: &Qp, attr: &QpAttr, mask: c_int) -> Result<(), c_int> {
    let has = |bits: c_int| mask & bits != 0;
    let is_elsewhere =
        has(MASK_PORT) && attr.port_num != PORT || has(MASK_PKEY_INDEX) && attr.pkey_index != 0;
    if has(MASK_PARTICULAR) {
        return Err(libc::EOPNOTSUPP);
    }
    if is_elsewhere {
        return Err(libc::EINVAL);
    }
    let rights = has(MASK_ACCESS).then(|| access(attr.qp_access_flags).ok_or(libc::EINVAL)).transpose()?;
    let (now, _) = query(qp)?;
    if has(MASK_CUR_STATE) && attr.cur_qp_state != now {
        return Err(libc::EINVAL);
    }
    let leaves = has(MASK_STATE) && matches!(attr.qp_state, RESET | ERROR);
    if let Some(held) = qp.datagrams.as_ref().filter(|_| !leaves) {
        let mut held = lock(held);
        held.qp_state = if now == ERROR { ERROR } else { qp.head.state.load(Ordering::Acquire) };
        let changed = datagrams::changed(&held, attr, mask)?;
        datagrams::enter(qp, &changed).map_err(|error| number(&error))?;
        *held = changed;
        qp.head.state.store(changed.qp_state, Ordering::Release);
        return Ok(());
    }
    let numbered = *lock(&qp.numbered);
    if is_by_number(mask) || numbered.is_some() && !leaves {
        return by_number(qp, (attr, mask), (numbered, now), rights);
    }
    // A connection whose peer has answered has made the change already; the program makes it before it establishes it.
    let connection = lock(&qp.connection).clone();
    let is_made = attr.qp_state == INIT && connection.is_some_and(|id| id.is_answered());
    if has(!MASK_KNOWN) || has(MASK_STATE) && !may_enter(attr.qp_state, now) && !is_made {
        return Err(libc::EINVAL);
    }
    allow(qp, rights)?;
    if has(MASK_STATE) { enter(qp, attr.qp_state) } else { Ok(()) }
}

/// Changes the rights of the peer, if they are named.
fn allow(qp: &Qp, rights: Option<Access>) -> Result<(), c_int> {
    let Some(rights) = rights else { return Ok(()) };
    qp.qp.modify_access(rights & Access::REGION).map_err(|error| number(&error))
}

/// Changes a queue pair that is connected by number, or about to be.
fn by_number(
    qp: &Qp,
    (attr, mask): (&QpAttr, c_int),
    (numbered, now): (Option<Numbered>, u32),
    rights: Option<Access>,
) -> Result<(), c_int> {
    let context = object(qp.head.context).ok_or(libc::EINVAL)?;
    let (next, change) = match numbered {
        Some(numbered) if now != ERROR => numbered.changed(attr, mask)?,
        None if now == INIT => Numbered::to_rtr(context, attr, mask)?,
        _ => return Err(libc::EINVAL),
    };
    allow(qp, rights)?;
    let changed = match change {
        Change::Receive(attr) => qp.qp.ready_to_receive(&attr),
        Change::Send(attr) => qp.qp.ready_to_send(&attr),
        Change::Nothing => Ok(()),
    };
    changed.map_err(|error| refused(&error))?;
    *lock(&qp.numbered) = Some(next);
    qp.head.state.store(next.state, Ordering::Release);
    Ok(())
}

/// Returns the error number of a connection by number that the device refuses. Where it lacks something, it says what:
/// the number alone tells nobody.
fn refused(error: &Error) -> c_int {
    static SAID: Once = Once::new();
    if matches!(error, Error::Refused { cause: VerbsError::NoResources, .. }) {
        SAID.call_once(|| eprintln!("libibverbs: {error}"));
    }
    number(error)
}

/// Returns true if a program may change the state. Only a connection leads to `IBV_QPS_RTS`; a program may announce it
/// by `IBV_QPS_RTR`, without effect, as on soft-iWARP: librdmacm does so before it accepts.
const fn may_enter(new: u32, now: u32) -> bool {
    match new {
        RESET | ERROR => true,
        INIT => now <= INIT,
        RTR => now != ERROR,
        RTS => now == RTS,
        _ => false,
    }
}

fn enter(qp: &Qp, new: u32) -> Result<(), c_int> {
    let change = |state| qp.qp.modify(state).map_err(|error| number(&error));
    if new == ERROR || new == RESET && query(qp)?.0 > INIT {
        change(QpState::Error)?;
    }
    if new == RESET && query(qp)?.0 == ERROR {
        change(QpState::Idle)?;
        *lock(&qp.numbered) = None;
    }
    qp.head.state.store(new, Ordering::Release);
    Ok(())
}

export! {
    fn ibv_create_qp(pd: Option<&Pd>, init: Option<&mut QpInitAttr>) -> Option<Box<Qp>> {
        let Some((pd, init)) = pd.zip(init) else { return null(libc::EINVAL) };
        create(pd, init, None).map_or_else(null, Some)
    }

    fn ibv_destroy_qp(qp: Option<Box<Qp>>) -> c_int {
        let Some(qp) = qp else { return libc::EINVAL };
        destroy(qp);
        0
    }

    fn ibv_modify_qp(qp: Option<&Qp>, attr: Option<&QpAttr>, mask: c_int) -> c_int {
        let Some((qp, attr)) = qp.zip(attr) else { return libc::EINVAL };
        status(modify(qp, attr, mask))
    }

    fn ibv_query_qp(
        qp: Option<&Qp>,
        attr: *mut QpAttr,
        _mask: c_int,
        init: *mut QpInitAttr,
    ) -> c_int {
        let Some(qp) = qp.filter(|_| !attr.is_null() && !init.is_null()) else { return libc::EINVAL };
        let (state, access) = match query(qp) {
            Ok(now) => now,
            Err(error) => return error,
        };
        let head = &qp.head;
        head.state.store(state, Ordering::Release);
        let now = QpAttr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: object(head.context)
                .map_or(0, |context| mtu(context.device.info().mtu).cast_unsigned()),
            qp_access_flags: access_flags(access),
            cap: qp.cap,
            max_rd_atomic: qp.outbound_reads.load(Ordering::Acquire),
            max_dest_rd_atomic: qp.inbound_reads.load(Ordering::Acquire),
            port_num: PORT,
            ..QpAttr::default()
        };
        let numbered = *lock(&qp.numbered);
        let of_datagrams = qp.datagrams.as_ref().map(|held| *lock(held)).unwrap_or_default();
        let now = QpAttr { qkey: of_datagrams.qkey, sq_psn: of_datagrams.sq_psn, ..now };
        write(attr, 0, numbered.map_or(now, |numbered| numbered.complete(&now)));
        let created = QpInitAttr {
            qp_context: head.qp_context.load(Ordering::Acquire),
            send_cq: head.send_cq,
            recv_cq: head.recv_cq,
            srq: head.srq,
            cap: qp.cap,
            qp_type: head.qp_type,
            sq_sig_all: qp.signal_all.into(),
        };
        write(init, 0, created);
        0
    }
}
