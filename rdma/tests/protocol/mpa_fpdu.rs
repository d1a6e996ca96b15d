//! FPDUs: built, split into chunks in every way, damaged, found again.

use proptest::prelude::*;
use rdma::mpa::crc::{Crc32c, crc32c};
use rdma::mpa::deframer::{CHUNKS_MAX, SPILL_MAX};
use rdma::mpa::framer::{MULPDU_MAX, MULPDU_MIN};
use rdma::mpa::{
    Deframer, DeframerConfig, FPDU_LEN_MAX, Fpdu, FpduError, FrameError, Framer, MpaStats, fpdu_len, mulpdu,
};
use std::cell::Cell;
use std::rc::Rc;

const START: u64 = 0xFFFF_FFF0;

fn fpdu(crc: bool, ulpdu: &[u8]) -> Vec<u8> {
    let framer = Framer::new(crc);
    let mut out = vec![0xEE; framer.fpdu_len(ulpdu.len())];
    framer.frame(&mut out, ulpdu.len(), |to| to.copy_from_slice(ulpdu)).unwrap();
    out
}

/// Builds an FPDU that a sender may not send but a receiver may meet: up to 65535 bytes of ULPDU.
fn longest_fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(ulpdu);
    out.resize(fpdu_len(ulpdu.len()) - 4, 0);
    out.extend_from_slice(&crc32c(&out));
    out
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + salt * 7 + i / 251) % 256).unwrap()).collect()
}

/// A chunk that counts the live chunks of its kind.
struct Chunk {
    bytes: Vec<u8>,
    alive: Rc<Cell<usize>>,
}

impl Chunk {
    fn new(bytes: &[u8], alive: &Rc<Cell<usize>>) -> Self {
        alive.set(alive.get() + 1);
        Self { bytes: bytes.to_vec(), alive: Rc::clone(alive) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    fpdus: Vec<(u64, Vec<u8>)>,
    errors: Vec<FpduError>,
}

impl Outcome {
    fn note(&mut self, fpdu: Result<Fpdu<'_, Chunk>, FpduError>) {
        let fpdu = match fpdu {
            Ok(fpdu) => fpdu,
            Err(error) => return self.errors.push(error),
        };
        let ulpdu = fpdu.pieces(0).collect::<Vec<_>>().concat();
        assert_eq!(ulpdu.len(), fpdu.len());
        for skip in [1, 14, 18, fpdu.len() / 2, fpdu.len(), fpdu.len() + 1] {
            let rest = fpdu.pieces(skip).collect::<Vec<_>>().concat();
            assert_eq!(rest, ulpdu.get(skip..).unwrap_or_default());
        }
        assert!(fpdu.pieces(0).all(|piece| !piece.is_empty()));
        for room in [0, 1, 14, 18, 4000] {
            let mut prefix = vec![0; room];
            let copied = fpdu.copy_prefix(&mut prefix);
            assert_eq!(prefix[..copied], ulpdu[..room.min(ulpdu.len())]);
        }
        if let Some(whole) = fpdu.contiguous() {
            assert_eq!(whole, ulpdu);
        }
        self.fpdus.push((fpdu.offset(), ulpdu));
    }
}

struct Receiver {
    deframer: Deframer<Chunk>,
    stats: MpaStats,
    outcome: Outcome,
    offset: u64,
    alive: Rc<Cell<usize>>,
    alive_max: usize,
    /// True if FPDUs inside a chunk are borrowed from it before it is pushed.
    borrows: bool,
}

impl Receiver {
    fn new(crc: bool, spill_max: usize) -> Self {
        Self {
            deframer: Deframer::new(START, DeframerConfig { crc, spill_max, ..DeframerConfig::default() }),
            stats: MpaStats::default(),
            outcome: Outcome::default(),
            offset: START,
            alive: Rc::new(Cell::new(0)),
            alive_max: 0,
            borrows: true,
        }
    }

    /// Takes every FPDU from the chunks that the deframer holds.
    fn without_borrowing(self) -> Self {
        Self { borrows: false, ..self }
    }

    fn push(&mut self, bytes: &[u8]) {
        let chunk = Chunk::new(bytes, &self.alive);
        let Self { deframer, stats, outcome, offset, .. } = self;
        while self.borrows
            && let Some(fpdu) = deframer.next_whole(*offset, chunk.as_ref(), stats)
        {
            assert!(fpdu.as_ref().is_ok_and(|fpdu| fpdu.contiguous().is_some()) || fpdu.is_err());
            outcome.note(fpdu);
        }
        if let Err(error) = deframer.push(*offset, chunk, stats) {
            outcome.errors.push(error);
        }
        *offset += bytes.len() as u64;
        self.alive_max = self.alive_max.max(self.alive.get());
        while let Some(fpdu) = deframer.next_fpdu(stats) {
            outcome.note(fpdu);
        }
    }

    fn push_in_chunks(&mut self, stream: &[u8], cuts: &mut dyn FnMut() -> usize) {
        let mut rest = stream;
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(cuts().clamp(1, rest.len()));
            self.push(chunk);
            rest = behind;
        }
    }
}

#[test]
fn crc32c_is_the_one_of_the_rfc() {
    // RFC 5044 §4.4, Figure 5: the marker that opens the stream, a ULPDU of 42 bytes.
    let mut first = vec![0, 0, 0, 0, 0x00, 0x2A, 0x41, 0x43];
    first.resize(0x30, 0);
    first[0x13] = 1;
    assert_eq!(crc32c(&first), [0x52, 0x23, 0x99, 0x83]);

    // Figure 6: a marker in the middle, 20 bytes after the start of the FPDU.
    let mut second = vec![0; 0x30];
    second[..4].copy_from_slice(&[0x00, 0x2A, 0x41, 0x43]);
    second[0x0F] = 2;
    second[0x17] = 0x14;
    assert_eq!(crc32c(&second), [0x84, 0x92, 0x58, 0x98]);

    // The check value of every description of CRC-32C, low byte first.
    assert_eq!(crc32c(b"123456789"), 0xE306_9283_u32.to_le_bytes());
}

#[test]
fn an_fpdu_without_markers_is_framed_and_found() {
    // Figure 5 without its marker.
    let mut ulpdu = vec![0; 42];
    ulpdu[..2].copy_from_slice(&[0x41, 0x43]);
    ulpdu[13] = 1;
    let bytes = fpdu(true, &ulpdu);
    assert_eq!(bytes[..4], [0x00, 0x2A, 0x41, 0x43]);
    assert_eq!(bytes[44..], [0xB7, 0x24, 0x3E, 0xC3]);
}

#[test]
fn the_trailer_follows_the_pad() {
    for (len, total) in [(0, 8), (1, 8), (2, 8), (3, 12), (4, 12), (6, 12), (7, 16), (1442, 1448)] {
        assert_eq!(fpdu_len(len), total);
        let bytes = fpdu(false, &vec![0xAA; len]);
        assert_eq!(bytes.len(), total);
        // RFC 5044 §4.1: "The pad data MUST be set to zero by the sender"; no CRC is all zeros too.
        assert!(bytes[2 + len..].iter().all(|byte| *byte == 0));
        assert!(bytes[2..2 + len].iter().all(|byte| *byte == 0xAA));
    }
    assert_eq!(FPDU_LEN_MAX, 65544);
}

#[test]
fn mulpdu_is_the_formula_of_the_rfc_within_its_limits() {
    for emss in (0..70_000usize).step_by(if cfg!(miri) { 997 } else { 1 }) {
        // RFC 5044 §4.5: "MULPDU = EMSS - (6 + EMSS mod 4)", and §3: "between 128 octets and 64768 octets".
        let formula = emss.saturating_sub(6 + emss % 4).clamp(MULPDU_MIN, MULPDU_MAX);
        assert_eq!(mulpdu(emss), formula);
        let sent = Framer::new(true).ulpdu_max(emss);
        assert_eq!(sent, formula);
        if (136..=MULPDU_MAX).contains(&emss) {
            assert_eq!(fpdu_len(sent), emss / 4 * 4);
        }
    }
}

#[test]
fn lengths_that_disagree_are_refused_before_anything_is_written() {
    let framer = Framer::new(true);
    let mut out = vec![0x55; 20];
    for (len, error) in [
        (13, FrameError::Buffer { need: 20, have: 20 }),
        (15, FrameError::Buffer { need: 24, have: 20 }),
        (5, FrameError::Buffer { need: 12, have: 20 }),
        (MULPDU_MAX + 1, FrameError::TooLong { ulpdu: MULPDU_MAX + 1 }),
        (usize::MAX, FrameError::TooLong { ulpdu: usize::MAX }),
    ] {
        let mut called = false;
        let result = framer.frame(&mut out, len, |_| called = true);
        if len == 13 {
            assert_eq!((result, called), (Ok(()), true));
            out.fill(0x55);
        } else {
            assert_eq!((result, called), (Err(error), false));
            assert!(out.iter().all(|byte| *byte == 0x55));
        }
    }
}

#[test]
fn an_fpdu_in_one_chunk_is_borrowed_from_that_chunk() {
    let (one, two) = (pattern(1442, 1), pattern(30, 2));
    let stream = [fpdu(true, &one), fpdu(true, &two)].concat();
    let memory = stream.as_ptr_range();
    let mut stats = MpaStats::default();
    let mut deframer = Deframer::new(START, DeframerConfig::default());
    deframer.push(START, &stream[..], &mut stats).unwrap();
    for ulpdu in [&one, &two] {
        let fpdu = deframer.next_fpdu(&mut stats).unwrap().unwrap();
        let lent = fpdu.contiguous().unwrap();
        assert_eq!(lent, ulpdu);
        assert!(memory.contains(&lent.as_ptr()));
    }
    assert!(deframer.next_fpdu(&mut stats).is_none());
    assert_eq!((stats.fpdus_in, stats.fpdus_in_split, stats.ulpdu_bytes_in), (2, 0, 1472));
    assert_eq!((deframer.pending(), deframer.end()), (0, START + stream.len() as u64));
}

#[test]
fn a_split_fpdu_is_not_copied() {
    for (len, size) in [(4000, 1500), (MULPDU_MAX, 1448), (3000, 2999), (1442, 1444)] {
        split_without_a_copy(len, size);
    }
}

/// Splits an FPDU with a ULPDU of `len` bytes into chunks of `size` bytes.
fn split_without_a_copy(len: usize, size: usize) {
    let ulpdu = pattern(len, 3);
    let stream = fpdu(true, &ulpdu);
    let memory = stream.as_ptr_range();
    let mut stats = MpaStats::default();
    let mut deframer = Deframer::new(START, DeframerConfig::default());
    let mut offset = START;
    for chunk in stream.chunks(size) {
        assert!(deframer.next_fpdu(&mut stats).is_none());
        deframer.push(offset, chunk, &mut stats).unwrap();
        offset += chunk.len() as u64;
    }
    let fpdu = deframer.next_fpdu(&mut stats).unwrap().unwrap();
    assert_eq!(fpdu.contiguous().is_some(), 2 + len <= size);
    assert!(fpdu.pieces(0).all(|piece| memory.contains(&piece.as_ptr())));
    assert_eq!((stats.bytes_spilled, stats.bytes_copied, stats.fpdus_in_split), (0, 0, 1));
}

#[test]
fn a_chunk_may_begin_with_bytes_of_the_startup_phase() {
    let stream = [b"reply".to_vec(), fpdu(true, b"first")].concat();
    let mut stats = MpaStats::default();
    let mut deframer = Deframer::new(START, DeframerConfig::default());
    deframer.push(START - 7, &b"re"[..], &mut stats).unwrap();
    deframer.push(START - 5, &stream[..], &mut stats).unwrap();
    let fpdu = deframer.next_fpdu(&mut stats).unwrap().unwrap();
    assert_eq!((fpdu.offset(), fpdu.contiguous().unwrap()), (START, &b"first"[..]));
    assert!(deframer.next_fpdu(&mut stats).is_none());
}

#[test]
fn a_misuse_by_the_caller_ends_the_stream() {
    let bytes = fpdu(true, &[7; 100]);
    for (offset, name) in [(START + 1, "gap"), (START + 500, "far"), (START - 1, "overlap")] {
        let mut stats = MpaStats::default();
        let mut deframer = Deframer::new(START - 10, DeframerConfig::default());
        deframer.push(START - 10, &bytes[..10], &mut stats).unwrap();
        let error = deframer.push(offset, &bytes[10..], &mut stats).unwrap_err();
        assert_eq!(error, FpduError::Gap { expected: START, offset }, "{name}");
        assert_eq!(stats.stream_gaps, 1);
        assert!(deframer.push(START, &bytes[10..], &mut stats).is_ok());
        assert!(deframer.next_fpdu(&mut stats).is_none());
    }
    let mut stats = MpaStats::default();
    let mut deframer = Deframer::new(0, DeframerConfig::default());
    let many = bytes.repeat(700);
    deframer.push(0, &many[..], &mut stats).unwrap();
    let error = deframer.push(many.len() as u64, &many[..], &mut stats).unwrap_err();
    assert_eq!(error, FpduError::Undrained);
}

// Chunks are packet buffers: without free ones no connection receives anything.
#[test]
fn a_long_fpdu_that_never_ends_pins_few_packet_buffers() {
    let stream = longest_fpdu(&pattern(65535, 4));
    for size in [64, 1024, 1448, 8948] {
        let mut receiver = Receiver::new(true, SPILL_MAX);
        receiver.push(&fpdu(true, &[1; 300])[..280]);
        receiver.push(&[&fpdu(true, &[1; 300])[280..], &stream[..size]].concat());
        receiver.push_in_chunks(&stream[size..stream.len() - 1], &mut || size);
        assert!(receiver.alive.get() <= CHUNKS_MAX, "{} chunks of {size} bytes", receiver.alive.get());
        receiver.push(&stream[stream.len() - 1..]);
        assert_eq!((receiver.outcome.fpdus.len(), receiver.outcome.errors.len()), (2, 0));
    }
}

// A peer may send single bytes; the number of buffers pinned stays bounded.
#[test]
fn small_chunks_do_not_pile_up() {
    let ulpdu = pattern(65535, 4);
    let stream = [longest_fpdu(&ulpdu), fpdu(true, b"next"), longest_fpdu(&ulpdu)].concat();
    let sizes = [1, 2, 3, 63, 64, 65, 536, 1023, 1024, 1448, 9000];
    // Miri needs too long for 131,000 single bytes.
    for size in sizes.into_iter().skip(if cfg!(miri) { 6 } else { 0 }) {
        let mut receiver = Receiver::new(true, SPILL_MAX);
        receiver.push_in_chunks(&stream, &mut || size);
        let lens: Vec<_> = receiver.outcome.fpdus.iter().map(|(_, ulpdu)| ulpdu.len()).collect();
        assert_eq!((lens, receiver.outcome.errors.len()), (vec![65535, 4, 65535], 0), "{size}");
        assert!(receiver.outcome.fpdus.iter().step_by(2).all(|(_, got)| *got == ulpdu));
        assert!(receiver.alive_max <= CHUNKS_MAX + 1, "{} chunks of {size} bytes", receiver.alive_max);
        assert_eq!(receiver.alive.get(), 0);
    }
}

#[test]
fn an_fpdu_inside_a_chunk_is_borrowed_unless_bytes_are_held() {
    let stream = [fpdu(true, &[1; 40]), fpdu(true, &[2; 60]), fpdu(true, &[3; 80])].concat();
    let (config, mut stats) = (DeframerConfig::default(), MpaStats::default());
    let mut deframer = Deframer::<&[u8]>::new(START, config);
    let (chunk, rest) = stream.split_at(100);
    // Bytes of the startup phase may precede it.
    let first =
        deframer.next_whole(START - 3, &[&b"end"[..], chunk].concat(), &mut stats).unwrap().unwrap().len();
    assert_eq!((first, deframer.end()), (40, START + 48));
    assert!(deframer.next_whole(START, chunk, &mut stats).is_none(), "not whole");
    assert!(deframer.next_whole(START + 52, &stream[52..], &mut stats).is_none(), "behind a gap");
    deframer.push(START, chunk, &mut stats).unwrap();
    assert!(deframer.next_fpdu(&mut stats).is_none());
    assert!(deframer.next_whole(START + 100, rest, &mut stats).is_none(), "something is held before it");
    deframer.push(START + 100, rest, &mut stats).unwrap();
    let held: Vec<_> =
        std::iter::from_fn(|| deframer.next_fpdu(&mut stats).map(|fpdu| fpdu.unwrap().len())).collect();
    assert_eq!((held, stats.fpdus_in, stats.fpdus_in_split), (vec![60, 80], 3, 1));
    // With markers the FPDU would not be contiguous.
    let mut marked = Deframer::<&[u8]>::new(START, DeframerConfig { markers: true, ..config });
    assert!(marked.next_whole(START, &stream, &mut stats).is_none());
}

#[test]
fn a_chunk_that_is_used_up_is_dropped() {
    let stream = [fpdu(true, &[1; 2000]), fpdu(true, &[2; 2000])].concat();
    let mut receiver = Receiver::new(true, SPILL_MAX);
    receiver.push(&stream[..1500]);
    receiver.push(&stream[1500..3000]);
    assert_eq!(receiver.alive.get(), 1);
    receiver.push(&stream[3000..]);
    assert_eq!((receiver.alive.get(), receiver.outcome.fpdus.len()), (0, 2));
}

#[test]
fn a_smaller_buffer_ends_the_stream_that_overflows_it() {
    let stream = fpdu(true, &pattern(3000, 5));
    let mut receiver = Receiver::new(true, 512);
    receiver.push_in_chunks(&stream, &mut || 1);
    assert_eq!(receiver.outcome.errors, [FpduError::Fragmented]);
    assert_eq!((receiver.stats.fpdus_fragmented, receiver.outcome.fpdus.len()), (1, 0));
    assert_eq!(receiver.alive.get(), 0);
}

// RFC 5044 §4.1: "When CRCs are not enabled, this field […] MUST NOT be checked."
#[test]
fn without_crc_the_field_may_be_anything() {
    let mut stream = fpdu(false, b"hello");
    let field = stream.len() - 4;
    stream[field..].copy_from_slice(&[1, 2, 3, 4]);
    let mut receiver = Receiver::new(false, SPILL_MAX);
    receiver.push_in_chunks(&stream, &mut || 5);
    assert_eq!(receiver.outcome, Outcome { fpdus: vec![(START, b"hello".to_vec())], errors: vec![] });
}

fn ulpdus() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let len = prop_oneof![6 => 0usize..60, 3 => 60usize..3000, 1 => 9000usize..20000];
    prop::collection::vec((len, any::<u8>()).prop_map(|(len, salt)| pattern(len, salt.into())), 1..12)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    let cut = prop_oneof![4 => 1usize..80, 2 => 80usize..1100, 2 => 1100usize..3000, 1 => 3000usize..40000];
    prop::collection::vec(cut, 1..24)
}

proptest! {
    #[test]
    fn crc32c_agrees_with_another_implementation(pieces: Vec<Vec<u8>>) {
        let reference = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&pieces.concat()).to_le_bytes();
        let mut crc = Crc32c::default();
        pieces.iter().for_each(|piece| crc.update(piece));
        prop_assert_eq!(crc.finish(), reference);
        prop_assert_eq!(crc32c(&pieces.concat()), reference);
    }

    #[test]
    fn any_cut_of_a_stream_gives_the_same_fpdus(ulpdus in ulpdus(), cuts in cuts(), crc: bool) {
        let mut expected = Vec::new();
        let mut stream = Vec::new();
        for ulpdu in ulpdus {
            let bytes = fpdu(crc, &ulpdu);
            expected.push((START + stream.len() as u64, ulpdu));
            stream.extend(bytes);
        }
        let expected = Outcome { fpdus: expected, errors: vec![] };
        for mut receiver in [Receiver::new(crc, SPILL_MAX), Receiver::new(crc, SPILL_MAX).without_borrowing()] {
            let mut cuts = cuts.iter().copied().cycle();
            receiver.push_in_chunks(&stream, &mut || cuts.next().unwrap());
            prop_assert_eq!(&receiver.outcome, &expected);
            prop_assert_eq!(receiver.stats.fpdus_in, expected.fpdus.len() as u64);
            prop_assert!(receiver.alive_max <= CHUNKS_MAX + 1);
            prop_assert_eq!(receiver.alive.get(), 0);
        }
    }

    #[test]
    fn one_wrong_bit_stops_the_stream(
        ulpdus in ulpdus(), cuts in cuts(), which: prop::sample::Index, byte: prop::sample::Index, bit in 0u8..8,
    ) {
        let which = which.index(ulpdus.len());
        let mut good = Vec::new();
        let mut stream = Vec::new();
        for (index, ulpdu) in ulpdus.iter().enumerate() {
            let mut bytes = fpdu(true, ulpdu);
            if index < which {
                good.push((START + stream.len() as u64, ulpdu.clone()));
            }
            if index == which {
                let byte = byte.index(bytes.len());
                bytes[byte] ^= 1 << bit;
            }
            stream.extend(bytes);
        }
        // A length larger than intended must find its bytes, or the deframer would wait for them.
        stream.extend(vec![0x3C; FPDU_LEN_MAX]);
        let expected = Outcome { fpdus: good, errors: vec![FpduError::Crc] };
        for mut receiver in [Receiver::new(true, SPILL_MAX), Receiver::new(true, SPILL_MAX).without_borrowing()] {
            let mut cuts = cuts.iter().copied().cycle();
            receiver.push_in_chunks(&stream, &mut || cuts.next().unwrap());
            prop_assert_eq!(&receiver.outcome, &expected);
            prop_assert_eq!(receiver.stats.crc_errors, 1);
            prop_assert_eq!(receiver.alive.get(), 0);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(stream in prop::collection::vec(any::<u8>(), 0..4000), cuts in cuts(), crc: bool) {
        let mut receiver = Receiver::new(crc, SPILL_MAX);
        let mut cuts = cuts.into_iter().cycle();
        receiver.push_in_chunks(&stream, &mut || cuts.next().unwrap());
        prop_assert!(receiver.outcome.errors.len() <= 1);
        prop_assert!(receiver.alive_max <= CHUNKS_MAX + 1);
    }
}

// The owner of the packet buffers may need them back at any time.
#[test]
fn an_fpdu_survives_the_return_of_its_chunks() {
    let stream = [fpdu(true, b"first"), longest_fpdu(&pattern(65535, 4)), fpdu(true, b"next")].concat();
    for size in [1, 100, 300, 536, 1448, 8948] {
        for every in [1, 2, 7, 40] {
            let mut stats = MpaStats::default();
            let mut deframer = Deframer::<&[u8]>::new(0, DeframerConfig::default());
            let mut lens = Vec::new();
            for (n, chunk) in stream.chunks(size).enumerate() {
                deframer.push((n * size) as u64, chunk, &mut stats).unwrap();
                while let Some(fpdu) = deframer.next_fpdu(&mut stats) {
                    // Its CRC matched.
                    lens.push(fpdu.unwrap().len());
                }
                deframer.compact_if_small(&mut stats);
                assert!(deframer.chunks() * 256 <= deframer.pending(), "chunks of few bytes, {size} each");
                let (begins, held) = (deframer.incomplete_from(), deframer.pending());
                if n % every == 0 {
                    deframer.compact(&mut stats);
                    assert_eq!(deframer.chunks(), 0);
                    assert_eq!((deframer.incomplete_from(), deframer.pending()), (begins, held));
                }
            }
            assert_eq!(lens, [5, 65535, 4], "{size} bytes each, given back every {every}");
            assert_eq!((deframer.chunks(), deframer.incomplete_from()), (0, None));
        }
    }
}
