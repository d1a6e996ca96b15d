//! What ends a stream, and what the peer is told of it: the only place where an error becomes a layer, type and
//! code (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8, RFC 7306 §8).

use core::fmt;

use crate::memory::AccessError;
use crate::wire::ddp::Header;
use crate::wire::rdmap::ReadRequest;
use crate::wire::terminate::{Terminate, layer};
use crate::wire::{Stag, TaggedOffset};

/// An error that ends a stream with a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// An FPDU's CRC32c is not that of its bytes.
    Crc,
    /// An FPDU is too short for the headers it must carry.
    FpduLength,
    /// Markers, or an FPDU found behind a gap, and the lengths of FPDUs do not agree on where one begins.
    FpduStart,
    /// While setting up with RFC 6581: something failed on this side.
    SetupFailed,
    /// While setting up: the responder wants to read more at a time than this side can answer.
    InsufficientIrd,
    /// While setting up: the responder offers no ready-to-receive message that this side can send, or the initiator sends
    /// another message first than those agreed on.
    NoMatchingRtr,
    /// A tagged segment of another DDP version.
    TaggedVersion,
    /// An untagged segment of another DDP version.
    UntaggedVersion,
    /// A tagged segment that may not be placed.
    Tagged(AccessError),
    /// A queue number that is not there, or not that of the message's opcode.
    QueueNumber,
    /// A message for which no buffer is there: none posted, or more Read and Atomic Requests than the IRD.
    NoBuffer,
    /// A message out of sequence.
    MsnRange,
    /// A segment that does not continue its message.
    MessageOffset,
    /// A message longer than its buffer.
    MessageTooLong,
    /// Another RDMAP version.
    RdmapVersion,
    /// An opcode that has no meaning, or none here and now.
    UnexpectedOpcode,
    /// A Read Request without its whole header in one segment.
    ReadRequestLength,
    /// A Read Response that ends before all that was asked for has come.
    ReadResponseShort,
    /// A Read Request for what may not be fetched.
    Read(AccessError),
    /// An atomic operation on what may not be changed.
    Atomic(AccessError),
    /// An atomic operation at an address that is not a multiple of eight.
    AtomicAlignment,
    /// An Atomic Request of another length, or an operation that is not known.
    AtomicRequest,
    /// An Atomic Response of another length, or not that of the request whose response is due.
    AtomicResponse,
    /// Immediate Data of another length than eight bytes.
    ImmediateLength,
    /// A Send with Invalidate of what may not be invalidated.
    Invalidate(AccessError),
    /// What a message brought cannot be placed: the region does not have the bytes that the check has allowed.
    Place,
    /// What a message asks for cannot be fetched or changed, for the same reason.
    Fetch,
    /// A fault of this side that no message of the peer has caused.
    Local,
    /// The same, and one that ends every stream of this side.
    Global,
}

/// Which headers of the peer's segment go back with an error (RFC 5040 §4.8, Figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// None.
    Nothing,
    /// The DDP segment length and the DDP header: M and D.
    Segment,
    /// These and the RDMAP header: M, D and R.
    SegmentAndRequest,
}

/// An error on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode {
    /// The layer: 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// The error type.
    pub etype: u8,
    /// The error code.
    pub code: u8,
}

/// What the RFCs call it.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, etype, code } = *self;
        write!(f, "{} ({layer:x}/{etype:x}/{code:02x})", self.name())
    }
}

impl ErrorCode {
    /// RFC 5044 §8 code 1: "TCP connection closed, terminated, or lost." Not sent: there is nothing to send it over.
    pub const TCP_LOST: Self = Self::new(layer::LLP, 0, 0x01);
    /// RFC 5044 §8 code 4: "Invalid MPA Request Frame or MPA Response Frame received. In this case, the TCP
    /// connection MUST be immediately closed." Not sent: the peer is not known to speak MPA.
    pub const INVALID_FRAME: Self = Self::new(layer::LLP, 0, 0x04);

    const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code }
    }

    /// What the RFCs call it.
    pub const fn name(self) -> &'static str {
        match (self.layer, self.etype, self.code) {
            (layer::RDMAP, 0, _) => "local catastrophic error",
            (layer::RDMAP, 1, 0x00) => "remote protection error: invalid STag",
            (layer::RDMAP, 1, 0x01) => "remote protection error: base or bounds violation",
            (layer::RDMAP, 1, 0x02) => "remote protection error: access rights violation",
            (layer::RDMAP, 1, 0x03) => "remote protection error: STag not associated with RDMAP stream",
            (layer::RDMAP, 1, 0x04) => "remote protection error: TO wrap",
            (layer::RDMAP, 1, 0x09) => "remote protection error: STag cannot be invalidated",
            (layer::RDMAP, 1, _) => "remote protection error",
            (layer::RDMAP, 2, 0x05) => "remote operation error: invalid RDMAP version",
            (layer::RDMAP, 2, 0x06) => "remote operation error: unexpected opcode",
            (layer::RDMAP, 2, 0x07) => "remote operation error: catastrophic, RDMAP stream",
            (layer::RDMAP, 2, 0x08) => "remote operation error: catastrophic, global",
            (layer::RDMAP, 2, 0x09) => "remote operation error: STag cannot be invalidated",
            (layer::RDMAP, 2, _) => "remote operation error",
            (layer::DDP, 0, _) => "DDP local catastrophic error",
            (layer::DDP, 1, 0x00) => "tagged buffer error: invalid STag",
            (layer::DDP, 1, 0x01) => "tagged buffer error: base or bounds violation",
            (layer::DDP, 1, 0x02) => "tagged buffer error: STag not associated with DDP stream",
            (layer::DDP, 1, 0x03) => "tagged buffer error: TO wrap",
            (layer::DDP, 1, 0x04) => "tagged buffer error: invalid DDP version",
            (layer::DDP, 1, _) => "tagged buffer error",
            (layer::DDP, 2, 0x01) => "untagged buffer error: invalid QN",
            (layer::DDP, 2, 0x02) => "untagged buffer error: invalid MSN, no buffer available",
            (layer::DDP, 2, 0x03) => "untagged buffer error: invalid MSN, out of range",
            (layer::DDP, 2, 0x04) => "untagged buffer error: invalid MO",
            (layer::DDP, 2, 0x05) => "untagged buffer error: message too long for available buffer",
            (layer::DDP, 2, 0x06) => "untagged buffer error: invalid DDP version",
            (layer::DDP, 2, _) => "untagged buffer error",
            (layer::LLP, 0, 0x01) => "MPA error: TCP connection lost",
            (layer::LLP, 0, 0x02) => "MPA error: CRC",
            (layer::LLP, 0, 0x03) => "MPA error: marker and length disagree",
            (layer::LLP, 0, 0x04) => "MPA error: invalid request or reply",
            (layer::LLP, 0, 0x05) => "MPA error: local catastrophic",
            (layer::LLP, 0, 0x06) => "MPA error: insufficient IRD resources",
            (layer::LLP, 0, 0x07) => "MPA error: no matching RTR option",
            (layer::LLP, ..) => "MPA error",
            _ => "unknown error",
        }
    }
}

impl StreamError {
    /// Layer, type and code, and which headers go with them.
    pub const fn code(self) -> (ErrorCode, Attach) {
        let (etype, code) = match self {
            Self::Crc => return llp(0x02),
            Self::FpduLength | Self::FpduStart => return llp(0x03),
            Self::SetupFailed => return llp(0x05),
            Self::InsufficientIrd => return llp(0x06),
            Self::NoMatchingRtr => return llp(0x07),
            // Of a segment of another version the layout is not known: no header can be sent back.
            Self::TaggedVersion => return (ErrorCode::new(layer::DDP, 1, 0x04), Attach::Nothing),
            Self::UntaggedVersion => return (ErrorCode::new(layer::DDP, 2, 0x06), Attach::Nothing),
            Self::Tagged(error) => (1, tagged_code(error)),
            Self::QueueNumber => (2, 0x01),
            Self::NoBuffer => (2, 0x02),
            Self::MsnRange => (2, 0x03),
            Self::MessageOffset => (2, 0x04),
            Self::MessageTooLong => (2, 0x05),
            Self::RdmapVersion => return operation(0x05),
            Self::UnexpectedOpcode => return operation(0x06),
            // RFC 7306 §8.2: "Catastrophic error, localized to RDMAP Stream".
            Self::AtomicAlignment | Self::Fetch => return operation(0x07),
            Self::Global => return operation(0x08),
            Self::ReadRequestLength
            | Self::ReadResponseShort
            | Self::AtomicRequest
            | Self::AtomicResponse
            | Self::ImmediateLength => return operation(0xff),
            Self::Read(error) | Self::Atomic(error) => return protection(read_code(error)),
            Self::Invalidate(_) => return protection(0x09),
            // RFC 5041 §7.2, "Local Catastrophic"; RFC 5040 Figure 10: a DDP error goes with its DDP header.
            Self::Place => (0, 0x00),
            Self::Local => return (ErrorCode::new(layer::RDMAP, 0, 0x00), Attach::Nothing),
        };
        (ErrorCode::new(layer::DDP, etype, code), Attach::Segment)
    }
}

const fn llp(code: u8) -> (ErrorCode, Attach) {
    (ErrorCode::new(layer::LLP, 0, code), Attach::Nothing)
}

const fn operation(code: u8) -> (ErrorCode, Attach) {
    (ErrorCode::new(layer::RDMAP, 2, code), Attach::Segment)
}

const fn protection(code: u8) -> (ErrorCode, Attach) {
    (ErrorCode::new(layer::RDMAP, 1, code), Attach::SegmentAndRequest)
}

const fn tagged_code(error: AccessError) -> u8 {
    match error {
        // DDP has no code for a missing right. RFC 5041 §7.1 item 2 wants an STag "that allows Placement".
        AccessError::InvalidStag | AccessError::Rights => 0x00,
        AccessError::Bounds => 0x01,
        AccessError::NotAssociated => 0x02,
        AccessError::Wrap => 0x03,
    }
}

const fn read_code(error: AccessError) -> u8 {
    match error {
        AccessError::InvalidStag => 0x00,
        AccessError::Bounds => 0x01,
        AccessError::Rights => 0x02,
        AccessError::NotAssociated => 0x03,
        AccessError::Wrap => 0x04,
    }
}

/// In the place of the RDMA header of a message that has none.
const NO_REQUEST: ReadRequest = ReadRequest {
    sink_stag: Stag(0),
    sink_offset: TaggedOffset(0),
    size: 0,
    source_stag: Stag(0),
    source_offset: TaggedOffset(0),
};

/// An error, with what is known of the segment that it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) error: StreamError,
    /// The DDP segment's length, and its header.
    pub(crate) segment: Option<(u16, Header)>,
    pub(crate) request: Option<ReadRequest>,
}

impl Fault {
    /// An error that is about no segment.
    pub(crate) const fn bare(error: StreamError) -> Self {
        Self { error, segment: None, request: None }
    }

    /// The message to send.
    pub(crate) fn message(&self) -> Terminate {
        let (ErrorCode { layer, etype, code }, attach) = self.error.code();
        let segment = self.segment.filter(|_| attach != Attach::Nothing);
        // RFC 5040 §4.8: the RDMA header "MUST be present if the R bit is set", and §7.1: for errors on a Send
        // "the Terminated RDMA Header field is set to zero".
        let request = self.request.unwrap_or(NO_REQUEST);
        let request = (attach == Attach::SegmentAndRequest).then_some(request);
        Terminate::new(layer, etype, code, segment, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AccessError::*;

    /// Every error, with its layer, type and code and the M, D and R bits.
    const TABLE: [(StreamError, [u8; 3]); 45] = [
        (StreamError::Crc, [0x20, 0x02, 0x00]),
        (StreamError::FpduLength, [0x20, 0x03, 0x00]),
        (StreamError::FpduStart, [0x20, 0x03, 0x00]),
        (StreamError::SetupFailed, [0x20, 0x05, 0x00]),
        (StreamError::InsufficientIrd, [0x20, 0x06, 0x00]),
        (StreamError::NoMatchingRtr, [0x20, 0x07, 0x00]),
        (StreamError::TaggedVersion, [0x11, 0x04, 0x00]),
        (StreamError::UntaggedVersion, [0x12, 0x06, 0x00]),
        (StreamError::Tagged(InvalidStag), [0x11, 0x00, 0xc0]),
        (StreamError::Tagged(Rights), [0x11, 0x00, 0xc0]),
        (StreamError::Tagged(Bounds), [0x11, 0x01, 0xc0]),
        (StreamError::Tagged(NotAssociated), [0x11, 0x02, 0xc0]),
        (StreamError::Tagged(Wrap), [0x11, 0x03, 0xc0]),
        (StreamError::QueueNumber, [0x12, 0x01, 0xc0]),
        (StreamError::NoBuffer, [0x12, 0x02, 0xc0]),
        (StreamError::MsnRange, [0x12, 0x03, 0xc0]),
        (StreamError::MessageOffset, [0x12, 0x04, 0xc0]),
        (StreamError::MessageTooLong, [0x12, 0x05, 0xc0]),
        (StreamError::RdmapVersion, [0x02, 0x05, 0xc0]),
        (StreamError::UnexpectedOpcode, [0x02, 0x06, 0xc0]),
        (StreamError::ReadRequestLength, [0x02, 0xff, 0xc0]),
        (StreamError::ReadResponseShort, [0x02, 0xff, 0xc0]),
        (StreamError::Read(InvalidStag), [0x01, 0x00, 0xe0]),
        (StreamError::Read(Bounds), [0x01, 0x01, 0xe0]),
        (StreamError::Read(Rights), [0x01, 0x02, 0xe0]),
        (StreamError::Read(NotAssociated), [0x01, 0x03, 0xe0]),
        (StreamError::Read(Wrap), [0x01, 0x04, 0xe0]),
        (StreamError::Atomic(InvalidStag), [0x01, 0x00, 0xe0]),
        (StreamError::Atomic(Bounds), [0x01, 0x01, 0xe0]),
        (StreamError::Atomic(Rights), [0x01, 0x02, 0xe0]),
        (StreamError::Atomic(NotAssociated), [0x01, 0x03, 0xe0]),
        (StreamError::Atomic(Wrap), [0x01, 0x04, 0xe0]),
        (StreamError::AtomicAlignment, [0x02, 0x07, 0xc0]),
        (StreamError::AtomicRequest, [0x02, 0xff, 0xc0]),
        (StreamError::AtomicResponse, [0x02, 0xff, 0xc0]),
        (StreamError::ImmediateLength, [0x02, 0xff, 0xc0]),
        (StreamError::Invalidate(InvalidStag), [0x01, 0x09, 0xe0]),
        (StreamError::Invalidate(NotAssociated), [0x01, 0x09, 0xe0]),
        (StreamError::Invalidate(Rights), [0x01, 0x09, 0xe0]),
        (StreamError::Invalidate(Wrap), [0x01, 0x09, 0xe0]),
        (StreamError::Invalidate(Bounds), [0x01, 0x09, 0xe0]),
        (StreamError::Place, [0x10, 0x00, 0xc0]),
        (StreamError::Fetch, [0x02, 0x07, 0xc0]),
        (StreamError::Global, [0x02, 0x08, 0xc0]),
        (StreamError::Local, [0x00, 0x00, 0x00]),
    ];

    #[test]
    fn every_error_has_its_bytes() {
        let (header, _) = Header::parse(&[0x41; 18]).unwrap();
        for (error, word) in TABLE {
            let fault = Fault { segment: Some((18, header)), ..Fault::bare(error) };
            assert_eq!(fault.message().control.emit()[..3], word, "{error:?}");
            let (code, _) = error.code();
            assert_eq!(code.layer << 4 | code.etype, word[0]);
            assert_ne!(code.name(), "unknown error");
        }
    }

    #[test]
    fn without_a_segment_no_header_is_promised() {
        for (error, _) in TABLE {
            let message = Fault::bare(error).message();
            assert_eq!(message.control.emit()[2], 0, "{error:?}");
        }
    }

    #[test]
    fn a_code_is_displayed_with_its_name() {
        let (code, _) = StreamError::Tagged(Bounds).code();
        assert_eq!(code.to_string(), "tagged buffer error: base or bounds violation (1/1/01)");
        assert_eq!(ErrorCode::new(9, 9, 9).to_string(), "unknown error (9/9/09)");
    }
}
