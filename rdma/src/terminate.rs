//! Errors that end a stream, and their Terminate messages: the only place that maps an error to layer, type and code
//! (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8, RFC 7306 §8).

use core::fmt;

use crate::memory::AccessError;
use crate::qp::WcStatus;
use crate::wire::ddp::Header;
use crate::wire::rdmap::ReadRequest;
use crate::wire::terminate::{Terminate, layer};
use crate::wire::{Stag, TaggedOffset};

/// An error that ends a stream with a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The CRC32c of an FPDU does not match its bytes.
    Crc,
    /// An FPDU is too short for the headers it must carry.
    FpduLength,
    /// Markers, or an FPDU placed out-of-order, contradict the lengths of FPDUs about the start of an FPDU.
    FpduStart,
    /// Setup with RFC 6581: a failure of this side.
    SetupFailed,
    /// Setup: the responder wants to have more reads outstanding than this side can serve.
    InsufficientIrd,
    /// Setup: the responder offers no ready-to-receive message that this side can send, or the initiator sends a
    /// message first that was not agreed on.
    NoMatchingRtr,
    /// A tagged segment of another DDP version.
    TaggedVersion,
    /// An untagged segment of another DDP version.
    UntaggedVersion,
    /// A tagged segment that may not be placed.
    Tagged(AccessError),
    /// A queue number that does not exist, or does not belong to the message's opcode.
    QueueNumber,
    /// A message without a posted buffer, or more Read and Atomic Requests than the IRD.
    NoBuffer,
    /// A message with an unexpected MSN.
    MsnRange,
    /// A segment that does not continue its message.
    MessageOffset,
    /// A message longer than its buffer.
    MessageTooLong,
    /// A segment of another RDMAP version.
    RdmapVersion,
    /// An opcode that does not exist, or is not allowed at this point.
    UnexpectedOpcode,
    /// A Read Request whose header is not completely in one segment.
    ReadRequestLength,
    /// A Read Response that ends before all requested bytes have arrived.
    ReadResponseShort,
    /// A Read Request for bytes that may not be fetched.
    Read(AccessError),
    /// An atomic operation on bytes that may not be changed.
    Atomic(AccessError),
    /// An atomic operation at an address that is not a multiple of eight.
    AtomicAlignment,
    /// An Atomic Request of another length, or with an unknown operation.
    AtomicRequest,
    /// An Atomic Response of another length, or not the one that is due.
    AtomicResponse,
    /// Immediate Data of another length than eight bytes.
    ImmediateLength,
    /// A Send with Invalidate whose STag may not be invalidated.
    Invalidate(AccessError),
    /// The bytes of a message cannot be placed: the region lacks bytes that the check allowed.
    Place,
    /// The bytes that a message requests cannot be fetched or changed, for the same reason.
    Fetch,
    /// A local fault that no message of the peer caused.
    Local,
    /// A local fault that ends every stream.
    Global,
}

/// Headers of the peer's segment that a Terminate returns (RFC 5040 §4.8, Figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// No header is returned.
    Nothing,
    /// DDP segment length and DDP header: M and D.
    Segment,
    /// DDP segment length, DDP header and RDMAP header: M, D and R.
    SegmentAndRequest,
}

/// Error code of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode {
    /// Layer: 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type within the layer.
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
}

/// Displays the name that the RFCs use.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, etype, code } = *self;
        write!(f, "{} ({layer:x}/{etype:x}/{code:02x})", self.name())
    }
}

impl ErrorCode {
    /// RFC 5044 §8 code 1: "TCP connection closed, terminated, or lost." Not sent: there is nothing to send it over.
    pub const TCP_LOST: Self = Self::new(layer::LLP, 0, 0x01);
    /// No reply to an MPA Request, or no request, in time (RFC 5044 §7.1.2 rule 10). No RFC has a code for
    /// it, and it is not sent.
    pub const NO_ANSWER: Self = Self::new(layer::LLP, 0, 0xff);
    /// RFC 5044 §8 code 4: "Invalid MPA Request Frame or MPA Response Frame received. In this case, the TCP
    /// connection MUST be immediately closed." Not sent: the peer is not known to speak MPA.
    pub const INVALID_FRAME: Self = Self::new(layer::LLP, 0, 0x04);

    const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code }
    }

    /// Returns the status of a request that the peer has refused with this error, between queue pairs that are
    /// connected by number.
    pub(crate) const fn status(self) -> WcStatus {
        match (self.layer, self.etype, self.code) {
            (layer::RDMAP, 1, _) | (layer::DDP, 1, 0x00..=0x03) => WcStatus::RemoteAccessError,
            (layer::RDMAP | layer::DDP, 0, _) | (layer::RDMAP, 2, 0x07 | 0x08) | (layer::LLP, ..) => {
                WcStatus::RemoteOperationError
            }
            _ => WcStatus::RemoteInvalidRequest,
        }
    }

    /// Returns the name that the RFCs use.
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
            (layer::LLP, 0, 0xff) => "MPA error: no answer in time",
            (layer::LLP, ..) => "MPA error",
            _ => "unknown error",
        }
    }
}

impl StreamError {
    /// Returns layer, type and code, and the headers to return with them.
    pub const fn code(self) -> (ErrorCode, Attach) {
        let (etype, code) = match self {
            Self::Crc => return llp(0x02),
            Self::FpduLength | Self::FpduStart => return llp(0x03),
            Self::SetupFailed => return llp(0x05),
            Self::InsufficientIrd => return llp(0x06),
            Self::NoMatchingRtr => return llp(0x07),
            // The layout of a segment of another version is not known: no header can be returned.
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
        // DDP has no code for a missing right. RFC 5041 §7.1 item 2 requires an STag "that allows Placement".
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

/// Placeholder for the RDMA header of a message that has none.
const NO_REQUEST: ReadRequest = ReadRequest {
    sink_stag: Stag(0),
    sink_offset: TaggedOffset(0),
    size: 0,
    source_stag: Stag(0),
    source_offset: TaggedOffset(0),
};

/// An error, with the known headers of the segment that caused it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) error: StreamError,
    /// Length of the DDP segment in bytes, and its header.
    pub(crate) segment: Option<(u16, Header)>,
    pub(crate) request: Option<ReadRequest>,
}

impl Fault {
    /// Returns a fault that concerns no segment.
    pub(crate) const fn bare(error: StreamError) -> Self {
        Self { error, segment: None, request: None }
    }

    /// Returns the Terminate message to send.
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

    /// Every error, with its layer, type and code and its M, D and R bits.
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
