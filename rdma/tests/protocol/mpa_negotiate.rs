//! The startup phase: the complete transition table, the bytes of every answer, every refusal.

use proptest::prelude::*;
use rdma::mpa::negotiate::table::{Input, State, step};
use rdma::mpa::{
    ConnectRequest, CrcPolicy, Event, LocalError, MpaStats, Negotiation, NegotiationConfig, Refusal, Rtr,
    Terms,
};
use rdma::wire::mpa::{ConnectionData, ReadDepth, RtrOptions};
use std::time::Duration;

const NOW: Duration = Duration::from_secs(100);

fn config() -> NegotiationConfig {
    NegotiationConfig { ird_max: 16, ord_max: 8, ..NegotiationConfig::default() }
}

fn request() -> ConnectRequest<'static> {
    ConnectRequest { private_data: b"hello", revision: 2, ird: 4, ord: 4, rtr: None }
}

fn frame(key: &str, flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let mut out = format!("MPA ID {key} Frame").into_bytes();
    out.extend([flags, revision]);
    out.extend(u16::try_from(private_data.len()).unwrap().to_be_bytes());
    out.extend(private_data);
    out
}

fn req(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame("Req", flags, revision, private_data)
}

fn rep(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame("Rep", flags, revision, private_data)
}

struct Side {
    negotiation: Negotiation,
    stats: MpaStats,
}

impl Side {
    fn responder(config: NegotiationConfig) -> Self {
        Self { negotiation: Negotiation::responder(config, NOW), stats: MpaStats::default() }
    }

    fn initiator(config: NegotiationConfig, request: &ConnectRequest<'_>) -> Self {
        let mut stats = MpaStats::default();
        let negotiation = Negotiation::initiator(config, request, NOW, &mut stats).unwrap();
        Self { negotiation, stats }
    }

    /// Returns an initiator whose Request has been sent.
    fn waiting(config: NegotiationConfig, request: &ConnectRequest<'_>) -> Self {
        let mut side = Self::initiator(config, request);
        side.send();
        side
    }

    fn send(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let part = self.negotiation.unsent().iter().take(7).copied().collect::<Vec<_>>();
            if part.is_empty() {
                return out;
            }
            self.negotiation.sent(part.len(), &mut self.stats);
            out.extend(part);
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        self.negotiation.receive(bytes, &mut self.stats)
    }

    fn event(&mut self) -> Option<Event> {
        self.negotiation.poll_event()
    }

    /// Returns the counters that are not zero.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        let mut rows = Vec::new();
        self.stats.visit(&mut |name, _, value| {
            if value != 0 {
                rows.push((name, value));
            }
        });
        rows
    }
}

#[test]
fn the_transition_table_is_this() {
    let mut table = String::new();
    for state in State::ALL {
        for input in Input::ALL {
            if let Some(next) = step(state, input) {
                table.push_str(&format!("{state:?} {input:?} {next:?}\n"));
            }
        }
    }
    let expected = "\
AwaitRequest Frame Decide
AwaitRequest BadFrame Failed
AwaitRequest EarlyBytes Failed
AwaitRequest Timeout Failed
AwaitRequest PeerClosed Failed
Decide EarlyBytes Failed
Decide Accept SendAccept
Decide Reject SendReject
Decide Timeout Failed
Decide PeerClosed Failed
SendAccept EarlyBytes Failed
SendAccept Sent Established
SendAccept Timeout Failed
SendAccept PeerClosed Failed
SendReject EarlyBytes Failed
SendReject Sent Rejected
SendReject Timeout Failed
SendReject PeerClosed Failed
SendRequest EarlyBytes Failed
SendRequest Sent AwaitReply
SendRequest Timeout Failed
SendRequest PeerClosed Failed
AwaitReply Frame Established
AwaitReply Unacceptable Failed
AwaitReply RejectFrame Rejected
AwaitReply BadFrame Failed
AwaitReply EarlyBytes Failed
AwaitReply Timeout Failed
AwaitReply PeerClosed Failed
";
    assert_eq!(table, expected);
}

/// Name, local settings, Request, Reply if the owner accepts with "ok"; resulting CRC, IRD and ORD.
type Row = (&'static str, NegotiationConfig, Vec<u8>, Vec<u8>, bool, (u16, u16));

#[test]
fn a_responder_answers_as_it_is_asked() {
    const NONE: (u16, u16) = (16, 8);
    let rtr_config = NegotiationConfig {
        rtr: RtrOptions { send: true, write: true, read: true },
        crc: CrcPolicy::IfPeerAsks,
        ..config()
    };
    let off = NegotiationConfig { crc: CrcPolicy::IfPeerAsks, ..config() };
    let tagged = NegotiationConfig { rtr: RtrOptions { send: false, ..config().rtr }, ..config() };
    let no_reads = NegotiationConfig { ird_max: 0, ..config() };
    let only_read = NegotiationConfig { rtr: RtrOptions { read: true, ..RtrOptions::default() }, ..no_reads };
    #[rustfmt::skip]
    let rows: [Row; 19] = [
        ("revision 1", config(), req(0x40, 1, b"pd"), rep(0x40, 1, b"ok"), true, NONE),
        ("revision 1, CRC off on both sides", off, req(0, 1, b""), rep(0, 1, b"ok"), false, NONE),
        ("revision 1, CRC on here", config(), req(0, 1, b""), rep(0x40, 1, b"ok"), true, NONE),
        ("revision 1, CRC on there", off, req(0x40, 1, b""), rep(0x40, 1, b"ok"), true, NONE),
        ("revision 1, S and reserved bits are reserved", off, req(0x1F, 1, b"xyz"), rep(0, 1, b"ok"), false, NONE),
        ("R means nothing in a request", off, req(0x20, 1, b""), rep(0, 1, b"ok"), false, NONE),
        ("revision 2, not enhanced", config(), req(0, 2, b""), rep(0x40, 2, b"ok"), true, NONE),
        ("soft-iWARP, rping", config(), req(0x10, 2, &[0, 1, 0, 1]),
            rep(0x50, 2, b"\x00\x01\x00\x01ok"), true, (1, 1)),
        ("soft-iWARP, perftest", config(), req(0x10, 2, &[0; 4]), rep(0x50, 2, b"\x00\x00\x00\x00ok"), true, (0, 0)),
        ("more than we have", config(), req(0x10, 2, &[0, 128, 0, 128]),
            rep(0x50, 2, b"\x00\x10\x00\x08ok"), true, (16, 8)),
        ("left to the ULP", config(), req(0x10, 2, &[0x3F, 0xFF, 0x3F, 0xFF]),
            rep(0x50, 2, b"\x3F\xFF\x3F\xFFok"), true, NONE),
        ("peer-to-peer, all options", rtr_config, req(0x10, 2, &[0xC0, 2, 0xC0, 3]),
            rep(0x10, 2, b"\xC0\x03\xC0\x02ok"), false, (3, 2)),
        ("peer-to-peer, Read, no ORD", config(), req(0x10, 2, &[0x80, 0, 0x40, 0]),
            rep(0x50, 2, b"\x80\x01\x40\x00ok"), true, (1, 0)),
        ("peer-to-peer, Send", config(), req(0x10, 2, &[0xC0, 1, 0, 1]),
            rep(0x50, 2, b"\xC0\x01\x00\x01ok"), true, (1, 1)),
        ("peer-to-peer, Send: we offer ours", tagged, req(0x10, 2, &[0xC0, 1, 0, 1]),
            rep(0x50, 2, b"\x80\x01\xC0\x01ok"), true, (1, 1)),
        ("peer-to-peer, nothing: we offer ours", config(), req(0x10, 2, &[0x80, 1, 0, 1]),
            rep(0x50, 2, b"\xC0\x01\xC0\x01ok"), true, (1, 1)),
        ("peer-to-peer, Read, where nobody may read", no_reads, req(0x10, 2, &[0x80, 1, 0x40, 1]),
            rep(0x50, 2, b"\xC0\x00\x80\x01ok"), true, (0, 1)),
        ("peer-to-peer, Read alone here, where nobody may read", only_read, req(0x10, 2, &[0x80, 1, 0x40, 1]),
            rep(0x50, 2, b"\x80\x00\x80\x01ok"), true, (0, 1)),
        ("B, C, D without A", config(), req(0x10, 2, &[0x40, 1, 0xC0, 1]),
            rep(0x50, 2, b"\x00\x01\x00\x01ok"), true, (1, 1)),
    ];
    for (name, config, request, reply, crc, (ird, ord)) in rows {
        let mut side = Side::responder(config);
        assert_eq!(side.receive(&request), request.len(), "{name}");
        let Some(Event::Request(offer)) = side.event() else { panic!("{name}") };
        assert_eq!(offer.peer_crc, request[16] & 0x40 != 0, "{name}");
        let terms = offer.terms;
        assert_eq!((terms.crc, terms.ird, terms.ord, terms.rtr), (crc, ird, ord, None), "{name}");
        assert_eq!(terms.revision, request[17], "{name}");
        // The Reply states what the peer must send first: B, C and D if A is set.
        let flags = |at: usize| reply.get(at).map_or(0, |byte| byte >> 6);
        let offered =
            RtrOptions { send: flags(20) & 1 != 0, write: flags(22) & 2 != 0, read: flags(22) & 1 != 0 };
        let peer_to_peer = reply[16] & 0x10 != 0 && flags(20) & 2 != 0;
        assert_eq!(terms.rtr_in, (peer_to_peer && terms.peer.is_some()).then_some(offered), "{name}");
        side.negotiation.accept(b"ok").unwrap();
        assert_eq!(side.send(), reply, "{name}");
        assert_eq!(side.event(), Some(Event::Established(terms)), "{name}");
        assert_eq!(side.counted(), [("requests_in", 1), ("accepts_out", 1)], "{name}");
        assert_eq!(side.negotiation.next_deadline(), None, "{name}");
        assert_eq!(side.receive(b"fpdu"), 0, "{name}");
    }
}

#[test]
fn private_data_is_the_ulps_own() {
    let mut side = Side::responder(config());
    let bytes = frame("Req", 0x10, 2, b"\x00\x01\x00\x01IWR1");
    side.receive(&bytes[..25]);
    assert_eq!(side.negotiation.private_data(), b"");
    assert_eq!(side.event(), None);
    side.receive(&bytes[25..]);
    assert_eq!(side.negotiation.private_data(), b"IWR1");
    assert_eq!(side.negotiation.private_data_room(), 252);

    let mut longest = Side::responder(config());
    longest.receive(&frame("Req", 0, 1, &[7; 512]));
    assert!(matches!(longest.event(), Some(Event::Request(_))));
    assert_eq!(longest.negotiation.private_data(), [7; 512]);
    assert_eq!(longest.negotiation.private_data_room(), 256);
    let error = LocalError::PrivateDataTooLong { len: 257, max: 256 };
    assert_eq!(longest.negotiation.accept(&[0; 257]), Err(error));
    longest.negotiation.accept(&[0; 256]).unwrap();
    assert_eq!(longest.send().len(), 276);
}

#[test]
fn the_owner_may_reject() {
    let mut side = Side::responder(config());
    side.receive(&frame("Req", 0x10, 2, &[0, 1, 0, 1]));
    side.negotiation.reject(b"no").unwrap();
    assert_eq!(side.send(), frame("Rep", 0x70, 2, b"\x00\x01\x00\x01no"));
    assert_eq!(side.event(), Some(Event::RejectSent(Refusal::Owner)));
    assert_eq!(side.counted(), [("requests_in", 1), ("rejects_out", 1)]);
    assert_eq!(side.negotiation.state(), State::Rejected);
}

// RFC 5044 §7.1.1, M: each side states the markers that it wants to receive, and the other sends them.
#[test]
fn markers_are_agreed_for_each_direction() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let config = NegotiationConfig { markers: ours, ..config() };
        let flags = |markers: bool| if markers { 0xC0 } else { 0x40 };
        let mut side = Side::responder(config);
        side.receive(&frame("Req", flags(theirs), 1, b"data"));
        side.event();
        side.negotiation.accept(b"").unwrap();
        assert_eq!(side.send(), frame("Rep", flags(ours), 1, b""));
        let terms = side.negotiation.terms().unwrap();
        assert_eq!((terms.markers_in, terms.markers_out), (ours, theirs));

        let mut side = Side::initiator(config, &ConnectRequest { private_data: b"", ..request() });
        assert_eq!(side.send(), frame("Req", flags(ours) | 0x10, 2, &[0, 4, 0, 4]));
        side.receive(&frame("Rep", flags(theirs) | 0x10, 2, &[0, 4, 0, 4]));
        let Some(Event::Established(terms)) = side.event() else { panic!("not established") };
        assert_eq!((terms.markers_in, terms.markers_out), (ours, theirs));
    }
}

#[test]
fn a_rejecting_reply_does_not_ask_for_markers() {
    let mut side = Side::responder(NegotiationConfig { markers: true, ..config() });
    side.receive(&frame("Req", 0xC0, 1, b""));
    side.negotiation.reject(b"").unwrap();
    assert_eq!(side.send(), frame("Rep", 0x60, 1, b""));
}

#[test]
fn answers_need_a_request() {
    let mut side = Side::responder(config());
    assert_eq!(side.negotiation.accept(b""), Err(LocalError::NoRequest));
    let mut side = Side::waiting(config(), &request());
    assert_eq!(side.negotiation.accept(b""), Err(LocalError::NoRequest));
    assert_eq!(side.negotiation.reject(b""), Err(LocalError::NoRequest));
}

#[test]
fn a_bad_request_closes_at_once_and_is_counted() {
    let mut oversize = frame("Req", 0, 1, b"");
    oversize[18..].copy_from_slice(&513u16.to_be_bytes());
    let mut followed = frame("Req", 0, 1, b"");
    followed.push(0);
    let rows: &[(&[u8], Refusal, &str)] = &[
        (b"GET / HTTP/1.1", Refusal::Key, "refused_key"),
        (b"MPA ID Req frame", Refusal::Key, "refused_key"),
        (b"\0", Refusal::Key, "refused_key"),
        (b"MPA ID Rep", Refusal::Role, "refused_role"),
        (&frame("Req", 0, 0, b""), Refusal::Revision, "refused_revision"),
        (&frame("Req", 0, 3, b""), Refusal::Revision, "refused_revision"),
        (&frame("Req", 0, 129, b""), Refusal::Revision, "refused_revision"),
        (&oversize, Refusal::PrivateData, "refused_private_data"),
        (&frame("Req", 0x10, 2, b""), Refusal::Enhanced, "refused_enhanced"),
        (&frame("Req", 0x10, 2, b"abc"), Refusal::Enhanced, "refused_enhanced"),
        (&followed, Refusal::Early, "refused_early"),
    ];
    for (bytes, refusal, counter) in rows {
        let mut side = Side::responder(config());
        side.receive(bytes);
        assert_eq!(side.event(), Some(Event::Failed(*refusal)), "{counter}");
        assert_eq!(side.counted(), [(*counter, 1)]);
        assert_eq!((side.send(), side.negotiation.state()), (vec![], State::Failed));
        assert_eq!(side.receive(&frame("Req", 0, 1, b"")), 0);
        assert_eq!(side.event(), None);
        assert!(!refusal.sends_terminate());
    }
}

#[test]
fn bytes_before_the_reply_are_refused() {
    for decide in [None, Some(true), Some(false)] {
        let mut side = Side::responder(config());
        side.receive(&frame("Req", 0, 1, b""));
        match decide {
            Some(true) => side.negotiation.accept(b"").unwrap(),
            Some(false) => side.negotiation.reject(b"").unwrap(),
            None => {}
        }
        assert_eq!(side.receive(&[0; 8]), 0);
        assert_eq!(side.event(), Some(Event::Failed(Refusal::Early)));
        assert!(side.send().is_empty());
    }
    let mut side = Side::initiator(config(), &request());
    side.receive(&frame("Rep", 0x10, 2, &[0; 4]));
    assert_eq!(side.event(), Some(Event::Failed(Refusal::Early)));
}

#[test]
fn an_initiator_asks_as_it_is_told() {
    let rtr = RtrOptions { send: false, write: true, read: true };
    let off = NegotiationConfig { crc: CrcPolicy::IfPeerAsks, ..config() };
    let rows = [
        (config(), request(), frame("Req", 0x50, 2, b"\x00\x04\x00\x04hello")),
        (off, request(), frame("Req", 0x10, 2, b"\x00\x04\x00\x04hello")),
        (config(), ConnectRequest { revision: 1, ..request() }, frame("Req", 0x40, 1, b"hello")),
        (
            config(),
            ConnectRequest { ird: 99, ord: 99, ..request() },
            frame("Req", 0x50, 2, b"\x00\x10\x00\x08hello"),
        ),
        (
            config(),
            ConnectRequest { rtr: Some(rtr), ..request() },
            frame("Req", 0x50, 2, b"\x80\x04\xC0\x04hello"),
        ),
    ];
    for (config, request, bytes) in rows {
        let mut side = Side::initiator(config, &request);
        assert_eq!(side.send(), bytes);
        assert_eq!((side.counted(), side.event()), (vec![("requests_out", 1)], None));
        assert_eq!(side.negotiation.state(), State::AwaitReply);
    }
    let mut stats = MpaStats::default();
    for revision in [0, 3] {
        let error =
            Negotiation::initiator(config(), &ConnectRequest { revision, ..request() }, NOW, &mut stats);
        assert_eq!(error.unwrap_err(), LocalError::Revision);
    }
    let long = ConnectRequest { private_data: &[0; 253], ..request() };
    let error = Negotiation::initiator(config(), &long, NOW, &mut stats).unwrap_err();
    assert_eq!(error, LocalError::PrivateDataTooLong { len: 253, max: 252 });
}

#[test]
fn an_initiator_holds_to_the_reply() {
    let rtr = Some(RtrOptions { send: true, write: true, read: true });
    let peer = |options: Option<RtrOptions>, ird, ord| {
        Some(ConnectionData { rtr: options, ird: ReadDepth::new(ird), ord: ReadDepth::new(ord) })
    };
    let only = |send, write, read| Some(RtrOptions { send, write, read });
    let off = NegotiationConfig { crc: CrcPolicy::IfPeerAsks, ..config() };
    let p2p = ConnectRequest { rtr, ..request() };
    let plain = Terms {
        revision: 2,
        crc: true,
        markers_in: false,
        markers_out: false,
        ird: 4,
        ord: 4,
        rtr: None,
        rtr_in: None,
        peer: None,
    };
    let not_negotiated =
        ConnectionData { rtr: None, ird: ReadDepth::NOT_NEGOTIATED, ord: ReadDepth::NOT_NEGOTIATED };
    #[rustfmt::skip]
    let rows = [
        ("as asked", config(), request(), rep(0x50, 2, b"\x00\x04\x00\x04yes"),
            Terms { peer: peer(None, 4, 4), ..plain }),
        ("less", config(), request(), rep(0x50, 2, b"\x00\x02\x00\x01"),
            Terms { ord: 2, peer: peer(None, 2, 1), ..plain }),
        ("more", config(), request(), rep(0x50, 2, b"\x00\x20\x00\x10"),
            Terms { ird: 16, peer: peer(None, 32, 16), ..plain }),
        ("left to us", config(), request(), rep(0x50, 2, b"\x3F\xFF\x3F\xFF"),
            Terms { peer: Some(not_negotiated), ..plain }),
        ("no CRC on either side", off, request(), rep(0x10, 2, &[0, 4, 0, 4]),
            Terms { crc: false, peer: peer(None, 4, 4), ..plain }),
        ("CRC there", off, request(), rep(0x50, 2, &[0, 4, 0, 4]), Terms { peer: peer(None, 4, 4), ..plain }),
        ("CRC here", config(), request(), rep(0x10, 2, &[0, 4, 0, 4]), Terms { peer: peer(None, 4, 4), ..plain }),
        ("revision 1", config(), ConnectRequest { revision: 1, ..request() }, rep(0x40, 1, b""),
            Terms { revision: 1, ..plain }),
        ("Write before Read", config(), p2p, rep(0x50, 2, &[0x80, 4, 0xC0, 4]),
            Terms { rtr: Some(Rtr::Write), peer: peer(only(false, true, true), 4, 4), ..plain }),
        ("Read", config(), p2p, rep(0x50, 2, &[0x80, 1, 0x40, 4]),
            Terms { ord: 1, rtr: Some(Rtr::Read), peer: peer(only(false, false, true), 1, 4), ..plain }),
        ("no room for a Read", config(), p2p, rep(0x50, 2, &[0xC0, 0, 0x40, 4]),
            Terms { ord: 0, rtr: Some(Rtr::Send), peer: peer(only(true, false, true), 0, 4), ..plain }),
        ("A not returned", config(), p2p, rep(0x50, 2, &[0, 4, 0, 4]), Terms { peer: peer(None, 4, 4), ..plain }),
        ("A not asked for", config(), request(), rep(0x50, 2, &[0x80, 4, 0x80, 4]),
            Terms { peer: peer(only(false, true, false), 4, 4), ..plain }),
    ];
    for (name, config, request, reply, terms) in rows {
        let mut side = Side::waiting(config, &request);
        let mut bytes = reply.clone();
        bytes.extend(b"first FPDU");
        assert_eq!(side.receive(&bytes), reply.len(), "{name}");
        assert_eq!(side.event(), Some(Event::Established(terms)), "{name}");
        assert_eq!(side.counted(), [("requests_out", 1), ("accepts_in", 1)], "{name}");
        assert_eq!(side.receive(b"more"), 0, "{name}");
        let own = if terms.peer.is_some() { 24 } else { 20 };
        assert_eq!(side.negotiation.private_data(), &reply[own..], "{name}");
    }
}

#[test]
fn a_bad_reply_closes_at_once_and_is_counted() {
    let read = Some(RtrOptions { read: true, ..RtrOptions::default() });
    let p2p = ConnectRequest { rtr: read, ..request() };
    let old = ConnectRequest { revision: 1, ..request() };
    let rows = [
        (request(), b"HTTP".to_vec(), Refusal::Key, "refused_key"),
        (request(), frame("Req", 0x10, 2, &[0; 4]), Refusal::Role, "refused_role"),
        (request(), frame("Rep", 0x10, 4, &[0; 4]), Refusal::Revision, "refused_revision"),
        (request(), frame("Rep", 0x10, 2, &[0; 3]), Refusal::Enhanced, "refused_enhanced"),
        (request(), frame("Rep", 0, 2, &[0; 4]), Refusal::Enhanced, "refused_enhanced"),
        (request(), frame("Rep", 0x10, 1, &[0; 4]), Refusal::Enhanced, "refused_enhanced"),
        (old, frame("Rep", 0x10, 2, &[0; 4]), Refusal::Enhanced, "refused_enhanced"),
        (request(), frame("Rep", 0x10, 2, &[0, 4, 0, 17]), Refusal::InsufficientIrd, "refused_ird"),
        (p2p, frame("Rep", 0x10, 2, &[0xC0, 4, 0x80, 4]), Refusal::NoMatchingRtr, "refused_rtr"),
        (p2p, frame("Rep", 0x10, 2, &[0x80, 0, 0x40, 4]), Refusal::NoMatchingRtr, "refused_rtr"),
    ];
    for (request, bytes, refusal, counter) in rows {
        let mut side = Side::waiting(config(), &request);
        side.receive(&bytes);
        assert_eq!(side.event(), Some(Event::Failed(refusal)), "{counter}");
        assert_eq!(side.counted(), [("requests_out", 1), (counter, 1)]);
        let told = matches!(refusal, Refusal::InsufficientIrd | Refusal::NoMatchingRtr);
        assert_eq!((refusal.sends_terminate(), told && side.negotiation.terms().is_none()), (told, false));
    }
}

#[test]
fn a_rejecting_reply_is_reported_with_its_private_data() {
    let depths = Some(ConnectionData { rtr: None, ird: ReadDepth::new(1), ord: ReadDepth::new(2) });
    let rows = [
        (frame("Rep", 0x30, 2, b"\x00\x01\x00\x02why"), depths, &b"why"[..]),
        // A rejection by Linux soft-iWARP itself: S set, no private data.
        (frame("Rep", 0x30, 2, b""), None, b""),
        (frame("Rep", 0x20, 1, b"why"), None, b"why"),
        // Markers requested for a connection that is not established have no effect.
        (frame("Rep", 0xA0, 1, b"why"), None, b"why"),
    ];
    for (bytes, connection, private_data) in rows {
        let mut side = Side::waiting(config(), &request());
        side.receive(&bytes);
        assert_eq!(side.event(), Some(Event::Rejected(connection)));
        assert_eq!(side.negotiation.private_data(), private_data);
        assert_eq!(side.counted(), [("requests_out", 1), ("rejects_in", 1)]);
    }
}

#[test]
fn time_and_closing_end_every_state_but_the_final_ones() {
    let responder = || Side::responder(config());
    let asked = || {
        let mut side = responder();
        side.receive(&frame("Req", 0, 1, b""));
        side.event();
        side
    };
    let sides: [(&str, &dyn Fn() -> Side, usize); 4] = [
        ("AwaitRequest", &responder, 0),
        ("Decide", &asked, 1),
        ("SendRequest", &|| Side::initiator(config(), &request()), 1),
        ("AwaitReply", &|| Side::waiting(config(), &request()), 1),
    ];
    for (name, make, counted) in sides {
        let mut side = make();
        assert_eq!(format!("{:?}", side.negotiation.state()), name);
        let deadline = side.negotiation.next_deadline().unwrap();
        assert_eq!(deadline, NOW + config().timeout);
        side.negotiation.handle_timeout(deadline - Duration::from_nanos(1), &mut side.stats);
        assert_eq!((side.event(), side.counted().len()), (None, counted), "{name}");
        side.negotiation.handle_timeout(deadline, &mut side.stats);
        assert_eq!(side.event(), Some(Event::Failed(Refusal::Timeout)), "{name}");
        assert_eq!(side.counted().last(), Some(&("startup_timeouts", 1)), "{name}");
        assert_eq!(side.negotiation.next_deadline(), None);

        let mut side = make();
        side.negotiation.peer_closed(&mut side.stats);
        assert_eq!(side.event(), Some(Event::Failed(Refusal::PeerClosed)), "{name}");
        assert_eq!(side.counted().last(), Some(&("startup_closed", 1)), "{name}");
    }
    let mut established = asked();
    established.negotiation.accept(b"").unwrap();
    established.send();
    established.event();
    established.negotiation.peer_closed(&mut established.stats);
    established.negotiation.handle_timeout(NOW + config().timeout, &mut established.stats);
    assert_eq!((established.event(), established.negotiation.state()), (None, State::Established));
}

fn options() -> impl Strategy<Value = RtrOptions> {
    any::<(bool, bool, bool)>().prop_map(|(send, write, read)| RtrOptions { send, write, read })
}

fn configs() -> impl Strategy<Value = NegotiationConfig> {
    (any::<bool>(), 0u16..200, 0u16..200, options()).prop_map(|(on, ird_max, ord_max, rtr)| {
        NegotiationConfig {
            crc: if on { CrcPolicy::Required } else { CrcPolicy::IfPeerAsks },
            ird_max,
            ord_max,
            rtr,
            ..NegotiationConfig::default()
        }
    })
}

proptest! {
    #[test]
    fn both_sides_come_to_the_same_terms(
        ours in configs(), theirs in configs(), revision in 1u8..3, ird in 0u16..200, ord in 0u16..200,
        rtr in prop::option::of(options()), private_data in prop::collection::vec(any::<u8>(), 0..250),
        cut in 1usize..300,
    ) {
        let request = ConnectRequest { private_data: &private_data, revision, ird, ord, rtr };
        let mut initiator = Side::initiator(ours, &request);
        let mut responder = Side::responder(theirs);
        for chunk in initiator.send().chunks(cut) {
            prop_assert_eq!(responder.receive(chunk), chunk.len());
        }
        prop_assert_eq!(responder.negotiation.private_data(), &private_data[..]);
        responder.negotiation.accept(&private_data).unwrap();
        let Some(Event::Request(_)) = responder.event() else { panic!() };
        for chunk in responder.send().chunks(cut) {
            prop_assert_eq!(initiator.receive(chunk), chunk.len());
        }
        let Some(Event::Established(there)) = responder.event() else { panic!() };
        match initiator.event() {
            Some(Event::Established(here)) => {
                prop_assert_eq!((here.revision, here.crc), (there.revision, there.crc));
                prop_assert_eq!(initiator.negotiation.private_data(), &private_data[..]);
                if revision == 2 {
                    // RFC 6581 §9.1: "initiator ORD <= responder IRD", "responder ORD <= initiator IRD".
                    prop_assert!(here.ord <= there.ird && there.ord <= here.ird);
                    prop_assert_eq!(here.rtr.is_some(), rtr.is_some());
                }
            }
            Some(Event::Failed(refusal)) => {
                prop_assert_eq!(refusal, Refusal::NoMatchingRtr);
                prop_assert!(rtr.is_some());
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn arbitrary_bytes_have_one_outcome_however_they_are_cut(
        start in prop::sample::select(vec!["", "MPA ID Req Frame", "MPA ID Rep Frame"]),
        tail in prop::collection::vec(any::<u8>(), 0..40), cut in 1usize..60, initiator: bool,
    ) {
        let bytes = [start.as_bytes(), &tail[..]].concat();
        let make = || {
            if initiator { Side::waiting(config(), &request()) } else { Side::responder(config()) }
        };
        let run = |mut side: Side, cut: usize| {
            let mut taken = 0;
            for chunk in bytes.chunks(cut) {
                taken += side.receive(chunk);
            }
            let event = side.event();
            (taken, event, side.negotiation.private_data().to_vec())
        };
        let (taken, event, private_data) = run(make(), bytes.len().max(1));
        let (cut_taken, cut_event, cut_private_data) = run(make(), cut);
        prop_assert_eq!(event, cut_event);
        prop_assert_eq!(private_data, cut_private_data);
        prop_assert!(taken <= bytes.len() && cut_taken <= bytes.len());
    }
}
