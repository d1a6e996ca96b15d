//! Completion queues that programs poll by an iterator (`ibv_create_cq_ex`). It makes no system call but `sched_yield`.

use std::ffi::c_int;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use iwarp_verbs::WorkCompletion;

use crate::abi::Wc;
use crate::abi_ex::{CqCalls, CqInitAttrEx};
use crate::context::{OpenContext, null};
use crate::objects::{Cq, create_cq};
use crate::raw::object;
use crate::work::{completion, hand_on};

// `IBV_CQ_INIT_ATTR_MASK_FLAGS`
const MASK_FLAGS: u32 = 1;
// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`
const SINGLE_THREADED: u32 = 1;

// Bits of `enum ibv_create_cq_wc_flags`.
const BYTE_LEN: u64 = 1;
const IMM: u64 = 1 << 1;
const QP_NUM: u64 = 1 << 2;
const SRC_QP: u64 = 1 << 3;
const SLID: u64 = 1 << 4;
const SL: u64 = 1 << 5;
const DLID_PATH_BITS: u64 = 1 << 6;
const STANDARD: u64 = (1 << 7) - 1;

/// Spins before a thread that waits for another one's iteration yields.
const SPINS: u32 = 100;

/// Iteration over a completion queue: the completion that the program reads.
#[derive(Debug, Default)]
pub(crate) struct Iterator {
    /// True from `ibv_start_poll` to `ibv_end_poll`: other threads wait.
    busy: AtomicBool,
    opcode: AtomicI32,
    byte_len: AtomicU32,
    imm_data: AtomicU32,
    qp_num: AtomicU32,
    src_qp: AtomicU32,
    wc_flags: AtomicU32,
}

impl Iterator {
    fn enter(&self) {
        let mut spins = 0_u32;
        while self.busy.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }
}

/// Moves the iteration to the next completion.
fn advance(cq: &Cq) -> c_int {
    let mut next = [WorkCompletion::default()];
    match cq.cq.poll(&mut next) {
        Ok(1) => {}
        Ok(_) => return libc::ENOENT,
        Err(_) => return libc::EIO,
    }
    let [next] = next;
    let Wc { wr_id, status, opcode, byte_len, imm_data, qp_num, src_qp, wc_flags, .. } = completion(&next);
    cq.tail.wr_id.store(wr_id, Ordering::Relaxed);
    cq.tail.status.store(status, Ordering::Relaxed);
    let iterator = &cq.iterator;
    iterator.opcode.store(opcode, Ordering::Relaxed);
    iterator.byte_len.store(byte_len, Ordering::Relaxed);
    iterator.imm_data.store(imm_data, Ordering::Relaxed);
    iterator.qp_num.store(qp_num, Ordering::Relaxed);
    iterator.src_qp.store(src_qp, Ordering::Relaxed);
    iterator.wc_flags.store(wc_flags, Ordering::Relaxed);
    0
}

extern "C" fn start_poll(cq: Option<&Cq>, comp_mask: Option<&u32>) -> c_int {
    let Some(cq) = cq.filter(|_| comp_mask.is_none_or(|mask| *mask == 0)) else { return libc::EINVAL };
    cq.iterator.enter();
    let result = advance(cq);
    if result != 0 {
        cq.iterator.leave();
    }
    hand_on(cq.head.context);
    result
}

extern "C" fn next_poll(cq: Option<&Cq>) -> c_int {
    cq.map_or(libc::EINVAL, advance)
}

extern "C" fn end_poll(cq: Option<&Cq>) {
    if let Some(cq) = cq {
        cq.iterator.leave();
        hand_on(cq.head.context);
    }
}

extern "C" fn read_opcode(cq: Option<&Cq>) -> c_int {
    cq.map_or(0, |cq| cq.iterator.opcode.load(Ordering::Relaxed))
}

extern "C" fn read_byte_len(cq: Option<&Cq>) -> u32 {
    cq.map_or(0, |cq| cq.iterator.byte_len.load(Ordering::Relaxed))
}

/// Reads the Immediate Data, or the key that the peer has invalidated.
extern "C" fn read_imm_data(cq: Option<&Cq>) -> u32 {
    cq.map_or(0, |cq| cq.iterator.imm_data.load(Ordering::Relaxed))
}

extern "C" fn read_qp_num(cq: Option<&Cq>) -> u32 {
    cq.map_or(0, |cq| cq.iterator.qp_num.load(Ordering::Relaxed))
}

extern "C" fn read_src_qp(cq: Option<&Cq>) -> u32 {
    cq.map_or(0, |cq| cq.iterator.src_qp.load(Ordering::Relaxed))
}

extern "C" fn read_wc_flags(cq: Option<&Cq>) -> u32 {
    cq.map_or(0, |cq| cq.iterator.wc_flags.load(Ordering::Relaxed))
}

/// Reads a field that iWARP does not have.
extern "C" fn read_nothing(_cq: Option<&Cq>) -> u32 {
    0
}

/// Reads a field that iWARP does not have.
extern "C" fn read_no_byte(_cq: Option<&Cq>) -> u8 {
    0
}

/// Returns the functions for the fields that a program has asked for.
fn calls(wc_flags: u64) -> CqCalls {
    let has = |flag: u64| wc_flags & flag != 0;
    CqCalls {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_nothing),
        read_byte_len: has(BYTE_LEN).then_some(read_byte_len),
        read_imm_data: has(IMM).then_some(read_imm_data),
        read_qp_num: has(QP_NUM).then_some(read_qp_num),
        read_src_qp: has(SRC_QP).then_some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: has(SLID).then_some(read_nothing),
        read_sl: has(SL).then_some(read_no_byte),
        read_dlid_path_bits: has(DLID_PATH_BITS).then_some(read_no_byte),
        absent: [0; 5],
    }
}

/// Creates a completion queue that is polled by an iterator. Time stamps, flow tags, parent domains and queues that
/// ignore an overrun do not exist.
pub(crate) extern "C" fn create_cq_ex(
    context: Option<&OpenContext>,
    init: Option<&CqInitAttrEx>,
) -> Option<Box<Cq>> {
    let Some((context, init)) = context.zip(init) else { return null(libc::EINVAL) };
    let flags = if init.comp_mask & MASK_FLAGS != 0 { init.flags } else { 0 };
    if init.comp_mask & !MASK_FLAGS != 0 || flags & !SINGLE_THREADED != 0 || init.wc_flags & !STANDARD != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let sizes = (init.cqe, init.comp_vector);
    let made = create_cq(context, sizes, init.cq_context, object(init.channel), calls(init.wc_flags));
    made.map_or_else(null, Some)
}
