//! Queue pairs with the `ibv_wr_*` calls: each call adds a part of a request, and `ibv_wr_complete` posts all requests
//! since `ibv_wr_start`, or none. They make no system call, and do not allocate.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use iwarp_verbs::{AtomicOp, Data, SendOp, SendWr, Stag};

use crate::abi::{QpInitAttr, Sge};
use crate::abi_ex::{BindInfo, DataBuf, QpInitAttrEx, QpTail, WrCalls};
use crate::context::{OpenContext, lock, null};
use crate::datagrams::{Ah, addressed};
use crate::objects::{Mw, Pd};
use crate::qp::{self, INLINE_MAX, QPT_UD, Qp};
use crate::raw::{array, bytes, export, object};
use crate::work::{List, bind, compare_swap, hand_on, immediate, posted, send_flags};

// Bits of `enum ibv_qp_init_attr_mask`.
const INIT_PD: u32 = 1;
const INIT_CREATE_FLAGS: u32 = 1 << 2;
const INIT_SEND_OPS: u32 = 1 << 6;

// Bits of `enum ibv_qp_create_send_ops_flags`.
const WRITE: u64 = 1;
const WRITE_IMM: u64 = 1 << 1;
const SEND: u64 = 1 << 2;
const SEND_IMM: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const COMPARE_SWAP: u64 = 1 << 5;
const FETCH_ADD: u64 = 1 << 6;
const LOCAL_INV: u64 = 1 << 7;
const BIND_MW: u64 = 1 << 8;
const SEND_INV: u64 = 1 << 9;
/// Operations that a queue pair may have: no segmentation offload, and no atomic Write. A Send with Immediate Data
/// needs a connection by number.
const OPERATIONS: u64 =
    WRITE | WRITE_IMM | SEND | SEND_IMM | READ | COMPARE_SWAP | FETCH_ADD | LOCAL_INV | BIND_MW | SEND_INV;

/// Requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Debug)]
pub(crate) struct Builder {
    /// True from `ibv_wr_start` on.
    open: bool,
    /// Request whose data may follow: its number, operation and flags.
    last: Option<(u64, SendOp, u32)>,
    list: List,
    /// True if the request has inline data instead of a list.
    is_inline: bool,
    inline: [u8; INLINE_MAX],
    inline_len: usize,
    /// Error number of the first failure.
    error: Option<c_int>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            open: false,
            last: None,
            list: List::EMPTY,
            is_inline: false,
            inline: [0; INLINE_MAX],
            inline_len: 0,
            error: None,
        }
    }
}

impl Builder {
    fn fail(&mut self, error: c_int) {
        self.error.get_or_insert(error);
    }

    /// Adds the last request to the batch, with its data.
    fn add(&mut self, qp: &Qp) {
        let Some((wr_id, op, flags)) = self.last.take() else { return };
        if matches!(op, SendOp::Datagram { .. }) != qp.sends_datagrams() {
            return self.fail(libc::EINVAL);
        }
        let data = if self.is_inline {
            Data::Inline(self.inline.get(..self.inline_len).unwrap_or_default())
        } else {
            Data::List(self.list.elements())
        };
        let wr = SendWr { wr_id, op, data, flags: send_flags(flags) };
        if let Err(error) = posted(qp, || qp.qp.add_to_batch(&wr)) {
            self.fail(error);
        }
    }

    fn set_list(&mut self, list: &[Sge]) {
        self.is_inline = false;
        match List::new(list) {
            Ok(list) => self.list = list,
            Err(error) => self.fail(error),
        }
    }

    fn append_inline(&mut self, from: &[u8]) {
        let end = self.inline_len.saturating_add(from.len());
        match self.inline.get_mut(self.inline_len..end) {
            Some(to) => {
                to.copy_from_slice(from);
                self.inline_len = end;
            }
            None => self.fail(libc::EINVAL),
        }
    }
}

/// Changes the requests of a queue pair, between `ibv_wr_start` and `ibv_wr_complete`.
fn change(qp: Option<&Qp>, change: impl FnOnce(&Qp, &mut Builder)) {
    if let Some((qp, builder)) = qp.and_then(|qp| Some((qp, qp.builder.as_ref()?))) {
        let mut builder = lock(builder);
        if builder.open {
            change(qp, &mut builder);
        }
    }
}

/// Sees an array of the program.
fn sized<'a, T>(list: *const T, count: usize) -> &'a [T] {
    array(list, c_int::try_from(count).unwrap_or(c_int::MAX))
}

/// Begins a request, with the number and the flags that the program has set.
fn begin(qp: Option<&Qp>, op: Result<SendOp, c_int>) {
    change(qp, |qp, builder| {
        builder.add(qp);
        (builder.list, builder.is_inline, builder.inline_len) = (List::EMPTY, false, 0);
        let QpTail { wr_id, wr_flags, .. } = &qp.tail;
        match op {
            Ok(op) => {
                builder.last = Some((wr_id.load(Ordering::Relaxed), op, wr_flags.load(Ordering::Relaxed)));
            }
            Err(error) => builder.fail(error),
        }
    });
}

extern "C" fn wr_start(qp: Option<&Qp>) {
    let Some((qp, builder)) = qp.and_then(|qp| Some((qp, qp.builder.as_ref()?))) else { return };
    // Waits for other threads: after that, nobody else changes the requests.
    qp.qp.begin_batch();
    let mut builder = lock(builder);
    (builder.open, builder.last, builder.error) = (true, None, None);
}

extern "C" fn wr_complete(qp: Option<&Qp>) -> c_int {
    let mut result = libc::EINVAL;
    change(qp, |qp, builder| {
        builder.add(qp);
        builder.open = false;
        result = builder.error.unwrap_or(0);
        if result == 0 {
            qp.qp.end_batch();
        } else {
            qp.qp.abort_batch();
        }
    });
    if let Some(qp) = qp {
        hand_on(qp.head.context);
    }
    result
}

extern "C" fn wr_abort(qp: Option<&Qp>) {
    change(qp, |qp, builder| {
        (builder.open, builder.last) = (false, None);
        qp.qp.abort_batch();
    });
}

extern "C" fn wr_atomic_cmp_swp(qp: Option<&Qp>, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    let op = compare_swap(compare, swap);
    begin(qp, Ok(SendOp::Atomic { remote_addr, rkey: Stag(rkey), op }));
}

extern "C" fn wr_atomic_fetch_add(qp: Option<&Qp>, rkey: u32, remote_addr: u64, add: u64) {
    let op = AtomicOp::FetchAdd { add, mask: 0 };
    begin(qp, Ok(SendOp::Atomic { remote_addr, rkey: Stag(rkey), op }));
}

extern "C" fn wr_bind_mw(qp: Option<&Qp>, mw: Option<&Mw>, rkey: u32, info: Option<&BindInfo>) {
    begin(qp, info.ok_or(libc::EINVAL).and_then(|info| bind(mw, rkey, info)));
}

extern "C" fn wr_local_inv(qp: Option<&Qp>, rkey: u32) {
    begin(qp, Ok(SendOp::LocalInvalidate { stag: Stag(rkey) }));
}

extern "C" fn wr_rdma_read(qp: Option<&Qp>, rkey: u32, remote_addr: u64) {
    begin(qp, Ok(SendOp::RdmaRead { remote_addr, rkey: Stag(rkey) }));
}

extern "C" fn wr_rdma_write(qp: Option<&Qp>, rkey: u32, remote_addr: u64) {
    begin(qp, Ok(SendOp::RdmaWrite { remote_addr, rkey: Stag(rkey) }));
}

extern "C" fn wr_rdma_write_imm(qp: Option<&Qp>, rkey: u32, remote_addr: u64, imm_data: u32) {
    let imm_data = immediate(imm_data);
    begin(qp, Ok(SendOp::RdmaWriteWithImm { remote_addr, rkey: Stag(rkey), imm_data }));
}

extern "C" fn wr_send(qp: Option<&Qp>) {
    begin(qp, Ok(SendOp::SEND));
}

extern "C" fn wr_send_imm(qp: Option<&Qp>, imm_data: u32) {
    let op = SendOp::SendWithImm { imm_data: imm_data.to_ne_bytes() };
    let lacks = qp.is_some_and(|qp| qp.lacks(&op));
    begin(qp, if lacks { Err(libc::EOPNOTSUPP) } else { Ok(op) });
}

extern "C" fn wr_send_inv(qp: Option<&Qp>, rkey: u32) {
    begin(qp, Ok(SendOp::Send { invalidate: Some(Stag(rkey)) }));
}

extern "C" fn wr_set_ud_addr(qp: Option<&Qp>, ah: Option<&Ah>, remote_qpn: u32, remote_qkey: u32) {
    change(qp, |_, builder| {
        let Some((_, op, _)) = &mut builder.last else { return };
        match addressed(*op, ah, (remote_qpn, remote_qkey)) {
            Ok(datagram) => *op = datagram,
            Err(error) => builder.fail(error),
        }
    });
}

extern "C" fn wr_set_sge(qp: Option<&Qp>, lkey: u32, addr: u64, length: u32) {
    change(qp, |_, builder| builder.set_list(&[Sge { addr, length, lkey }]));
}

extern "C" fn wr_set_sge_list(qp: Option<&Qp>, count: usize, list: *const Sge) {
    change(qp, |_, builder| builder.set_list(sized(list, count)));
}

extern "C" fn wr_set_inline_data(qp: Option<&Qp>, addr: *const c_void, length: usize) {
    let buffer = DataBuf { addr, length };
    wr_set_inline_data_list(qp, 1, &raw const buffer);
}

extern "C" fn wr_set_inline_data_list(qp: Option<&Qp>, count: usize, list: *const DataBuf) {
    change(qp, |_, builder| {
        (builder.is_inline, builder.inline_len) = (true, 0);
        for buffer in sized(list, count) {
            builder.append_inline(bytes(buffer.addr, buffer.length));
        }
    });
}

/// Returns the functions of a queue pair with these operations.
pub(crate) fn tail(operations: u64) -> QpTail {
    let has = |flag: u64| operations & flag != 0;
    let calls = WrCalls {
        atomic_cmp_swp: has(COMPARE_SWAP).then_some(wr_atomic_cmp_swp),
        atomic_fetch_add: has(FETCH_ADD).then_some(wr_atomic_fetch_add),
        bind_mw: has(BIND_MW).then_some(wr_bind_mw),
        local_inv: has(LOCAL_INV).then_some(wr_local_inv),
        rdma_read: has(READ).then_some(wr_rdma_read),
        rdma_write: has(WRITE).then_some(wr_rdma_write),
        rdma_write_imm: has(WRITE_IMM).then_some(wr_rdma_write_imm),
        send: has(SEND).then_some(wr_send),
        send_imm: has(SEND_IMM).then_some(wr_send_imm),
        send_inv: has(SEND_INV).then_some(wr_send_inv),
        set_inline_data: Some(wr_set_inline_data),
        set_inline_data_list: Some(wr_set_inline_data_list),
        set_ud_addr: Some(wr_set_ud_addr),
        set_sge: Some(wr_set_sge),
        set_sge_list: Some(wr_set_sge_list),
        start: Some(wr_start),
        complete: Some(wr_complete),
        abort: Some(wr_abort),
        ..WrCalls::default()
    };
    QpTail { calls, ..QpTail::default() }
}

/// Returns the protection domain of a new queue pair, and its operations if it has the `ibv_wr_*` calls.
pub(crate) fn parameters<'a>(init: &QpInitAttrEx) -> Result<(Option<&'a Pd>, Option<u64>), c_int> {
    let has = |flag: u32| init.comp_mask & flag != 0;
    let operations = has(INIT_SEND_OPS).then_some(init.send_ops_flags);
    let known = if init.qp_type == QPT_UD { SEND | SEND_IMM } else { OPERATIONS };
    if init.comp_mask & !(INIT_PD | INIT_CREATE_FLAGS | INIT_SEND_OPS) != 0
        || has(INIT_CREATE_FLAGS) && init.create_flags != 0
        || operations.is_some_and(|operations| operations & !known != 0)
    {
        return Err(libc::EOPNOTSUPP);
    }
    Ok((if has(INIT_PD) { object(init.pd) } else { None }, operations))
}

/// Returns the parameters that queue pairs without the `ibv_wr_*` calls have, too.
pub(crate) const fn plain(init: &QpInitAttrEx) -> QpInitAttr {
    let QpInitAttrEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } = *init;
    QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
}

/// Creates a queue pair (`ibv_create_qp_ex`).
pub(crate) extern "C" fn create_qp_ex(
    _context: Option<&OpenContext>,
    init: Option<&mut QpInitAttrEx>,
) -> Option<Box<Qp>> {
    let Some(init) = init else { return null(libc::EINVAL) };
    let (pd, operations) = match parameters(init) {
        Ok((Some(pd), operations)) => (pd, operations),
        Ok((None, _)) => return null(libc::EINVAL),
        Err(error) => return null(error),
    };
    let mut attr = plain(init);
    let made = qp::create(pd, &mut attr, operations);
    init.cap = attr.cap;
    made.map_or_else(null, Some)
}

export! {
    fn ibv_qp_to_qp_ex(qp: Option<&Qp>) -> Option<&Qp> {
        qp.filter(|qp| qp.builder.is_some())
    }
}
