//! Wire formats of TCP headers and options.

use etherparse::TcpOptionElement;
use proptest::prelude::*;
use std::net::IpAddr;
use tcp_stack::SeqNum;
use tcp_stack::testutil::hex;
use tcp_stack::wire::*;

fn range(start: u32, end: u32) -> SackRange {
    SackRange { start: SeqNum::new(start), end: SeqNum::new(end) }
}

/// A SYN as Linux sends it, followed by three bytes of data.
const SYN: &str = "c001 1ce8 01020304 00000000 a002 faf0 0000 0000
                   020405b4 0402080a 000003e8 00000000 01030307 616263";

#[test]
fn figure() {
    let bytes = hex(SYN);
    let (header, options, payload) = TcpHeader::parse(&bytes).unwrap();
    assert_eq!(
        header,
        TcpHeader {
            src_port: 0xc001,
            dst_port: 7400,
            seq: SeqNum::new(0x0102_0304),
            ack: SeqNum::new(0),
            flags: TcpFlags::SYN,
            window: 64_240,
            urgent: 0,
        }
    );
    assert_eq!(payload, b"abc");
    let options = TcpOptions::parse(options);
    assert_eq!(
        options,
        TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1000, echo: 0 }),
            sack: SackBlocks::EMPTY,
        }
    );
    assert_eq!(TcpHeader::len_with(&options), 40);
    let mut out = [0xee; 40];
    assert!(header.emit(&options, &mut out));
    assert_eq!(out, bytes[..40]);
}

#[test]
fn prefixes_are_truncated() {
    let bytes = hex(SYN);
    for len in 0..40 {
        let need = if len < 20 { 20 } else { 40 };
        assert_eq!(TcpHeader::parse(&bytes[..len]), Err(ParseError::Truncated { need, have: len }));
    }
    let (header, options, _) = TcpHeader::parse(&bytes).unwrap();
    let options = TcpOptions::parse(options);
    for len in 0..40 {
        assert!(!header.emit(&options, &mut vec![0; len]));
    }
    for offset in 0..5 {
        let mut bytes = bytes.clone();
        bytes[12] = offset << 4;
        assert_eq!(TcpHeader::parse(&bytes), Err(ParseError::Length));
    }
}

#[test]
fn reserved_bits_are_ignored_and_sent_as_zero() {
    let mut bytes = hex(SYN);
    bytes[12] |= 0x0f;
    let (header, options, _) = TcpHeader::parse(&bytes).unwrap();
    let mut out = [0; 40];
    assert!(header.emit(&TcpOptions::parse(options), &mut out));
    assert_eq!(out[12], 0xa0);
}

#[test]
fn flags_are_named() {
    let flags = TcpFlags::SYN | TcpFlags::ACK | TcpFlags::ECE;
    assert_eq!(format!("{flags:?} {:?}", TcpFlags::NONE), "S.E -");
    assert!(flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::SYN | TcpFlags::FIN));
    assert!(flags.intersects(TcpFlags::SYN | TcpFlags::FIN) && !flags.intersects(TcpFlags::RST));
    assert_eq!(flags.without(TcpFlags::ECE).bits(), 0x12);
    assert_eq!(TcpFlags::from_bits(0xff).bits(), 0xff);
}

fn options(text: &str) -> TcpOptions {
    TcpOptions::parse(&hex(text))
}

#[test]
fn lone_timestamps_take_the_fast_path() {
    let fast = options("0101080a 00000001 00000002");
    let slow = options("080a 00000001 00000002 0101");
    assert_eq!(fast.timestamps, Some(Timestamps { value: 1, echo: 2 }));
    assert_eq!(fast, slow);
}

#[test]
fn sack_blocks() {
    // RFC 2018 §3's figure, with timestamps before it.
    let parsed = options("0101080a 0000000100000002 0101 0512 00000010 00000020 fffffff0 00000004");
    assert_eq!(parsed.sack.as_slice(), [range(0x10, 0x20), range(0xffff_fff0, 4)]);
    assert_eq!(parsed.timestamps, Some(Timestamps { value: 1, echo: 2 }));
    // Four blocks, and a length that is not 8n+2.
    let four = options(&format!("0101 0522 {}", "00000001 00000002".repeat(4)));
    assert_eq!(four.sack.as_slice().len(), 4);
    assert!(options(&format!("0101 0510 {}", "00".repeat(14))).sack.is_empty());
    // The blocks of two options are joined, up to the maximum.
    let twice = options(&format!("0522 {0} 050a 00000005 00000006", "00000001 00000002".repeat(4)));
    assert_eq!(twice.sack.as_slice().len(), 4);
}

#[test]
fn parsing_stops_at_a_malformed_option() {
    let mss = |text: &str| options(text).mss;
    assert_eq!(mss("020405b4"), Some(1460));
    // Unknown options and known ones of a wrong length are skipped (RFC 9293, MUST-6).
    assert_eq!(mss("fe04 0000 020405b4"), Some(1460));
    assert_eq!(mss("0205 000000 020405b4"), Some(1460));
    assert_eq!(mss("0303 07 01 020405b4"), Some(1460));
    // An impossible length ends the parsing, and the options before it stay.
    assert_eq!(mss("020405b4 fe00 0000"), Some(1460));
    assert_eq!(mss("fe00 020405b4"), None);
    assert_eq!(mss("fe01 020405b4"), None);
    assert_eq!(mss("fe07 020405b4"), None);
    assert_eq!(mss("02"), None);
    assert_eq!(mss("0204"), None);
    assert_eq!(mss("020405"), None);
    // Bytes after the end of options are not parsed.
    assert_eq!(mss("00 020405b4"), None);
}

#[test]
fn blocks_that_do_not_fit_are_left_out() {
    let mut sack = SackBlocks::EMPTY;
    for at in 0..4 {
        assert!(sack.push(range(at, at + 1)));
    }
    assert!(!sack.push(range(9, 10)));
    let alone = TcpOptions { sack, ..TcpOptions::NONE };
    assert_eq!(alone.emitted_len(), 36);
    let beside = TcpOptions { timestamps: Some(Timestamps::default()), ..alone };
    assert_eq!(beside.emitted_len(), 40);
    let mut out = [0; 40];
    assert!(beside.emit(&mut out));
    assert_eq!(TcpOptions::parse(&out).sack.as_slice(), &sack.as_slice()[..3]);
}

#[test]
fn checksums_are_set_and_verified() {
    let (local, remote): (IpAddr, IpAddr) = ("10.77.0.2".parse().unwrap(), "10.77.0.1".parse().unwrap());
    let mut segment = hex(SYN);
    let pseudo_header = Sum::pseudo_header(local, remote, IpProtocol::TCP, segment.len());
    assert!(TcpHeader::set_checksum(&mut segment, pseudo_header));
    assert!(pseudo_header.join(Sum::of(&segment)).is_valid());
    let judge = etherparse::TcpSlice::from_slice(&segment).unwrap();
    let sum = judge.calc_checksum_ipv4([10, 77, 0, 2], [10, 77, 0, 1]).unwrap();
    assert_eq!(judge.checksum(), sum);
    // Once more over its own result; and left to the port.
    let before = segment.clone();
    assert!(TcpHeader::set_checksum(&mut segment, pseudo_header) && segment == before);
    assert!(TcpHeader::set_partial_checksum(&mut segment, pseudo_header));
    assert_eq!(segment[16..18], pseudo_header.fold().to_be_bytes());
    // As the port does: the complement of the sum over all, with the pseudo-header's sum in the field.
    assert_eq!(Sum::of(&segment).checksum(), sum);
    assert!(!TcpHeader::set_checksum(&mut segment[..17], pseudo_header));
}

fn header() -> impl Strategy<Value = TcpHeader> {
    (any::<[u16; 4]>(), any::<[u32; 2]>(), any::<u8>()).prop_map(
        |([src_port, dst_port, window, urgent], [seq, ack], flags)| TcpHeader {
            src_port,
            dst_port,
            seq: SeqNum::new(seq),
            ack: SeqNum::new(ack),
            flags: TcpFlags::from_bits(flags),
            window,
            urgent,
        },
    )
}

fn any_options() -> impl Strategy<Value = TcpOptions> {
    let timestamps = any::<Option<[u32; 2]>>();
    let ranges = proptest::collection::vec(any::<[u32; 2]>(), 0..=3);
    (any::<Option<u16>>(), any::<Option<u8>>(), any::<bool>(), timestamps, ranges).prop_map(
        |(mss, window_scale, sack_permitted, timestamps, ranges)| {
            let mut sack = SackBlocks::EMPTY;
            // As many as fit beside everything else.
            let room = if mss.is_some() || window_scale.is_some() { 2 } else { 3 };
            for [start, end] in ranges.into_iter().take(room) {
                sack.push(range(start, end));
            }
            let timestamps = timestamps.map(|[value, echo]| Timestamps { value, echo });
            TcpOptions { mss, window_scale, sack_permitted, timestamps, sack }
        },
    )
}

proptest! {
    #[test]
    fn round_trip(header in header(), options in any_options(), payload: Vec<u8>) {
        let mut out = vec![0; TcpHeader::len_with(&options)];
        prop_assert!(out.len() <= TcpHeader::LEN_MAX && out.len().is_multiple_of(4));
        prop_assert!(header.emit(&options, &mut out));
        out.extend(&payload);
        let (parsed, bytes, rest) = TcpHeader::parse(&out).unwrap();
        prop_assert_eq!((parsed, rest), (header, &payload[..]));
        prop_assert_eq!(TcpOptions::parse(bytes), options);
    }

    #[test]
    fn etherparse_reads_the_same_header(header in header(), options in any_options()) {
        let mut out = vec![0; TcpHeader::len_with(&options)];
        prop_assert!(header.emit(&options, &mut out));
        let judge = etherparse::TcpSlice::from_slice(&out).unwrap();
        prop_assert_eq!((judge.source_port(), judge.destination_port()), (header.src_port, header.dst_port));
        prop_assert_eq!((judge.sequence_number(), judge.acknowledgment_number()), (header.seq.get(), header.ack.get()));
        prop_assert_eq!((judge.window_size(), judge.urgent_pointer()), (header.window, header.urgent));
        prop_assert_eq!(judge.syn(), header.flags.contains(TcpFlags::SYN));
        prop_assert_eq!(judge.cwr(), header.flags.contains(TcpFlags::CWR));
        let mut seen = TcpOptions::NONE;
        for element in judge.options_iterator() {
            match element.unwrap() {
                TcpOptionElement::Noop => {}
                TcpOptionElement::MaximumSegmentSize(mss) => seen.mss = Some(mss),
                TcpOptionElement::WindowScale(shift) => seen.window_scale = Some(shift),
                TcpOptionElement::SelectiveAcknowledgementPermitted => seen.sack_permitted = true,
                TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                    for (start, end) in std::iter::once(first).chain(rest.into_iter().flatten()) {
                        seen.sack.push(range(start, end));
                    }
                }
                TcpOptionElement::Timestamp(value, echo) => seen.timestamps = Some(Timestamps { value, echo }),
            }
        }
        prop_assert_eq!(seen, options);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        let _ = TcpHeader::parse(&bytes);
        let _ = TcpOptions::parse(&bytes);
    }

    #[test]
    fn parsed_options_can_be_emitted(bytes in proptest::collection::vec(any::<u8>(), 0..=40)) {
        let options = TcpOptions::parse(&bytes);
        let mut out = vec![0; options.emitted_len()];
        prop_assert!(out.len() <= 40 && options.emit(&mut out));
    }
}
