//! Posting work and polling completions: the functions of `struct ibv_context_ops`, which make no system call but
//! `sched_yield`.

use std::ffi::c_int;

use arrayvec::ArrayVec;
use iwarp_verbs::{
    Access, AtomicOp, Bind, Data, PostError, RecvWr as Recv, SendFlags, SendOp, SendWr as Send,
    Sge as Element, Stag, WorkCompletion,
};

use crate::abi::{RecvWr, SendWr, Sge, Wc};
use crate::abi_ex::BindInfo;
use crate::context::OpenContext;
use crate::datagrams::{self, WITH_GRH};
use crate::objects::{Cq, Mw, Srq, access};
use crate::qp::{INLINE_MAX, Qp};
use crate::raw::{array, copy, object, write};

/// Most elements of a list.
pub(crate) const SGE_MAX: usize = 16;
/// Completions that are converted at a time.
const POLL_MAX: usize = 16;

// Bits of `enum ibv_send_flags`.
const FENCE: u32 = 1;
const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
const INLINE: u32 = 8;

// Bits of `enum ibv_wc_flags`.
const WITH_IMM: u32 = 2;
const WITH_INV: u32 = 8;

// `IBV_ACCESS_ZERO_BASED`
const ZERO_BASED: u32 = 32;

/// Returns the error number of work that was not posted.
const fn number(error: PostError) -> c_int {
    match error {
        PostError::QueueFull => libc::ENOMEM,
        PostError::NotNegotiated => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// List of elements, as the device has it.
#[derive(Debug)]
pub(crate) struct List(ArrayVec<Element, SGE_MAX>);

impl List {
    pub(crate) const EMPTY: Self = Self(ArrayVec::new_const());

    #[inline]
    pub(crate) fn new(list: &[Sge]) -> Result<Self, c_int> {
        let mut out = ArrayVec::new_const();
        for from in list {
            let element = Element { addr: from.addr, length: from.length, lkey: Stag(from.lkey) };
            out.try_push(element).map_err(|_| libc::EINVAL)?;
        }
        Ok(Self(out))
    }

    pub(crate) fn elements(&self) -> &[Element] {
        &self.0
    }
}

/// Collects inline data from the memory of the program.
fn gather<'a>(list: &[Sge], buffer: &'a mut [u8; INLINE_MAX]) -> Result<&'a [u8], c_int> {
    let mut used = 0_usize;
    for sge in list {
        let length = usize::try_from(sge.length).map_err(|_| libc::EINVAL)?;
        let end = used.checked_add(length).ok_or(libc::EINVAL)?;
        copy(sge.addr, buffer.get_mut(used..end).ok_or(libc::EINVAL)?);
        used = end;
    }
    Ok(buffer.get(..used).unwrap_or_default())
}

/// Returns two halves of the union of a request as one word.
fn word(wr: &SendWr, at: usize) -> u64 {
    let half = |at: usize| wr.wr.get(at).map_or([0; 4], |half| half.to_ne_bytes());
    let (low, high) = (half(at * 2), half(at * 2 + 1));
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(low.into_iter().chain(high)).for_each(|(to, from)| *to = from);
    u64::from_ne_bytes(bytes)
}

/// Returns the operation of a request.
fn operation(qp: &Qp, wr: &SendWr) -> Result<SendOp, c_int> {
    if qp.sends_datagrams() {
        return datagrams::operation(wr);
    }
    let (remote_addr, rkey) = (word(wr, 0), Stag(wr.wr[2]));
    Ok(match wr.opcode {
        0 => SendOp::RdmaWrite { remote_addr, rkey },
        1 => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: immediate(wr.imm_data) },
        2 => SendOp::SEND,
        3 => SendOp::SendWithImm { imm_data: wr.imm_data.to_ne_bytes() },
        4 => SendOp::RdmaRead { remote_addr, rkey },
        5 | 6 => {
            let (rkey, compare_add, swap) = (Stag(wr.wr[6]), word(wr, 1), word(wr, 2));
            let op = if wr.opcode == 5 {
                compare_swap(compare_add, swap)
            } else {
                AtomicOp::FetchAdd { add: compare_add, mask: 0 }
            };
            SendOp::Atomic { remote_addr, rkey, op }
        }
        7 => SendOp::LocalInvalidate { stag: Stag(wr.imm_data) },
        8 => bind(object(wr.bind.mw), wr.bind.rkey, &wr.bind.info)?,
        9 => SendOp::Send { invalidate: Some(Stag(wr.imm_data)) },
        // Segmentation offload, and what later headers add.
        _ => return Err(libc::EOPNOTSUPP),
    })
}

/// Returns the operation that binds a memory window.
pub(crate) fn bind(mw: Option<&Mw>, rkey: u32, info: &BindInfo) -> Result<SendOp, c_int> {
    let (mw, mr) = mw.zip(object(info.mr)).ok_or(libc::EINVAL)?;
    let rights = access(info.access & !ZERO_BASED).ok_or(libc::EINVAL)?;
    let bind = Bind {
        lkey: mr.mr.lkey(),
        address: info.addr,
        len: info.length,
        access: rights & Access::REMOTE | Access::REMOTE_INVALIDATE,
        zero_based: info.access & ZERO_BASED != 0,
    };
    Ok(SendOp::BindMw { mw: mw.mw.window().id, rkey: Stag(rkey), bind })
}

/// Returns an atomic operation. The masks of RFC 7306 select all bits.
pub(crate) const fn compare_swap(compare: u64, swap: u64) -> AtomicOp {
    AtomicOp::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

/// Returns the Immediate Data of RFC 7306, eight bytes, of which the program has the first four.
pub(crate) const fn immediate(imm_data: u32) -> [u8; 8] {
    let [a, b, c, d] = imm_data.to_ne_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

/// Returns the flags of a request.
pub(crate) const fn send_flags(flags: u32) -> SendFlags {
    SendFlags {
        signaled: flags & SIGNALED != 0,
        solicited: flags & SOLICITED != 0,
        fence: flags & FENCE != 0,
    }
}

fn post_one(qp: &Qp, wr: &SendWr) -> Result<(), c_int> {
    let op = operation(qp, wr)?;
    if qp.lacks(&op) {
        return Err(libc::EOPNOTSUPP);
    }
    let elements = array(wr.sg_list, wr.num_sge);
    let flags = send_flags(wr.send_flags);
    let post = |data| {
        let wr = Send { wr_id: wr.wr_id, op, data, flags };
        posted(qp, || qp.qp.post_send(&[wr]).map_err(|(_, error)| error))
    };
    if wr.send_flags & INLINE == 0 {
        return post(Data::List(List::new(elements)?.elements()));
    }
    // Here alone: clearing it costs as much as the rest of a post.
    let mut buffer = [0; INLINE_MAX];
    post(Data::Inline(gather(elements, &mut buffer)?))
}

/// Posts by `post`, twice if the queue pair has no connection: it may be established, and the thread of the context has
/// not received the event yet. Some programs post when the first message has come.
pub(crate) fn posted(qp: &Qp, post: impl Fn() -> Result<(), PostError>) -> Result<(), c_int> {
    let posted = match post() {
        Err(PostError::State) => {
            if let Some(context) = object(qp.head.context) {
                context.shared.context.progress();
                context.shared.dispatch();
            }
            post()
        }
        posted => posted,
    };
    posted.map_err(number)
}

/// Distributes the news of a device in this process, which has run for a call.
#[inline]
pub(crate) fn hand_on(context: *const OpenContext) {
    if let Some(open) = object(context) {
        open.shared.hand_on();
    }
}

/// Posts send requests in order (`ibv_post_send`).
pub(crate) extern "C" fn post_send(
    qp: Option<&Qp>,
    first: Option<&SendWr>,
    bad: Option<&mut *const SendWr>,
) -> c_int {
    let Some(qp) = qp else { return libc::EINVAL };
    let error = post_all(qp, first, bad);
    hand_on(qp.head.context);
    error
}

fn post_all(qp: &Qp, first: Option<&SendWr>, bad: Option<&mut *const SendWr>) -> c_int {
    let mut next = first;
    while let Some(wr) = next {
        if let Err(error) = post_one(qp, wr) {
            if let Some(bad) = bad {
                *bad = wr;
            }
            return error;
        }
        next = object(wr.next);
    }
    0
}

/// Posts receive buffers in order by `post`.
fn post_buffers(
    first: Option<&RecvWr>,
    bad: Option<&mut *const RecvWr>,
    post: impl Fn(&[Recv<'_>]) -> Result<(), (usize, PostError)>,
) -> c_int {
    let mut next = first;
    while let Some(wr) = next {
        let posted = List::new(array(wr.sg_list, wr.num_sge)).and_then(|list| {
            post(&[Recv { wr_id: wr.wr_id, sg_list: list.elements() }]).map_err(|(_, error)| number(error))
        });
        if let Err(error) = posted {
            if let Some(bad) = bad {
                *bad = wr;
            }
            return error;
        }
        next = object(wr.next);
    }
    0
}

/// Posts receive buffers of a queue pair (`ibv_post_recv`).
pub(crate) extern "C" fn post_recv(
    qp: Option<&Qp>,
    first: Option<&RecvWr>,
    bad: Option<&mut *const RecvWr>,
) -> c_int {
    // Before INIT, a queue pair of InfiniBand takes no buffers. One of iWARP begins there.
    let Some(qp) = qp.filter(|qp| !qp.is_fresh()) else {
        if let Some((bad, first)) = bad.zip(first) {
            *bad = first;
        }
        return libc::EINVAL;
    };
    post_buffers(first, bad, |buffers| qp.qp.post_recv(buffers))
}

/// Posts receive buffers of a shared receive queue (`ibv_post_srq_recv`).
pub(crate) extern "C" fn post_srq_recv(
    srq: Option<&Srq>,
    first: Option<&RecvWr>,
    bad: Option<&mut *const RecvWr>,
) -> c_int {
    let Some(srq) = srq else { return libc::EINVAL };
    post_buffers(first, bad, |buffers| srq.srq.post_recv(buffers))
}

/// Returns a completion as programs have it.
pub(crate) fn completion(wc: &WorkCompletion) -> Wc {
    let (imm_data, wc_flags) = match (wc.imm_data, wc.invalidated) {
        (Some([a, b, c, d, ..]), _) => (u32::from_ne_bytes([a, b, c, d]), WITH_IMM),
        (None, Some(stag)) => (stag.0, WITH_INV),
        (None, None) => (0, 0),
    };
    Wc {
        wr_id: wc.wr_id,
        status: wc.status.number().into(),
        opcode: wc.opcode.number().into(),
        byte_len: wc.byte_len,
        imm_data,
        qp_num: wc.qp_num.0,
        src_qp: wc.src_qp.0,
        wc_flags: wc_flags | if wc.src_qp.0 == 0 { 0 } else { WITH_GRH },
        ..Wc::default()
    }
}

/// Moves completions to the array of the program (`ibv_poll_cq`).
pub(crate) extern "C" fn poll_cq(cq: Option<&Cq>, entries: c_int, out: *mut Wc) -> c_int {
    let Some(cq) = cq else { return -1 };
    let polled = poll(cq, entries, out);
    hand_on(cq.head.context);
    polled
}

fn poll(cq: &Cq, entries: c_int, out: *mut Wc) -> c_int {
    let max = usize::try_from(entries).unwrap_or(0);
    let mut polled = 0_usize;
    while polled < max {
        let mut some = [WorkCompletion::default(); POLL_MAX];
        let places = some.get_mut(..(max - polled).min(POLL_MAX)).unwrap_or_default();
        let Ok(count) = cq.cq.poll(places) else {
            return if polled > 0 { c_int::try_from(polled).unwrap_or(c_int::MAX) } else { -1 };
        };
        let asked = places.len();
        for wc in some.iter().take(count) {
            write(out, polled, completion(wc));
            polled += 1;
        }
        if count < asked {
            break;
        }
    }
    c_int::try_from(polled).unwrap_or(c_int::MAX)
}

/// Arms a completion queue for one event (`ibv_req_notify_cq`).
pub(crate) extern "C" fn req_notify_cq(cq: Option<&Cq>, solicited_only: c_int) -> c_int {
    let Some(cq) = cq.filter(|cq| !cq.cq.is_inherited()) else { return libc::EINVAL };
    cq.cq.req_notify(solicited_only != 0);
    0
}
