//! Tests of the region service: Writes and Reads over good and bad links, and refused requests.

use rdma::service::{Grant, ServiceError, Status};
use rdma::{Access, CrcPolicy, ErrorCode, LocalSlice, RegionId, Stag};
use tcp_stack::testutil::Random;
use tcp_stack::{ConnId, Duration};

use super::client::{Session, fill};
use super::lab::{ENGINE, ENGINE6, Lab, REGION, Setup, TOKEN};
use super::{SECOND, assert_bounded, assert_empty};
use crate::StreamIds;
use crate::testutil::{CLEAN, ROUGH};

const BOTH: Access = Access::from_bits(3).unwrap();
/// Longer than all retransmissions on a rough link.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Asks for a region and waits for the answer.
fn open(lab: &mut Lab, name: &str, access: Access, token: &[u8]) -> (ConnId, Result<Grant, ServiceError>) {
    let session = Session::region(name, access, token, lab.client.crc);
    let conn = lab.connect(REGION, session);
    let answer = wait_for_answer(lab, conn);
    (conn, answer)
}

fn wait_for_answer(lab: &mut Lab, conn: ConnId) -> Result<Grant, ServiceError> {
    lab.run_until("an answer", TIME_LIMIT, |lab| lab.client.rdma(conn).answer.is_some());
    lab.client.rdma(conn).answer.unwrap()
}

/// Ends a stream in good order.
fn close(lab: &mut Lab, conn: ConnId) {
    lab.client.established(conn).1.disconnect(Duration::ZERO);
    lab.run_until("the end", TIME_LIMIT, |lab| lab.client.rdma(conn).ended.is_some() && lab.conns() == 0);
}

/// Waits for `completions` completions on a stream.
fn wait_for(lab: &mut Lab, conn: ConnId, completions: u64) {
    lab.run_until("completions", TIME_LIMIT, |lab| lab.client.rdma(conn).completed >= completions);
}

/// Waits until the peer has ended the stream, and returns its Terminate.
fn wait_for_end(lab: &mut Lab, conn: ConnId) -> Option<ErrorCode> {
    lab.run_until("the peer's end", TIME_LIMIT, |lab| {
        let stream = lab.client.rdma(conn);
        stream.ended.is_some() || stream.closed.is_some()
    });
    lab.client.rdma(conn).terminated
}

/// Writes all of the region in pieces of all lengths, in any order, reads it back in others, compares.
fn put_and_get(lab: &mut Lab, conn: ConnId, random: &mut Random) {
    let bytes = lab.region_bytes().len();
    let mut source = vec![0; bytes];
    fill(random.next() >> 1, &mut source);
    let from = lab.client.memory.add(source.clone()).unwrap();
    let to = lab.client.memory.add(vec![0; bytes]).unwrap();
    for reading in [false, true] {
        for (at, len) in pieces(bytes, random) {
            let before = lab.client.rdma(conn).completed;
            if reading {
                lab.client.read(conn, (to, at), len, at);
            } else {
                lab.client.write(conn, (from, at), len, at);
            }
            if random.chance(200_000) {
                wait_for(lab, conn, before + 1);
            }
            lab.run_until("a place in the queue", TIME_LIMIT, |lab| {
                lab.client.established(conn).1.info().work_pending < 32
            });
        }
        lab.run_until("all work", TIME_LIMIT, |lab| lab.client.established(conn).1.info().work_pending == 0);
    }
    assert!(lab.client.memory.bytes(to) == Some(&source[..]), "read back");
    assert!(lab.region_bytes() == &source[..], "in the region");
    assert_eq!(lab.engine.memory().faults(), 0);
}

/// Returns pieces that cover `bytes` bytes once each, shuffled.
fn pieces(bytes: usize, random: &mut Random) -> Vec<(u64, u32)> {
    let (mut at, mut pieces) = (0, Vec::new());
    while at < bytes {
        let longest = [1, 7, 64, 1500, 5000, 70_000, 1 << 20][random.index(7)];
        let len = (1 + random.index(longest)).min(bytes - at);
        pieces.push((at as u64, u32::try_from(len).unwrap()));
        at += len;
    }
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, random.index(last + 1));
    }
    pieces
}

/// Runs one stream from open to close over a link; returns the network afterwards.
fn live(setup: Setup, address: std::net::IpAddr) -> Lab {
    let (mut lab, mut random) = (Lab::new(setup), Random::new(setup.seed));
    let session = Session::region("lab", BOTH, b"", setup.crc);
    let conn = lab.connect_to(address, REGION, session);
    let grant = wait_for_answer(&mut lab, conn).unwrap();
    assert_eq!((grant.access, grant.base_to, grant.bytes), (BOTH, 0, setup.lab_bytes as u64));
    put_and_get(&mut lab, conn, &mut random);
    assert_eq!(lab.client.rdma(conn).terminated, None, "seed {}", setup.seed);
    close(&mut lab, conn);
    let tcp = lab.engine.stack().stats().tcp;
    assert_eq!((tcp.resets_out, tcp.resets_received), (0, 0), "seed {}", setup.seed);
    let rdmap = &lab.engine.rdma_stats().rdmap;
    assert_eq!(rdmap.payload_bytes_placed, setup.lab_bytes as u64, "each byte placed once");
    assert_eq!((rdmap.terminates_sent, rdmap.terminates_received), (0, 0));
    assert_empty(&mut lab);
    lab
}

/// Copies are deferred, and slower than the link: the connection stalls, its window closes, and nothing is lost.
#[test]
fn put_and_get_with_deferred_copies() {
    for (link, polls_per_copy, markers, seed) in
        [(CLEAN, 1, false, 1), (CLEAN, 7, true, 2), (ROUGH, 1, false, 3), (ROUGH, 5, true, 4)]
    {
        let setup = Setup { link, polls_per_copy, markers, seed, lab_bytes: 1 << 20, ..Setup::default() };
        let lab = live(setup, ENGINE.into());
        assert!(lab.engine.held_is_empty(), "data is held");
    }
}

#[test]
fn put_and_get_over_a_good_link() {
    for (mtu, crc) in [(1500, CrcPolicy::Required), (9000, CrcPolicy::Required), (576, CrcPolicy::IfPeerAsks)]
    {
        let setup = Setup { mtu, crc, seed: u64::from(mtu), ..Setup::default() };
        let lab = live(setup, ENGINE.into());
        assert_eq!(lab.engine.stack().stats().tcp.retransmits, 0, "nothing was lost");
    }
}

/// A peer that takes 52 bytes at a time: the shortest FPDU that RFC 5044 lets us cut to needs three segments.
#[test]
fn a_peer_with_the_smallest_segments_is_answered() {
    let mut lab = Lab::new(Setup { mtu: 104, lab_bytes: 64 << 10, ..Setup::default() });
    let bytes = lab.region_bytes().len();
    let (conn, answer) = open(&mut lab, "lab", BOTH, b"");
    assert_eq!((answer.unwrap().bytes, lab.client.stack.emss(conn)), (bytes as u64, 52));
    let to = lab.client.memory.add(vec![1; bytes]).unwrap();
    lab.client.read(conn, (to, 0), u32::try_from(bytes).unwrap(), 0);
    wait_for(&mut lab, conn, 1);
    assert!(lab.client.memory.bytes(to) == Some(lab.region_bytes()));
    close(&mut lab, conn);
    assert_empty(&mut lab);
}

#[test]
fn put_and_get_over_ipv6() {
    live(Setup { lab_bytes: 1 << 20, seed: 6, ..Setup::default() }, ENGINE6.into());
}

#[test]
fn put_and_get_over_a_link_that_loses_and_reorders() {
    for seed in 1..=6 {
        let lab = live(Setup { link: ROUGH, seed, ..Setup::default() }, ENGINE.into());
        assert!(lab.engine.stack().stats().tcp.retransmits > 0, "seed {seed}: nothing was lost");
        assert!(lab.engine.stack().stats().tcp.held_segments > 0, "seed {seed}: nothing was reordered");
    }
}

#[test]
fn several_streams_at_once_keep_to_their_own() {
    let mut lab = Lab::new(Setup { lab_bytes: 1 << 20, link: ROUGH, ..Setup::default() });
    let conns: Vec<ConnId> = (0..16).map(|_| open(&mut lab, "lab", BOTH, b"").0).collect();
    assert_eq!(lab.engine.region_grants(lab.lab), 16);
    let part = lab.region_bytes().len() / conns.len();
    let mut expected = vec![0; lab.region_bytes().len()];
    for (index, part) in expected.chunks_mut(part).enumerate() {
        fill((index as u64) << 32, part);
    }
    let source = lab.client.memory.add(expected.clone()).unwrap();
    for (index, conn) in conns.iter().enumerate() {
        let at = (index * part) as u64;
        lab.client.write(*conn, (source, at), u32::try_from(part).unwrap(), at);
    }
    // A Read behind a Write of the same stream returns when the Write is placed.
    let sink = lab.client.memory.add(vec![0; 16]).unwrap();
    for conn in &conns {
        lab.client.read(*conn, (sink, 0), 1, 0);
        wait_for(&mut lab, *conn, 2);
    }
    assert!(lab.region_bytes() == &expected[..]);
    assert_bounded(&lab);
}

#[test]
fn the_service_refuses_with_a_status() {
    let mut lab = Lab::new(Setup { grants: 2, ..Setup::default() });
    let refusals: [(&str, Access, &[u8], Status); 7] = [
        ("nowhere", BOTH, b"", Status::NoSuchRegion),
        ("lab-ro", Access::REMOTE_WRITE, b"", Status::NotPermitted),
        ("lab", Access::REMOTE_ATOMIC, b"", Status::NotPermitted),
        ("secret", BOTH, b"", Status::NotPermitted),
        ("secret", BOTH, b"open sesamf", Status::NotPermitted),
        ("secret", BOTH, b"open sesame!", Status::NotPermitted),
        ("fenced", BOTH, b"", Status::NotPermitted),
    ];
    for (name, access, token, status) in refusals {
        let (conn, answer) = open(&mut lab, name, access, token);
        assert_eq!(answer, Err(ServiceError::Refused(status)), "{name}");
        lab.run_until("the end", SECOND, |lab| lab.client.rdma(conn).ended.is_some() && lab.conns() == 0);
    }
    let conn = lab.connect(REGION, Session::initiator(b"IWR1 what?".to_vec(), CrcPolicy::Required));
    assert_eq!(wait_for_answer(&mut lab, conn), Err(ServiceError::Refused(Status::Malformed)));
    for name in ["admitted", "secret"] {
        assert!(open(&mut lab, name, BOTH, TOKEN).1.is_ok(), "{name}");
    }
    assert_eq!(open(&mut lab, "lab", BOTH, b"").1, Err(ServiceError::Refused(Status::NoResources)));
    let counted = lab.engine.rdma_stats().service;
    assert_eq!((counted.no_such_region, counted.not_permitted, counted.malformed), (1, 6, 1));
    assert_eq!((counted.granted, counted.no_resources), (2, 1));
}

/// Posts a Read or a Write with an STag of the caller's choice.
fn post(lab: &mut Lab, conn: ConnId, reads: bool, (region, len): (RegionId, u32), stag: Stag, to: u64) {
    let local = LocalSlice { region, offset: 0, len };
    let endpoint = lab.client.established(conn).1;
    let posted =
        if reads { endpoint.post_read(0, local, stag, to) } else { endpoint.post_write(0, local, stag, to) };
    posted.unwrap();
}

/// A grant of one stream is invalid on another, even 2³² or 2³³ streams later, and at the numbers around them.
#[test]
fn a_grant_is_valid_on_its_own_stream_only() {
    for given in [1 << 32, 1 << 33, 1 << 48].into_iter().flat_map(|wrap: u64| wrap - 3..wrap + 1) {
        let mut lab = Lab::new(Setup::default());
        let (first, grant) = open(&mut lab, "lab", BOTH, b"");
        let stag = grant.unwrap().stag;
        lab.engine.streams = StreamIds::after(given);
        let local = lab.client.memory.add(vec![0xff; 64]).unwrap();
        for reads in [false, true, false, true] {
            let (second, _) = open(&mut lab, "lab", BOTH, b"");
            post(&mut lab, second, reads, (local, 8), stag, 0);
            lab.run_until("the end", SECOND, |lab| lab.client.rdma(second).ended.is_some());
            let told = lab.client.rdma(second).terminated.map(|code| (code.layer, code.etype, code.code));
            assert_eq!(told, Some(if reads { (0, 1, 3) } else { (1, 1, 2) }), "after {given} streams");
        }
        // The end of the other streams has not revoked it.
        lab.client.write(first, (local, 0), 64, 0);
        lab.client.read(first, (local, 0), 64, 0);
        wait_for(&mut lab, first, 2);
        assert_eq!(lab.region_bytes()[..64], [0xff; 64]);
    }
}

/// Forbidden accesses of a peer, each with its Terminate.
#[test]
fn an_access_that_was_not_granted_ends_the_stream_and_touches_nothing() {
    let end = Setup::default().lab_bytes as u64;
    // (layer, error type, code), the rights granted, a Read rather than a Write, bits of the STag changed, TO, length.
    let cases: [([u8; 3], Access, bool, u32, u64, u32); 9] = [
        ([1, 1, 1], BOTH, false, 0, end - 9, 10),
        ([1, 1, 1], BOTH, false, 0, 1 << 40, 1),
        ([1, 1, 3], BOTH, false, 0, u64::MAX, 2),
        ([1, 1, 0], BOTH, false, 1, 0, 8),
        ([1, 1, 0], BOTH, false, 1 << 31, 0, 8),
        ([1, 1, 0], Access::REMOTE_READ, false, 0, 0, 8),
        ([0, 1, 1], BOTH, true, 0, end - 9, 10),
        ([0, 1, 0], BOTH, true, 0x100, 0, 8),
        ([0, 1, 2], Access::REMOTE_WRITE, true, 0, 0, 8),
    ];
    let mut lab = Lab::new(Setup::default());
    let local = lab.client.memory.add(vec![0xff; 64]).unwrap();
    for (code, access, reads, flip, to, len) in cases {
        let (conn, answer) = open(&mut lab, "lab", access, b"");
        let stag = Stag(answer.unwrap().stag.0 ^ flip);
        post(&mut lab, conn, reads, (local, len), stag, to);
        let terminated = wait_for_end(&mut lab, conn);
        let [layer, etype, code] = code;
        assert_eq!(terminated, Some(ErrorCode { layer, etype, code }), "{access:?} {reads} {to:#x}+{len}");
    }
    assert!(lab.region_bytes().iter().all(|byte| *byte == 0), "the region is touched");
    // Another stream's STag, that stream being alive.
    let (other, answer) = open(&mut lab, "lab", BOTH, b"");
    let (conn, _) = open(&mut lab, "lab", BOTH, b"");
    post(&mut lab, conn, false, (local, 8), answer.unwrap().stag, 0);
    assert_eq!(wait_for_end(&mut lab, conn), Some(ErrorCode { layer: 1, etype: 1, code: 2 }));
    assert!(lab.region_bytes().iter().all(|byte| *byte == 0), "the region is touched");
    // The other stream continues.
    lab.client.write(other, (local, 0), 8, 3);
    lab.client.read(other, (local, 32), 16, 0);
    wait_for(&mut lab, other, 2);
    assert_eq!(&lab.region_bytes()[..12], [0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0]);
    close(&mut lab, other);
    assert_empty(&mut lab);
}

#[test]
fn a_revoked_region_is_not_accessed() {
    let mut lab = Lab::new(Setup::default());
    let (conn, _) = open(&mut lab, "lab", BOTH, b"");
    let local = lab.client.memory.add(vec![7; 4096]).unwrap();
    lab.client.write(conn, (local, 0), 4096, 100);
    lab.client.read(conn, (local, 0), 1, 0);
    wait_for(&mut lab, conn, 2);
    let region = lab.lab;
    assert_eq!(lab.engine.region_hide("lab", region), 1);
    assert_eq!(open(&mut lab, "lab", BOTH, b"").1, Err(ServiceError::Refused(Status::NoSuchRegion)));
    assert_eq!((lab.engine.region_revoke(region), lab.engine.region_grants(region)), (1, 0));
    let before = lab.region_bytes().to_vec();
    lab.client.write(conn, (local, 0), 4096, 0);
    assert_eq!(wait_for_end(&mut lab, conn), Some(ErrorCode { layer: 1, etype: 1, code: 0 }));
    assert!(lab.region_bytes() == before);
    lab.run_until("the end", SECOND, |lab| lab.conns() == 0);
    assert_empty(&mut lab);
}

#[test]
fn a_read_of_a_revoked_region_stops() {
    let mut lab = Lab::new(Setup::default());
    let (conn, _) = open(&mut lab, "lab", BOTH, b"");
    let bytes = lab.region_bytes().len();
    let sink = lab.client.memory.add(vec![0; bytes]).unwrap();
    lab.client.read(conn, (sink, 0), u32::try_from(bytes).unwrap(), 0);
    lab.run_until("a part", SECOND, |lab| lab.engine.rdma_stats().rdmap.payload_bytes_fetched > 100_000);
    lab.engine.region_revoke(lab.lab);
    let fetched = lab.engine.rdma_stats().rdmap.payload_bytes_fetched;
    assert!(fetched < bytes as u64);
    assert_eq!(wait_for_end(&mut lab, conn).map(|code| code.layer), Some(0));
    assert_eq!(lab.client.rdma(conn).completed, 0);
    assert_eq!(lab.engine.rdma_stats().rdmap.payload_bytes_fetched, fetched);
    lab.run_until("the end", SECOND, |lab| lab.conns() == 0);
    assert_empty(&mut lab);
}
