//! Tests of connections closed by an operator.

use rdma::Access;
use tcp_stack::{CloseReason, ConnId};

use super::client::{Session, TcpSession};
use super::lab::{CHARGEN, CLIENT, CLIENT6, DISCARD, ECHO, ENGINE, ENGINE6, Lab, REGION, Setup};
use super::{SECOND, assert_empty, hang_up};
use crate::ConnRow;
use crate::ConnSelector;

/// Closes the selected connections in pages of `max`; returns the connections closed.
fn close(lab: &mut Lab, selector: ConnSelector, max: usize) -> Vec<ConnRow> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let before = all.len();
        from =
            lab.engine.conns_close(lab.now, at, max, &|row| selector.has(0, row), &mut |row| all.push(row));
        assert!(all.len() - before <= max, "a page of {max}");
        lab.run_for(SECOND / 100);
    }
    all
}

/// Two sessions with each service over each family, the region's with a grant.
fn open_all(lab: &mut Lab) -> Vec<(u16, bool, ConnId)> {
    let mut open = Vec::new();
    for (address, is_v6) in [(ENGINE.into(), false), (ENGINE6.into(), true)] {
        for port in [ECHO, DISCARD, CHARGEN, REGION, ECHO, DISCARD, CHARGEN, REGION] {
            let session = match port {
                REGION => Session::region("lab", Access::REMOTE_WRITE, b"", lab.client.crc),
                _ => Session::Tcp(TcpSession {
                    bulk: 1000,
                    never_reads: port == CHARGEN,
                    ..TcpSession::default()
                }),
            };
            let conn = lab.connect_to(address, port, session);
            if port == REGION {
                lab.run_until("a grant", SECOND, |lab| lab.client.rdma(conn).answer.is_some());
            } else {
                lab.run_until("connect", SECOND, |lab| lab.client.tcp(conn).connected);
            }
            open.push((port, is_v6, conn));
        }
    }
    open
}

fn end_of(lab: &mut Lab, port: u16, conn: ConnId) -> Option<CloseReason> {
    if port == REGION { lab.client.rdma(conn).closed } else { lab.client.tcp(conn).closed }
}

#[test]
fn closing_resets_the_selected_connections_and_no_others() {
    let host = |v6: bool| {
        ConnSelector::Peer(if v6 { std::net::IpAddr::from(CLIENT6) } else { CLIENT.into() }.into())
    };
    type IsMeant = fn(u16, bool) -> bool;
    let choices: [(ConnSelector, IsMeant); 7] = [
        (host(false), |_, v6| !v6),
        (host(true), |_, v6| v6),
        (ConnSelector::Peer("fd77::/64".parse().unwrap()), |_, v6| v6),
        (ConnSelector::Peer("10.77.1.0/24".parse().unwrap()), |_, _| false),
        (ConnSelector::Listener(REGION), |port, _| port == REGION),
        (ConnSelector::Listener(ECHO), |port, _| port == ECHO),
        (ConnSelector::Listener(99), |_, _| false),
    ];
    for (max, (selector, is_meant)) in [64, 1, 3, 2, 64, 5, 64].into_iter().zip(choices) {
        let mut lab = Lab::new(Setup::default());
        let open = open_all(&mut lab);
        let closed = close(&mut lab, selector, max);
        let meant = open.iter().filter(|(port, v6, _)| is_meant(*port, *v6)).count();
        assert_eq!(closed.len(), meant, "{selector:?}");
        assert!(closed.iter().all(|row| is_meant(row.tcp.local.port(), row.tcp.local.is_ipv6())));
        for (port, v6, conn) in &open {
            let expected = is_meant(*port, *v6).then_some(CloseReason::Reset);
            assert_eq!(end_of(&mut lab, *port, *conn), expected, "{selector:?}, port {port}");
        }
        assert_eq!(close(&mut lab, selector, max).len(), 0, "they are closed once");
        let rest: Vec<ConnId> =
            open.into_iter().filter(|(p, v6, _)| !is_meant(*p, *v6)).map(|stream| stream.2).collect();
        assert_eq!(lab.conns(), rest.len());
        hang_up(&mut lab, &rest);
        assert_empty(&mut lab);
    }
}

#[test]
fn one_connection_is_closed_by_place_and_generation() {
    let mut lab = Lab::new(Setup::default());
    let open = open_all(&mut lab);
    let mut id = None;
    lab.engine.conns(0, &mut |row| {
        id = Some(row.id);
        row.tcp.local.port() != DISCARD
    });
    let id = id.unwrap();
    let generation = id.generation() & ConnSelector::GENERATION_MASK;
    for (port, wrong) in [(0, generation + 1), (1, generation)] {
        let selector = ConnSelector::One { port, index: id.index(), generation: wrong };
        assert!(close(&mut lab, selector, 64).is_empty(), "another connection had that number");
    }
    let closed = close(&mut lab, ConnSelector::One { port: 0, index: id.index(), generation }, 64);
    assert_eq!(closed.iter().map(|row| (row.id, row.service)).collect::<Vec<_>>(), [(id, "discard")]);
    let ended = open.iter().filter(|(port, _, conn)| end_of(&mut lab, *port, *conn).is_some()).count();
    assert_eq!(ended, 1);
}

/// A grant is revoked when the operator gets the reply, even with a Write in flight.
#[test]
fn closing_revokes_grants_at_once() {
    let mut lab = Lab::new(Setup::default());
    let open = open_all(&mut lab);
    let streams: Vec<ConnId> =
        open.iter().filter(|(port, ..)| *port == REGION).map(|stream| stream.2).collect();
    let source = lab.client.memory.add(vec![0xa5; 1 << 20]).unwrap();
    for conn in &streams {
        lab.client.write(*conn, (source, 0), 1 << 20, 0);
    }
    lab.run_for(SECOND / 10_000);
    assert_eq!(lab.engine.stags(), streams.len());
    let before = lab.region_bytes().to_vec();
    let selector = ConnSelector::Listener(REGION);
    let next = lab.engine.conns_close(lab.now, 0, 64, &|row| selector.has(0, row), &mut |_| {});
    assert_eq!((next, lab.engine.stags()), (None, 0));
    lab.run_for(SECOND);
    assert!(lab.region_bytes() == before, "nothing is placed any more");
    assert!(before.contains(&0xa5) && before.contains(&0), "midway");
    for conn in &streams {
        assert!(lab.client.rdma(*conn).closed.is_some());
    }
}
