//! Tests of a full connection table: which connections are evicted for an honest peer, and which stay.

use std::net::IpAddr;

use rdma::Access;
use rdma::service::{Grant, ServiceError};
use tcp_stack::testutil::Random;
use tcp_stack::{CloseReason, ConnId};

use super::client::{Session, TcpSession};
use super::lab::{CHARGEN, CONNECTIONS, DISCARD, ECHO, ENGINE, ENGINE6, Lab, REGION, Setup};
use super::{SECOND, assert_empty, hang_up, open_tcp};

const FAMILIES: [IpAddr; 2] = [IpAddr::V4(ENGINE), IpAddr::V6(ENGINE6)];

/// Opens silent connections to a port, as many as there is room for.
fn fill(lab: &mut Lab, address: IpAddr, ports: &[u16], count: u32) -> Vec<ConnId> {
    let ports = ports.iter().cycle().take(count as usize);
    let conns: Vec<ConnId> = ports
        .map(|port| {
            lab.connect_to(
                address,
                *port,
                Session::Tcp(TcpSession { never_reads: *port == CHARGEN, ..TcpSession::default() }),
            )
        })
        .collect();
    lab.run_until("all to connect", SECOND * 5, |lab| {
        conns.iter().all(|conn| lab.client.tcp(*conn).connected)
    });
    conns
}

fn ask(lab: &mut Lab, address: IpAddr, name: &str) -> ConnId {
    let session = Session::region(name, Access::REMOTE_WRITE, b"", lab.client.crc);
    lab.connect_to(address, REGION, session)
}

/// Requests a region and waits for the reply, for at most a round trip or two.
fn answer(lab: &mut Lab, address: IpAddr, name: &str) -> (ConnId, Result<Grant, ServiceError>) {
    let conn = ask(lab, address, name);
    lab.run_until("an answer", SECOND / 50, |lab| lab.client.rdma(conn).answer.is_some());
    (conn, lab.client.rdma(conn).answer.unwrap())
}

/// Writes to the region, and waits until that is done.
fn put(lab: &mut Lab, conn: ConnId) {
    let source = lab.client.memory.add(vec![7; 100_000]).unwrap();
    let done = lab.client.rdma(conn).completed;
    lab.client.write(conn, (source, 0), 100_000, 0);
    lab.run_until("a Write", SECOND, |lab| lab.client.rdma(conn).completed > done);
}

fn evicted(lab: &mut Lab, conns: &[ConnId]) -> Vec<usize> {
    let is_gone = |(n, conn): (usize, &ConnId)| lab.client.tcp(*conn).closed.map(|reason| (n, reason));
    let gone: Vec<(usize, CloseReason)> = conns.iter().enumerate().filter_map(is_gone).collect();
    assert!(gone.iter().all(|(_, reason)| *reason == CloseReason::Reset), "{gone:?}");
    gone.into_iter().map(|(n, _)| n).collect()
}

#[test]
fn idle_services_are_evicted_for_an_honest_peer() {
    for (crowd, honest) in [(0, 0), (1, 1), (0, 1), (1, 0)].map(|(a, b)| (FAMILIES[a], FAMILIES[b])) {
        for ports in [&[ECHO][..], &[DISCARD], &[ECHO, DISCARD]] {
            let mut lab = Lab::new(Setup::default());
            let conns = fill(&mut lab, crowd, ports, CONNECTIONS);
            lab.run_for(SECOND * 3 / 2);
            let mut streams = Vec::new();
            for n in 1..=5 {
                let (conn, granted) = answer(&mut lab, honest, "lab");
                assert!(granted.is_ok());
                put(&mut lab, conn);
                streams.push(conn);
                assert_eq!(evicted(&mut lab, &conns), (0..n).collect::<Vec<_>>(), "oldest first, {ports:?}");
            }
            assert_eq!(lab.engine.stack().stats().tcp.evicted_table_full, 5);
            lab.engine.stack().audit().unwrap();
            hang_up(&mut lab, &conns);
            hang_up(&mut lab, &streams);
            assert_empty(&mut lab);
        }
    }
}

/// Connections without a complete MPA Request are evicted, even if they send a byte of it now and then, long before the
/// time limit.
#[test]
fn unfinished_handshakes_are_evicted_for_an_honest_peer() {
    for address in FAMILIES {
        for drips in [false, true] {
            let mut lab = Lab::new(Setup::default());
            let conns = fill(&mut lab, address, &[REGION], CONNECTIONS);
            for byte in &b"MPA ID Req Frame"[..12] {
                for conn in conns.iter().filter(|_| drips) {
                    lab.client.tcp(*conn).script.push_back(*byte);
                }
                lab.run_for(SECOND / 10);
            }
            for _ in 0..3 {
                let (conn, granted) = answer(&mut lab, address, "lab");
                assert!(granted.is_ok(), "drips: {drips}");
                put(&mut lab, conn);
            }
            assert_eq!(lab.engine.stack().stats().tcp.evicted_table_full, 3);
        }
    }
}

/// Connections with a grant stay, idle or busy. Further peers are refused, which is counted, until one has ended.
#[test]
fn granted_streams_stay() {
    for address in FAMILIES {
        let mut lab = Lab::new(Setup::default());
        let streams: Vec<ConnId> = (0..CONNECTIONS).map(|_| answer(&mut lab, address, "lab").0).collect();
        lab.run_for(SECOND * 3);
        let late = ask(&mut lab, address, "lab");
        lab.run_for(SECOND * 3);
        assert!(lab.client.rdma(late).answer.is_none());
        let stats = lab.engine.stack().stats();
        assert!(stats.drops.drop_tcp_table_full >= 2 && stats.tcp.evicted_table_full == 0);
        assert!(streams.iter().all(|conn| lab.client.rdma(*conn).closed.is_none()));
        put(&mut lab, streams[17]);
        hang_up(&mut lab, &streams[..1]);
        lab.run_until("the late one", SECOND * 10, |lab| lab.client.rdma(late).answer.is_some());
    }
}

/// Connections that were refused a region, or have ended their stream, are evicted even if they do not close.
#[test]
fn refused_and_ended_streams_are_evicted() {
    for address in FAMILIES {
        let mut lab = Lab::new(Setup::default());
        for n in 0..CONNECTIONS {
            let session = Session::Tcp(TcpSession { never_reads: true, ..TcpSession::default() });
            let conn = lab.connect_to(address, REGION, session);
            // A request for an unknown region: the reply is a refusal, and the peer is expected to close.
            let request = refused_request();
            lab.client.tcp(conn).script.extend(request);
            lab.run_until("the answer", SECOND, |lab| lab.client.tcp(conn).received > 20);
            assert_eq!(lab.conns(), n as usize + 1, "its place is taken");
        }
        lab.run_for(SECOND * 3 / 2);
        assert!(answer(&mut lab, address, "lab").1.is_ok());
        assert_eq!(lab.engine.stack().stats().tcp.evicted_table_full, 1);
    }
}

fn refused_request() -> Vec<u8> {
    let private = rdma::service::encode_request("nowhere", Access::REMOTE_WRITE, b"").unwrap();
    let mut request = b"MPA ID Req Frame".to_vec();
    request.extend([0x40, 1]);
    request.extend(u16::try_from(private.len()).unwrap().to_be_bytes());
    request.extend(private);
    request
}

/// At the limit of a listener, or of a source, connections of the same listener, or source, are evicted, and no others.
#[test]
fn limits_of_a_listener_and_of_a_source_evict_only_their_own() {
    for address in FAMILIES {
        let setup = Setup { connections_per_listener: 20, ..Setup::default() };
        let mut lab = Lab::new(setup);
        let older = fill(&mut lab, address, &[ECHO], 20);
        let silent = fill(&mut lab, address, &[REGION], 20);
        lab.run_for(SECOND * 3 / 2);
        assert!(answer(&mut lab, address, "lab").1.is_ok());
        assert_eq!((evicted(&mut lab, &older), evicted(&mut lab, &silent)), (vec![], vec![0]));
        assert_eq!(lab.engine.stack().stats().tcp.evicted_listener_full, 1);

        let setup = Setup { connections_per_source: 30, ..Setup::default() };
        let mut lab = Lab::new(setup);
        let other = FAMILIES.into_iter().find(|other| *other != address).unwrap();
        let older = fill(&mut lab, other, &[ECHO], 20);
        let silent = fill(&mut lab, address, &[ECHO, REGION], 30);
        lab.run_for(SECOND * 3 / 2);
        assert!(answer(&mut lab, address, "lab").1.is_ok());
        assert_eq!((evicted(&mut lab, &older), evicted(&mut lab, &silent).len()), (vec![], 1));
        assert_eq!(lab.engine.stack().stats().tcp.evicted_source_full, 1);
        // There is room for the other source.
        assert!(answer(&mut lab, other, "lab").1.is_ok());
        assert_eq!(evicted(&mut lab, &older).len() + evicted(&mut lab, &silent).len(), 1);
    }
}

/// Random connections to every service, many more than there is room for, leave nothing behind.
#[test]
fn a_crowd_leaves_nothing_behind() {
    for seed in 1..6 {
        let mut lab = Lab::new(Setup { seed, connections_per_source: 50, ..Setup::default() });
        let mut random = Random::new(seed);
        let mut open = Vec::new();
        for _ in 0..400 {
            let address = FAMILIES[random.index(2)];
            let port = [ECHO, DISCARD, CHARGEN, REGION][random.index(4)];
            let bytes = TcpSession { bulk: 10, never_reads: port == CHARGEN, ..TcpSession::default() };
            open.push(match random.index(4) {
                0 => ask(&mut lab, address, "lab"),
                _ => lab.connect_to(address, port, Session::Tcp(bytes)),
            });
            lab.run_for(SECOND / 50);
            if random.chance(300_000) {
                let at = random.index(open.len());
                let conn = open.swap_remove(at);
                lab.client.stack.abort(lab.now, conn);
            }
            lab.engine.stack().audit().unwrap();
        }
        let stats = lab.engine.stack().stats();
        assert!(stats.tcp.evicted_table_full + stats.tcp.evicted_source_full > 20, "seed {seed}: {stats:?}");
        hang_up(&mut lab, &open);
        assert_empty(&mut lab);
    }
}

/// A busy echo connection stays, no matter how many new connections are opened.
#[test]
fn a_busy_connection_stays() {
    let mut lab = Lab::new(Setup::default());
    let busy = open_tcp(&mut lab, ECHO, Session::Tcp(TcpSession { bulk: 100, ..TcpSession::default() }));
    let conns = fill(&mut lab, FAMILIES[0], &[ECHO], CONNECTIONS - 1);
    for round in 1..=20 {
        lab.run_for(SECOND / 4);
        lab.client.tcp(busy).bulk += 100;
        if round > 4 {
            answer(&mut lab, FAMILIES[1], "lab").1.unwrap();
        }
    }
    lab.run_for(SECOND / 10);
    assert_eq!(lab.client.tcp(busy).received, 2100);
    assert_eq!(evicted(&mut lab, &conns), (0..16).collect::<Vec<_>>());
}
