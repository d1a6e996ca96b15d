//! Entries of a completion queue.
//!
//! | word | low half | high half |
//! |---|---|---|
//! | 0 | `wr_id` | |
//! | 1 | byte 0 status, byte 1 opcode, byte 2 flags | length in bytes |
//! | 2 | Immediate Data | |
//! | 3 | number of the queue pair | STag that the peer invalidated |

use rdma::verbs::{QpNum, Stag, WcOpcode, WcStatus, WorkCompletion};

use crate::{EntryError, halves, split};

/// Words of a completion: two share a cache line.
pub const COMPLETION_WORDS: usize = 4;

// Flags.
const HAS_IMM: u8 = 1 << 0;
const HAS_INVALIDATED: u8 = 1 << 1;
const SOLICITED: u8 = 1 << 2;

/// Status of each code.
const STATUSES: [WcStatus; 5] = [
    WcStatus::Success,
    WcStatus::LocalLengthError,
    WcStatus::LocalProtectionError,
    WcStatus::WrFlushError,
    WcStatus::MwBindError,
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

/// Encodes a completion.
pub fn encode_completion(wc: &WorkCompletion) -> [u64; COMPLETION_WORDS] {
    let WorkCompletion { wr_id, status, opcode, byte_len, imm_data, invalidated, solicited, qp_num } = *wc;
    let imm = if imm_data.is_some() { HAS_IMM } else { 0 };
    let invalidates = if invalidated.is_some() { HAS_INVALIDATED } else { 0 };
    let solicited = if solicited { SOLICITED } else { 0 };
    let control = [code(&STATUSES, &status), code(&OPCODES, &opcode), imm | invalidates | solicited, 0];
    [
        wr_id,
        halves(u32::from_le_bytes(control), byte_len),
        u64::from_le_bytes(imm_data.unwrap_or_default()),
        halves(qp_num.0, invalidated.map_or(0, |stag| stag.0)),
    ]
}

/// Decodes a completion.
///
/// # Errors
/// The status, the opcode or a flag is unknown.
pub fn decode_completion(words: &[u64; COMPLETION_WORDS]) -> Result<WorkCompletion, EntryError> {
    let [wr_id, control, imm, numbers] = *words;
    let (control, byte_len) = split(control);
    let (qp, stag) = split(numbers);
    let [status, opcode, flags, _] = control.to_le_bytes();
    let (Some(status), Some(opcode)) = (STATUSES.get(usize::from(status)), OPCODES.get(usize::from(opcode)))
    else {
        return Err(EntryError::Completion(status, opcode));
    };
    if flags & !(HAS_IMM | HAS_INVALIDATED | SOLICITED) != 0 {
        return Err(EntryError::Flags(flags));
    }
    Ok(WorkCompletion {
        wr_id,
        status: *status,
        opcode: *opcode,
        byte_len,
        imm_data: (flags & HAS_IMM != 0).then(|| imm.to_le_bytes()),
        invalidated: (flags & HAS_INVALIDATED != 0).then_some(Stag(stag)),
        solicited: flags & SOLICITED != 0,
        qp_num: QpNum(qp),
    })
}

/// Returns the code of a value in its table, which has all of them.
fn code<T: PartialEq>(table: &[T], value: &T) -> u8 {
    let at = table.iter().position(|other| other == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}
