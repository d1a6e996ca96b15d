//! Tests of hostile and faulty peers.

use std::net::IpAddr;

use rdma::Access;
use rdma::mpa::{Framer, fpdu_len};
use rdma::service::{self, Grant};
use tcp_stack::testutil::Random;
use tcp_stack::{CloseReason, ConnId};

use super::client::{Session, TcpSession};
use super::lab::{CHARGEN, CONNECTIONS, DISCARD, ECHO, ENGINE, Lab, REGION, Setup};
use super::{SECOND, assert_bounded, assert_empty, hang_up, open_tcp};
use crate::testutil::ROUGH;

pub(super) const BOTH: Access = Access::from_bits(3).unwrap();
/// Bytes of an MPA frame in front of its private data.
const MPA_HEADER: usize = 20;

/// An MPA Request of revision 1, with CRC.
fn mpa_request(private_data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(private_data.len()).unwrap().to_be_bytes();
    [b"MPA ID Req Frame".as_slice(), &[0x40, 1], &len, private_data].concat()
}

pub(super) fn region_request(name: &str) -> Vec<u8> {
    mpa_request(&service::encode_request(name, BOTH, b"").unwrap())
}

fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = vec![0; fpdu_len(ulpdu.len())];
    Framer::new(true).frame(&mut out, ulpdu.len(), |room| room.copy_from_slice(ulpdu)).unwrap();
    out
}

/// An RDMA Write of these bytes: DDP version 1, tagged, last; RDMAP version 1, opcode 0.
pub(super) fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    fpdu(&[&[0xc1, 0x40], &stag.to_be_bytes()[..], &to.to_be_bytes(), payload].concat())
}

/// Builds the `msn`th Read Request, for `bytes` bytes from the start of the region.
fn read_request(stag: u32, msn: u32, bytes: u32) -> Vec<u8> {
    let queue = [0, 0, 0, 0, 0, 0, 0, 1];
    let sink = [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
    let source = [&bytes.to_be_bytes()[..], &stag.to_be_bytes(), &[0; 8]].concat();
    fpdu(&[&[0x41, 0x41], &queue[..], &msn.to_be_bytes(), &[0; 4], &sink, &source].concat())
}

/// Sends a request by hand and waits for the grant.
fn shake_hands(lab: &mut Lab, never_reads: bool) -> (ConnId, Grant) {
    shake_hands_over(lab, ENGINE.into(), never_reads)
}

/// Completes the handshake with either address of the engine.
pub(super) fn shake_hands_over(lab: &mut Lab, address: IpAddr, never_reads: bool) -> (ConnId, Grant) {
    let script = region_request("lab").into();
    let session = Session::Tcp(TcpSession { script, never_reads, ..TcpSession::default() });
    let conn = lab.connect_to(address, REGION, session);
    lab.run_until("connect", SECOND * 5, |lab| lab.client.tcp(conn).connected);
    let reply = MPA_HEADER + service::REPLY_LEN;
    lab.run_until("the reply", SECOND, |lab| lab.client.tcp(conn).head.len() >= reply);
    let head = &lab.client.tcp(conn).head;
    assert!(head.starts_with(b"MPA ID Rep Frame"));
    let grant = service::decode_reply(&head[MPA_HEADER..reply]).unwrap();
    (conn, grant)
}

pub(super) fn say(lab: &mut Lab, conn: ConnId, bytes: &[u8]) {
    lab.client.tcp(conn).script.extend(bytes);
}

/// An honest peer is served.
pub(super) fn assert_serves(lab: &mut Lab) {
    let conn = lab.connect(REGION, Session::region("lab", BOTH, b"", lab.client.crc));
    lab.run_until("a grant", SECOND * 20, |lab| lab.client.rdma(conn).answer.is_some());
    let local = lab.client.memory.add(vec![0x5a; 100]).unwrap();
    lab.client.write(conn, (local, 0), 50, 1000);
    lab.client.read(conn, (local, 50), 50, 1000);
    lab.run_until("work", SECOND * 20, |lab| lab.client.rdma(conn).completed == 2);
    lab.client.stack.abort(lab.now, conn);
    lab.run_for(SECOND / 100);
}

#[test]
fn random_bytes_are_no_mpa_and_end_the_connection() {
    let mut lab = Lab::new(Setup::default());
    let mut random = Random::new(7);
    for round in 0..200 {
        let mut bytes: Vec<u8> = (0..1 + random.index(3000)).map(|_| random.byte()).collect();
        // Some of them begin well.
        let good = region_request("lab");
        let kept = random.index(good.len()).min(bytes.len()) * (round % 2);
        bytes[..kept].copy_from_slice(&good[..kept]);
        bytes.resize(bytes.len().max(600), 0xee);
        let conn = open_tcp(&mut lab, REGION, Session::script(&bytes));
        lab.client.tcp(conn).ends = true;
        lab.run_until("the end", SECOND * 20, |lab| lab.client.tcp(conn).closed.is_some());
        lab.client.remove(conn);
    }
    let mpa = &lab.engine.rdma_stats().mpa;
    assert!(mpa.refused_key > 50, "{mpa:?}");
    assert!(lab.region_bytes().iter().all(|byte| *byte == 0));
    assert_serves(&mut lab);
    assert_empty(&mut lab);
}

#[test]
fn half_a_request_times_out() {
    let mut lab = Lab::new(Setup::default());
    let good = region_request("lab");
    let conns: Vec<ConnId> = [0, 1, 16, MPA_HEADER, good.len() - 1]
        .into_iter()
        .map(|len| open_tcp(&mut lab, REGION, Session::script(&good[..len])))
        .collect();
    lab.run_for(SECOND * 9);
    assert_eq!(lab.conns(), conns.len(), "they still have time");
    lab.run_for(SECOND * 2);
    for conn in conns {
        assert_eq!(lab.client.tcp(conn).closed, Some(CloseReason::Reset));
    }
    assert_eq!(lab.engine.rdma_stats().mpa.startup_timeouts, 5);
    assert_serves(&mut lab);
    assert_empty(&mut lab);
}

#[test]
fn a_request_sent_byte_by_byte_times_out_too() {
    let mut lab = Lab::new(Setup::default());
    let conn = open_tcp(&mut lab, REGION, Session::script(b"M"));
    for byte in &mpa_request(&[0; 500])[1..] {
        lab.run_for(SECOND / 10);
        if lab.client.tcp(conn).closed.is_some() {
            break;
        }
        say(&mut lab, conn, &[*byte]);
    }
    assert_eq!(lab.client.tcp(conn).closed, Some(CloseReason::Reset));
    assert_eq!(lab.engine.rdma_stats().mpa.startup_timeouts, 1);
    assert_empty(&mut lab);
}

#[test]
fn requests_that_are_wrong_are_refused_by_reason() {
    let mut lab = Lab::new(Setup::default());
    let good = region_request("lab");
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        bad
    };
    let early = [good.clone(), write(1, 0, b"early")].concat();
    let reply = [b"MPA ID Rep Frame".as_slice(), &good[16..]].concat();
    let cases = [with(0, b'm'), with(17, 0), with(17, 3), mpa_request(&[0; 513]), early, reply];
    for case in cases {
        let conn = open_tcp(&mut lab, REGION, Session::script(&case));
        // A rejected peer is given a few seconds to close by itself.
        lab.run_until("the end", SECOND * 8, |lab| {
            let bytes = lab.client.tcp(conn);
            bytes.peer_closed || bytes.closed.is_some()
        });
        lab.client.tcp(conn).ends = true;
    }
    let mpa = lab.engine.rdma_stats().mpa;
    assert_eq!((mpa.refused_key, mpa.refused_revision), (1, 2), "{mpa:?}");
    assert_eq!((mpa.refused_private_data, mpa.refused_early, mpa.refused_role), (1, 1, 1), "{mpa:?}");
    assert_serves(&mut lab);
    assert_empty(&mut lab);
}

#[test]
fn a_damaged_fpdu_is_not_placed() {
    let mut lab = Lab::new(Setup::default());
    let honest = write(0, 0, &[0xaa; 64]).len();
    for at in 0..honest {
        let (conn, grant) = shake_hands(&mut lab, false);
        let mut bad = write(grant.stag.0, 0, &[0xaa; 64]);
        bad[at] ^= 1 << (at % 8);
        // A corrupted, longer length: enough data follows to complete it.
        bad.resize(70_000, 0);
        say(&mut lab, conn, &bad);
        lab.run_until("the end", SECOND * 5, |lab| {
            let bytes = lab.client.tcp(conn);
            bytes.peer_closed || bytes.closed.is_some()
        });
        assert!(lab.region_bytes().iter().all(|byte| *byte == 0), "byte {at} damaged");
        hang_up(&mut lab, &[conn]);
        lab.client.remove(conn);
    }
    let stats = lab.engine.rdma_stats();
    assert_eq!(stats.mpa.crc_errors, honest as u64, "{stats:?}");
    assert_eq!(stats.rdmap.terminates_sent, honest as u64);
    assert_serves(&mut lab);
    assert_empty(&mut lab);
}

#[test]
fn random_messages_with_good_crcs_touch_nothing_that_was_not_granted() {
    let mut lab = Lab::new(Setup::default());
    let mut random = Random::new(11);
    for _ in 0..300 {
        let (conn, grant) = shake_hands(&mut lab, false);
        let mut bytes = Vec::new();
        for _ in 0..1 + random.index(4) {
            let mut ulpdu: Vec<u8> = (0..random.index(100)).map(|_| random.byte()).collect();
            // Plausible first bytes, and never the STag that would be right.
            if let [ddp, rdmap, rest @ ..] = ulpdu.as_mut_slice() {
                (*ddp, *rdmap) = (*ddp & 0xc0 | 1, *rdmap & 0x0f | 0x40);
                if let Some(stag) =
                    rest.first_chunk_mut::<4>().filter(|word| **word == grant.stag.0.to_be_bytes())
                {
                    stag[0] ^= 1;
                }
            }
            bytes.extend(fpdu(&ulpdu));
        }
        say(&mut lab, conn, &bytes);
        lab.client.tcp(conn).ends = true;
        lab.run_until("the end", SECOND * 5, |lab| lab.client.tcp(conn).closed.is_some());
        lab.client.remove(conn);
    }
    assert!(lab.region_bytes().iter().all(|byte| *byte == 0));
    assert!(lab.engine.rdma_stats().rdmap.terminates_sent > 200);
    assert_serves(&mut lab);
    assert_empty(&mut lab);
}

/// Most packet buffers of one connection: a send buffer and a receive window of them, small ones included.
const BUFFERS_BOUND: usize = 2 * (1 << 20) / 1400 + 400;

/// Peers that never read the data that they requested.
#[test]
fn a_peer_that_does_not_read_holds_a_bounded_number_of_buffers() {
    for port in [CHARGEN, ECHO, REGION] {
        let mut lab = Lab::new(Setup::default());
        let conn = if port == REGION {
            let (conn, grant) = shake_hands(&mut lab, true);
            let requests: Vec<u8> =
                (1..=100).flat_map(|msn| read_request(grant.stag.0, msn, 4 << 20)).collect();
            say(&mut lab, conn, &requests);
            conn
        } else {
            let bytes = TcpSession { bulk: 64 << 20, never_reads: true, ..TcpSession::default() };
            open_tcp(&mut lab, port, Session::Tcp(bytes))
        };
        lab.run_for(SECOND * 300);
        assert!(lab.buffers_used_max < BUFFERS_BOUND, "port {port}: {}", lab.buffers_used_max);
        let received = lab.client.tcp(conn).received;
        // The initial window: it grows only as the peer reads.
        assert!((60_000..200_000).contains(&received), "port {port}: {received} bytes");
        assert_eq!(lab.client.tcp(conn).closed, None, "port {port}: slow is not wrong");
        assert_serves(&mut lab);
        lab.client.stack.abort(lab.now, conn);
        // The reset is not at the exact place that RFC 5961 §3 wants: the next probe of the window draws one that is.
        lab.run_until("the end", SECOND * 130, |lab| lab.conns() == 0);
        assert_empty(&mut lab);
    }
}

#[test]
fn more_reads_than_agreed_end_the_stream() {
    let mut lab = Lab::new(Setup::default());
    let (conn, grant) = shake_hands(&mut lab, true);
    // 128 is what the configuration allows; the peer does not read, so none is ever answered whole.
    let requests: Vec<u8> = (1..=130).flat_map(|msn| read_request(grant.stag.0, msn, 4 << 20)).collect();
    say(&mut lab, conn, &requests);
    lab.run_for(SECOND * 30);
    assert_eq!(lab.engine.rdma_stats().drops.no_buffer, 1);
    hang_up(&mut lab, &[conn]);
    assert_serves(&mut lab);
    assert_empty(&mut lab);
}

#[test]
fn a_thousand_connections_that_come_and_go_leave_nothing() {
    let mut lab = Lab::new(Setup { link: ROUGH, time_wait_ms: 100, ..Setup::default() });
    let mut random = Random::new(3);
    for round in 0..1000 {
        let port = [REGION, REGION, ECHO, DISCARD, CHARGEN][random.index(5)];
        let script = match (port, random.index(3)) {
            (REGION, 0) => region_request("lab"),
            (REGION, 1) => region_request("nowhere"),
            (REGION, _) => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            _ => vec![0; random.index(5000)],
        };
        let conn = open_tcp(&mut lab, port, Session::script(&script));
        if random.chance(300_000) {
            hang_up(&mut lab, &[conn]);
        } else {
            lab.client.tcp(conn).ends = true;
            lab.run_until("the end", SECOND * 30, |lab| lab.client.tcp(conn).closed.is_some());
        }
        lab.client.remove(conn);
        assert_bounded(&lab);
        assert!(lab.conns() <= CONNECTIONS as usize, "round {round}");
    }
    // A reset that is lost leaves its connection to the timers of the service, or to the next segment.
    lab.run_until("the last of them", SECOND * 3000, |lab| lab.conns() == 0);
    assert_serves(&mut lab);
    lab.run_until("the last of them", SECOND * 3000, |lab| lab.conns() == 0);
    assert_empty(&mut lab);
}

#[test]
fn connections_in_quick_succession_do_not_accumulate() {
    let mut lab = Lab::new(Setup { time_wait_ms: 1, ..Setup::default() });
    for _ in 0..1000 {
        let conn = open_tcp(&mut lab, REGION, Session::script(&[]));
        lab.client.stack.abort(lab.now, conn);
        lab.run_until("the end", SECOND, |lab| lab.conns() == 0);
        lab.client.remove(conn);
        assert_bounded(&lab);
    }
    assert!(lab.now < tcp_stack::Instant::ZERO + SECOND * 5, "within less than a handshake's time limit");
    assert_empty(&mut lab);
}

/// The engine has closed, and the peer never does: the connection is dropped after a time.
#[test]
fn a_rejected_peer_that_stays_is_dropped() {
    let mut lab = Lab::new(Setup::default());
    let conns: Vec<ConnId> = (0..CONNECTIONS)
        .map(|_| open_tcp(&mut lab, REGION, Session::script(&region_request("nowhere"))))
        .collect();
    for conn in &conns {
        lab.run_until("the end", SECOND * 8, |lab| lab.client.tcp(*conn).peer_closed);
    }
    lab.run_for(SECOND * 300);
    assert_eq!(lab.conns(), 0, "connections are held by peers that do not close");
    assert_serves(&mut lab);
}

#[test]
fn frames_of_garbage_are_dropped_by_reason() {
    let mut lab = Lab::new(Setup::default());
    let (echo, mut random) = (open_tcp(&mut lab, ECHO, Session::Tcp(TcpSession::default())), Random::new(5));
    for _ in 0..20_000 {
        let mut frame: Vec<u8> = (0..random.index(200)).map(|_| random.byte()).collect();
        let good = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6];
        let kept = random.index(good.len() + 1).min(frame.len());
        frame[..kept].copy_from_slice(&good[..kept]);
        lab.inject(frame);
        if random.chance(50_000) {
            lab.poll_once();
        }
    }
    lab.run_for(SECOND / 10);
    let stats = lab.engine.stack().stats();
    assert!(stats.drops.total() >= 19_000, "{stats:?}");
    lab.client.tcp(echo).bulk = 1000;
    lab.run_until("the echo", SECOND, |lab| lab.client.tcp(echo).received == 1000);
    hang_up(&mut lab, &[echo]);
    assert_empty(&mut lab);
}

/// Many tiny segments, or windows that never close, would otherwise pin many buffers.
#[test]
fn a_peer_of_tiny_segments_holds_no_more_buffers_than_others() {
    let mut lab = Lab::new(Setup::default());
    let bytes = TcpSession { bulk: 8 << 20, chunk: 16, never_reads: true, ..TcpSession::default() };
    let conn = open_tcp(&mut lab, ECHO, Session::Tcp(bytes));
    lab.run_for(SECOND * 10);
    assert!(lab.buffers_used_max < BUFFERS_BOUND, "{}", lab.buffers_used_max);
    assert_serves(&mut lab);
    lab.client.stack.abort(lab.now, conn);
    lab.run_until("the end", SECOND * 130, |lab| lab.conns() == 0);
    assert_empty(&mut lab);
}

/// A peer that requested 64 MiB and never reads gets a share of the buffers, not all of them.
#[test]
fn many_peers_that_do_not_read_leave_buffers_to_others() {
    let mut lab = Lab::new(Setup::default());
    let mut conns = Vec::new();
    for _ in 0..16 {
        let (conn, grant) = shake_hands(&mut lab, true);
        let requests: Vec<u8> = (1..=100).flat_map(|msn| read_request(grant.stag.0, msn, 4 << 20)).collect();
        say(&mut lab, conn, &requests);
        lab.run_for(SECOND * 2);
        conns.push(conn);
    }
    lab.run_for(SECOND * 10);
    assert_serves(&mut lab);
    hang_up(&mut lab, &conns);
}
