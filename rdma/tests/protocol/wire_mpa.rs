//! Frames of the MPA startup phase, against RFC 5044 §7.1.1, RFC 6581 and captured bytes.

use proptest::prelude::*;
use rdma::CrcPolicy;
use rdma::wire::ParseError;
use rdma::wire::mpa::{ConnectionData, FrameHeader, FrameKind, ReadDepth, RtrOptions};

/// Request that Linux soft-iWARP sends for rping: revision 2, enhanced, IRD 1 and ORD 1.
const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";

fn siw_request() -> FrameHeader {
    FrameHeader {
        kind: FrameKind::Request,
        markers: false,
        crc: false,
        reject: false,
        enhanced: true,
        revision: 2,
        private_data_len: 4,
    }
}

#[test]
fn a_captured_request_is_read_and_written() {
    let (header, private_data) = FrameHeader::parse(SIW_REQUEST).unwrap();
    assert_eq!(header, siw_request());
    let (data, rest) = ConnectionData::parse(private_data).unwrap();
    assert_eq!(data, ConnectionData { rtr: None, ird: ReadDepth::new(1), ord: ReadDepth::new(1) });
    assert_eq!(rest, b"");

    let (mut fixed, mut enhanced) = ([0; FrameHeader::LEN], [0; ConnectionData::LEN]);
    header.emit(&mut fixed);
    data.emit(&mut enhanced);
    assert_eq!([&fixed[..], &enhanced[..]].concat(), SIW_REQUEST);
}

#[test]
fn each_flag_has_its_bit() {
    let plain = FrameHeader { kind: FrameKind::Reply, enhanced: false, ..siw_request() };
    let rows = [
        (FrameHeader { markers: true, ..plain }, 0x80),
        (FrameHeader { crc: true, ..plain }, 0x40),
        (FrameHeader { reject: true, ..plain }, 0x20),
        (FrameHeader { enhanced: true, ..plain }, 0x10),
        (plain, 0x00),
    ];
    for (header, flags) in rows {
        let mut out = [0xFF; FrameHeader::LEN];
        header.emit(&mut out);
        assert_eq!((&out[..16], out[16]), (&b"MPA ID Rep Frame"[..], flags));
        // RFC 5044 §7.1.1, Res: "It MUST be set to zero when sending, and not checked on reception."
        out[16] |= 0x0F;
        assert_eq!(FrameHeader::parse(&out), Ok((header, &[][..])));
    }
}

// RFC 6581 §9: A and B are above IRD, C and D above ORD.
#[test]
fn each_control_flag_has_its_bit() {
    let rtr = |send, write, read| Some(RtrOptions { send, write, read });
    let rows = [
        (None, [0x00, 0x02, 0x00, 0x03]),
        (rtr(false, false, false), [0x80, 0x02, 0x00, 0x03]),
        (rtr(true, false, false), [0xC0, 0x02, 0x00, 0x03]),
        (rtr(false, true, false), [0x80, 0x02, 0x80, 0x03]),
        (rtr(false, false, true), [0x80, 0x02, 0x40, 0x03]),
    ];
    for (rtr, bytes) in rows {
        let data = ConnectionData { rtr, ird: ReadDepth::new(2), ord: ReadDepth::new(3) };
        let mut out = [0; ConnectionData::LEN];
        data.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(ConnectionData::parse(&bytes), Ok((data, &[][..])));
    }
    // RFC 6581 §9.2: "if Control Flag A is set to 0, then Control Flags B, C, and D MUST be ignored."
    let (data, _) = ConnectionData::parse(&[0x40, 0x02, 0xC0, 0x03]).unwrap();
    assert_eq!(data.rtr, None);
}

#[test]
fn read_depths_have_fourteen_bits() {
    assert_eq!(ReadDepth::new(128).requests(), Some(128));
    assert_eq!(ReadDepth::new(u16::MAX), ReadDepth::MAX);
    assert_eq!(ReadDepth::MAX.requests(), Some(0x3FFE));
    assert_eq!(ReadDepth::NOT_NEGOTIATED.requests(), None);
    let (data, _) = ConnectionData::parse(&[0x3F, 0xFF, 0x3F, 0xFE]).unwrap();
    assert_eq!((data.ird, data.ord), (ReadDepth::NOT_NEGOTIATED, ReadDepth::MAX));
}

#[test]
fn rtr_options_intersect() {
    let ours = RtrOptions { send: false, write: true, read: true };
    let theirs = RtrOptions { send: true, write: false, read: true };
    assert_eq!(ours.and(theirs), RtrOptions { send: false, write: false, read: true });
    assert!(ours.and(RtrOptions { send: true, ..RtrOptions::default() }).is_empty());
}

#[test]
fn every_short_prefix_is_truncated() {
    for have in 0..FrameHeader::LEN {
        let expected = ParseError::Truncated { need: 20, have };
        assert_eq!(FrameHeader::parse(&SIW_REQUEST[..have]).unwrap_err(), expected);
    }
    for have in 0..ConnectionData::LEN {
        let expected = ParseError::Truncated { need: 4, have };
        assert_eq!(ConnectionData::parse(&SIW_REQUEST[20..20 + have]).unwrap_err(), expected);
    }
}

#[test]
fn a_damaged_key_is_refused() {
    for byte in 0..16 {
        let mut bytes = SIW_REQUEST.to_vec();
        bytes[byte] ^= 0x20;
        assert_eq!(FrameHeader::parse(&bytes).unwrap_err(), ParseError::Key);
    }
}

proptest! {
    #[test]
    fn frame_headers_survive_the_round_trip(
        request: bool, markers: bool, crc: bool, reject: bool, enhanced: bool, revision: u8, len: u16,
        rest: Vec<u8>,
    ) {
        let kind = if request { FrameKind::Request } else { FrameKind::Reply };
        let header =
            FrameHeader { kind, markers, crc, reject, enhanced, revision, private_data_len: len };
        let mut out = [0; FrameHeader::LEN];
        header.emit(&mut out);
        let frame = [&out[..], &rest].concat();
        prop_assert_eq!(FrameHeader::parse(&frame), Ok((header, &rest[..])));
    }

    #[test]
    fn connection_data_survives_the_round_trip(bytes: [u8; 4]) {
        let (data, _) = ConnectionData::parse(&bytes).unwrap();
        let mut out = [0; 4];
        data.emit(&mut out);
        prop_assert_eq!(ConnectionData::parse(&out).unwrap().0, data);
        if data.rtr.is_some() {
            prop_assert_eq!(out, bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        prop_assert!(FrameHeader::parse(&bytes).is_err());
        prop_assert_eq!(ConnectionData::parse(&bytes).is_ok(), bytes.len() >= 4);
    }
}

#[test]
fn crc_policies_have_names() {
    for (name, policy) in CrcPolicy::NAMES {
        assert_eq!((policy.name(), CrcPolicy::from_name(name)), (name, Some(policy)));
    }
    assert_eq!(CrcPolicy::from_name("ON"), None);
    assert_eq!(CrcPolicy::default().name(), "on");
}
