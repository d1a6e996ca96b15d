//! Entries of a send queue: one work request each.
//!
//! | word | low half | high half |
//! |---|---|---|
//! | 0 | `wr_id` | |
//! | 1 | byte 0 operation, byte 1 flags, byte 2 elements, byte 3 rights | bytes 4 and 5 length of the inline data |
//! | 2 | address at the peer; of a datagram, number and Q_Key of its receiver | |
//! | 3 | key of the peer's memory | STag to invalidate, key of the region to bind, Immediate Data without a Write |
//! | from 4 | elements of two words: address; length and key; or inline data | |
//! | then | operands: Immediate Data; atomic; address and length to bind, memory window; two GIDs | |
//!
//! A request with up to two elements and no operands lies in one cache line.

use core::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayVec;
use rdma::AtomicOp;
use rdma::verbs::{
    Access, Bind, Data, Destination, MwId, QpNum, SGE_MAX, SendFlags, SendOp, SendWr, Sge, Stag, gid,
};
use zerocopy::IntoBytes;

use crate::{EntryError, LINE_WORDS, RingShape, halves, split};

/// Words in front of the elements.
const HEAD_WORDS: usize = 4;
/// Most operands of an operation, words.
const OPERANDS_MAX: usize = 4;
/// Words of an element.
const SGE_WORDS: usize = 2;
/// Bytes of a word.
const WORD_BYTES: usize = 8;
/// Most bytes of inline data.
pub const INLINE_MAX: usize = 512;

/// Scatter/gather list of one entry.
pub type SgeList = ArrayVec<Sge, SGE_MAX>;

// Flags.
const SIGNALED: u8 = 1 << 0;
const SOLICITED: u8 = 1 << 1;
const FENCE: u8 = 1 << 2;
const INLINE: u8 = 1 << 3;
/// A Send invalidates, a window is zero-based, a datagram has Immediate Data.
const OPTION: u8 = 1 << 4;
const FLAGS: u8 = SIGNALED | SOLICITED | FENCE | INLINE | OPTION;

// Operation codes.
const SEND: u8 = 1;
const RDMA_WRITE: u8 = 2;
const RDMA_WRITE_WITH_IMM: u8 = 3;
const IMMEDIATE: u8 = 4;
const RDMA_READ: u8 = 5;
const RDMA_READ_INVALIDATE: u8 = 6;
const FETCH_ADD: u8 = 7;
const COMPARE_SWAP: u8 = 8;
const BIND_MW: u8 = 9;
const LOCAL_INVALIDATE: u8 = 10;
const SEND_WITH_IMM: u8 = 11;
const DATAGRAM: u8 = 12;

/// Returns the words of an entry with up to `sges` elements or `inline` bytes, whole cache lines; `None` if they exceed
/// [`SGE_MAX`] and [`INLINE_MAX`].
pub fn send_words(sges: usize, inline: usize) -> Option<u32> {
    let list = sges.checked_mul(SGE_WORDS)?;
    let data = list.max(inline.div_ceil(WORD_BYTES));
    let words = HEAD_WORDS.saturating_add(OPERANDS_MAX).checked_add(data)?.next_multiple_of(LINE_WORDS);
    let words = u32::try_from(words).ok().filter(|words| *words <= RingShape::ENTRY_WORDS_MAX)?;
    (sges <= SGE_MAX && inline <= INLINE_MAX).then_some(words)
}

/// Returns the words that an entry takes which begins with these: of a valid one, as many as [`encode_send`] has
/// returned.
#[inline]
pub fn send_length(first: &[u64]) -> usize {
    let [opcode, flags, count, _, low, high, ..] = first.get(1).copied().unwrap_or(0).to_le_bytes();
    let data = if flags & INLINE == 0 {
        usize::from(count).saturating_mul(SGE_WORDS)
    } else {
        usize::from(u16::from_le_bytes([low, high])).div_ceil(WORD_BYTES)
    };
    HEAD_WORDS.saturating_add(data).saturating_add(operands(opcode))
}

/// Decodes the words of an entry, which were copied from a ring, and puts its elements into `list`. The keys and
/// addresses are not checked: the device checks them when it executes the request.
///
/// # Errors
/// The words are no work request.
#[inline]
pub fn decode_send<'a>(words: &'a [u64], list: &'a mut SgeList) -> Result<SendWr<'a>, EntryError> {
    let (head, rest) = words.split_first_chunk::<HEAD_WORDS>().ok_or(EntryError::TooShort)?;
    let [wr_id, control, remote_addr, keys] = *head;
    let [opcode, flags, count, access, low, high, ..] = control.to_le_bytes();
    if flags & !FLAGS != 0 {
        return Err(EntryError::Flags(flags));
    }
    let (data, rest) = if flags & INLINE == 0 {
        let rest = decode_sges(rest, count, list)?;
        (Data::List(list), rest)
    } else {
        let (bytes, rest) = decode_inline(rest, u16::from_le_bytes([low, high]))?;
        (Data::Inline(bytes), rest)
    };
    let mut operands = [0; OPERANDS_MAX];
    for (to, at) in operands.iter_mut().zip(0..self::operands(opcode)) {
        *to = *rest.get(at).ok_or(EntryError::TooShort)?;
    }
    let op = decode_op((opcode, flags, access), remote_addr, keys, operands)?;
    let has = |flag| flags & flag != 0;
    let flags = SendFlags { signaled: has(SIGNALED), solicited: has(SOLICITED), fence: has(FENCE) };
    Ok(SendWr { wr_id, op, data, flags })
}

/// Returns the number of operands of an operation.
#[inline]
const fn operands(opcode: u8) -> usize {
    match opcode {
        RDMA_WRITE_WITH_IMM | IMMEDIATE => 1,
        FETCH_ADD => 2,
        BIND_MW => 3,
        COMPARE_SWAP | DATAGRAM => 4,
        _ => 0,
    }
}

#[inline]
fn decode_op(
    (opcode, flags, access): (u8, u8, u8),
    remote_addr: u64,
    keys: u64,
    operands: [u64; OPERANDS_MAX],
) -> Result<SendOp, EntryError> {
    let (rkey, other) = split(keys);
    let (rkey, other) = (Stag(rkey), Stag(other));
    let [first, second, third, fourth] = operands;
    let option = flags & OPTION != 0;
    Ok(match opcode {
        SEND => SendOp::Send { invalidate: option.then_some(other) },
        RDMA_WRITE => SendOp::RdmaWrite { remote_addr, rkey },
        RDMA_WRITE_WITH_IMM => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: first.to_le_bytes() },
        IMMEDIATE => SendOp::Immediate { imm_data: first.to_le_bytes() },
        RDMA_READ => SendOp::RdmaRead { remote_addr, rkey },
        RDMA_READ_INVALIDATE => SendOp::RdmaReadInvalidate { remote_addr, rkey },
        FETCH_ADD => {
            SendOp::Atomic { remote_addr, rkey, op: AtomicOp::FetchAdd { add: first, mask: second } }
        }
        COMPARE_SWAP => {
            let op = AtomicOp::CompareSwap {
                compare: first,
                compare_mask: second,
                swap: third,
                swap_mask: fourth,
            };
            SendOp::Atomic { remote_addr, rkey, op }
        }
        BIND_MW => {
            let access = Access::from_bits(access).ok_or(EntryError::Access(access))?;
            let bind = Bind { lkey: other, address: first, len: second, access, zero_based: option };
            SendOp::BindMw { mw: MwId(split(third).0), rkey, bind }
        }
        LOCAL_INVALIDATE => SendOp::LocalInvalidate { stag: other },
        SEND_WITH_IMM => SendOp::SendWithImm { imm_data: other.0.to_le_bytes() },
        DATAGRAM => {
            let (qp_num, qkey) = split(remote_addr);
            let [remote, local] = [address(first, second), address(third, fourth)];
            let to = Destination { local, remote, qp_num: QpNum(qp_num), qkey };
            SendOp::Datagram { to, imm_data: option.then(|| other.0.to_le_bytes()) }
        }
        _ => return Err(EntryError::Opcode(opcode)),
    })
}

/// Returns the address of a GID in two words, the first of which has its first bytes.
fn address(first: u64, second: u64) -> IpAddr {
    let bits = u128::from(first) << 64 | u128::from(second);
    IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
}

/// Returns the two words of an address.
const fn address_words(address: IpAddr) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = gid(address).octets();
    [u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes([i, j, k, l, m, n, o, p])]
}

/// Decodes a scatter/gather list of `count` elements into `list`, and returns the words behind it.
#[inline]
pub(crate) fn decode_sges<'a>(
    words: &'a [u64],
    count: u8,
    list: &mut SgeList,
) -> Result<&'a [u64], EntryError> {
    list.clear();
    if usize::from(count) > SGE_MAX {
        return Err(EntryError::ListLength(count));
    }
    let used = usize::from(count).saturating_mul(SGE_WORDS);
    let (elements, rest) = words.split_at_checked(used).ok_or(EntryError::TooShort)?;
    for &[addr, rest] in elements.as_chunks::<SGE_WORDS>().0 {
        let (length, lkey) = split(rest);
        // There is room.
        let _ = list.try_push(Sge { addr, length, lkey: Stag(lkey) });
    }
    Ok(rest)
}

/// Writes a scatter/gather list.
pub(crate) fn encode_sges(sges: &[Sge], words: &mut [u64]) -> Result<(), EntryError> {
    let (pairs, _) = words.as_chunks_mut::<SGE_WORDS>();
    let pairs = pairs.get_mut(..sges.len()).ok_or(EntryError::TooShort)?;
    for (pair, sge) in pairs.iter_mut().zip(sges) {
        *pair = [sge.addr, halves(sge.length, sge.lkey.0)];
    }
    Ok(())
}

/// Returns inline data of `len` bytes, and the words behind it.
#[inline]
fn decode_inline(words: &[u64], len: u16) -> Result<(&[u8], &[u64]), EntryError> {
    let len_bytes = usize::from(len);
    if len_bytes > INLINE_MAX {
        return Err(EntryError::InlineLength(len));
    }
    let (words, rest) = words.split_at_checked(len_bytes.div_ceil(WORD_BYTES)).ok_or(EntryError::TooShort)?;
    Ok((words.as_bytes().get(..len_bytes).ok_or(EntryError::TooShort)?, rest))
}

/// Encodes a work request into the words of an entry, and returns how many it takes. Words behind it keep their values.
///
/// # Errors
/// The entry has too few words for the list or the inline data, or these are longer than any request's.
pub fn encode_send(request: &SendWr<'_>, words: &mut [u64]) -> Result<usize, EntryError> {
    let (head, rest) = words.split_first_chunk_mut::<HEAD_WORDS>().ok_or(EntryError::TooShort)?;
    let SendFlags { signaled, solicited, fence } = request.flags;
    let mut flags = flag(signaled, SIGNALED) | flag(solicited, SOLICITED) | flag(fence, FENCE);
    let (mut count, mut inline_len) = (0, 0);
    let used;
    match request.data {
        Data::List(sges) => {
            count = u8::try_from(sges.len()).unwrap_or(u8::MAX);
            if sges.len() > SGE_MAX {
                return Err(EntryError::ListLength(count));
            }
            encode_sges(sges, rest)?;
            used = sges.len().saturating_mul(SGE_WORDS);
        }
        Data::Inline(bytes) => {
            flags |= INLINE;
            inline_len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
            if bytes.len() > INLINE_MAX {
                return Err(EntryError::InlineLength(inline_len));
            }
            encode_inline(bytes, rest)?;
            used = bytes.len().div_ceil(WORD_BYTES);
        }
    }
    let Operation { opcode, option, access, remote_addr, keys, operands } = Operation::of(&request.op);
    let control = [opcode, flags | flag(option, OPTION), count, access, 0, 0, 0, 0];
    let control = u64::from_le_bytes(control) | u64::from(inline_len) << 32;
    *head = [request.wr_id, control, remote_addr, halves(keys.0, keys.1)];
    let operands = operands.get(..self::operands(opcode)).unwrap_or(&operands);
    let end = used.saturating_add(operands.len());
    rest.get_mut(used..end).ok_or(EntryError::TooShort)?.copy_from_slice(operands);
    Ok(HEAD_WORDS.saturating_add(end))
}

fn encode_inline(bytes: &[u8], words: &mut [u64]) -> Result<(), EntryError> {
    let words = words.get_mut(..bytes.len().div_ceil(WORD_BYTES)).ok_or(EntryError::TooShort)?;
    if let Some(last) = words.last_mut() {
        *last = 0;
    }
    words.as_mut_bytes().get_mut(..bytes.len()).ok_or(EntryError::TooShort)?.copy_from_slice(bytes);
    Ok(())
}

const fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

/// Fields of an operation.
#[derive(Default)]
struct Operation {
    opcode: u8,
    option: bool,
    access: u8,
    remote_addr: u64,
    keys: (u32, u32),
    operands: [u64; OPERANDS_MAX],
}

impl Operation {
    fn of(op: &SendOp) -> Self {
        let none = Self::default();
        match *op {
            SendOp::Send { invalidate } => {
                let keys = (0, invalidate.map_or(0, |stag| stag.0));
                Self { opcode: SEND, option: invalidate.is_some(), keys, ..none }
            }
            SendOp::Datagram { to: Destination { local, remote, qp_num, qkey }, imm_data } => {
                let ([first, second], [third, fourth]) = (address_words(remote), address_words(local));
                Self {
                    opcode: DATAGRAM,
                    option: imm_data.is_some(),
                    remote_addr: halves(qp_num.0, qkey),
                    keys: (0, imm_data.map_or(0, u32::from_le_bytes)),
                    operands: [first, second, third, fourth],
                    ..none
                }
            }
            SendOp::SendWithImm { imm_data } => {
                Self { opcode: SEND_WITH_IMM, keys: (0, u32::from_le_bytes(imm_data)), ..none }
            }
            SendOp::RdmaWrite { remote_addr, rkey } => {
                Self { opcode: RDMA_WRITE, remote_addr, keys: (rkey.0, 0), ..none }
            }
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data } => {
                let operands = [u64::from_le_bytes(imm_data), 0, 0, 0];
                Self { opcode: RDMA_WRITE_WITH_IMM, remote_addr, keys: (rkey.0, 0), operands, ..none }
            }
            SendOp::Immediate { imm_data } => {
                Self { opcode: IMMEDIATE, operands: [u64::from_le_bytes(imm_data), 0, 0, 0], ..none }
            }
            SendOp::RdmaRead { remote_addr, rkey } => {
                Self { opcode: RDMA_READ, remote_addr, keys: (rkey.0, 0), ..none }
            }
            SendOp::RdmaReadInvalidate { remote_addr, rkey } => {
                Self { opcode: RDMA_READ_INVALIDATE, remote_addr, keys: (rkey.0, 0), ..none }
            }
            SendOp::Atomic { remote_addr, rkey, op } => {
                let (opcode, operands) = match op {
                    AtomicOp::FetchAdd { add, mask } => (FETCH_ADD, [add, mask, 0, 0]),
                    AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                        (COMPARE_SWAP, [compare, compare_mask, swap, swap_mask])
                    }
                };
                Self { opcode, remote_addr, keys: (rkey.0, 0), operands, ..none }
            }
            SendOp::BindMw { mw, rkey, bind } => {
                let Bind { lkey, address, len, access, zero_based } = bind;
                Self {
                    opcode: BIND_MW,
                    option: zero_based,
                    access: access.bits(),
                    keys: (rkey.0, lkey.0),
                    operands: [address, len, u64::from(mw.0), 0],
                    ..none
                }
            }
            SendOp::LocalInvalidate { stag } => Self { opcode: LOCAL_INVALIDATE, keys: (0, stag.0), ..none },
        }
    }
}
