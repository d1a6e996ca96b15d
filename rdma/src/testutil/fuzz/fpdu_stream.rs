//! FPDUs, with and without markers: arbitrary bytes never panic; a stream of FPDUs yields the same ULPDUs for every
//! way to split it, and the same memory for every order of arrival (`placed`).

use super::shape::{Shape, end};
use super::{Input, placed};
use crate::EndpointConfig;
use crate::mpa::framer::MULPDU_MAX;
use crate::mpa::{Deframer, DeframerConfig, Fpdu, FpduError, MpaStats};
use crate::testutil::bytes::ulpdus;
use crate::testutil::pattern;

/// The first byte selects CRC, kind and markers; then follow the bytes, or the contents of the ULPDUs, and the split.
pub fn fpdu_stream(data: &[u8]) {
    let mut input = Input(data);
    let bits = input.byte();
    let shape = Shape { crc: bits & 1 == 0, markers: bits & 4 != 0 };
    if bits & 8 != 0 {
        placed(&mut input, shape);
    } else if bits & 2 == 0 {
        let (stream, ulpdus, broken) = stream(&mut input, shape);
        let chunks = input.cut(&stream);
        let (found, error) = deframe(&chunks, shape);
        match broken {
            // The FPDUs before the damaged one, and an error.
            Some(whole) => assert!(found == ulpdus[..whole] && error == Some(FpduError::Crc)),
            None => assert!(found == ulpdus && error.is_none(), "{error:?}"),
        }
        endpoint(&chunks, shape);
    } else {
        let chunks = Input(&[7, 0, 250, 1, 63, 64, 65]).cut(input.0);
        let (_, error) = deframe(&chunks, shape);
        let marker = matches!(error, Some(FpduError::Marker)) && shape.markers;
        assert!(matches!(error, None | Some(FpduError::Crc)) || marker, "{error:?}");
        endpoint(&chunks, shape);
    }
}

/// Builds a stream; returns it with its ULPDUs, and the index of the damaged one.
fn stream(input: &mut Input<'_>, shape: Shape) -> (Vec<u8>, Vec<Vec<u8>>, Option<usize>) {
    let (mut stream, mut ulpdus, mut broken): (Vec<u8>, _, _) = (Vec::new(), Vec::new(), None);
    for index in 0..usize::from(input.byte() % 12) {
        let len = match input.byte() {
            len @ 0..200 => usize::from(len),
            200..250 => input.below(1500),
            _ => usize::from(input.u16()),
        };
        // FPDUPTR cannot point back over longer ones.
        let len = if shape.markers { len.min(MULPDU_MAX) } else { len };
        let ulpdu = if input.sometimes() { input.take(len).to_vec() } else { pattern(len, index as u8) };
        let begin = stream.len();
        shape.append(&mut stream, &ulpdu);
        // Not in or before the length, which would move all later bytes.
        let length_end = begin + if shape.markers && begin.is_multiple_of(512) { 6 } else { 2 };
        if shape.crc && broken.is_none() && input.sometimes() {
            let at = length_end + input.below(stream.len() - length_end);
            stream[at] ^= 1 << (input.byte() % 8);
            broken = Some(index);
        }
        ulpdus.push(ulpdu);
    }
    (stream, ulpdus, broken)
}

/// Returns the ULPDUs of the stream, and the error that ends it.
fn deframe(chunks: &[&[u8]], shape: Shape) -> (Vec<Vec<u8>>, Option<FpduError>) {
    let mut stats = MpaStats::default();
    let (start, mut taken) = (1 << 40, 0);
    let Shape { crc, markers } = shape;
    let config = DeframerConfig { crc, markers, ..DeframerConfig::default() };
    let mut deframer = Deframer::new(start, config);
    let (mut found, mut error) = (Vec::new(), None);
    let mut note = |error: &mut Option<FpduError>, fpdu: Result<Fpdu<'_, Vec<u8>>, FpduError>| match fpdu {
        Ok(fpdu) => {
            assert!(error.is_none(), "an FPDU behind an error");
            let ulpdu: Vec<u8> = fpdu.pieces(0).flatten().copied().collect();
            assert_eq!(ulpdu.len(), fpdu.len());
            assert!(fpdu.contiguous().is_none_or(|whole| whole == ulpdu));
            found.push(ulpdu);
        }
        Err(wrong) => *error = error.or(Some(wrong)),
    };
    for chunk in chunks {
        while let Some(fpdu) = deframer.next_whole(start + taken, chunk, &mut stats) {
            note(&mut error, fpdu);
        }
        if let Err(refused) = deframer.push(start + taken, chunk.to_vec(), &mut stats) {
            error = error.or(Some(refused));
        }
        taken += chunk.len() as u64;
        while let Some(fpdu) = deframer.next_fpdu(&mut stats) {
            note(&mut error, fpdu);
        }
        if error.is_none() {
            assert_eq!(deframer.end(), start + taken, "every byte is held or used up");
        }
    }
    assert_eq!(stats.fpdus_in, found.len() as u64);
    (found, error)
}

/// Delivers the same chunks to a responder without grants: its memory never changes.
fn endpoint(chunks: &[&[u8]], shape: Shape) {
    let config = EndpointConfig { receive_queue: 2, ..EndpointConfig::default() };
    let (mut side, lab) = shape.responder(config, pattern(64, 9));
    for chunk in chunks {
        side.deliver(chunk);
        side.transmit();
    }
    let sent = side.wire.take();
    if shape.crc {
        ulpdus(&sent);
    }
    assert_eq!(side.bytes(lab), pattern(64, 9));
    assert_eq!(side.memory.faults(), 0);
    end(&mut side);
}
