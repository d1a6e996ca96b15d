//! RDMAP's control field, its opcodes, and the RDMA Read Request header (RFC 5040 §4, RFC 7306 §4).

use super::atomic::{AtomicRequest, AtomicResponse, IMMEDIATE_LEN};
use super::{ParseError, QueueNumber, Stag, TaggedOffset, halves, offset, truncated};

/// The version of RFC 5040 §4.1: "01b for an RNIC that complies with this RDMA protocol specification".
pub const VERSION: u8 = 1;

/// What an RDMA message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// Places data in a buffer that the peer advertised.
    RdmaWrite,
    /// Asks the peer to send back the content of a buffer that it advertised.
    ReadRequest,
    /// Carries what a Read Request asked for.
    ReadResponse,
    /// Delivers data to the next buffer that the peer has posted.
    Send,
    /// A Send that also takes back an STag of the receiver's.
    SendInvalidate,
    /// A Send that asks for an event at the receiver.
    SendSolicited,
    /// Both of these.
    SendSolicitedInvalidate,
    /// Tells why the stream ends.
    Terminate,
    /// Delivers eight bytes without a buffer (RFC 7306 §6).
    ImmediateData,
    /// The same, asking for an event at the receiver.
    ImmediateDataSolicited,
    /// Asks for a 64-bit atomic operation (RFC 7306 §5).
    AtomicRequest,
    /// Carries what an atomic operation found.
    AtomicResponse,
    /// 12–15: no message has this number.
    Reserved(u8),
}

/// What RFC 5040 §4.1 Figure 4, §4.2 Figure 5 and RFC 7306 §4 Figures 2 and 3 say of one opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeRow {
    /// The message.
    pub opcode: Opcode,
    /// Its name in the RFC.
    pub name: &'static str,
    /// The queue that it must name; `None` for a tagged message.
    pub queue: Option<QueueNumber>,
    /// The DDP header carries an STag to invalidate.
    pub invalidates: bool,
    /// The receiver's ULP is to be woken.
    pub solicited: bool,
    /// Bytes of RDMAP header behind the DDP header; Terminate's is the fixed part only.
    pub header_len: usize,
    /// Bytes of the ULP may follow.
    pub payload: bool,
}

const fn tagged(opcode: Opcode, name: &'static str) -> OpcodeRow {
    OpcodeRow {
        opcode,
        name,
        queue: None,
        invalidates: false,
        solicited: false,
        header_len: 0,
        payload: true,
    }
}

const fn send(opcode: Opcode, name: &'static str, solicited: bool, invalidates: bool) -> OpcodeRow {
    let queue = Some(QueueNumber::SEND);
    OpcodeRow { opcode, name, queue, invalidates, solicited, header_len: 0, payload: true }
}

const fn fixed(opcode: Opcode, name: &'static str, queue: QueueNumber, header_len: usize) -> OpcodeRow {
    let queue = Some(queue);
    OpcodeRow { opcode, name, queue, invalidates: false, solicited: false, header_len, payload: false }
}

/// Every opcode that has a meaning, in the order of its number.
pub const OPCODES: [OpcodeRow; 12] = [
    tagged(Opcode::RdmaWrite, "RDMA Write"),
    fixed(Opcode::ReadRequest, "RDMA Read Request", QueueNumber::READ_REQUEST, ReadRequest::LEN),
    tagged(Opcode::ReadResponse, "RDMA Read Response"),
    send(Opcode::Send, "Send", false, false),
    send(Opcode::SendInvalidate, "Send with Invalidate", false, true),
    send(Opcode::SendSolicited, "Send with SE", true, false),
    send(Opcode::SendSolicitedInvalidate, "Send with SE and Invalidate", true, true),
    fixed(Opcode::Terminate, "Terminate", QueueNumber::TERMINATE, super::terminate::Control::LEN),
    fixed(Opcode::ImmediateData, "Immediate Data", QueueNumber::SEND, IMMEDIATE_LEN),
    OpcodeRow {
        solicited: true,
        ..fixed(Opcode::ImmediateDataSolicited, "Immediate Data with SE", QueueNumber::SEND, IMMEDIATE_LEN)
    },
    fixed(Opcode::AtomicRequest, "Atomic Request", QueueNumber::READ_REQUEST, AtomicRequest::LEN),
    fixed(Opcode::AtomicResponse, "Atomic Response", QueueNumber::ATOMIC_RESPONSE, AtomicResponse::LEN),
];

impl Opcode {
    /// The opcode of a number; only its low four bits count.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0x0F {
            0 => Self::RdmaWrite,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::ImmediateData,
            9 => Self::ImmediateDataSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            other => Self::Reserved(other),
        }
    }

    /// The number on the wire, 0–15.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::RdmaWrite => 0,
            Self::ReadRequest => 1,
            Self::ReadResponse => 2,
            Self::Send => 3,
            Self::SendInvalidate => 4,
            Self::SendSolicited => 5,
            Self::SendSolicitedInvalidate => 6,
            Self::Terminate => 7,
            Self::ImmediateData => 8,
            Self::ImmediateDataSolicited => 9,
            Self::AtomicRequest => 10,
            Self::AtomicResponse => 11,
            Self::Reserved(bits) => bits & 0x0F,
        }
    }

    /// What the RFCs say of this opcode; `None` where they reserve it.
    #[inline]
    #[must_use]
    pub fn row(self) -> Option<&'static OpcodeRow> {
        OPCODES.get(usize::from(self.bits()))
    }
}

/// RDMAP's byte in the DDP header (RFC 5040 §4.1, Figure 3).
///
/// ```text
///  0 1 2 3 4 5 6 7
/// +---+---+-------+
/// | RV|Rsv| Opcode|
/// +---+---+-------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlField {
    /// RV, 0–3; [`VERSION`] is the only one spoken.
    pub version: u8,
    /// What the message is.
    pub opcode: Opcode,
}

impl ControlField {
    /// The field of a message that we send.
    #[inline]
    #[must_use]
    pub const fn new(opcode: Opcode) -> Self {
        Self { version: VERSION, opcode }
    }

    /// Reads the byte.
    #[inline]
    #[must_use]
    pub const fn parse(byte: u8) -> Self {
        Self { version: byte >> 6, opcode: Opcode::from_bits(byte) }
    }

    /// The byte.
    #[inline]
    #[must_use]
    pub const fn emit(self) -> u8 {
        ((self.version & 0x03) << 6) | self.opcode.bits()
    }
}

/// The RDMA Read Request header (RFC 5040 §4.4, Figure 6).
///
/// ```text
/// +-----------------------------------------------+
/// |            Data Sink STag (32)                |
/// |            Data Sink Tagged Offset (64)       |
/// |            RDMA Read Message Size (32)        |
/// |            Data Source STag (32)              |
/// |            Data Source Tagged Offset (64)     |
/// +-----------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The requester's buffer; copied into the response without interpretation.
    pub sink_stag: Stag,
    /// Where in that buffer the data goes.
    pub sink_offset: TaggedOffset,
    /// Bytes asked for.
    pub size: u32,
    /// The responder's buffer.
    pub source_stag: Stag,
    /// Where in that buffer the data is.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// The header at the start of `message`, and the bytes behind it (of which there should be none).
    ///
    /// # Errors
    /// `Truncated`.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((header, rest)) = message.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, message.len()));
        };
        let ([sink, sink_high, sink_low, size, source, source_high, source_low], _) = header.as_chunks::<4>()
        else {
            return Err(truncated(Self::LEN, message.len()));
        };
        let parsed = Self {
            sink_stag: Stag(u32::from_be_bytes(*sink)),
            sink_offset: offset(*sink_high, *sink_low),
            size: u32::from_be_bytes(*size),
            source_stag: Stag(u32::from_be_bytes(*source)),
            source_offset: offset(*source_high, *source_low),
        };
        Ok((parsed, rest))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [sink_high, sink_low] = halves(self.sink_offset);
        let [source_high, source_low] = halves(self.source_offset);
        let sink = self.sink_stag.0.to_be_bytes();
        let source = self.source_stag.0.to_be_bytes();
        let words = [sink, sink_high, sink_low, self.size.to_be_bytes(), source, source_high, source_low];
        for (slot, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *slot = word;
        }
    }
}
