//! Tests of echo, discard, chargen and daytime, and of the shutdown.

use tcp_stack::testutil::LinkConfig;
use tcp_stack::{BufClass, BufPool, CloseReason, ConnId, Duration, State};

use super::client::{Session, TcpSession};
use super::lab::{CHARGEN, CONNECTIONS, DAYTIME, DISCARD, ECHO, ENGINE, ENGINE6, Lab, REGION, Setup};
use super::{SECOND, assert_empty, hang_up, open_tcp};
use crate::testutil::{CLEAN, ROUGH};

fn stream(bulk: u64, chunk: usize) -> Session {
    Session::Tcp(TcpSession { bulk, chunk, ends: true, ..TcpSession::default() })
}

fn closed(lab: &mut Lab, conn: ConnId) -> bool {
    lab.client.tcp(conn).closed.is_some()
}

#[test]
fn echo_returns_every_byte_and_then_closes() {
    for (seed, (link, bulk, chunk)) in (1..).zip([
        (CLEAN, 3_000_000, 0),
        (CLEAN, 30_000, 1),
        (CLEAN, 0, 0),
        (ROUGH, 3_000_000, 700),
        (ROUGH, 5, 1),
    ]) {
        let mut lab = Lab::new(Setup { link, seed, ..Setup::default() });
        let conn = lab.connect(ECHO, stream(bulk, chunk));
        lab.run_until("the end", SECOND * 100, |lab| closed(lab, conn));
        let bytes = lab.client.tcp(conn);
        assert_eq!((bytes.received, bytes.wrong), (bulk, 0), "seed {seed}");
        assert_eq!((bytes.peer_closed, bytes.closed), (true, Some(CloseReason::Normal)), "seed {seed}");
        assert_empty(&mut lab);
    }
}

/// Other connections hold all data buffers: received bytes are sent back in the buffers that they arrived in.
#[test]
fn echo_continues_without_a_free_buffer() {
    for chunk in [0, 100] {
        let mut lab = Lab::new(Setup::default());
        let conn = open_tcp(&mut lab, ECHO, stream(400_000, chunk));
        let mut taken = Vec::new();
        lab.run_until("the end", SECOND * 100, |lab| {
            taken.extend(std::iter::from_fn(|| lab.pool.alloc(BufClass::Data)));
            closed(lab, conn)
        });
        let bytes = lab.client.tcp(conn);
        assert_eq!((bytes.received, bytes.wrong), (400_000, 0), "chunks of {chunk}");
        assert_eq!(bytes.closed, Some(CloseReason::Normal));
        assert_eq!(lab.engine.service_stats().echo_copied_aside, 0);
        drop(taken);
        assert_empty(&mut lab);
    }
}

/// The path MTU shrinks while bytes wait in buffers filled for longer segments.
#[test]
fn echo_continues_when_segments_become_shorter() {
    for (seed, reports_too_big) in (1..).zip([true, false]) {
        let mut lab = Lab::new(Setup { seed, ..Setup::default() });
        let bytes = TcpSession { bulk: 2_000_000, never_reads: true, ..TcpSession::default() };
        let conn = open_tcp(&mut lab, ECHO, Session::Tcp(bytes));
        lab.run_for(SECOND);
        let unread = lab.client.tcp(conn).received;
        lab.rewire(LinkConfig { mtu: 1100, reports_too_big, ..CLEAN });
        lab.client.start_reading(conn);
        lab.run_until("the echo", SECOND * 200, |lab| lab.client.tcp(conn).received >= 2_000_000);
        let bytes = lab.client.tcp(conn);
        assert_eq!((bytes.received, bytes.wrong), (2_000_000, 0), "seed {seed}");
        assert!(unread < 2_000_000 && lab.engine.stack().stats().tcp.splits > 0, "segments were to be cut");
        hang_up(&mut lab, &[conn]);
        assert_empty(&mut lab);
    }
}

#[test]
fn discard_accepts_everything_and_sends_nothing() {
    let mut lab = Lab::new(Setup { link: ROUGH, ..Setup::default() });
    let conn = lab.connect(DISCARD, stream(5_000_000, 0));
    lab.run_until("the end", SECOND * 100, |lab| closed(lab, conn));
    assert_eq!(lab.client.tcp(conn).received, 0);
    assert_eq!(lab.engine.service_stats().discard_bytes, 5_000_000);
    assert_empty(&mut lab);
}

#[test]
fn chargen_sends_lines_until_the_peer_closes() {
    let mut lab = Lab::new(Setup::default());
    let conn = lab.connect(CHARGEN, Session::script(b"never_reads ears"));
    lab.run_until("lines", SECOND * 5, |lab| lab.client.tcp(conn).received > 1_000_000);
    let head = lab.client.tcp(conn).head.clone();
    let ring: Vec<u8> = (b' '..=b'~').collect();
    for (number, line) in head.chunks_exact(74).enumerate() {
        let expected = (0..72).map(|column| ring[(number + column) % ring.len()]).chain(*b"\r\n");
        assert!(line.iter().copied().eq(expected), "line {number}: {}", line.escape_ascii());
    }
    assert!(head.len() > 60_000);
    lab.client.tcp(conn).ends = true;
    lab.run_until("the end", SECOND * 5, |lab| closed(lab, conn));
    assert_empty(&mut lab);
}

/// RFC 867: the daemon sends one line and closes first, regardless of what the peer sends and when it closes.
#[test]
fn daytime_sends_the_time_and_closes_first() {
    for (address, mtu) in
        [(ENGINE.into(), 1500), (ENGINE6.into(), 1500), (ENGINE6.into(), 1280), (ENGINE.into(), 576)]
    {
        for (link, bulk, ends) in
            [(CLEAN, 0, false), (CLEAN, 5000, false), (CLEAN, 0, true), (ROUGH, 5000, true)]
        {
            let mut lab = Lab::new(Setup { link, mtu, ..Setup::default() });
            lab.run_for(SECOND * 10);
            let wall = Duration::from_secs(383_276_263);
            lab.engine.set_wall_clock(lab.now, wall);
            lab.run_for(SECOND * 86_400);
            let session = Session::Tcp(TcpSession { bulk, ends, ..TcpSession::default() });
            let conn = lab.connect_to(address, DAYTIME, session);
            lab.run_until("the line", SECOND * 5, |lab| lab.client.tcp(conn).peer_closed);
            let line = String::from_utf8(lab.client.tcp(conn).head.clone()).unwrap();
            let expected = "Wednesday, February 24, 1982 01:37:43-UTC\r\n";
            assert!(line.len() == expected.len() && line.starts_with(&expected[..36]), "{line}");
            if !ends {
                lab.run_for(SECOND / 10);
                let states = lab.engine.stack().stats().states;
                assert_eq!(states.get(State::FinWait2), 1, "it waits for the peer to close, too");
            }
            lab.client.tcp(conn).ends = true;
            lab.run_until("the end", SECOND * 5, |lab| closed(lab, conn));
            assert_eq!(lab.client.tcp(conn).closed, Some(CloseReason::Normal));
            let stats = lab.engine.stack().stats();
            assert_eq!(stats.tcp.resets_out, 0);
            // A peer that closes as soon as it is connected is the first to close.
            assert!(ends || stats.time_wait_now == 1, "TIME-WAIT is ours");
            assert_eq!(lab.engine.service_stats().daytime_connections, 1);
            assert_empty(&mut lab);
        }
    }
}

/// The line waits until there is a buffer for it.
#[test]
fn daytime_waits_for_a_buffer() {
    let mut lab = Lab::new(Setup::default());
    let taken: Vec<_> = std::iter::from_fn(|| lab.pool.alloc(BufClass::Data)).collect();
    let conn = open_tcp(&mut lab, DAYTIME, Session::Tcp(TcpSession { ends: true, ..TcpSession::default() }));
    lab.run_for(SECOND / 10);
    assert_eq!(lab.client.tcp(conn).received, 0);
    drop(taken);
    lab.run_until("the end", SECOND, |lab| closed(lab, conn));
    assert_eq!(lab.client.tcp(conn).head, b"Thursday, January 1, 1970 00:00:00-UTC\r\n");
    assert_empty(&mut lab);
}

#[test]
fn a_shutdown_resets_every_connection() {
    let mut lab = Lab::new(Setup::default());
    let conns: Vec<ConnId> = [ECHO, DISCARD, CHARGEN, REGION]
        .into_iter()
        .map(|port| open_tcp(&mut lab, port, Session::Tcp(TcpSession { bulk: 1, ..TcpSession::default() })))
        .collect();
    lab.engine.abort_all(lab.now);
    for conn in conns {
        lab.run_until("the reset", SECOND, |lab| closed(lab, conn));
        assert_eq!(lab.client.tcp(conn).closed, Some(CloseReason::Reset));
    }
    assert_empty(&mut lab);
}

#[test]
fn a_full_table_rejects_new_connections_and_keeps_serving() {
    let mut lab = Lab::new(Setup::default());
    let open = |lab: &mut Lab| open_tcp(lab, ECHO, Session::Tcp(TcpSession::default()));
    let conns: Vec<ConnId> = (0..CONNECTIONS).map(|_| open(&mut lab)).collect();
    let late = lab.connect(ECHO, Session::Tcp(TcpSession { bulk: 10, ends: true, ..TcpSession::default() }));
    lab.run_for(SECOND / 2);
    assert!(!lab.client.tcp(late).connected);
    assert!(lab.engine.stack().stats().drops.drop_tcp_table_full > 0);
    for conn in &conns {
        lab.client.tcp(*conn).bulk = 1000;
        lab.run_until("the echo", SECOND, |lab| lab.client.tcp(*conn).received == 1000);
    }
    hang_up(&mut lab, &conns);
    // Its SYN is retransmitted.
    lab.run_until("the late one", SECOND * 10, |lab| closed(lab, late));
    assert_eq!(lab.client.tcp(late).received, 10);
    assert_empty(&mut lab);
}
