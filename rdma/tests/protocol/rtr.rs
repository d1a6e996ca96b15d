//! The ready-to-receive (RTR) message of the peer-to-peer model (RFC 6581 §9.2): every form, in both roles, and
//! messages that are none.

use rdma::service::{decode_reply, encode_request};
use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::wire::mpa::RtrOptions;
use rdma::{ConnectRequest, CrcPolicy, EndpointConfig, Event, LocalSlice, StreamState};

const NONE: RtrOptions = RtrOptions { send: false, write: false, read: false };
const ALL: RtrOptions = RtrOptions { send: true, write: true, read: true };

/// Returns all combinations of B, C and D.
fn options() -> impl Iterator<Item = RtrOptions> {
    (0..8).map(|bits| RtrOptions { send: bits & 1 != 0, write: bits & 2 != 0, read: bits & 4 != 0 })
}

/// Returns IRD and ORD of a startup frame with A, B, C and D.
fn depths(options: RtrOptions, ird: u16, ord: u16) -> (u16, u16) {
    let bit = |set: bool, bit: u16| if set { bit } else { 0 };
    (ird | 0x8000 | bit(options.send, 0x4000), ord | bit(options.write, 0x8000) | bit(options.read, 0x4000))
}

/// Returns possible first messages of a peer: name, ULPDU, and the option that each belongs to.
fn first_messages() -> Vec<(&'static str, Vec<u8>, RtrOptions)> {
    let send = RtrOptions { send: true, ..NONE };
    let read_request = |size: u32| {
        let words = [0, 0, 0, size, 1, 0, 0];
        let rest = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect::<Vec<u8>>();
        untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, 1, 0], &rest)
    };
    vec![
        ("Send", untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], b""), send),
        ("FULPDU of no bytes", Vec::new(), send),
        ("Write", tagged(TAGGED_LAST, WRITE, 1, 0, b""), RtrOptions { write: true, ..NONE }),
        (
            "Write with STag 0",
            tagged(TAGGED_LAST, WRITE, 0, u64::MAX, b""),
            RtrOptions { write: true, ..NONE },
        ),
        ("Read", read_request(0), RtrOptions { read: true, ..NONE }),
        ("Send with bytes", untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], b"x"), NONE),
        ("Send with a solicited event", untagged(UNTAGGED_LAST, SEND_SE, 0, [0, 1, 0], b""), NONE),
        ("Send with Invalidate", untagged(UNTAGGED_LAST, SEND_INVALIDATE, 1, [0, 1, 0], b""), NONE),
        ("Write with bytes", tagged(TAGGED_LAST, WRITE, 1, 0, b"x"), NONE),
        ("Write that goes on", tagged(TAGGED_MORE, WRITE, 1, 0, b""), NONE),
        ("Read of bytes", read_request(8), NONE),
        ("Read Response", tagged(TAGGED_LAST, READ_RESPONSE, 1, 0, b""), NONE),
    ]
}

/// Returns a responder of the region service, in the peer-to-peer model, whose Reply was taken.
fn responder(takes: RtrOptions, asked: RtrOptions, buffers: u64) -> Side {
    let mut config = EndpointConfig { send_queue: 4, receive_queue: 4, ..EndpointConfig::default() };
    config.mpa.rtr = takes;
    let mut side = Side::responder(config);
    side.add_region("lab", pattern(64, 1), BOTH);
    let inbox = side.memory.add(vec![0; 64]).unwrap();
    for wr_id in 0..buffers {
        side.endpoint.post_recv(wr_id, slice(inbox, 0, 64)).unwrap();
    }
    let (ird, ord) = depths(asked, 4, 4);
    side.deliver(&mpa(REQUEST, ird, ord, &encode_request("lab", BOTH, b"").unwrap()));
    side.transmit();
    side
}

/// Every first message, for responders with different options, with and without buffers: a negotiated message is
/// accepted, every other ends the stream.
#[test]
fn a_responder_accepts_only_the_negotiated_rtr_message() {
    for (takes, asked) in options().flat_map(|takes| options().map(move |asked| (takes, asked))) {
        // The Reply states the common options; without any, those of this side, or a Write if it has none.
        let ours = if takes.is_empty() { RtrOptions { write: true, ..NONE } } else { takes };
        let agreed = if ours.and(asked).is_empty() { ours } else { ours.and(asked) };
        for (name, ulpdu, kind) in first_messages() {
            for buffers in [0, 2] {
                let case = format!("{name}, {takes:?} there, {asked:?} asked, {buffers} buffers");
                let mut side = responder(takes, asked, buffers);
                let reply = side.wire.take();
                let (ird, ord) = depths(agreed, 4, 4);
                assert_eq!(reply[20..24], [ird.to_be_bytes(), ord.to_be_bytes()].concat(), "{case}");
                side.drain_events();
                side.deliver(&fpdu(&ulpdu));
                let is_agreed = !kind.and(agreed).is_empty();
                assert_eq!(side.stats.rdmap.in_rtrs, u64::from(is_agreed), "{case}");
                side.transmit();
                let said = ulpdus(&side.wire.take());
                if is_agreed {
                    // It consumes no buffer, and the program receives no event.
                    assert_eq!(side.drain_events(), [], "{case}");
                    assert_eq!(side.endpoint.info().state, StreamState::ReadyToSend, "{case}");
                    let response = tagged(TAGGED_LAST, READ_RESPONSE, 0, 0, b"");
                    assert_eq!(said, if kind.read { vec![response] } else { vec![] }, "{case}");
                } else if ulpdu.is_empty() {
                    // No RFC defines such an FPDU: RFC 5044 §8 code 3, as for an FPDU that is too short.
                    assert_eq!(said, [terminate([0x20, 0x03, 0, 0], &[])], "{case}");
                } else {
                    assert_eq!(said, [terminate([0x20, 0x07, 0, 0], &[])], "{case}");
                    assert_eq!(side.stats.drops.no_matching_rtr, 1, "{case}");
                }
            }
        }
    }
}

/// A malformed message is reported as such, not as an RTR mismatch; a Terminate is not answered.
#[test]
fn a_malformed_first_message_is_reported_as_malformed() {
    let cases = [
        (untagged(UNTAGGED_LAST, SEND, 0, [0, 2, 0], b""), Some([0x12, 0x03])),
        (untagged(UNTAGGED_LAST, SEND, 0, [3, 1, 0], b""), Some([0x12, 0x01])),
        (untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 8], b""), Some([0x12, 0x04])),
        (untagged(0x42, SEND, 0, [0, 1, 0], b""), Some([0x12, 0x06])),
        (tagged(0xc2, WRITE, 1, 0, b""), Some([0x11, 0x04])),
        (tagged(TAGGED_LAST, 0x80, 1, 0, b""), Some([0x02, 0x05])),
        (tagged(TAGGED_LAST, 0x4f, 1, 0, b""), Some([0x02, 0x06])),
        (vec![0x41; 17], Some([0x20, 0x03])),
        (terminate([0x20, 0x06, 0, 0], &[]), None),
    ];
    for (ulpdu, code) in cases {
        let mut side = responder(ALL, ALL, 1);
        side.wire.take();
        side.deliver(&fpdu(&ulpdu));
        side.transmit();
        let said = ulpdus(&side.wire.take());
        let codes: Vec<[u8; 2]> = said.iter().map(|message| [message[18], message[19]]).collect();
        assert_eq!(codes, Vec::from_iter(code), "{ulpdu:02x?}");
        let heard = side.drain_events().iter().any(|event| matches!(event, Event::TerminateReceived { .. }));
        assert_eq!((heard, side.stats.rdmap.in_rtrs), (code.is_none(), 0), "{ulpdu:02x?}");
    }
}

/// The first Send of the peer's program has MSN 2 if a Send was the RTR message, otherwise MSN 1.
#[test]
fn sends_of_the_program_follow_the_rtr_message() {
    for (name, first, kind) in first_messages().into_iter().take(5) {
        let mut side = responder(ALL, ALL, 2);
        side.wire.take();
        side.drain_events();
        side.deliver(&fpdu(&first));
        let msn = 1 + u32::from(kind.send && !first.is_empty());
        side.deliver(&fpdu(&untagged(UNTAGGED_LAST, SEND, 0, [0, msn, 0], b"hello")));
        // Even an empty Send belongs to the program now.
        side.deliver(&fpdu(&untagged(UNTAGGED_LAST, SEND, 0, [0, msn + 1, 0], b"")));
        let received = |wr_id, bytes| Event::Received {
            wr_id,
            bytes,
            solicited: false,
            invalidated: None,
            immediate: None,
        };
        assert_eq!(side.drain_events(), [received(0, 5), received(1, 0)], "{name}");
    }
}

/// The client-server model has no RTR message: RFC 5040 §5.3, "A zero-length Send Message Type MUST consume an
/// Untagged Buffer".
#[test]
fn without_the_peer_to_peer_model_a_first_send_takes_a_buffer() {
    for (revision, buffers) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        let mut side = Side::responder(EndpointConfig { receive_queue: 4, ..EndpointConfig::default() });
        side.add_region("lab", pattern(64, 1), BOTH);
        for wr_id in 0..buffers {
            side.endpoint.post_recv(wr_id, LocalSlice::EMPTY).unwrap();
        }
        let ask = encode_request("lab", BOTH, b"").unwrap();
        let mut asked = mpa(REQUEST, 4, 4, &ask);
        if revision == 1 {
            asked = [&REQUEST[..], &[0x40, 1], &(ask.len() as u16).to_be_bytes(), &ask].concat();
        }
        side.deliver(&asked);
        side.transmit();
        side.wire.take();
        side.deliver(&fpdu(&untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], b"")));
        side.transmit();
        let received = side.events.iter().any(|event| matches!(event, Event::Received { .. }));
        assert_eq!((received, side.stats.rdmap.in_rtrs), (buffers > 0, 0));
        assert_eq!(ulpdus(&side.wire.take()).is_empty(), buffers > 0);
    }
}

/// Two Ironwarp endpoints with any options: they agree or report the mismatch, and all work is done after any RTR
/// message.
#[test]
fn initiator_against_responder_with_every_rtr_setting() {
    for (asks, takes) in options().flat_map(|asks| options().map(move |takes| (asks, takes))) {
        for (crc, cut) in [(CrcPolicy::Required, 1448), (CrcPolicy::IfPeerAsks, 1), (CrcPolicy::Required, 7)]
        {
            let case = format!("{asks:?} asked of {takes:?}, {cut} bytes at a time");
            let mut config = initiator_config();
            config.mpa.crc = crc;
            let ask = encode_request("lab", BOTH, b"").unwrap();
            let mut cli = Side::initiator(config, &ConnectRequest { rtr: Some(asks), ..request(&ask) });
            config.mpa.rtr = takes;
            let mut daemon = Side::responder(config);
            daemon.add_region("lab", pattern(5000, 3), BOTH);
            let inbox = daemon.memory.add(vec![0; 64]).unwrap();
            daemon.endpoint.post_recv(7, slice(inbox, 0, 64)).unwrap();
            run(&mut cli, &mut daemon, &mut segments(cut));
            let agreed = !takes.and(asks).is_empty() || takes.is_empty() && asks.write;
            let counted = (cli.stats.rdmap.out_rtrs, daemon.stats.rdmap.in_rtrs);
            assert_eq!(counted, (u64::from(agreed), u64::from(agreed)), "{case}");
            if !agreed {
                let told = |event: &Event| match event {
                    Event::TerminateReceived { code, .. } => (code.layer, code.etype, code.code) == (2, 0, 7),
                    _ => false,
                };
                assert!(daemon.events.iter().any(told), "{case}");
                continue;
            }
            daemon.events.clear();
            let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 5000]).unwrap());
            cli.endpoint.post_read(1, slice(local, 0, 5000), stag, 0).unwrap();
            cli.endpoint.post_send(2, slice(local, 0, 4), false, None).unwrap();
            run(&mut cli, &mut daemon, &mut segments(cut));
            assert_eq!(cli.bytes(local), pattern(5000, 3), "{case}");
            let received =
                Event::Received { wr_id: 7, bytes: 4, solicited: false, invalidated: None, immediate: None };
            assert_eq!(daemon.drain_events(), [received], "{case}");
        }
    }
}

/// The responder may send as soon as the RTR message has arrived, and not before (RFC 5044 §7.1.2 rule 4).
#[test]
fn the_responder_sends_only_after_the_rtr_message() {
    for (name, first, _) in first_messages().into_iter().take(5) {
        let mut side = responder(ALL, ALL, 0);
        let stag = decode_reply(&side.wire.take()[24..]).unwrap().stag;
        side.endpoint.post_write(1, LocalSlice::EMPTY, stag, 0).unwrap();
        assert_eq!(side.transmit().frames, 0, "{name}");
        side.deliver(&fpdu(&first));
        assert!(side.transmit().frames > 0, "{name}");
    }
}
