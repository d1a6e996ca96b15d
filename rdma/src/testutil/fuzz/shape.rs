//! Streams of the targets `fpdu_stream` and `placed`: their settings, their start and their end.

use crate::service::encode_request;
use crate::testutil::bytes;
use crate::testutil::bytes::{REQUEST, append_marked, mpa};
use crate::testutil::{BOTH, Side};
use crate::{CrcPolicy, EndpointConfig, Event, RegionId};

/// Settings of a stream.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) crc: bool,
    pub(super) markers: bool,
}

impl Shape {
    pub(super) fn append(self, stream: &mut Vec<u8>, ulpdu: &[u8]) {
        if self.markers {
            append_marked(stream, ulpdu);
        } else {
            stream.extend(bytes::fpdu(ulpdu));
        }
    }

    /// Returns a responder that has sent its Reply, with a region `lab` of these bytes and no grants.
    pub(super) fn responder(self, mut config: EndpointConfig, lab: Vec<u8>) -> (Side, RegionId) {
        config.mpa.crc = if self.crc { CrcPolicy::Required } else { CrcPolicy::IfPeerAsks };
        config.mpa.markers = self.markers;
        let mut side = Side::responder(config);
        let lab = side.add_region("lab", lab, BOTH);
        let mut request = mpa(REQUEST, 2, 2, &encode_request("lab", crate::Access::NONE, b"").unwrap());
        if !self.crc {
            request[16] &= !0x40;
        }
        side.deliver(&request);
        side.transmit();
        let info = side.endpoint.info();
        assert_eq!((info.crc, info.markers_in), (self.crc, self.markers));
        side.wire.take();
        (side, lab)
    }
}

/// Checks that the end of a stream is reported once, as the last event.
pub(super) fn end(side: &mut Side) {
    side.endpoint.transport_lost();
    side.collect();
    let closed = |event: &&Event| matches!(event, Event::Close { .. });
    assert_eq!(side.events.iter().filter(closed).count(), 1);
    assert!(side.events.last().is_some_and(|event| closed(&event)), "{:?}", side.events);
}
