//! Tests of the cutting of super-frames, with buffers of the heap.

use tcp_stack::BufClass;
use tcp_stack::testutil::{HeapBuf, HeapPool};
use tcp_stack::wire::TcpHeader;
use tcp_stack::{BufPool, TxFrame, TxOffload};

use super::*;

const ROOM: usize = 2048;
const PAYLOAD: usize = 10_000;

/// A super-frame as the kernel passes it.
#[derive(Clone, Debug)]
struct SuperFrame {
    bytes: Vec<u8>,
    header: Header,
    tag: Option<u16>,
}

/// Returns a run of segments, whose flags are ACK, PSH and CWR, and its headers' lengths.
fn super_frame(ipv6: bool, is_tagged: bool, segment: u16, payload: usize) -> (SuperFrame, TxOffload) {
    let mut bytes = vec![2; 12];
    if is_tagged {
        bytes.extend([0x81, 0, 0, 77]);
    }
    let l2 = bytes.len() + 2;
    let tcp_len = 32 + payload;
    if ipv6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(u16::try_from(tcp_len).unwrap().to_be_bytes());
        bytes.extend([6, 64]);
        bytes.extend([0xfd; 32]);
    } else {
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend(u16::try_from(20 + tcp_len).unwrap().to_be_bytes());
        bytes.extend([0x12, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = Sum::of(&bytes[l2..]).checksum();
        bytes[l2 + 10..l2 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let l3 = bytes.len() - l2;
    bytes.extend([0x30, 0x39, 0x1c, 0xe8, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0x80, 0x98, 1, 0, 0, 0, 0, 0]);
    bytes.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    bytes.extend((0..payload).map(|at| (at * 7 + at / 251).to_le_bytes()[0]));
    let offload = TxOffload {
        l2_len: u8::try_from(l2).unwrap(),
        l3_len: u8::try_from(l3).unwrap(),
        l4_len: 32,
        ipv6,
        tcp_checksum: true,
        segment,
        ..TxOffload::default()
    };
    (SuperFrame { bytes, header: Header::of(&offload), tag: None }, offload)
}

/// Reads a frame into buffers as the kernel does, and cuts it.
fn read(frame: &SuperFrame, layout: Layout) -> (Vec<HeapBuf>, Result<Cut, Refusal>) {
    let mut pool = HeapPool::new(256, 0, ROOM);
    let (mut pieces, mut rest) = (Vec::new(), frame.bytes.as_slice());
    while !rest.is_empty() {
        let (part, others) = rest.split_at(rest.len().min(layout.bytes(pieces.len())));
        let mut piece = pool.alloc(BufClass::Control).unwrap();
        piece.append(part.len()).unwrap().copy_from_slice(part);
        pieces.push(piece);
        rest = others;
    }
    let result = cut(&mut pieces, &frame.header, frame.tag, ROOM);
    (pieces, result)
}

fn layout(headers: u16, segment: u16) -> Layout {
    Layout { headers, segment }.within(ROOM)
}

/// A segment without its checksum of TCP, which nobody fills in, and without the identification of its packet, which
/// the sender chooses.
fn plain(bytes: &[u8], offload: &TxOffload) -> Vec<u8> {
    let (l2, l3) = (usize::from(offload.l2_len), usize::from(offload.l3_len));
    let mut bytes = bytes.to_vec();
    bytes[l2 + l3 + 16..l2 + l3 + 18].fill(0);
    if !offload.ipv6 {
        assert!(Ipv4Header::is_checksum_valid(&bytes[l2..l2 + l3]));
        bytes[l2 + 4..l2 + 6].fill(0);
        bytes[l2 + 10..l2 + 12].fill(0);
    }
    bytes
}

/// The segments that the simulated card makes of a frame.
fn segments_of_a_card(frame: &SuperFrame, offload: &TxOffload) -> Vec<Vec<u8>> {
    let mut pool = HeapPool::new(256, 0, 65_600);
    let mut buf = pool.alloc(BufClass::Control).unwrap();
    buf.append(frame.bytes.len()).unwrap().copy_from_slice(&frame.bytes);
    tcp_stack::testutil::cut(&TxFrame { buf, offload: *offload })
}

#[test]
fn a_super_frame_becomes_the_segments_that_a_card_would_have_sent() {
    for (ipv6, is_tagged) in [(false, false), (false, true), (true, false), (true, true)] {
        for segment in [536, 1200, 1428, 1448, 1900] {
            for payload in [usize::from(segment) + 1, 2 * usize::from(segment), PAYLOAD, 65_000] {
                let (frame, offload) = super_frame(ipv6, is_tagged, segment, payload);
                let headers = u16::from(offload.l2_len) + u16::from(offload.l3_len) + 32;
                let (pieces, result) = read(&frame, layout(headers, segment));
                let found: Vec<_> = pieces.iter().map(|piece| plain(piece.bytes(), &offload)).collect();
                let wanted: Vec<_> =
                    segments_of_a_card(&frame, &offload).iter().map(|bytes| plain(bytes, &offload)).collect();
                assert!(found == wanted, "{ipv6} {is_tagged} {segment} {payload}: {} pieces", found.len());
                let cut = result.unwrap();
                assert_eq!((cut.checksum, cut.layout), (RxChecksum::Good, Some(layout(headers, segment))));
            }
        }
    }
}

#[test]
fn identifications_count_on() {
    let (frame, offload) = super_frame(false, false, 1448, PAYLOAD);
    let (pieces, _) = read(&frame, layout(66, 1448));
    let ids: Vec<_> = pieces.iter().map(|piece| u16_at(piece.bytes(), 18).unwrap()).collect();
    assert_eq!(ids, (0x12ff..0x12ff + 7).collect::<Vec<u16>>(), "{offload:?}");
}

/// The stream that segments carry, from the first one's sequence number on.
fn stream(pieces: &[HeapBuf]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut next = None;
    for piece in pieces {
        let positions = positions(piece.bytes(), piece.bytes().len()).expect("a whole segment");
        let (header, _, payload) = TcpHeader::parse(&piece.bytes()[positions.transport..]).unwrap();
        assert_eq!(*next.get_or_insert(header.seq), header.seq);
        next = next.map(|seq| seq + u32::try_from(payload.len()).unwrap());
        stream.extend_from_slice(payload);
    }
    stream
}

#[test]
fn a_wrong_guess_gives_other_segments_of_the_same_stream() {
    for ipv6 in [false, true] {
        for (headers, segment) in [(54, 536), (66, 1448), (138, 1900), (94, 999), (66, 1447)] {
            let (frame, offload) = super_frame(ipv6, false, 1400, PAYLOAD);
            let (pieces, result) = read(&frame, layout(headers, segment));
            assert!(
                stream(&pieces) == frame.bytes[frame.bytes.len() - PAYLOAD..],
                "{ipv6} {headers} {segment}"
            );
            let right = u16::from(offload.l3_len) + 14 + 32;
            assert_eq!(result.unwrap().layout, Some(layout(right, 1400)));
            let flags: Vec<_> = pieces.iter().map(|of| of.bytes()[usize::from(right) - 32 + 13]).collect();
            assert_eq!((flags[0], flags[1], *flags.last().unwrap()), (0x90, 0x10, 0x18));
        }
    }
}

#[test]
fn a_tag_that_the_kernel_took_out_is_put_back() {
    for ipv6 in [false, true] {
        let (mut frame, _) = super_frame(ipv6, false, 1400, PAYLOAD);
        frame.tag = Some(0x204d);
        let (pieces, result) = read(&frame, layout(66, 1400));
        assert_eq!(result.unwrap().checksum, RxChecksum::Good);
        assert!(pieces.iter().all(|piece| piece.bytes()[12..16] == [0x81, 0, 0x20, 0x4d]));
        assert!(stream(&pieces) == frame.bytes[frame.bytes.len() - PAYLOAD..]);
        // A lone segment, too.
        let (mut frame, _) = super_frame(ipv6, false, 0, 100);
        frame.tag = Some(77);
        let (pieces, result) = read(&frame, layout(66, 1400));
        assert_eq!(result, Ok(Cut { checksum: RxChecksum::TransportGood, layout: None }));
        assert_eq!((pieces.len(), &pieces[0].bytes()[12..16]), (1, &[0x81, 0, 0, 77][..]));
    }
}

#[test]
fn a_plain_frame_longer_than_the_guess_stays_one() {
    let (frame, _) = super_frame(false, false, 0, 1448);
    let (pieces, result) = read(&frame, layout(54, 536));
    assert_eq!(result, Ok(Cut { checksum: RxChecksum::TransportGood, layout: None }));
    assert!(pieces.len() == 1 && pieces[0].bytes() == frame.bytes);
    let (frame, _) = super_frame(false, false, 0, 3000);
    assert_eq!(read(&frame, layout(54, 536)).1, Err(Refusal::Scattered));
}

/// Without a word of the kernel's on the checksum, it is computed over all buffers.
#[test]
fn a_super_frame_that_nobody_has_verified_is_summed() {
    for segment in [1400, 1401] {
        for ipv6 in [false, true] {
            let (mut frame, offload) = super_frame(ipv6, false, segment, PAYLOAD);
            (frame.header.needs_checksum, frame.header.checksum_start) = (false, 0);
            let (l2, l3) = (usize::from(offload.l2_len), usize::from(offload.l3_len));
            let place = positions(&frame.bytes, frame.bytes.len()).unwrap();
            let (local, remote) = addresses(&frame.bytes, place).unwrap();
            let tcp = &mut frame.bytes[l2 + l3..];
            let sum = Sum::pseudo_header(local, remote, IpProtocol::TCP, tcp.len());
            assert!(TcpHeader::set_checksum(tcp, sum));
            assert_eq!(read(&frame, layout(66, segment)).1.map(|cut| cut.checksum), Ok(RxChecksum::Good));
            *frame.bytes.last_mut().unwrap() ^= 1;
            assert_eq!(read(&frame, layout(66, segment)).1, Err(Refusal::Checksum));
            frame.header.data_valid = true;
            assert!(read(&frame, layout(66, segment)).1.is_ok(), "a card has verified it");
        }
    }
}

#[test]
fn a_verdict_counts_only_for_the_checksum_of_tcp() {
    let (frame, _) = super_frame(false, false, 0, 100);
    let verdict = |start: u16, offset: u16| {
        let header = Header { checksum_start: start, checksum_offset: offset, ..frame.header };
        read(&SuperFrame { header, ..frame.clone() }, layout(66, 1448)).1.unwrap().checksum
    };
    assert_eq!(verdict(34, 16), RxChecksum::TransportGood);
    for (start, offset) in [(34, 17), (60, 16), (14, 10), (0, 0), (u16::MAX, u16::MAX)] {
        assert_eq!(verdict(start, offset), RxChecksum::Unknown, "{start} + {offset}");
    }
}

#[test]
fn forged_super_frames_are_refused() {
    let (good, _) = super_frame(false, false, 1400, PAYLOAD);
    let refused = |change: &dyn Fn(&mut SuperFrame)| {
        let mut frame = good.clone();
        change(&mut frame);
        // The header's own checksum is right.
        if frame.bytes.len() > 34 {
            frame.bytes[24..26].fill(0);
            let sum = Sum::of(&frame.bytes[14..34]).checksum();
            frame.bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        read(&frame, layout(66, 1400)).1.expect_err("it is forged")
    };
    for flag in [0x02, 0x04, 0x20] {
        assert_eq!(refused(&|of| of.bytes[47] |= flag), Refusal::Malformed, "SYN, RST, URG");
    }
    assert_eq!(refused(&|of| of.bytes[47] &= !0x10), Refusal::Malformed, "no ACK");
    for len in [0, 40, 100, 60_000_u16] {
        let change = |of: &mut SuperFrame| of.bytes[16..18].copy_from_slice(&len.to_be_bytes());
        assert_eq!(refused(&change), Refusal::Malformed, "IP length {len}");
    }
    for fragment in [0x20, 0x3f] {
        assert_eq!(refused(&|of| of.bytes[20] = fragment), Refusal::Malformed, "a fragment");
    }
    for words in [0x00, 0x40, 0xf0] {
        let expected = if words == 0xf0 { None } else { Some(Refusal::Malformed) };
        let change = |of: &mut SuperFrame| of.bytes[46] = words;
        if let Some(expected) = expected {
            assert_eq!(refused(&change), expected, "data offset");
        }
    }
    assert_eq!(refused(&|of| of.bytes[23] = 17), Refusal::Malformed, "UDP");
    assert_eq!(refused(&|of| of.bytes[14] = 0x4f), Refusal::Malformed, "IP options beyond what is there");
    assert_eq!(refused(&|of| of.bytes[12] = 0x86), Refusal::Malformed, "another protocol");
    for gso in [Gso::Tcp6, Gso::Other] {
        assert_eq!(refused(&|of| of.header.gso = gso), Refusal::Malformed, "{gso:?}");
    }
    assert_eq!(refused(&|of| of.bytes.truncate(20)), Refusal::Malformed, "headers that are cut off");
    assert_eq!(refused(&|of| of.bytes.push(0)), Refusal::Malformed, "longer than it says");
    let mut wrong = good.clone();
    wrong.bytes[24] ^= 1;
    assert_eq!(read(&wrong, layout(66, 1400)).1, Err(Refusal::Checksum), "the IPv4 header's");
}

/// The sender's word on the segments' length only chooses the next guess, within bounds.
#[test]
fn lengths_of_segments_are_hints() {
    for (gso_size, next) in [(0, 536), (1, 536), (1448, 1448), (4000, 2048 - 66), (u16::MAX, 2048 - 66)] {
        let (mut frame, _) = super_frame(false, false, 1448, PAYLOAD);
        frame.header.gso_size = gso_size;
        let (pieces, result) = read(&frame, layout(66, 1448));
        assert_eq!(pieces.len(), 7);
        assert_eq!(result.unwrap().layout, Some(Layout { headers: 66, segment: next }));
    }
    for mtu in [0, 68, 576, 1500, 9000, u16::MAX] {
        let layout = Layout::new(mtu, ROOM);
        assert!(layout.bytes(0) <= ROOM && layout.bytes(1) >= 536, "{layout:?}");
        assert!((layout.buffers() * layout.bytes(1)) >= 65_535 + 18 && layout.buffers() <= 123);
    }
}

/// No bytes, and no lengths, make the cutting fail in another way than by a refusal.
#[test]
fn random_frames_are_cut_or_refused() {
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let mut cuts = 0;
    for round in 0..4000 {
        let (mut frame, _) = super_frame(
            round % 2 == 0,
            round % 3 == 0,
            1400,
            1 + random(if round % 10 == 0 { 60_000 } else { 4000 }),
        );
        for _ in 0..random(3) {
            let at = random(frame.bytes.len().min(90));
            frame.bytes[at] = random(256).to_le_bytes()[0];
        }
        frame.bytes.truncate(if random(4) == 0 { 1 + random(frame.bytes.len()) } else { frame.bytes.len() });
        frame.tag = (random(5) == 0).then_some(5);
        let guess =
            layout(54 + u16::try_from(random(80)).unwrap(), 536 + u16::try_from(random(1300)).unwrap());
        let (pieces, result) = read(&frame, guess);
        if result.is_ok() {
            cuts += 1;
            assert!(pieces.iter().all(|piece| piece.bytes().len() <= ROOM + 128));
        }
    }
    assert!((500..3900).contains(&cuts), "{cuts}");
}
