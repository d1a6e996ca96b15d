//! FPDUs: any octets are survived, and a stream of FPDUs gives the same ULPDUs however it is cut.

use super::Input;
use crate::common::octets;
use crate::common::octets::{REQUEST, mpa, ulpdus};
use crate::common::{BOTH, Side, pattern};
use rdma::mpa::{Deframer, DeframerConfig, FpduError, MpaStats};
use rdma::service::encode_request;
use rdma::{CrcPolicy, EndpointConfig, Event};

/// The first octet chooses CRC and kind; then come the octets, or what the ULPDUs are made of, and how it is cut.
pub(crate) fn fpdu_stream(data: &[u8]) {
    let mut input = Input(data);
    let bits = input.byte();
    let crc = bits & 1 == 0;
    if bits & 2 == 0 {
        let (stream, ulpdus, broken) = stream(&mut input, crc);
        let chunks = input.cut(&stream);
        let (found, error) = deframe(&chunks, crc);
        match broken {
            // The FPDUs before it, and an error.
            Some(whole) => assert!(found == ulpdus[..whole] && error == Some(FpduError::Crc)),
            None => assert!(found == ulpdus && error.is_none(), "{error:?}"),
        }
        endpoint(&chunks, crc);
    } else {
        let chunks = Input(&[7, 0, 250, 1, 63, 64, 65]).cut(input.0);
        let (_, error) = deframe(&chunks, crc);
        assert!(matches!(error, None | Some(FpduError::Crc)), "{error:?}");
        endpoint(&chunks, crc);
    }
}

/// A stream, its ULPDUs, and how many of them come before one that is damaged.
fn stream(input: &mut Input<'_>, crc: bool) -> (Vec<u8>, Vec<Vec<u8>>, Option<usize>) {
    let (mut stream, mut ulpdus, mut broken) = (Vec::new(), Vec::new(), None);
    for index in 0..usize::from(input.byte() % 12) {
        let len = match input.byte() {
            len @ 0..200 => usize::from(len),
            200..250 => input.below(1500),
            _ => usize::from(input.u16()),
        };
        let ulpdu = if input.sometimes() { input.take(len).to_vec() } else { pattern(len, index as u8) };
        let mut fpdu = octets::fpdu(&ulpdu);
        // Not in the length, which would move all that follows.
        if crc && broken.is_none() && input.sometimes() {
            let at = 2 + input.below(fpdu.len() - 2);
            fpdu[at] ^= 1 << (input.byte() % 8);
            broken = Some(index);
        }
        stream.extend(fpdu);
        ulpdus.push(ulpdu);
    }
    (stream, ulpdus, broken)
}

/// The ULPDUs that come out of the stream, and the error that ends it.
fn deframe(chunks: &[&[u8]], crc: bool) -> (Vec<Vec<u8>>, Option<FpduError>) {
    let mut stats = MpaStats::default();
    let (start, mut taken) = (1 << 40, 0);
    let mut deframer = Deframer::new(start, DeframerConfig { crc, ..DeframerConfig::default() });
    let (mut found, mut error) = (Vec::new(), None);
    for chunk in chunks {
        if let Err(refused) = deframer.push(start + taken, chunk.to_vec(), &mut stats) {
            error = error.or(Some(refused));
        }
        taken += chunk.len() as u64;
        while let Some(fpdu) = deframer.next_fpdu(&mut stats) {
            match fpdu {
                Ok(fpdu) => {
                    assert!(error.is_none(), "an FPDU behind an error");
                    let ulpdu: Vec<u8> = fpdu.pieces(0).flatten().copied().collect();
                    assert_eq!(ulpdu.len(), fpdu.len());
                    assert!(fpdu.contiguous().is_none_or(|whole| whole == ulpdu));
                    found.push(ulpdu);
                }
                Err(wrong) => error = error.or(Some(wrong)),
            }
        }
        if error.is_none() {
            assert_eq!(deframer.end(), start + taken, "every octet is held or used up");
        }
    }
    assert_eq!(stats.fpdus_in, found.len() as u64);
    (found, error)
}

/// The same chunks to a responder without a right to be had: whatever they say, its memory stays as it is.
fn endpoint(chunks: &[&[u8]], crc: bool) {
    let mut config = EndpointConfig { receive_queue: 2, ..EndpointConfig::default() };
    config.mpa.crc = if crc { CrcPolicy::Required } else { CrcPolicy::IfPeerAsks };
    let mut side = Side::responder(config);
    let lab = side.add_region("lab", pattern(64, 9), BOTH);
    let mut request = mpa(REQUEST, 2, 2, &encode_request("lab", rdma::Access::NONE, b"").unwrap());
    if !crc {
        request[16] &= !0x40;
    }
    side.deliver(&request);
    side.transmit();
    assert_eq!(side.endpoint.info().crc, crc);
    side.wire.take();
    for chunk in chunks {
        side.deliver(chunk);
        side.transmit();
    }
    let sent = side.wire.take();
    if crc {
        ulpdus(&sent);
    }
    assert_eq!(side.bytes(lab), pattern(64, 9));
    assert_eq!(side.memory.faults(), 0);
    side.endpoint.transport_lost();
    side.collect();
    let closed = |event: &&Event| matches!(event, Event::Close { .. });
    assert_eq!(side.events.iter().filter(closed).count(), 1);
    assert!(side.events.last().is_some_and(|event| closed(&event)), "{:?}", side.events);
}
