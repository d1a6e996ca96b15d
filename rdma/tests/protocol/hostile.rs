//! Peers that send arbitrary bytes: nothing panics, nothing changes that was not granted, and the next peer is served.

use proptest::prelude::*;
use rdma::service::{decode_reply, encode_request};
use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::{CloseHow, EndpointConfig, Event, RegionId, StagTable};

const LAB: usize = 256;

/// Returns a responder with the readable region `lab`, and its STag.
fn target() -> (Side, RegionId, u32) {
    let mut side = Side::responder(EndpointConfig { receive_queue: 4, ..EndpointConfig::default() });
    let lab = side.add_region("lab", pattern(LAB, 1), rdma::Access::REMOTE_READ);
    let private_data = encode_request("lab", rdma::Access::REMOTE_READ, b"").unwrap();
    side.deliver(&mpa(REQUEST, 0, 4, &private_data));
    side.transmit();
    let reply = side.wire.take();
    (side, lab, decode_reply(&reply[24..]).unwrap().stag.0)
}

/// Delivers the chunks, completes any unfinished FPDU, and checks that nothing has changed.
fn survives(mut side: Side, lab: RegionId, chunks: &[Vec<u8>]) {
    for chunk in chunks {
        side.deliver(chunk);
        side.transmit();
        // Any response is well formed: an MPA frame, then FPDUs.
        let bytes = side.wire.take();
        let frame = match bytes.strip_prefix(REPLY) {
            Some(rest) => 20 + usize::from(u16::from_be_bytes([rest[2], rest[3]])),
            None => 0,
        };
        ulpdus(&bytes[frame..]);
    }
    assert_eq!(side.bytes(lab), pattern(LAB, 1));
    assert_eq!(side.memory.faults(), 0);
    side.endpoint.peer_closed(side.now, &mut side.stats);
    side.transmit();
    side.collect();
    assert!(matches!(side.events.last(), Some(Event::Close { .. })));
    assert_eq!(side.events.iter().filter(|event| matches!(event, Event::Close { .. })).count(), 1);
}

/// Generates segments whose fields are often almost valid.
fn segment(stag: u32) -> impl Strategy<Value = Vec<u8>> {
    let control = prop_oneof![
        Just(TAGGED_LAST),
        Just(TAGGED_MORE),
        Just(UNTAGGED_LAST),
        Just(UNTAGGED_MORE),
        any::<u8>()
    ];
    let op = prop_oneof![8 => (0..8u8).prop_map(|op| 0x40 | op), 1 => any::<u8>()];
    let word = prop_oneof![0..4u32, Just(stag), any::<u32>()];
    let bytes = prop::collection::vec(any::<u8>(), 0..80);
    (control, op, prop::collection::vec(word, 0..12), bytes).prop_map(|(control, op, words, bytes)| {
        let mut segment = vec![control, op];
        for word in words {
            segment.extend_from_slice(&word.to_be_bytes());
        }
        segment.extend_from_slice(&bytes);
        segment
    })
}

fn chunks() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_after_the_negotiation(chunks in chunks()) {
        let (side, lab, _) = target();
        survives(side, lab, &chunks);
    }

    #[test]
    fn any_bytes_instead_of_a_negotiation(chunks in chunks(), keep in 0..80usize) {
        let mut side = Side::responder(EndpointConfig::default());
        let lab = side.add_region("lab", pattern(LAB, 1), BOTH);
        let request = mpa(REQUEST, 0, 4, &encode_request("lab", BOTH, b"").unwrap());
        side.deliver(&request[..keep.min(request.len())]);
        survives(side, lab, &chunks);
    }

    #[test]
    fn any_bytes_as_a_reply(chunks in chunks(), keep in 0..80usize) {
        let mut side = Side::initiator(initiator_config(), &request(b"abc"));
        let lab = side.add_region("lab", pattern(LAB, 1), BOTH);
        side.transmit();
        side.wire.take();
        let reply = mpa(REPLY, 4, 4, &[7; 32]);
        side.deliver(&reply[..keep.min(reply.len())]);
        survives(side, lab, &chunks);
    }

    #[test]
    fn segments_that_are_nearly_right(
        seed in any::<u8>(),
        segments in prop::collection::vec(segment(first_stag()), 1..12),
    ) {
        let (mut side, lab, stag) = target();
        prop_assert_eq!(stag, first_stag(), "the strategy aims at the STag");
        let buffers = side.memory.add(vec![0; 64]).unwrap();
        for wr_id in 0..u64::from(seed % 4) {
            side.endpoint.post_recv(wr_id, slice(buffers, wr_id * 16, 16)).unwrap();
        }
        let bytes: Vec<Vec<u8>> = segments.iter().map(|segment| fpdu(segment)).collect();
        survives(side, lab, &bytes);
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_stream(at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut side = Side::responder(EndpointConfig::default());
        let lab = side.add_region("lab", pattern(LAB, 1), BOTH);
        side.deliver(&mpa(REQUEST, 0, 4, &encode_request("lab", BOTH, b"").unwrap()));
        side.transmit();
        let stag = decode_reply(&side.wire.take()[24..]).unwrap().stag.0;
        let mut bytes = Vec::new();
        for part in 0..4u8 {
            let payload = vec![part; 64];
            bytes.extend(fpdu(&tagged(TAGGED_LAST, WRITE, stag, u64::from(part) * 64, &payload)));
        }
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        side.deliver(&bytes);
        let whole = at / 84;
        for part in 0..4 {
            let expected =
                if part < whole { vec![part as u8; 64] } else { pattern(LAB, 1)[part * 64..][..64].to_vec() };
            prop_assert_eq!(&side.bytes(lab)[part * 64..][..64], &expected);
        }
    }
}

/// Returns the STag that [`target`] grants: its table has a fixed seed.
fn first_stag() -> u32 {
    let mut stags = StagTable::new(64, [7; 32]);
    stags.grant(RegionId(0), 1, BOTH, rdma::Scope::Stream(STREAM)).unwrap().0
}

#[test]
fn after_hostile_peers_an_honest_one_is_served() {
    let (mut side, lab, stag) = target();
    side.deliver(&fpdu(&tagged(TAGGED_LAST, WRITE, stag ^ 1, 0, &[0; 8])));
    side.transmit();
    assert_eq!(side.events.last(), Some(&Event::Close { how: CloseHow::Fin }));
    side.stags.revoke_stream(STREAM);
    let (mut honest, _, _) = target();
    core::mem::swap(&mut honest.stags, &mut side.stags);
    core::mem::swap(&mut honest.memory, &mut side.memory);
    let scope = rdma::Scope::Stream(STREAM);
    let stag = honest.stags.grant(lab, LAB as u64, rdma::Access::REMOTE_READ, scope).unwrap().0;
    honest.deliver(&fpdu(&read_request(1, 7, LAB as u32, stag, 0)));
    honest.transmit();
    let reply = tagged(TAGGED_LAST, READ_RESPONSE, 7, 0x1000, &pattern(LAB, 1));
    assert_eq!(ulpdus(&honest.wire.take()), [reply]);
}

#[test]
fn a_flood_of_reads_is_bounded() {
    let (mut side, _, stag) = target();
    side.wire = Wire::new(1448, 0);
    for msn in 1..=100 {
        side.deliver(&fpdu(&read_request(msn, 7, 16, stag, 0)));
    }
    assert_eq!(side.endpoint.info().reads_owed, 0, "none is kept for later");
    side.wire.limit = usize::MAX;
    side.transmit();
    let sent = ulpdus(&side.wire.take());
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0][18..20], [0x12, 0x02]);
}
