//! Replies: a stream, and the payloads that do not pass the XDR codec.

use std::borrow::Cow;

use iwarp_rpc::Item;
use iwarp_rpc::xdr::padding;
use iwarp_server::{Content, Span};

use crate::stats::Way;

/// Data that a reply returns.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Bytes of the program.
    Bytes(Vec<u8>),
    /// Part of the memory of a region.
    Span(Span),
    /// Bytes of a file in the registered memory of the call.
    Placed(Span),
}

impl From<Content> for Payload {
    fn from(content: Content) -> Self {
        match content {
            Content::Own(bytes) => Self::Bytes(bytes),
            Content::Placed(span) => Self::Placed(span),
        }
    }
}

impl Payload {
    /// Returns the length in bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::Span(span) | Self::Placed(span) => span.length(),
        }
    }

    /// Returns the bytes. Those of registered memory are copied.
    #[must_use]
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Bytes(bytes) => Cow::Borrowed(bytes),
            // The span was inside its memory when it was made, and memory does not shrink.
            Self::Span(span) | Self::Placed(span) => {
                span.copy(0, span.length()).unwrap_or_else(|_| vec![0; span.length() as usize]).into()
            }
        }
    }

    /// Takes the bytes out of registered memory.
    pub(crate) fn detach(&mut self) {
        if !matches!(self, Self::Bytes(_)) {
            *self = Self::Bytes(self.bytes().into_owned());
        }
    }

    /// Returns the way of the bytes from their file to where they are.
    pub(crate) fn way(&self) -> Way {
        match self {
            Self::Bytes(_) => Way::Copied,
            Self::Span(_) => Way::Direct,
            Self::Placed(_) => Way::Placed,
        }
    }
}

/// Takes the bytes of regions out of payloads: what their owners write later does not change them.
pub(crate) fn detach(payloads: &mut [(usize, Payload)]) {
    let of_regions = payloads.iter_mut().filter(|(_, payload)| payload.way() == Way::Direct);
    of_regions.for_each(|(_, payload)| payload.detach());
}

/// A complete RPC reply.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The stream, without the payloads and their padding.
    pub stream: Vec<u8>,
    /// Payloads with their positions in the stream, in order.
    pub payloads: Vec<(usize, Payload)>,
}

impl From<Vec<u8>> for Reply {
    fn from(stream: Vec<u8>) -> Self {
        Self { stream, payloads: Vec::new() }
    }
}

impl Reply {
    /// Returns the places of the payloads.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        let item =
            |(position, payload): &(usize, Payload)| Item { position: *position, length: payload.length() };
        self.payloads.iter().map(item).collect()
    }

    /// Returns the bytes of all payloads.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payloads.iter().map(|(_, payload)| u64::from(payload.length())).fold(0, u64::saturating_add)
    }

    /// Returns the length of the message in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        let padded = self.payloads.iter().map(|(_, payload)| {
            let length = payload.length() as usize;
            length.saturating_add(padding(length))
        });
        padded.fold(self.stream.len(), usize::saturating_add)
    }

    /// Returns the parts of the message in order: the stream, with each payload and its padding in place.
    pub fn bytes(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        const ZEROS: [u8; 3] = [0; 3];
        let mut at = 0;
        let payloads = self.payloads.iter().flat_map(move |(position, payload)| {
            let head = self.stream.get(at..*position).unwrap_or_default();
            at = *position;
            let bytes = payload.bytes();
            let padding = ZEROS.get(..padding(bytes.len())).unwrap_or_default();
            [Cow::Borrowed(head), bytes, Cow::Borrowed(padding)]
        });
        let last = self.payloads.last().map_or(0, |(position, _)| *position);
        payloads.chain([Cow::Borrowed(self.stream.get(last..).unwrap_or_default())])
    }
}
