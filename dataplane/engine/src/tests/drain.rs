//! Tests of drains: connections that end before the daemon does.

use rdma::Access;
use tcp_stack::{CloseReason, ConnId, ListenOptions};

use super::client::{Session, TcpSession};
use super::hostile::region_request;
use super::lab::{CHARGEN, DAYTIME, DISCARD, ECHO, Lab, REGION, Setup};
use super::{SECOND, assert_empty, hang_up, open_tcp};
use crate::ListenerService;

/// Looks at all connections in pages; returns the number of those that have not ended.
fn look(lab: &mut Lab) -> u64 {
    let (mut open, mut from) = (0, Some(0));
    while let Some(at) = from {
        let page = lab.engine.drain(lab.now, at);
        (open, from) = (open + page.open, page.next);
    }
    lab.run_for(SECOND / 20);
    open
}

/// Looks until all connections have ended, at most for `seconds` of virtual time.
fn drain(lab: &mut Lab, seconds: u32) -> u64 {
    (0..seconds * 20).map(|_| look(lab)).find(|open| *open == 0).unwrap_or_else(|| look(lab))
}

fn granted(lab: &mut Lab) -> ConnId {
    let session = Session::region("lab", Access::REMOTE_WRITE, b"", lab.client.crc);
    let conn = lab.connect(REGION, session);
    lab.run_until("a grant", SECOND, |lab| lab.client.rdma(conn).answer.is_some());
    conn
}

#[test]
fn a_drain_accepts_no_connection() {
    let mut lab = Lab::new(Setup::default());
    lab.engine.stop_accepting(lab.now);
    // A reload that was under way.
    lab.engine.listen(ECHO, ListenOptions::default(), ListenerService::Echo).unwrap();
    for port in [REGION, ECHO, DISCARD, CHARGEN, DAYTIME] {
        let conn = lab.connect(port, Session::Tcp(TcpSession::default()));
        lab.run_until("a refusal", SECOND, |lab| lab.client.tcp(conn).closed.is_some());
        assert!(!lab.client.tcp(conn).connected, "{port}");
    }
    assert_eq!(look(&mut lab), 0);
    assert_empty(&mut lab);
}

#[test]
fn idle_connections_are_closed_in_good_order() {
    let mut lab = Lab::new(Setup::default());
    let streams = [granted(&mut lab), granted(&mut lab)];
    let others: Vec<ConnId> = [ECHO, DISCARD]
        .into_iter()
        .map(|port| {
            open_tcp(&mut lab, port, Session::Tcp(TcpSession { bulk: 1000, ..TcpSession::default() }))
        })
        .collect();
    lab.run_for(SECOND * 2);
    lab.engine.stop_accepting(lab.now);
    assert_eq!(look(&mut lab), 4);
    for conn in streams {
        let stream = lab.client.rdma(conn);
        assert!(stream.ended.is_some() && stream.terminated.is_none(), "a FIN");
        assert_ne!(stream.closed, Some(CloseReason::Reset));
    }
    for conn in &others {
        assert!(lab.client.tcp(*conn).peer_closed, "a FIN");
    }
    // The clients of echo and discard never close: they are silent, and have ended for the drain.
    assert_eq!(drain(&mut lab, 1), 0);
    assert_eq!(lab.engine.stags(), 0);
    hang_up(&mut lab, &others);
    assert_empty(&mut lab);
}

#[test]
fn a_connection_in_use_ends_when_it_is_done() {
    let mut lab = Lab::new(Setup::default());
    let conn = granted(&mut lab);
    let source = lab.client.memory.add(vec![0xa5; 4096]).unwrap();
    lab.run_for(SECOND * 2);
    lab.engine.stop_accepting(lab.now);
    for round in 1..=40 {
        lab.client.write(conn, (source, 0), 4096, 0);
        lab.run_for(SECOND / 20);
        assert_eq!(look(&mut lab), 1, "in use");
        assert_eq!(lab.client.rdma(conn).completed, round);
    }
    assert!(lab.client.rdma(conn).ended.is_none());
    assert_eq!(drain(&mut lab, 2), 0);
    assert!(lab.client.rdma(conn).ended.is_some() && lab.client.rdma(conn).terminated.is_none());
}

#[test]
fn a_peer_without_a_request_is_reset_and_one_that_asks_later_is_refused() {
    let mut lab = Lab::new(Setup::default());
    let silent = open_tcp(&mut lab, REGION, Session::Tcp(TcpSession::default()));
    lab.engine.stop_accepting(lab.now);
    assert_eq!(drain(&mut lab, 1), 0);
    assert_eq!(lab.client.tcp(silent).closed, Some(CloseReason::Reset));
    assert_empty(&mut lab);

    let mut lab = Lab::new(Setup::default());
    let asking = open_tcp(&mut lab, REGION, Session::Tcp(TcpSession::default()));
    lab.run_until("a connection", SECOND, |lab| lab.engine.connections() > 0);
    lab.engine.stop_accepting(lab.now);
    lab.client.tcp(asking).script.extend(region_request("lab"));
    lab.run_until("the end", SECOND, |lab| lab.client.tcp(asking).closed.is_some());
    assert!(lab.client.tcp(asking).sent > 0, "the MPA Request has left");
    assert_eq!(lab.engine.rdma_stats().mpa.accepts_out, 0);
    assert_eq!(lab.engine.stags(), 0);
}

#[test]
fn a_generator_is_closed_at_once() {
    let mut lab = Lab::new(Setup::default());
    let conn = open_tcp(&mut lab, CHARGEN, Session::Tcp(TcpSession::default()));
    lab.run_for(SECOND / 100);
    lab.engine.stop_accepting(lab.now);
    look(&mut lab);
    lab.run_until("a FIN", SECOND * 5, |lab| lab.client.tcp(conn).peer_closed);
    assert_eq!(drain(&mut lab, 2), 0);
}
