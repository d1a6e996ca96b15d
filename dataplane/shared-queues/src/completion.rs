//! Entries of a completion queue.
//!
//! | word | low half | high half |
//! |---|---|---|
//! | 0 | `wr_id` | |
//! | 1 | byte 0 status (low four bits) and opcode, byte 1 flags, bytes 2 and 3 slots | length in bytes |
//! | 2 | Immediate Data | |
//! | 3 | number of the queue pair | STag that the peer invalidated, or number of a datagram's sender |

use rdma::verbs::{QpNum, Slots, Stag, WcOpcode, WcStatus, WorkCompletion};

use crate::{EntryError, halves, split};

/// Words of a completion: two share a cache line.
pub const COMPLETION_WORDS: usize = 4;

// Flags.
const HAS_IMM: u8 = 1 << 0;
const HAS_INVALIDATED: u8 = 1 << 1;
const SOLICITED: u8 = 1 << 2;
/// The completion frees a slot of the receive queue; otherwise, of the send queue.
const RECEIVE: u8 = 1 << 3;
const HAS_SOURCE: u8 = 1 << 4;

/// Status of each code.
const STATUSES: [WcStatus; 11] = [
    WcStatus::Success,
    WcStatus::LocalLengthError,
    WcStatus::LocalProtectionError,
    WcStatus::WrFlushError,
    WcStatus::MwBindError,
    WcStatus::LocalQpOperationError,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteAccessError,
    WcStatus::RemoteOperationError,
    WcStatus::RetryExceeded,
    WcStatus::RnrRetryExceeded,
];

/// Operation of each code.
const OPCODES: [WcOpcode; 9] = [
    WcOpcode::Send,
    WcOpcode::RdmaWrite,
    WcOpcode::RdmaRead,
    WcOpcode::FetchAdd,
    WcOpcode::CompareSwap,
    WcOpcode::BindMw,
    WcOpcode::LocalInvalidate,
    WcOpcode::Recv,
    WcOpcode::RecvRdmaWithImm,
];

/// Encodes a completion, and the slots that it frees in its queue pair.
pub fn encode_completion(wc: &WorkCompletion, slots: Slots) -> [u64; COMPLETION_WORDS] {
    let WorkCompletion { wr_id, status, opcode, byte_len, imm_data, invalidated, solicited, qp_num, src_qp } =
        *wc;
    let imm = if imm_data.is_some() { HAS_IMM } else { 0 };
    let invalidates = if invalidated.is_some() { HAS_INVALIDATED } else { 0 };
    let solicited = if solicited { SOLICITED } else { 0 };
    let source = if src_qp == QpNum(0) { 0 } else { HAS_SOURCE };
    let (receive, count) = match slots {
        Slots::Send(count) => (0, u16::try_from(count).unwrap_or(u16::MAX)),
        Slots::Receive => (RECEIVE, 1),
    };
    let [low, high] = count.to_le_bytes();
    let kind = code(&STATUSES, &status) | code(&OPCODES, &opcode) << 4;
    let control = [kind, imm | invalidates | solicited | receive | source, low, high];
    [
        wr_id,
        halves(u32::from_le_bytes(control), byte_len),
        u64::from_le_bytes(imm_data.unwrap_or_default()),
        // A datagram invalidates no STag.
        halves(qp_num.0, src_qp.0 | invalidated.map_or(0, |stag| stag.0)),
    ]
}

/// Decodes a completion and the slots that it frees.
///
/// # Errors
/// The status, the opcode or a flag is unknown.
pub fn decode_completion(words: &[u64; COMPLETION_WORDS]) -> Result<(WorkCompletion, Slots), EntryError> {
    let [wr_id, control, imm, numbers] = *words;
    let (control, byte_len) = split(control);
    let (qp, other) = split(numbers);
    let [kind, flags, low, high] = control.to_le_bytes();
    let (status, opcode) = (kind & 0xf, kind >> 4);
    let (Some(status), Some(opcode)) = (STATUSES.get(usize::from(status)), OPCODES.get(usize::from(opcode)))
    else {
        return Err(EntryError::Completion(status, opcode));
    };
    if flags & !(HAS_IMM | HAS_INVALIDATED | SOLICITED | RECEIVE | HAS_SOURCE) != 0 {
        return Err(EntryError::Flags(flags));
    }
    let wc = WorkCompletion {
        wr_id,
        status: *status,
        opcode: *opcode,
        byte_len,
        imm_data: (flags & HAS_IMM != 0).then(|| imm.to_le_bytes()),
        invalidated: (flags & (HAS_INVALIDATED | HAS_SOURCE) == HAS_INVALIDATED).then_some(Stag(other)),
        solicited: flags & SOLICITED != 0,
        qp_num: QpNum(qp),
        src_qp: QpNum(if flags & HAS_SOURCE == 0 { 0 } else { other }),
    };
    let count = usize::from(u16::from_le_bytes([low, high]));
    Ok((wc, if flags & RECEIVE == 0 { Slots::Send(count) } else { Slots::Receive }))
}

/// Returns the code of a value in its table, which has all of them.
fn code<T: PartialEq>(table: &[T], value: &T) -> u8 {
    let at = table.iter().position(|other| other == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0xf)
}
