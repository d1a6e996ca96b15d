//! Requests and Replies: no peer can make a side agree to more than it offered.

use super::Input;
use crate::mpa::{Event, Negotiation, Refusal, Terms};
use crate::service::RegionService;
use crate::testutil::bytes::{REPLY, REQUEST};
use crate::testutil::{PEER, STREAM, Wire};
use crate::wire::mpa::{ConnectionData, FrameHeader, FrameKind, RtrOptions};
use crate::{ConnectRequest, CrcPolicy, Endpoint, EndpointConfig, MpaStats, NegotiationConfig};
use crate::{Env, RdmaStats, StagTable, VecMemory};
use core::time::Duration;

const NOW: Duration = Duration::ZERO;

/// The first bytes select the local settings; then follow the peer's bytes, raw or as the fields of a frame.
pub fn mpa_frames(data: &[u8]) {
    let mut input = Input(data);
    let config = config(&mut input);
    let initiator = input.byte() % 2 == 1;
    let private_data = vec![0xcc; input.below(300)];
    let rtr = input.sometimes().then(|| rtr(input.byte()));
    let revision = input.pick(&[2, 1]);
    let asked =
        ConnectRequest { private_data: &private_data, revision, ird: input.u16(), ord: input.u16(), rtr };
    let bytes = if input.byte().is_multiple_of(2) { frame(&mut input, initiator) } else { input.0.to_vec() };
    header(&bytes);
    let whole = negotiate(config, initiator.then_some(&asked), &[&bytes]);
    let cut = negotiate(config, initiator.then_some(&asked), &input.cut(&bytes));
    // A responder does not examine bytes after a Request unless they arrive in the same chunk.
    let early = Some(Outcome::Failed(Refusal::Early));
    assert!(whole == cut || whole == early || cut == early, "{whole:?} or {cut:?}, as it is cut");
    endpoint(config, initiator.then_some(&asked), &input.cut(&bytes));
}

fn rtr(bits: u8) -> RtrOptions {
    RtrOptions { send: bits & 1 != 0, write: bits & 2 != 0, read: bits & 4 != 0 }
}

fn config(input: &mut Input<'_>) -> NegotiationConfig {
    NegotiationConfig {
        crc: input.pick(&[CrcPolicy::Required, CrcPolicy::IfPeerAsks]),
        ird_max: input.pick(&[128, 0, 1, 16_382]),
        ord_max: input.pick(&[128, 0, 1, 16_382]),
        rtr: rtr(input.byte()),
        private_data_max: input.pick(&[256, 512, 0, 4]),
        ..NegotiationConfig::default()
    }
}

/// Builds a frame whose fields are often valid, and the bytes after it.
fn frame(input: &mut Input<'_>, reply: bool) -> Vec<u8> {
    let key = if reply != input.sometimes() { REPLY } else { REQUEST };
    let mut frame = key.to_vec();
    let flags = [0x50, 0x10, 0x40, 0x00, 0xd0, 0x70];
    frame.push(if input.sometimes() { input.byte() } else { input.pick(&flags) });
    frame.push(if input.sometimes() { input.byte() } else { input.pick(&[2, 1]) });
    let len = if input.sometimes() { input.u16() } else { input.u16() % 40 };
    frame.extend_from_slice(&len.to_be_bytes());
    let there = if input.sometimes() { input.below(600) } else { usize::from(len).min(600) };
    let fields = input.take(4);
    frame.extend_from_slice(fields);
    frame.resize(20 + there.max(fields.len()), 0x77);
    if !input.sometimes() {
        frame.truncate(20 + there);
    }
    frame
}

/// Checks that a parsed header is emitted unchanged.
fn header(bytes: &[u8]) {
    let Ok((header, rest)) = FrameHeader::parse(bytes) else { return };
    let mut written = [0; FrameHeader::LEN];
    header.emit(&mut written);
    assert_eq!(FrameHeader::parse(&written), Ok((header, &[][..])));
    if let Ok((data, _)) = ConnectionData::parse(rest) {
        let mut written = [0; ConnectionData::LEN];
        data.emit(&mut written);
        let (again, _) = ConnectionData::parse(&written).unwrap();
        assert_eq!(again, data);
    }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Established(Terms),
    Rejected,
    Failed(Refusal),
}

/// Runs one side on the peer's bytes; `None` if it waits for more.
fn negotiate(
    config: NegotiationConfig,
    asked: Option<&ConnectRequest<'_>>,
    chunks: &[&[u8]],
) -> Option<Outcome> {
    let mut stats = MpaStats::default();
    let mut side = match asked {
        Some(asked) => Negotiation::initiator(config, asked, NOW, &mut stats).ok()?,
        None => Negotiation::responder(config, NOW),
    };
    send(&mut side, asked.is_some(), &mut stats);
    let mut outcome = None;
    for chunk in chunks {
        let taken = side.receive(chunk, &mut stats);
        assert!(taken <= chunk.len());
        assert!(side.private_data().len() <= 512);
        while let Some(event) = side.poll_event() {
            assert!(outcome.is_none(), "{event:?} after {outcome:?}");
            match event {
                Event::Request(offer) => {
                    check(&config, asked, &offer.terms);
                    let room = side.private_data_room();
                    assert!(side.accept(&vec![1; room + 1]).is_err());
                    side.accept(&vec![1; room]).unwrap();
                    send(&mut side, false, &mut stats);
                }
                Event::Established(terms) => {
                    check(&config, asked, &terms);
                    outcome = Some(Outcome::Established(terms));
                }
                Event::Rejected(_) | Event::RejectSent(_) => outcome = Some(Outcome::Rejected),
                Event::Failed(refusal) => outcome = Some(Outcome::Failed(refusal)),
            }
        }
        send(&mut side, false, &mut stats);
    }
    if outcome.is_none() {
        outcome = side.poll_event().map(|event| match event {
            Event::RejectSent(_) => Outcome::Rejected,
            other => panic!("{other:?} without bytes"),
        });
    }
    outcome
}

/// Checks that the bytes sent are a frame of the length that it states.
fn send(side: &mut Negotiation, request: bool, stats: &mut MpaStats) {
    let unsent = side.unsent().to_vec();
    if unsent.is_empty() {
        return;
    }
    let (header, rest) = FrameHeader::parse(&unsent).unwrap();
    assert_eq!(header.kind == FrameKind::Request, request);
    assert_eq!(usize::from(header.private_data_len), rest.len());
    side.sent(unsent.len(), stats);
}

/// Checks that the terms do not exceed the local settings.
fn check(config: &NegotiationConfig, asked: Option<&ConnectRequest<'_>>, terms: &Terms) {
    assert!(terms.ird <= config.ird_max && terms.ord <= config.ord_max, "{terms:?}");
    assert!(terms.crc || config.crc != CrcPolicy::Required, "{terms:?}");
    assert!((1..=2).contains(&terms.revision), "{terms:?}");
    if let Some(asked) = asked {
        assert!(terms.ord <= asked.ord, "{terms:?}");
        let ours = asked.rtr.unwrap_or_default();
        let can = match terms.rtr {
            None => true,
            Some(crate::mpa::Rtr::Send) => ours.send,
            Some(crate::mpa::Rtr::Write) => ours.write,
            Some(crate::mpa::Rtr::Read) => ours.read && terms.ord > 0,
        };
        assert!(can, "{terms:?}");
    }
}

/// Delivers the same bytes to an endpoint of the region service, which continues after the frame.
fn endpoint(mpa: NegotiationConfig, asked: Option<&ConnectRequest<'_>>, chunks: &[&[u8]]) {
    let config = EndpointConfig { mpa, send_queue: 2, receive_queue: 2, ..EndpointConfig::default() };
    let (mut stats, mut memory) = (RdmaStats::default(), VecMemory::new());
    let (mut stags, service) = (StagTable::new(4, [1; 32]), RegionService::new(1, 1));
    let mut endpoint = match asked {
        Some(asked) => match Endpoint::initiator(config, STREAM, asked, NOW, &mut stats) {
            Ok(endpoint) => endpoint,
            Err(_) => return,
        },
        None => Endpoint::responder(config, STREAM, NOW),
    };
    let (mut wire, mut position, mut closed) = (Wire::new(1448, usize::MAX), 0, 0);
    let mut env = Env { stags: &mut stags, memory: &mut memory, stats: &mut stats };
    for chunk in [&[][..]].into_iter().chain(chunks.iter().copied()) {
        endpoint.receive(NOW, position, chunk.to_vec(), &mut env);
        position += chunk.len() as u64;
        while let Some(event) = endpoint.poll_event() {
            assert_eq!(closed, 0, "{event:?} after the last event");
            match event {
                crate::Event::ConnectRequest { private_data, .. } => {
                    let answer = service.answer(&private_data, PEER, STREAM, env.stags);
                    assert!(!answer.accept, "there is no region");
                    // Refused if the configuration leaves no room for the reason.
                    let _ = endpoint.reject(&answer.reply);
                }
                crate::Event::Close { .. } => closed += 1,
                _ => {}
            }
        }
        endpoint.poll_transmit(NOW, &mut env, &mut wire);
    }
    endpoint.handle_timeout(Duration::from_secs(3600), env.stats);
    endpoint.transport_lost();
    while let Some(event) = endpoint.poll_event() {
        closed += usize::from(matches!(event, crate::Event::Close { .. }));
    }
    assert_eq!((closed, endpoint.next_deadline()), (1, None));
}
