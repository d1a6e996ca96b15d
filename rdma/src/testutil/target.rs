//! A responder that a peer attacks, whose segments are built by hand.

use super::bytes::*;
use super::*;
use crate::service::{decode_reply, encode_request};
use crate::{Access, CloseHow, ErrorCode, Scope, StreamError};

/// Length of the region `lab`, bytes.
pub const LAB: usize = 4096;
/// Remote read, write and atomic operations.
pub const ALL: Access = Access::from_bits(7).unwrap();

/// A responder of the region service, and a peer whose segments are built by hand.
#[derive(Debug)]
pub struct Target {
    /// Responder that the peer attacks.
    pub side: Side,
    /// Region that the peer may access.
    pub lab: RegionId,
    /// STag valid on this stream: remote read and write.
    pub stag: u32,
    /// STag valid on this stream, without rights.
    pub blind: u32,
    /// STag valid on another stream.
    pub foreign: u32,
    /// STag valid on this stream; the peer may invalidate it.
    pub given: u32,
}

impl Default for Target {
    fn default() -> Self {
        Self::new()
    }
}

impl Target {
    /// Returns a responder with four receives, granted to a peer with an ORD of 4.
    pub fn new() -> Self {
        Self::with(EndpointConfig { receive_queue: 4, ..EndpointConfig::default() }, 4)
    }

    /// Returns a responder with this configuration, granted to a peer with this ORD.
    pub fn with(config: EndpointConfig, peer_ord: u16) -> Self {
        let mut side = Side::responder(config);
        let lab = side.add_region("lab", pattern(LAB, 0x5a), BOTH);
        side.deliver(&mpa(REQUEST, 0, peer_ord, &encode_request("lab", BOTH, b"").unwrap()));
        side.transmit();
        let reply = side.wire.take();
        let stag = decode_reply(&reply[24..]).unwrap().stag.0;
        let own = Scope::Stream(STREAM);
        let grant =
            |stags: &mut StagTable, access, scope| stags.grant(lab, LAB as u64, access, scope).unwrap().0;
        let blind = grant(&mut side.stags, Access::NONE, own);
        let foreign = grant(&mut side.stags, BOTH, Scope::Stream(StreamId(99)));
        let given = grant(&mut side.stags, Access::REMOTE_INVALIDATE, own);
        side.events.clear();
        Self { side, lab, stag, blind, foreign, given }
    }

    /// Delivers a segment as an FPDU.
    pub fn send(&mut self, segment: &[u8]) {
        self.side.deliver(&fpdu(segment));
    }

    /// Returns the ULPDUs that the responder sends.
    pub fn replies(&mut self) -> Vec<Vec<u8>> {
        self.side.transmit();
        ulpdus(&self.side.wire.take())
    }

    /// Expects that the stream ends with this message and a close; later segments have no effect.
    #[track_caller]
    pub fn ends_with(mut self, expected: &[u8], error: StreamError) {
        let replies = self.replies();
        assert_eq!(replies.len(), 1, "{error:?}: one message");
        assert_eq!(replies[0], expected, "{error:?}");
        let word = &expected[18..20];
        let code = ErrorCode { layer: word[0] >> 4, etype: word[0] & 15, code: word[1] };
        assert_eq!(
            self.side.events.split_off(self.side.events.len() - 2),
            [Event::TerminateSent { code, error }, Event::Close { how: CloseHow::Fin }]
        );
        // RFC 5041 §7.1: "DDP MUST silently drop any subsequent incoming DDP Segments."
        self.send(&tagged(TAGGED_LAST, WRITE, self.stag, 0, &[0xff; 64]));
        self.send(&read_request(1, 7, 64, self.stag, 0));
        assert!(self.replies().is_empty(), "{error:?}: after the Terminate nothing is sent");
        assert_eq!(self.side.bytes(self.lab), pattern(LAB, 0x5a), "{error:?}: memory is unchanged");
        assert_eq!(self.side.memory.faults(), 0);
        assert_eq!(self.side.stats.drops.after_error, 2);
        assert_eq!(self.side.stats.rdmap.terminates_sent, 1);
        let mut counted = 0;
        self.side.stats.drops.visit(&mut |_, _, value| counted += value);
        assert_eq!(counted, 3, "{error:?} is counted once");
    }
}
