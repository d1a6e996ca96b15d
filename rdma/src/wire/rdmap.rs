//! RDMAP control field, opcodes, and the RDMA Read Request header (RFC 5040 §4, RFC 7306 §4).

use super::atomic::{AtomicRequest, AtomicResponse, IMMEDIATE_LEN};
use super::datagram::DatagramHeader;
use super::{ParseError, QueueNumber, Stag, TERMINATE_CONTROL_LEN, TaggedOffset, halves, offset, truncated};

/// The version of RFC 5040 §4.1: "01b for an RNIC that complies with this RDMA protocol specification".
pub const VERSION: u8 = 1;

/// Opcode of an RDMA message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// Places data in a buffer that the peer advertised.
    RdmaWrite,
    /// Requests the contents of a buffer that the peer advertised.
    ReadRequest,
    /// Carries the bytes that a Read Request asked for.
    ReadResponse,
    /// Delivers data to the peer's next posted buffer.
    Send,
    /// Send that also invalidates an STag of the receiver.
    SendInvalidate,
    /// Send that asks for an event at the receiver.
    SendSolicited,
    /// Send that does both.
    SendSolicitedInvalidate,
    /// Reports the error that ends the stream.
    Terminate,
    /// Delivers eight bytes without a buffer (RFC 7306 §6).
    ImmediateData,
    /// Immediate Data that asks for an event at the receiver.
    ImmediateDataSolicited,
    /// Requests a 64-bit atomic operation (RFC 7306 §5).
    AtomicRequest,
    /// Carries the original value of an atomic operation.
    AtomicResponse,
    /// Send that carries four bytes of Immediate Data beside its payload. The RFCs do not assign its number, nor those
    /// of the next three: only ends that have agreed on them send them (`docs/deviations.md`).
    SendImmediate,
    /// The same with an event at the receiver.
    SendImmediateSolicited,
    /// Tells how many messages of the peer were processed.
    Progress,
    /// Carries a datagram of a queue pair to another one.
    Datagram,
}

/// Properties of one opcode in RFC 5040 §4.1 Figure 4, §4.2 Figure 5 and RFC 7306 §4 Figures 2 and 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeRow {
    /// Opcode of the row.
    pub opcode: Opcode,
    /// Name of the message in the RFC.
    pub name: &'static str,
    /// Queue that the message must name; `None` for a tagged message.
    pub queue: Option<QueueNumber>,
    /// True if the DDP header carries an STag to invalidate.
    pub invalidates: bool,
    /// True if the DDP header carries Immediate Data.
    pub immediate: bool,
    /// True if the message asks for an event at the receiver.
    pub solicited: bool,
    /// Length in bytes of the RDMAP header after the DDP header; for Terminate, of its fixed part.
    pub header_len: usize,
    /// True if bytes of the ULP may follow.
    pub payload: bool,
}

const fn tagged(opcode: Opcode, name: &'static str) -> OpcodeRow {
    OpcodeRow {
        opcode,
        name,
        queue: None,
        invalidates: false,
        immediate: false,
        solicited: false,
        header_len: 0,
        payload: true,
    }
}

const fn send(opcode: Opcode, name: &'static str, solicited: bool, invalidates: bool) -> OpcodeRow {
    let queue = Some(QueueNumber::SEND);
    OpcodeRow { opcode, name, queue, invalidates, immediate: false, solicited, header_len: 0, payload: true }
}

const fn fixed(opcode: Opcode, name: &'static str, queue: QueueNumber, header_len: usize) -> OpcodeRow {
    let queue = Some(queue);
    let (invalidates, immediate, solicited) = (false, false, false);
    OpcodeRow { opcode, name, queue, invalidates, immediate, solicited, header_len, payload: false }
}

/// Assigned opcodes, and those of ends that have agreed on them, in the order of their numbers.
pub const OPCODES: [OpcodeRow; 16] = [
    tagged(Opcode::RdmaWrite, "RDMA Write"),
    fixed(Opcode::ReadRequest, "RDMA Read Request", QueueNumber::READ_REQUEST, ReadRequest::LEN),
    tagged(Opcode::ReadResponse, "RDMA Read Response"),
    send(Opcode::Send, "Send", false, false),
    send(Opcode::SendInvalidate, "Send with Invalidate", false, true),
    send(Opcode::SendSolicited, "Send with SE", true, false),
    send(Opcode::SendSolicitedInvalidate, "Send with SE and Invalidate", true, true),
    fixed(Opcode::Terminate, "Terminate", QueueNumber::TERMINATE, TERMINATE_CONTROL_LEN),
    fixed(Opcode::ImmediateData, "Immediate Data", QueueNumber::SEND, IMMEDIATE_LEN),
    OpcodeRow {
        solicited: true,
        ..fixed(Opcode::ImmediateDataSolicited, "Immediate Data with SE", QueueNumber::SEND, IMMEDIATE_LEN)
    },
    fixed(Opcode::AtomicRequest, "Atomic Request", QueueNumber::READ_REQUEST, AtomicRequest::LEN),
    fixed(Opcode::AtomicResponse, "Atomic Response", QueueNumber::ATOMIC_RESPONSE, AtomicResponse::LEN),
    OpcodeRow { immediate: true, ..send(Opcode::SendImmediate, "Send with Immediate", false, false) },
    OpcodeRow {
        immediate: true,
        ..send(Opcode::SendImmediateSolicited, "Send with SE and Immediate", true, false)
    },
    fixed(Opcode::Progress, "Progress", QueueNumber::PROGRESS, PROGRESS_LEN),
    OpcodeRow {
        payload: true,
        ..fixed(Opcode::Datagram, "Datagram", QueueNumber::DATAGRAM, DatagramHeader::LEN)
    },
];

/// Length in bytes of a Progress message: the number of messages, modulo 2^32, and [flags](PROGRESS_WAITS).
pub const PROGRESS_LEN: usize = 8;
/// Flag of a Progress message: the next message waits for a receive buffer.
pub const PROGRESS_WAITS: u32 = 1;

impl Opcode {
    /// Returns the opcode of a number; only its low four bits are used.
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
            12 => Self::SendImmediate,
            13 => Self::SendImmediateSolicited,
            14 => Self::Progress,
            _ => Self::Datagram,
        }
    }

    /// Returns the number on the wire, 0–15.
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
            Self::SendImmediate => 12,
            Self::SendImmediateSolicited => 13,
            Self::Progress => 14,
            Self::Datagram => 15,
        }
    }

    /// Returns the row of this opcode in [`OPCODES`].
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
    /// RV, 0–3; only [`VERSION`] is supported.
    pub version: u8,
    /// Opcode of the message.
    pub opcode: Opcode,
}

impl ControlField {
    /// Returns the field of a message to send.
    #[inline]
    #[must_use]
    pub const fn new(opcode: Opcode) -> Self {
        Self { version: VERSION, opcode }
    }

    /// Parses the byte of a DDP header.
    #[inline]
    #[must_use]
    pub const fn parse(byte: u8) -> Self {
        Self { version: byte >> 6, opcode: Opcode::from_bits(byte) }
    }

    /// Returns the byte for a DDP header.
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
    /// STag of the requester's buffer; the response returns it without interpretation.
    pub sink_stag: Stag,
    /// Tagged offset of the data in the requester's buffer.
    pub sink_offset: TaggedOffset,
    /// Length of the data in bytes.
    pub size: u32,
    /// STag of the responder's buffer.
    pub source_stag: Stag,
    /// Tagged offset of the data in the responder's buffer.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Length in bytes on the wire.
    pub const LEN: usize = 28;

    /// Parses the header at the start of `message`, and returns it with the bytes after it (of which there should be
    /// none).
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

    /// Writes the header to `out`.
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
