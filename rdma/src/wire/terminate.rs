//! Terminate message (RFC 5040 §4.8).

use super::ddp::{Header, TaggedHeader, UntaggedHeader};
use super::rdmap::ReadRequest;
use super::{ParseError, Stag, truncated};

/// Layers that report an error (RFC 5040 §4.8, Figure 9).
pub mod layer {
    /// RDMA Protocol layer (RFC 5040).
    pub const RDMAP: u8 = 0;
    /// Direct Data Placement layer (RFC 5041).
    pub const DDP: u8 = 1;
    /// Lower Layer Protocol: MPA (RFC 5044).
    pub const LLP: u8 = 2;
}

/// Bit order of a received control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOrder {
    /// Most significant bit first, as the RFC draws it.
    Rfc,
    /// Layer and error type exchanged and the flags in the low bits, as Linux soft-iWARP sends it from a little-endian
    /// machine.
    Swapped,
}

/// The Terminate control word (RFC 5040 §4.8, Figures 7 and 8).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-------+-------+---------------+-+-+-+-------------------------+
/// | Layer | EType |  Error Code   |M|D|R|        Reserved         |
/// +-------+-------+---------------+-+-+-+-------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Layer, 0–15; see [`layer`].
    pub layer: u8,
    /// Error type within the layer, 0–15.
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
    /// M: true if the DDP segment length is valid.
    pub segment_length: bool,
    /// D: true if the offending segment's DDP header is included.
    pub ddp_header: bool,
    /// R: true if the offending RDMA Read Request's header is included.
    pub rdma_header: bool,
}

impl Control {
    /// Length in bytes on the wire.
    pub const LEN: usize = super::TERMINATE_CONTROL_LEN;

    /// Returns the word in the RFC's bit order.
    #[must_use]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let flags = (if self.segment_length { 0x80 } else { 0 })
            | (if self.ddp_header { 0x40 } else { 0 })
            | (if self.rdma_header { 0x20 } else { 0 });
        [(self.layer << 4) | (self.etype & 0x0F), self.code, flags, 0]
    }

    /// Parses the word in either bit order, and returns the order found.
    ///
    /// The flags occupy disjoint bits in the two orders and determine the order if any is set. A word without flags is
    /// parsed in the order in which it is a defined error that Figure 10 allows without headers; otherwise in the
    /// order in which it is a defined error; otherwise in the RFC's.
    #[must_use]
    pub fn parse(word: [u8; Self::LEN]) -> (Self, BitOrder) {
        let [kinds, code, flags, _] = word;
        let (high, low) = (kinds >> 4, kinds & 0x0F);
        let read = |layer, etype, [m, d, r]: [u8; 3]| Self {
            layer,
            etype,
            code,
            segment_length: flags & m != 0,
            ddp_header: flags & d != 0,
            rdma_header: flags & r != 0,
        };
        let rfc = read(high, low, [0x80, 0x40, 0x20]);
        let swapped = read(low, high, [0x01, 0x02, 0x04]);
        let is_swapped = match (rfc.has_flags(), swapped.has_flags()) {
            (true, false) => false,
            (false, true) => true,
            _ => swapped.plausibility() > rfc.plausibility(),
        };
        if is_swapped { (swapped, BitOrder::Swapped) } else { (rfc, BitOrder::Rfc) }
    }

    const fn has_flags(&self) -> bool {
        self.segment_length || self.ddp_header || self.rdma_header
    }

    /// Returns 0 for an undefined error, 1 for one that requires headers, 2 for one that comes without.
    const fn plausibility(&self) -> u8 {
        match (self.layer, self.etype, self.code) {
            // RFC 5040 §4.8: a local catastrophic error "does not have an error code"; LLP errors carry no
            // header (Figure 10), nor does a DDP version that leaves the header's layout unknown.
            (layer::RDMAP, 0, _) | (layer::DDP, 0, _) | (layer::LLP, 0, 1..=7) => 2,
            (layer::DDP, 1, 4) | (layer::DDP, 2, 6) => 2,
            (layer::RDMAP, 1, 0..=4 | 9 | 0xFF) | (layer::RDMAP, 2, 5..=9 | 0xFF) => 1,
            (layer::DDP, 1, 0..=3) | (layer::DDP, 2, 1..=5) => 1,
            _ => 0,
        }
    }
}

/// Complete Terminate message: the bytes after its own (untagged, queue 2) DDP header.
///
/// M, D and R state which parts are present; [`Self::new`] sets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Error code, and the flags for the parts below.
    pub control: Control,
    /// Length of the offending DDP segment in bytes: header and payload.
    pub segment_length: Option<u16>,
    /// DDP header of the offending segment.
    pub ddp_header: Option<Header>,
    /// Header of the Read Request that was refused or only partly answered.
    pub rdma_header: Option<ReadRequest>,
}

impl Terminate {
    /// Length in bytes of the longest message.
    pub const LEN_MAX: usize = Control::LEN + 2 + Header::LEN_MAX + ReadRequest::LEN;

    /// Creates a message about an error, with the known headers of the segment that caused it. Omits the Read
    /// Request's header if there is no DDP header: the layout has no place for it then.
    #[must_use]
    pub fn new(
        layer: u8,
        etype: u8,
        code: u8,
        segment: Option<(u16, Header)>,
        read_request: Option<ReadRequest>,
    ) -> Self {
        let rdma_header = if segment.is_some() { read_request } else { None };
        let control = Control {
            layer,
            etype,
            code,
            segment_length: segment.is_some(),
            ddp_header: segment.is_some(),
            rdma_header: rdma_header.is_some(),
        };
        let (segment_length, ddp_header) = segment.unzip();
        Self { control, segment_length, ddp_header, rdma_header }
    }

    /// Parses a message in either bit order. The attached headers serve diagnosis only: if the message is shorter than
    /// M, D and R state, it loses those headers but not the error.
    ///
    /// # Errors
    /// `Truncated` if the control word is incomplete.
    pub fn parse(message: &[u8]) -> Result<(Self, BitOrder), ParseError> {
        let Some((word, mut rest)) = message.split_first_chunk::<{ Control::LEN }>() else {
            return Err(truncated(Control::LEN, message.len()));
        };
        let (control, order) = Control::parse(*word);
        let mut parsed = Self { control, segment_length: None, ddp_header: None, rdma_header: None };
        // RFC 5040 §4.8: the length "MUST be valid if the M bit is set. It MUST be present when the D bit is
        // set."
        if (control.segment_length || control.ddp_header)
            && let Some((length, behind)) = rest.split_first_chunk::<2>()
        {
            parsed.segment_length = control.segment_length.then_some(u16::from_be_bytes(*length));
            rest = behind;
            if control.ddp_header
                && let Ok((header, behind)) = Header::parse(rest)
            {
                parsed.ddp_header = Some(header);
                if control.rdma_header {
                    parsed.rdma_header = ReadRequest::parse(behind).ok().map(|(request, _)| request);
                }
            }
        }
        Ok((parsed, order))
    }

    /// Returns the STag of this side's message that the peer has refused, if an attached header has one.
    #[must_use]
    pub fn stag(&self) -> Option<Stag> {
        match (self.rdma_header, self.ddp_header) {
            (Some(request), _) => Some(request.source_stag),
            (None, Some(Header::Tagged(header))) => Some(header.stag),
            (None, _) => None,
        }
    }

    /// Writes the message in the RFC's bit order, with M, D and R according to its parts, and returns the number of
    /// bytes written.
    pub fn emit(&self, out: &mut [u8; Self::LEN_MAX]) -> usize {
        let mut writer = Writer { rest: out, written: 0 };
        let control = Control {
            segment_length: self.segment_length.is_some(),
            ddp_header: self.ddp_header.is_some(),
            rdma_header: self.rdma_header.is_some(),
            ..self.control
        };
        writer.put(&control.emit());
        if control.segment_length || control.ddp_header {
            writer.put(&self.segment_length.unwrap_or(0).to_be_bytes());
        }
        match self.ddp_header {
            Some(Header::Tagged(header)) => {
                let mut bytes = [0; TaggedHeader::LEN];
                header.emit(&mut bytes);
                writer.put(&bytes);
            }
            Some(Header::Untagged(header)) => {
                let mut bytes = [0; UntaggedHeader::LEN];
                header.emit(&mut bytes);
                writer.put(&bytes);
            }
            None => {}
        }
        if let Some(request) = self.rdma_header {
            let mut bytes = [0; ReadRequest::LEN];
            request.emit(&mut bytes);
            writer.put(&bytes);
        }
        writer.written
    }
}

struct Writer<'a> {
    rest: &'a mut [u8],
    written: usize,
}

impl Writer<'_> {
    /// Appends `bytes`; they fit, because the buffer has the length of all parts together.
    fn put(&mut self, bytes: &[u8]) {
        if let Some((head, rest)) = core::mem::take(&mut self.rest).split_at_mut_checked(bytes.len()) {
            head.copy_from_slice(bytes);
            self.rest = rest;
            self.written = self.written.saturating_add(bytes.len());
        }
    }
}
