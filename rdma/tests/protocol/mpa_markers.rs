//! Markers byte by byte: the figures of RFC 5044, every offset in the interval, every way to split the stream, every
//! false marker.

use proptest::prelude::*;
use rdma::mpa::crc::crc32c;
use rdma::mpa::framer::{MULPDU_MAX, MULPDU_MIN};
use rdma::mpa::{Deframer, DeframerConfig, FpduError, Framer, MARKED_LEN_MAX, MpaStats, mulpdu_marked};
use rdma::testutil::bytes::append_marked;

const START: u64 = 0xFFFF_FF00;
const CONFIG: DeframerConfig = DeframerConfig {
    crc: true,
    markers: true,
    chunks_max: 48,
    spill_max: rdma::mpa::deframer::SPILL_MAX,
    out_of_order: rdma::OutOfOrderPolicy::Off,
    runs_max: 0,
};

/// Appends an FPDU to a stream that began with the framer.
fn append(stream: &mut Vec<u8>, framer: &mut Framer, ulpdu: &[u8]) {
    let len = framer.fpdu_len(ulpdu.len());
    let start = stream.len();
    stream.resize(start + len, 0xEE);
    framer.frame(&mut stream[start..], ulpdu.len(), |to| to.copy_from_slice(ulpdu)).unwrap();
    framer.sent(len);
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + salt * 7 + i / 251) % 256).unwrap()).collect()
}

fn receive(
    config: DeframerConfig,
    stream: &[u8],
    cuts: &mut dyn FnMut() -> usize,
) -> (Vec<Vec<u8>>, Option<FpduError>, MpaStats) {
    let mut stats = MpaStats::default();
    let mut deframer = Deframer::new(START, config);
    let (mut ulpdus, mut error, mut offset) = (Vec::new(), None, START);
    let mut rest = stream;
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at(cuts().clamp(1, rest.len()));
        error = error.or(deframer.push(offset, chunk, &mut stats).err());
        offset += chunk.len() as u64;
        rest = behind;
        while let Some(fpdu) = deframer.next_fpdu(&mut stats) {
            match fpdu {
                Ok(fpdu) => {
                    let ulpdu = fpdu.pieces(0).collect::<Vec<_>>().concat();
                    for skip in [1, 14, 18, 505, 507, 508, 509, 1016, 1017, fpdu.len()] {
                        let rest = fpdu.pieces(skip).collect::<Vec<_>>().concat();
                        assert_eq!(rest, ulpdu.get(skip..).unwrap_or_default(), "{skip}");
                    }
                    assert!(fpdu.pieces(0).all(|piece| !piece.is_empty()));
                    let mut prefix = [0; 46];
                    let copied = fpdu.copy_prefix(&mut prefix);
                    assert_eq!(prefix[..copied], ulpdu[..ulpdu.len().min(46)]);
                    ulpdus.push(ulpdu);
                }
                Err(found) => error = error.or(Some(found)),
            }
        }
    }
    (ulpdus, error, stats)
}

#[test]
fn the_figures_of_the_rfc() {
    // Figure 5: the first FPDU of a stream.
    let mut send = vec![0; 42];
    send[..2].copy_from_slice(&[0x41, 0x43]);
    send[13] = 1;
    let (mut stream, mut framer) = (Vec::new(), Framer::new(true).with_markers(true));
    append(&mut stream, &mut framer, &send);
    assert_eq!(stream.len(), 0x34);
    assert_eq!(stream[..8], [0, 0, 0, 0, 0x00, 0x2A, 0x41, 0x43]);
    assert_eq!(stream[0x30..], [0x52, 0x23, 0x99, 0x83]);
    // Figure 6: the second, where the first "had a length of 492 octets".
    let (mut stream, mut framer) = (Vec::new(), Framer::new(true).with_markers(true));
    append(&mut stream, &mut framer, &[7; 482]);
    assert_eq!(stream.len(), 492);
    send[13] = 2;
    append(&mut stream, &mut framer, &send);
    assert_eq!(stream[0x1EC..0x1F0], [0x00, 0x2A, 0x41, 0x43]);
    assert_eq!(stream[0x200..0x204], [0, 0, 0, 0x14]);
    assert_eq!(stream[0x21C..], [0x84, 0x92, 0x58, 0x98]);
    let (ulpdus, error, stats) = receive(CONFIG, &stream, &mut || usize::MAX);
    assert_eq!((ulpdus, error), (vec![vec![7; 482], send], None));
    assert_eq!(stats.markers_in, 2);
}

#[test]
fn figure_4_with_its_marker_within_the_ulpdu() {
    // 16 bytes of ULPDU, of which 10 fit before the marker.
    let (mut stream, mut framer) = (Vec::new(), Framer::new(true).with_markers(true));
    append(&mut stream, &mut framer, &[1; 490]);
    let start = stream.len();
    assert_eq!(start, 500);
    append(&mut stream, &mut framer, &pattern(16, 9));
    let fpdu = &stream[start..];
    assert_eq!((fpdu.len(), &fpdu[..2]), (28, &[0, 0x10][..]));
    assert_eq!((&fpdu[2..12], &fpdu[12..16]), (&pattern(16, 9)[..10], &[0, 0, 0, 0x0C][..]));
    assert_eq!((&fpdu[16..22], &fpdu[22..24]), (&pattern(16, 9)[10..], &[0, 0][..]));
    assert_eq!(crc32c(&fpdu[..24]), fpdu[24..]);
}

// A marker before the FPDU, after its length, in the ULPDU, before the pad, between pad and CRC, and after the CRC,
// where it belongs to the next FPDU.
#[test]
fn every_place_in_the_interval() {
    for lead in (0..128).step_by(if cfg!(miri) { 43 } else { 1 }).map(|nth| nth * 4) {
        let lens = [0, 1, 2, 3, 6, 42, 494, 498, 502, 506, 510, 1430];
        for len in lens.into_iter().step_by(if cfg!(miri) { 5 } else { 1 }) {
            let (mut stream, mut by_hand) = (Vec::new(), Vec::new());
            let mut framer = Framer::new(true).with_markers(true);
            let mut expected = Vec::new();
            for ulpdu in [pattern(lead, 1), pattern(len, 2), pattern(0, 3), pattern(700, 4)] {
                append(&mut stream, &mut framer, &ulpdu);
                append_marked(&mut by_hand, &ulpdu);
                expected.push(ulpdu);
            }
            assert!(stream == by_hand, "{lead} {len}");
            for size in [usize::MAX, 1448, 101, 4, 1].into_iter().take(if cfg!(miri) { 3 } else { 5 }) {
                let (ulpdus, error, stats) = receive(CONFIG, &stream, &mut || size);
                assert!(ulpdus == expected && error.is_none(), "{lead} {len} {size}: {error:?}");
                assert_eq!(stats.markers_in, stream.len().div_ceil(512) as u64);
            }
        }
    }
}

#[test]
fn mulpdu_with_markers_is_the_formula_of_the_rfc() {
    for emss in (0..70_000usize).step_by(if cfg!(miri) { 997 } else { 1 }) {
        // RFC 5044 §4.5: "MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)".
        let formula =
            emss.saturating_sub(6 + 4 * emss.div_ceil(512) + emss % 4).clamp(MULPDU_MIN, MULPDU_MAX);
        assert_eq!(mulpdu_marked(emss), formula);
        if (140..=65_000).contains(&emss) {
            for distance in [0, 4, 256, 508] {
                let mut framer = Framer::new(true).with_markers(true);
                framer.sent(distance);
                assert!(framer.fpdu_len(framer.ulpdu_max(emss)) <= emss, "{emss} {distance}");
            }
        }
    }
}

#[test]
fn the_longest_fpdu_with_markers() {
    let (mut stream, mut framer) = (Vec::new(), Framer::new(true).with_markers(true));
    let ulpdu = pattern(MULPDU_MAX, 5);
    append(&mut stream, &mut framer, &ulpdu);
    let mut by_hand = Vec::new();
    append_marked(&mut by_hand, &ulpdu);
    assert!(stream == by_hand);
    assert_eq!(stream.len(), 64776 + 4 * stream.len().div_ceil(512));
    assert!(stream.len() < MARKED_LEN_MAX);
    for size in [1448, 536, 9000] {
        let (ulpdus, error, _) = receive(CONFIG, &stream, &mut || size);
        assert!(ulpdus == [ulpdu.clone()] && error.is_none(), "{size}");
    }
}

// RFC 5044 §8 code 3: "In the event that the CRC is valid, received MPA Marker (if enabled) and ULPDU Length fields do
// not agree on the start of an FPDU."
#[test]
fn a_marker_that_points_elsewhere_ends_the_stream() {
    for (at, wrong) in [(0, 4), (512, 504), (512, 0), (1024, 1016)] {
        let mut stream = Vec::new();
        append(&mut stream, &mut Framer::new(true).with_markers(true), &pattern(1400, 1));
        stream[at + 2..at + 4].copy_from_slice(&u16::to_be_bytes(wrong));
        let field = stream.len() - 4;
        let (_, error, stats) = receive(CONFIG, &stream, &mut || 700);
        assert_eq!((error, stats.crc_errors), (Some(FpduError::Crc), 1), "the CRC covers the marker");
        let crc = crc32c(&stream[..field]);
        stream[field..].copy_from_slice(&crc);
        let (ulpdus, error, stats) = receive(CONFIG, &stream, &mut || 700);
        assert_eq!((ulpdus.len(), error, stats.marker_errors), (0, Some(FpduError::Marker), 1));
        // Without CRC only this check finds it.
        let (_, error, _) = receive(DeframerConfig { crc: false, ..CONFIG }, &stream, &mut || 700);
        assert_eq!(error, Some(FpduError::Marker));
    }
}

// RFC 5044 §4.2: reserved bytes are "ignored on receive", the low two bits of FPDUPTR are zero "for calculations".
#[test]
fn reserved_bits_of_a_marker_are_ignored() {
    let mut stream = Vec::new();
    append(&mut stream, &mut Framer::new(true).with_markers(true), &pattern(600, 1));
    (stream[0], stream[513], stream[515]) = (0xFF, 0xAA, stream[515] | 3);
    let field = stream.len() - 4;
    let crc = crc32c(&stream[..field]);
    stream[field..].copy_from_slice(&crc);
    let (ulpdus, error, _) = receive(CONFIG, &stream, &mut || 100);
    assert_eq!((ulpdus, error), (vec![pattern(600, 1)], None));
}

proptest! {
    #[test]
    fn any_cut_of_a_marked_stream_gives_the_same_fpdus(
        lens in prop::collection::vec(prop_oneof![6 => 0usize..60, 3 => 60usize..3000, 1 => 9000usize..20000], 1..12),
        cuts in prop::collection::vec(prop_oneof![4 => 1usize..80, 2 => 80usize..1100, 2 => 1100usize..40000], 1..24),
        crc: bool,
    ) {
        let (mut stream, mut framer, mut expected) = (Vec::new(), Framer::new(crc).with_markers(true), Vec::new());
        for (salt, len) in lens.into_iter().enumerate() {
            append(&mut stream, &mut framer, &pattern(len, salt));
            expected.push(pattern(len, salt));
        }
        let mut cuts = cuts.into_iter().cycle();
        let (ulpdus, error, _) = receive(DeframerConfig { crc, ..CONFIG }, &stream, &mut || cuts.next().unwrap());
        prop_assert_eq!(error, None);
        prop_assert!(ulpdus == expected);
    }

    #[test]
    fn arbitrary_marked_bytes_do_not_panic(
        stream in prop::collection::vec(any::<u8>(), 0..4000), size in 1usize..2000, crc: bool,
    ) {
        receive(DeframerConfig { crc, ..CONFIG }, &stream, &mut || size);
    }
}
