//! The Terminate message (RFC 5040 §4.8).

use super::ddp::{Header, TaggedHeader, UntaggedHeader};
use super::rdmap::ReadRequest;
use super::{ParseError, truncated};

/// The layer that met the error (RFC 5040 §4.8, Figure 9).
pub mod layer {
    /// RDMAP.
    pub const RDMAP: u8 = 0;
    /// DDP.
    pub const DDP: u8 = 1;
    /// The lower layer: MPA.
    pub const LLP: u8 = 2;
}

/// In which order the nibbles and flags of a received control word were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOrder {
    /// The most significant bit first, as the RFC draws it.
    Rfc,
    /// Layer and error type exchanged and the flags in the low bits, as Linux soft-iWARP sends it from a
    /// little-endian machine.
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
    /// The layer, 0–15; see [`layer`].
    pub layer: u8,
    /// The error type within the layer, 0–15.
    pub etype: u8,
    /// The error within its type.
    pub code: u8,
    /// M: the DDP segment length is valid.
    pub segment_length: bool,
    /// D: the offending segment's DDP header is included.
    pub ddp_header: bool,
    /// R: the offending RDMA Read Request's header is included.
    pub rdma_header: bool,
}

impl Control {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Writes the word in the RFC's order.
    #[must_use]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let flags = (if self.segment_length { 0x80 } else { 0 })
            | (if self.ddp_header { 0x40 } else { 0 })
            | (if self.rdma_header { 0x20 } else { 0 });
        [(self.layer << 4) | (self.etype & 0x0F), self.code, flags, 0]
    }

    /// Reads the word, in whichever order its sender wrote it.
    ///
    /// The flags lie in disjoint bits of the two orders and decide where there are any. A word without
    /// flags is read in the order in which it is a defined error that Figure 10 lets go without headers;
    /// failing that, a defined error; failing that, as the RFC says.
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

    /// 0 for no defined error, 1 for one that should have come with headers, 2 for one that comes without.
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

/// A whole Terminate message: what follows its own (untagged, queue 2) DDP header.
///
/// Which parts are present is what M, D and R say; [`Self::new`] sets them from the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The error, and which of the parts below are there.
    pub control: Control,
    /// The DDP segment length of the offending segment: its header and payload, in bytes.
    pub segment_length: Option<u16>,
    /// The offending segment's DDP header.
    pub ddp_header: Option<Header>,
    /// The offending (or half answered) Read Request's header.
    pub rdma_header: Option<ReadRequest>,
}

impl Terminate {
    /// Bytes of the longest message.
    pub const LEN_MAX: usize = Control::LEN + 2 + Header::LEN_MAX + ReadRequest::LEN;

    /// A message about an error, with what is known of the segment that caused it. The Read Request's
    /// header is left out where there is no DDP header, the layout having no place for it then.
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

    /// Reads a message, in either bit order. The attached headers serve diagnosis only, so that a sender
    /// who promised more than there is loses those headers and not the error itself.
    ///
    /// # Errors
    /// `Truncated` where the control word is not whole.
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

    /// Writes the message in the RFC's order, with M, D and R as the parts are there, and returns how many
    /// bytes of `out` it took.
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
    /// Appends `bytes`; they fit, because the whole is as long as the sum of the longest parts.
    fn put(&mut self, bytes: &[u8]) {
        if let Some((head, rest)) = core::mem::take(&mut self.rest).split_at_mut_checked(bytes.len()) {
            head.copy_from_slice(bytes);
            self.rest = rest;
            self.written = self.written.saturating_add(bytes.len());
        }
    }
}
