//! Every Terminate code of `docs/terminate.md`: provoked on one stream, byte by byte, while another stream of the same
//! worker is in the middle of its work, which it then completes.

use crate::page;
use rdma::service::{decode_reply, encode_request};
use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::wire::mpa::RtrOptions;
use rdma::wire::terminate::{BitOrder, Control};
use rdma::{
    Access, CloseHow, ConnectRequest, EndpointConfig, ErrorCode, Event, RegionId, Scope, Stag, StreamId,
    WcStatus,
};
use std::collections::BTreeSet;
use tcp_stack::testutil::list_entries;

const LAB: usize = 8192;
const ALL: Access = Access::from_bits(7).unwrap();
const OTHER: StreamId = StreamId(2);

fn config() -> EndpointConfig {
    EndpointConfig { send_queue: 4, receive_queue: 4, ..EndpointConfig::default() }
}

/// Two streams of one worker. STags, memory and counters belong to `victim`; `other` borrows them.
struct Rig {
    victim: Side,
    other: Side,
    lab: RegionId,
    /// Valid on the victim's stream, with all rights.
    stag: u32,
    /// Valid on the victim's stream, without rights.
    blind: u32,
    /// Valid on another stream.
    foreign: u32,
    /// Valid on the victim's stream, for twice the length of the region.
    long: u32,
    own: RegionId,
    own_stag: u32,
    inbox: RegionId,
}

impl Rig {
    /// Creates a responder in full operation; the peer's segments are built by hand.
    fn responder() -> Self {
        let mut victim = Side::responder(config());
        victim.add_region("lab", pattern(LAB, 0x5a), ALL);
        victim.deliver(&mpa(REQUEST, 0, 2, &encode_request("lab", ALL, b"").unwrap()));
        victim.transmit();
        let stag = decode_reply(&victim.wire.take()[24..]).unwrap().stag.0;
        victim.deliver(&fpdu(&tagged(TAGGED_LAST, WRITE, 1, 0, &[])));
        Self::around(victim, RegionId(0), stag)
    }

    /// Creates an initiator whose Request is sent; the Reply is built by hand.
    fn initiator(rtr: Option<RtrOptions>) -> Self {
        let mut victim = Side::initiator(config(), &ConnectRequest { rtr, ..request(b"") });
        let lab = victim.memory.add(pattern(LAB, 0x5a)).unwrap();
        victim.transmit();
        victim.wire.take();
        Self::around(victim, lab, 0)
    }

    /// Creates an initiator with a read of 100 bytes outstanding.
    fn reading() -> Self {
        let mut rig = Self::initiator(None);
        rig.victim.deliver(&mpa(REPLY, 16, 0, b""));
        rig.victim.endpoint.post_read(5, slice(rig.lab, 0, 100), Stag(0xabc), 0).unwrap();
        rig.victim.transmit();
        rig.victim.wire.take();
        rig
    }

    fn around(mut victim: Side, lab: RegionId, stag: u32) -> Self {
        let mut grant =
            |len: usize, access, scope| victim.stags.grant(lab, len as u64, access, scope).unwrap().0;
        let blind = grant(LAB, Access::NONE, Scope::Stream(STREAM));
        let foreign = grant(LAB, ALL, Scope::Stream(StreamId(99)));
        let long = grant(2 * LAB, ALL, Scope::Stream(STREAM));
        victim.events.clear();
        let other = Side::responder_on(OTHER, config());
        let none = RegionId(0);
        let mut rig =
            Self { victim, other, lab, stag, blind, foreign, long, own: none, own_stag: 0, inbox: none };
        rig.begin();
        rig
    }

    fn with_other<R>(&mut self, act: impl FnOnce(&mut Side) -> R) -> R {
        let Self { victim, other, .. } = self;
        let exchange = |a: &mut Side, b: &mut Side| {
            core::mem::swap(&mut a.stags, &mut b.stags);
            core::mem::swap(&mut a.memory, &mut b.memory);
            core::mem::swap(&mut a.stats, &mut b.stats);
        };
        exchange(victim, other);
        let result = act(other);
        exchange(victim, other);
        result
    }

    /// Starts work on the other stream: a Write, a Send and an answered Read, each half done, and requests of its own.
    fn begin(&mut self) {
        (self.own, self.own_stag, self.inbox) = self.with_other(|side| {
            let own = side.add_region("own", pattern(LAB, 0x33), ALL);
            let inbox = side.memory.add(vec![0; 16]).unwrap();
            side.endpoint.post_recv(1, slice(inbox, 0, 16)).unwrap();
            side.deliver(&mpa(REQUEST, 4, 4, &encode_request("own", ALL, b"").unwrap()));
            side.transmit();
            let stag = decode_reply(&side.wire.take()[24..]).unwrap().stag.0;
            side.wire.limit = 1448;
            side.deliver(&fpdu(&tagged(TAGGED_MORE, WRITE, stag, 0, &[0xaa; 64])));
            side.deliver(&fpdu(&untagged(UNTAGGED_MORE, SEND, 0, [0, 1, 0], b"half")));
            side.deliver(&fpdu(&read_request(1, 7, 4096, stag, 4096)));
            side.transmit();
            side.endpoint.post_write(2, slice(own, 4096, 32), Stag(0x77), 0).unwrap();
            side.events.clear();
            (own, stag, inbox)
        });
    }

    /// Completes all work of the other stream.
    fn complete(&mut self, case: &str) {
        let stag = self.own_stag;
        let (own, inbox) = (self.own, self.inbox);
        self.with_other(|side| {
            side.deliver(&fpdu(&tagged(TAGGED_LAST, WRITE, stag, 64, &[0xbb; 64])));
            side.deliver(&fpdu(&untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 4], b"done")));
            let (mut read, mut written) = (Vec::new(), Vec::new());
            while side.wire.queued() > 0 {
                for ulpdu in ulpdus(&side.wire.take()) {
                    let into = if ulpdu[1] == READ_RESPONSE { &mut read } else { &mut written };
                    into.extend_from_slice(&ulpdu[14..]);
                }
                side.transmit();
            }
            let mut expected = pattern(LAB, 0x33);
            assert_eq!(read, expected[4096..], "{case}");
            assert_eq!(written, expected[4096..4128], "{case}");
            expected[..64].fill(0xaa);
            expected[64..128].fill(0xbb);
            assert_eq!(side.bytes(own), expected, "{case}");
            assert_eq!(side.bytes(inbox)[..8], *b"halfdone", "{case}");
            let received =
                Event::Received { wr_id: 1, bytes: 8, solicited: false, invalidated: None, immediate: None };
            let done = |event: &Event| {
                matches!(event, Event::Completion { wr_id: 2, status: WcStatus::Success, .. })
            };
            assert!(side.events.contains(&received) && side.events.iter().any(done), "{case}");
            assert_eq!(side.events.len(), 2, "{case}: {:?}", side.events);
            assert_eq!(side.memory.faults(), 0, "{case}");
        });
    }

    fn send(&mut self, segment: &[u8]) {
        self.victim.deliver(&fpdu(segment));
    }

    /// Delivers the segment, and returns the expected Terminate, built by hand.
    fn about(&mut self, segment: &[u8], [kind, code, flags]: [u8; 3]) -> Vec<u8> {
        self.send(segment);
        let request = match (flags & 0x20 != 0, segment[1]) {
            (false, _) => &[][..],
            (true, READ_REQUEST) => &segment[18..],
            (true, _) => &[0; 28],
        };
        terminate_about(kind, code, flags, segment, request)
    }

    fn bare(&mut self, segment: &[u8], kind: u8, code: u8) -> Vec<u8> {
        self.send(segment);
        terminate([kind, code, 0, 0], &[])
    }

    /// Expects that a Read of the peer from there is refused with this code.
    fn read(&mut self, stag: u32, to: u64, size: u32, code: u8) -> Vec<u8> {
        self.about(&read_request(1, 7, size, stag, to), [0x01, code, 0xe0])
    }

    /// Expects that a Write of the peer to there is refused with this code.
    fn write(&mut self, stag: u32, to: u64, code: u8) -> Vec<u8> {
        self.about(&tagged(TAGGED_LAST, WRITE, stag, to, &[0xff; 8]), [0x11, code, 0xc0])
    }

    /// Expects that a Send of the peer is refused with this code.
    fn untagged(&mut self, place: [u32; 3], bytes: usize, code: u8) -> Vec<u8> {
        let segment = untagged(UNTAGGED_LAST, SEND, 0, place, &vec![0xff; bytes]);
        self.about(&segment, [0x12, code, 0xc0])
    }

    /// Posts a buffer of eight bytes for a Send.
    fn with_buffer(mut self) -> Self {
        let region = self.victim.memory.add(vec![0; 8]).unwrap();
        self.victim.endpoint.post_recv(9, slice(region, 0, 8)).unwrap();
        self
    }
}

/// Provokes a Terminate: returns the streams and the expected message.
type Provoke = fn() -> (Rig, Vec<u8>);

fn responder(act: impl FnOnce(&mut Rig) -> Vec<u8>) -> (Rig, Vec<u8>) {
    with(Rig::responder(), act)
}

fn with(mut rig: Rig, act: impl FnOnce(&mut Rig) -> Vec<u8>) -> (Rig, Vec<u8>) {
    let expected = act(&mut rig);
    (rig, expected)
}

fn failing(fail: impl FnOnce(&mut Side), word: [u8; 4]) -> (Rig, Vec<u8>) {
    responder(|rig| {
        fail(&mut rig.victim);
        terminate(word, &[])
    })
}

const RDMAP: &[(&str, Provoke)] = &[
    ("a fault here", || {
        failing(|side| side.endpoint.fail_local(side.now, &mut side.stats), [0x00, 0x00, 0, 0])
    }),
    ("read: STag", || responder(|rig| rig.read(rig.stag ^ 1, 0, 8, 0x00))),
    ("read: bounds", || responder(|rig| rig.read(rig.stag, 8190, 8, 0x01))),
    ("read: rights", || responder(|rig| rig.read(rig.blind, 0, 8, 0x02))),
    ("read: stream", || responder(|rig| rig.read(rig.foreign, 0, 8, 0x03))),
    ("read: wrap", || responder(|rig| rig.read(rig.stag, u64::MAX, 8, 0x04))),
    ("invalidation", || {
        with(Rig::responder().with_buffer(), |rig| {
            let segment = untagged(UNTAGGED_LAST, SEND_INVALIDATE, rig.stag, [0, 1, 0], &[1]);
            rig.about(&segment, [0x01, 0x09, 0xe0])
        })
    }),
    ("RDMAP version", || {
        responder(|rig| rig.about(&tagged(TAGGED_LAST, 0x80, rig.stag, 0, &[1]), [0x02, 0x05, 0xc0]))
    }),
    ("opcode", || {
        responder(|rig| rig.about(&untagged(UNTAGGED_LAST, 0x4f, 0, [0, 1, 0], &[1]), [0x02, 0x06, 0xc0]))
    }),
    ("opcode: a response to nothing", || {
        let response = tagged(TAGGED_LAST, READ_RESPONSE, 1, 0, &[]);
        responder(|rig| rig.about(&response, [0x02, 0x06, 0xc0]))
    }),
    ("read: the memory is gone", || {
        responder(|rig| {
            let segment = read_request(1, 7, 16, rig.long, 8184);
            rig.about(&segment, [0x02, 0x07, 0xc0])
        })
    }),
    ("a fault of the whole side", || {
        failing(|side| side.endpoint.fail_global(side.now, &mut side.stats), [0x02, 0x08, 0, 0])
    }),
    ("read: cut short", || {
        let segment = untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, 1, 0], &[0; 27]);
        responder(|rig| rig.about(&segment, [0x02, 0xff, 0xc0]))
    }),
    ("a response that ends early", || {
        let segment = tagged(TAGGED_LAST, READ_RESPONSE, 1, 0, &[]);
        with(Rig::reading(), |rig| rig.about(&segment, [0x02, 0xff, 0xc0]))
    }),
];

const DDP: &[(&str, Provoke)] = &[
    ("write: the memory is gone", || {
        responder(|rig| {
            let segment = tagged(TAGGED_LAST, WRITE, rig.long, 8184, &[0xff; 16]);
            rig.about(&segment, [0x10, 0x00, 0xc0])
        })
    }),
    ("write: STag", || responder(|rig| rig.write(rig.stag ^ 0x100, 0, 0x00))),
    ("write: right", || responder(|rig| rig.write(rig.blind, 0, 0x00))),
    ("write: bounds", || responder(|rig| rig.write(rig.stag, 8190, 0x01))),
    ("write: stream", || responder(|rig| rig.write(rig.foreign, 0, 0x02))),
    ("write: wrap", || responder(|rig| rig.write(rig.stag, u64::MAX - 3, 0x03))),
    ("tagged version", || responder(|rig| rig.bare(&tagged(0xc2, WRITE, rig.stag, 0, &[1]), 0x11, 0x04))),
    ("response: STag", || {
        let segment = tagged(TAGGED_LAST, READ_RESPONSE, 2, 0, &[0xff; 100]);
        with(Rig::reading(), |rig| rig.about(&segment, [0x11, 0x00, 0xc0]))
    }),
    ("queue", || responder(|rig| rig.untagged([3, 1, 0], 8, 0x01))),
    ("no buffer", || responder(|rig| rig.untagged([0, 1, 0], 8, 0x02))),
    ("sequence", || responder(|rig| rig.untagged([0, 2, 0], 8, 0x03))),
    ("offset", || with(Rig::responder().with_buffer(), |rig| rig.untagged([0, 1, 4], 4, 0x04))),
    ("too long", || with(Rig::responder().with_buffer(), |rig| rig.untagged([0, 1, 0], 9, 0x05))),
    ("untagged version", || responder(|rig| rig.bare(&untagged(0x40, SEND, 0, [0, 1, 0], &[1]), 0x12, 0x06))),
];

const MPA: &[(&str, Provoke)] = &[
    ("CRC", || {
        responder(|rig| {
            let mut bytes = fpdu(&tagged(TAGGED_LAST, WRITE, rig.stag, 0, &[0xff; 64]));
            bytes[20] ^= 0x10;
            rig.victim.deliver(&bytes);
            terminate([0x20, 0x02, 0, 0], &[])
        })
    }),
    ("length", || responder(|rig| rig.bare(&[0x41; 17], 0x20, 0x03))),
    ("a fault here while setting up", || {
        with(Rig::initiator(None), |rig| {
            rig.victim.deliver(&mpa(REPLY, 16, 16, b""));
            rig.victim.endpoint.fail_local(rig.victim.now, &mut rig.victim.stats);
            terminate([0x20, 0x05, 0, 0], &[])
        })
    }),
    ("IRD", || {
        with(Rig::initiator(None), |rig| {
            rig.victim.deliver(&mpa(REPLY, 16, 129, b""));
            terminate([0x20, 0x06, 0, 0], &[])
        })
    }),
    ("ready-to-receive", || {
        let rtr = RtrOptions { send: false, write: true, read: false };
        with(Rig::initiator(Some(rtr)), |rig| {
            rig.victim.deliver(&mpa(REPLY, 0x8010, 0x4010, b""));
            terminate([0x20, 0x07, 0, 0], &[])
        })
    }),
];

/// Formats layer, type and code as the page does.
fn named(code: ErrorCode) -> String {
    format!("{:x}/{:x}/{:02X}", code.layer, code.etype, code.code)
}

fn code_of(name: &str) -> ErrorCode {
    let mut parts = name.split('/').map(|part| u8::from_str_radix(part, 16).unwrap());
    let mut part = || parts.next().unwrap();
    ErrorCode { layer: part(), etype: part(), code: part() }
}

/// Returns the entries of the page that begin with a code: those that are sent, and the others.
fn page() -> [Vec<Vec<String>>; 2] {
    let entries = list_entries(&page::read("terminate.md"));
    let (unsent, sent) = entries.into_iter().partition(|entry| entry[2].starts_with("Not sent"));
    [sent, unsent]
}

#[test]
fn each_code_is_sent_and_a_second_stream_continues() {
    let mut seen = BTreeSet::new();
    for (case, provoke) in [RDMAP, DDP, MPA].concat() {
        let (mut rig, expected) = provoke();
        rig.victim.transmit();
        assert_eq!(ulpdus(&rig.victim.wire.take()), [&expected[..]], "{case}");
        let code = ErrorCode { layer: expected[18] >> 4, etype: expected[18] & 15, code: expected[19] };
        let word = *expected[18..].first_chunk().unwrap();
        assert_eq!(Control::parse(word).1, BitOrder::Rfc, "{case}: another of us reads it as it is meant");
        let events = rig.victim.drain_events();
        assert!(
            matches!(
                &events[..],
                [.., Event::TerminateSent { code: sent, .. }, Event::Close { how: CloseHow::Fin }] if *sent == code
            ),
            "{case}: {events:?}"
        );
        // Later segments are ignored, and nothing is sent.
        rig.send(&tagged(TAGGED_LAST, WRITE, rig.stag, 0, &[0xff; 64]));
        assert_eq!(rig.victim.transmit().frames, 0, "{case}");
        assert_eq!(rig.victim.bytes(rig.lab), pattern(LAB, 0x5a), "{case}: memory is unchanged");
        rig.complete(case);
        assert_eq!(rig.victim.stats.rdmap.terminates_sent, 1, "{case}");
        seen.insert(named(code));
    }
    let [sent, _] = page();
    let listed: BTreeSet<String> = sent.iter().map(|entry| entry[0].clone()).collect();
    assert_eq!(seen, listed, "docs/terminate.md lists what is sent");
}

#[test]
fn codes_that_are_not_sent_are_reported_to_the_owner() {
    // RFC 5044 §8 code 4: "the TCP connection MUST be immediately closed".
    for reply in [&mpa(REQUEST, 0, 0, b"")[..], b"HTTP/1.1 400 Bad", &[0; 20]] {
        let mut rig = Rig::initiator(None);
        rig.victim.deliver(reply);
        assert_eq!(rig.victim.transmit().frames, 0);
        let events = rig.victim.drain_events();
        let code = ErrorCode::INVALID_FRAME;
        assert_eq!(events, [Event::Failed { code }, Event::Close { how: CloseHow::Reset }]);
        rig.complete("no MPA");
    }
    // RFC 5044 §8 code 1.
    let mut rig = Rig::reading();
    rig.victim.events.clear();
    rig.victim.endpoint.transport_lost();
    rig.victim.collect();
    assert_eq!(rig.victim.transmit().frames, 0);
    let events = rig.victim.drain_events();
    let code = ErrorCode::TCP_LOST;
    assert!(matches!(events[0], Event::Failed { code: said } if said == code), "{events:?}");
    assert!(matches!(events[1], Event::Completion { wr_id: 5, status: WcStatus::WrFlushError, .. }));
    assert_eq!(events[2..], [Event::Close { how: CloseHow::Reset }]);
    rig.complete("lost");
    let [_, unsent] = page();
    let unsent: Vec<&str> = unsent.iter().map(|entry| entry[0].as_str()).collect();
    assert_eq!(unsent, ["0/1/FF", "0/2/09", "2/0/01", "2/0/04"]);
    assert_eq!(named(ErrorCode::TCP_LOST), "2/0/01");
    assert_eq!(named(ErrorCode::INVALID_FRAME), "2/0/04");
}

/// In the RFC's bit order and in Linux soft-iWARP's, with the headers that Figure 10 requires.
#[test]
fn each_code_is_understood_when_a_peer_sends_it() {
    let headers = &terminate_about(0, 0, 0, &tagged(TAGGED_LAST, WRITE, 1, 2, &[]), &[])[22..];
    for entry in page().concat() {
        let code = code_of(&entry[0]);
        let (flags, swapped) = match entry[3].as_str() {
            "none" => (0x00, 0x00),
            "M, D" => (0xc0, 0x03),
            "M, D, R" => (0xe0, 0x07),
            other => panic!("{}: {other}", entry[0]),
        };
        let words = [
            ([code.layer << 4 | code.etype, code.code, flags, 0], false),
            ([code.etype << 4 | code.layer, code.code, swapped, 0], true),
        ];
        for (raw, siw_order) in words {
            let mut rig = Rig::reading();
            rig.victim.events.clear();
            rig.send(&terminate(raw, if flags == 0 { &[] } else { headers }));
            assert_eq!(rig.victim.transmit().frames, 0, "a Terminate is not answered");
            let events = rig.victim.drain_events();
            assert!(matches!(events[0], Event::Completion { wr_id: 5, status: WcStatus::WrFlushError, .. }));
            // A word that is the same in both orders is parsed in the RFC's.
            let siw_order = siw_order && raw != words[0].0;
            assert_eq!(events[1], Event::TerminateReceived { code, raw, siw_order }, "{}", entry[0]);
            assert_eq!(events[2..], [Event::Close { how: CloseHow::Fin }]);
            rig.complete(&entry[0]);
        }
    }
}

#[test]
fn the_page_names_existing_codes_and_tests() {
    for entry in page().concat() {
        let [code, name, when, _, tests] = &entry[..] else { panic!("{entry:?}") };
        assert_eq!(code_of(code).name(), name, "{code}");
        assert!(!when.is_empty());
        page::assert_names_tests(tests);
    }
}
