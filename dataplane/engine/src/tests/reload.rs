//! Tests of reloads: listeners, limits and grants that change while the engine runs.

use rdma::service::{Prefix, RegionEntry, Token};
use rdma::{Access, EndpointConfig, ErrorCode, RegionId};
use tcp_stack::{ConnId, ListenOptions};

use super::client::{Session, TcpSession};
use super::lab::{CLIENT, ECHO, ENGINE, ENGINE6, Lab, REGION, Setup};
use super::{SECOND, open_tcp};
use crate::{GrantRule, ListenerService, ListenerSetup};

const BOTH: Access = Access::from_bits(3).unwrap();
const INVALID_STAG: Option<(u8, u8, u8)> = Some((1, 1, 0));

fn granted(lab: &mut Lab, v6: bool, access: Access) -> ConnId {
    let session = Session::region("lab", access, b"", lab.client.crc);
    let address = if v6 { ENGINE6.into() } else { ENGINE.into() };
    let conn = lab.connect_to(address, REGION, session);
    lab.run_until("a grant", SECOND, |lab| lab.client.rdma(conn).answer.is_some());
    assert!(lab.client.rdma(conn).answer.unwrap().is_ok());
    conn
}

fn revoke(lab: &mut Lab, rule: &GrantRule) -> u64 {
    let (mut revoked, mut from) = (0, Some(0));
    while let Some(at) = from {
        let (count, next) = lab.engine.revoke_unless(rule, at);
        (revoked, from) = (revoked + count, next);
    }
    revoked
}

/// Writes to the region, and returns the Terminate that this brings.
fn written(lab: &mut Lab, conn: ConnId) -> Option<(u8, u8, u8)> {
    let source = lab.client.memory.add(vec![0xa5; 64]).unwrap();
    lab.client.write(conn, (source, 0), 64, 0);
    lab.run_for(SECOND / 10);
    lab.client.rdma(conn).terminated.map(|ErrorCode { layer, etype, code }| (layer, etype, code))
}

#[test]
fn grants_that_the_rule_permits_stay_and_others_are_revoked() {
    let rule = |lab: &Lab| GrantRule { region: lab.lab, access: BOTH, allow: Vec::new(), none: false };
    let v6 = Prefix::new(ENGINE6.into(), 64).unwrap();
    type Change = fn(&mut GrantRule, Prefix);
    // Which grants stay: writing over IPv4, writing over IPv6, reading over IPv4.
    let cases: [(Change, [bool; 3]); 5] = [
        (|_, _| {}, [true, true, true]),
        (|rule, _| rule.access = Access::REMOTE_READ, [false, false, true]),
        (|rule, v6| rule.allow = vec![v6], [false, true, false]),
        (|rule, _| rule.none = true, [false, false, false]),
        (|rule, _| (rule.region, rule.none) = (RegionId(77), true), [true, true, true]),
    ];
    for (change, stays) in cases {
        let mut lab = Lab::new(Setup::default());
        let mut rule = rule(&lab);
        change(&mut rule, v6);
        let conns = [(false, BOTH), (true, BOTH), (false, Access::REMOTE_READ)]
            .map(|(v6, access)| granted(&mut lab, v6, access));
        let revoked = stays.iter().filter(|stays| !**stays).count();
        assert_eq!(revoke(&mut lab, &rule), revoked as u64, "{rule:?}");
        assert_eq!(lab.engine.stags(), 3 - revoked, "{rule:?}");
        for (conn, stays) in conns.into_iter().zip(stays).take(2) {
            assert_eq!(written(&mut lab, conn), if stays { None } else { INVALID_STAG }, "{rule:?}");
        }
        assert_eq!(revoke(&mut lab, &rule), 0, "they are revoked once");
    }
}

#[test]
fn a_changed_region_is_granted_by_its_new_rules() {
    let mut lab = Lab::new(Setup::default());
    let entry = RegionEntry {
        name: "lab".to_owned(),
        region: lab.lab,
        offset: 0,
        bytes: 4 << 20,
        access: Access::REMOTE_READ,
        token: Token::new(b"new"),
        allow: vec![Prefix::new(CLIENT.into(), 32).unwrap()],
    };
    lab.engine.change_region(entry);
    for (access, token, permitted) in [
        (Access::REMOTE_WRITE, b"new".as_slice(), false),
        (Access::REMOTE_READ, b"old", false),
        (Access::REMOTE_READ, b"new", true),
    ] {
        let session = Session::region("lab", access, token, lab.client.crc);
        let conn = lab.connect(REGION, session);
        lab.run_until("an answer", SECOND, |lab| lab.client.rdma(conn).answer.is_some());
        assert_eq!(lab.client.rdma(conn).answer.unwrap().is_ok(), permitted);
    }
}

#[test]
fn a_listener_is_removed_and_its_connections_stay() {
    let mut lab = Lab::new(Setup::default());
    let stream = granted(&mut lab, false, BOTH);
    let echo = open_tcp(&mut lab, ECHO, Session::Tcp(TcpSession { bulk: 1000, ..TcpSession::default() }));
    lab.run_until("both connections", SECOND, |lab| lab.engine.connections() == 2);
    for port in [REGION, ECHO, 999] {
        lab.engine.remove_listener(lab.now, port);
    }
    for port in [REGION, ECHO] {
        let conn = lab.connect(port, Session::Tcp(TcpSession::default()));
        lab.run_until("a refusal", SECOND, |lab| lab.client.tcp(conn).closed.is_some());
        assert!(!lab.client.tcp(conn).connected);
    }
    assert_eq!(written(&mut lab, stream), None);
    assert_eq!(lab.client.rdma(stream).completed, 1);
    lab.run_until("the echo", SECOND, |lab| lab.client.tcp(echo).received == 1000);
    let setup = ListenerSetup {
        port: REGION,
        options: ListenOptions::default(),
        service: ListenerService::Region(EndpointConfig::default()),
    };
    lab.engine.listen(setup.port, setup.options, setup.service).unwrap();
    granted(&mut lab, true, BOTH);
}

#[test]
fn a_listener_changes_its_limits_and_its_service() {
    let mut lab = Lab::new(Setup::default());
    let stream = granted(&mut lab, false, BOTH);
    let options = ListenOptions { connections_max: 1, ..ListenOptions::default() };
    let region = ListenerService::Region(EndpointConfig::default());
    let change = |lab: &mut Lab, service: &ListenerService, options| {
        let setup = ListenerSetup { port: REGION, options, service: service.clone() };
        lab.engine.change_listener(lab.now, setup).unwrap();
    };
    change(&mut lab, &region, options);
    let second = lab.connect(REGION, Session::region("lab", BOTH, b"", lab.client.crc));
    lab.run_for(SECOND / 2);
    assert!(lab.client.rdma(second).answer.is_none(), "the listener has its only connection");
    lab.client.stack.abort(lab.now, second);
    change(&mut lab, &ListenerService::Echo, ListenOptions::default());
    let echo = open_tcp(&mut lab, REGION, Session::Tcp(TcpSession { bulk: 1000, ..TcpSession::default() }));
    lab.run_until("the echo", SECOND, |lab| lab.client.tcp(echo).received == 1000);
    change(&mut lab, &ListenerService::Discard, ListenOptions::default());
    let session = Session::Tcp(TcpSession { bulk: 1000, ends: true, ..TcpSession::default() });
    let discard = open_tcp(&mut lab, REGION, session);
    lab.run_until("the end", SECOND, |lab| lab.client.tcp(discard).peer_closed);
    assert_eq!(lab.client.tcp(discard).received, 0);
    change(&mut lab, &region, ListenOptions::default());
    granted(&mut lab, true, BOTH);
    assert_eq!(written(&mut lab, stream), None, "the first one has outlived all of it");
}

#[test]
fn limits_hold_for_new_grants_and_connections() {
    let mut lab = Lab::new(Setup::default());
    granted(&mut lab, false, BOTH);
    lab.engine.set_limits(1, u32::MAX);
    let refused = lab.connect(REGION, Session::region("lab", BOTH, b"", lab.client.crc));
    lab.run_until("an answer", SECOND, |lab| lab.client.rdma(refused).answer.is_some());
    assert!(lab.client.rdma(refused).answer.unwrap().is_err());
    lab.engine.set_limits(64, 1);
    let other = lab.connect(ECHO, Session::Tcp(TcpSession::default()));
    lab.run_for(SECOND / 2);
    assert!(!lab.client.tcp(other).connected, "the source has a connection");
    lab.engine.set_limits(64, u32::MAX);
    granted(&mut lab, false, BOTH);
}
