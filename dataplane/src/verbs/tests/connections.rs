//! Tests of connection establishment and teardown.

use std::num::NonZeroU16;

use iwarp_engine::testutil::{CLEAN, ROUGH};
use rdma::ErrorCode;
use rdma::verbs::{Access, CmEventKind, CmId, ConnParam, Limits, QpState, SendOp, SendWr};
use tcp_stack::Duration;

use super::lab::{Net, Pair, Setup, TIME_LIMIT, address, sge};

const PORT: u16 = 7174;
const SECOND: Duration = Duration::from_secs(1);

fn qp_state(net: &Net, host: usize, pair: &Pair) -> QpState {
    net.hosts[host].verbs.device().query_qp(pair.qp[host]).unwrap().state
}

/// Destroys the program's objects of both ends.
fn take_away(net: &mut Net, pair: &Pair) {
    for (host, id) in pair.id.into_iter().enumerate() {
        let device = net.hosts[host].verbs.device_mut();
        device.destroy_qp(pair.qp[host]).unwrap();
        device.destroy_cq(pair.cq[host]).unwrap();
        device.dealloc_pd(pair.pd[host]).unwrap();
        device.destroy_id(id).unwrap();
    }
}

fn wait_for(net: &mut Net, host: usize, id: CmId) -> CmEventKind {
    let mut kind = None;
    net.run_until("an event", TIME_LIMIT, |net| {
        kind = net.hosts[host].take_event(id);
        kind.is_some()
    });
    kind.unwrap()
}

/// Opens and closes a thousand connections, alternating the closing end: nothing is left.
#[test]
fn connections_leave_nothing_behind() {
    let mut net = Net::new(Setup { time_wait_ms: 10, ..Setup::default() });
    net.listen(PORT);
    for round in 0..1000 {
        let pair = net.connect(PORT, 4);
        let closer = round % 2;
        let now = net.now;
        net.hosts[closer].verbs.disconnect(pair.id[closer], now);
        for host in [0, 1] {
            net.run_until("the end", TIME_LIMIT, |net| qp_state(net, host, &pair) == QpState::Error);
        }
        take_away(&mut net, &pair);
        for host in &mut net.hosts {
            host.events.clear();
        }
    }
    net.assert_empty();
    let stats = net.hosts.each_ref().map(|host| *host.verbs.rdma_cm_stats());
    assert_eq!((stats[0].opened, stats[1].accepted), (1000, 1000));
    assert_eq!(net.hosts[1].verbs.stack().stats().tcp.resets_out, 0);
}

#[test]
fn both_ends_get_one_disconnect_event() {
    for link in [CLEAN, ROUGH] {
        let mut net = Net::new(Setup { link, ..Setup::default() });
        net.listen(PORT);
        let pair = net.connect(PORT, 4);
        let now = net.now;
        net.hosts[0].verbs.disconnect(pair.id[0], now);
        assert_eq!(wait_for(&mut net, 0, pair.id[0]), CmEventKind::Disconnected);
        let mut told = wait_for(&mut net, 1, pair.id[1]);
        if let CmEventKind::Established { .. } = told {
            told = wait_for(&mut net, 1, pair.id[1]);
        }
        assert_eq!(told, CmEventKind::Disconnected);
        net.run_for(SECOND);
        assert!(net.hosts.iter().all(|host| host.events.is_empty()));
    }
}

#[test]
fn a_rejected_initiator_gets_the_private_data() {
    let mut net = Net::new(Setup::default());
    net.listen(PORT);
    let (_, _, qp) = net.hosts[0].queue_pair(4);
    let device = net.hosts[0].verbs.device_mut();
    let id = device.create_id(None).unwrap();
    let param = ConnParam { private_data: b"let me in", ..ConnParam::default() };
    device.connect(id, qp, address(1, PORT), &param).unwrap();
    net.run_until("a request", TIME_LIMIT, |net| !net.hosts[1].events.is_empty());
    let event = net.hosts[1].events.pop_front().unwrap();
    let CmEventKind::ConnectRequest { private_data, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(*private_data, *b"let me in");
    net.hosts[1].verbs.device_mut().reject(event.id, b"not today").unwrap();
    let CmEventKind::Rejected { private_data } = wait_for(&mut net, 0, id) else { panic!("not rejected") };
    assert_eq!(*private_data, *b"not today");
    net.hosts[1].verbs.device_mut().destroy_id(event.id).unwrap();
    net.hosts[0].verbs.device_mut().destroy_id(id).unwrap();
    net.run_for(SECOND * 70);
    net.assert_empty();
}

#[test]
fn nobody_listens() {
    let mut net = Net::new(Setup::default());
    let (_, _, qp) = net.hosts[0].queue_pair(4);
    let device = net.hosts[0].verbs.device_mut();
    let id = device.create_id(None).unwrap();
    device.connect(id, qp, address(1, PORT), &ConnParam::default()).unwrap();
    assert_eq!(wait_for(&mut net, 0, id), CmEventKind::Refused);
    assert_eq!(net.hosts[0].verbs.device().query_qp(qp).unwrap().state, QpState::Error);
    net.assert_empty();
}

#[test]
fn nobody_answers() {
    let mut net = Net::new(Setup::default());
    net.listen(PORT);
    let (_, _, qp) = net.hosts[0].queue_pair(4);
    net.cut = true;
    let device = net.hosts[0].verbs.device_mut();
    let id = device.create_id(None).unwrap();
    device.connect(id, qp, address(1, PORT), &ConnParam::default()).unwrap();
    net.run_until("the time limit", SECOND * 300, |net| !net.hosts[0].events.is_empty());
    assert_eq!(wait_for(&mut net, 0, id), CmEventKind::Unreachable);
    assert_eq!(net.hosts[0].verbs.device().query_qp(qp).unwrap().state, QpState::Error);
    net.assert_empty();
}

/// An id destroyed while its stream is being opened leaves nothing behind.
#[test]
fn an_opening_connection_can_be_destroyed() {
    for turns in (0..200).step_by(7) {
        let mut net = Net::new(Setup { seed: turns, ..Setup::default() });
        net.listen(PORT);
        let (_, _, qp) = net.hosts[0].queue_pair(4);
        let device = net.hosts[0].verbs.device_mut();
        let id = device.create_id(None).unwrap();
        device.connect(id, qp, address(1, PORT), &ConnParam::default()).unwrap();
        for _ in 0..turns {
            net.poll_once();
        }
        net.hosts[0].verbs.device_mut().destroy_id(id).unwrap();
        assert_eq!(net.hosts[0].verbs.device().query_qp(qp).unwrap().state, QpState::Error);
        net.run_for(SECOND);
        net.hosts[1].events.clear();
        assert_eq!(net.hosts[0].verbs.connections(), 0);
        net.assert_empty();
    }
}

#[test]
fn listeners_have_an_address_of_ours_and_a_port_of_their_own() {
    let mut net = Net::new(Setup::default());
    net.listen(PORT);
    let device = net.hosts[1].verbs.device_mut();
    let twice = device.create_id(Some(address(1, PORT))).unwrap();
    let foreign = device.create_id(Some(address(0, PORT + 1))).unwrap();
    let any = device.create_id(Some("0.0.0.0:7200".parse().unwrap())).unwrap();
    for id in [twice, foreign, any] {
        device.listen(id, NonZeroU16::MIN, &ConnParam::default()).unwrap();
    }
    assert_eq!(wait_for(&mut net, 1, twice), CmEventKind::AddressError);
    assert_eq!(wait_for(&mut net, 1, foreign), CmEventKind::AddressError);
    net.connect(7200, 4);
    // Destroyed objects can be created again.
    net.hosts[1].verbs.device_mut().destroy_id(any).unwrap();
    net.poll_once();
    let again = net.hosts[1].verbs.device_mut().create_id(Some(address(1, 7200))).unwrap();
    net.hosts[1].verbs.device_mut().listen(again, NonZeroU16::MIN, &ConnParam::default()).unwrap();
    net.connect(7200, 4);
}

/// A connection request beyond the listener's backlog is reset, and counted.
#[test]
fn a_full_backlog_resets() {
    let mut net = Net::new(Setup::default());
    let device = net.hosts[1].verbs.device_mut();
    let id = device.create_id(Some(address(1, PORT))).unwrap();
    device.listen(id, NonZeroU16::MIN, &ConnParam::default()).unwrap();
    let ids: Vec<CmId> = (0..3)
        .map(|_| {
            let (_, _, qp) = net.hosts[0].queue_pair(4);
            let device = net.hosts[0].verbs.device_mut();
            let id = device.create_id(None).unwrap();
            device.connect(id, qp, address(1, PORT), &ConnParam::default()).unwrap();
            id
        })
        .collect();
    net.run_until("resets", SECOND * 9, |net| net.hosts[0].events.len() == 2);
    assert!(
        net.hosts[0]
            .events
            .iter()
            .all(|event| event.kind == CmEventKind::ConnectError { code: ErrorCode::TCP_LOST })
    );
    let server = &net.hosts[1].verbs;
    assert_eq!(server.rdma_cm_stats().drop_backlog + server.device().stats().requests_refused, 2);
    assert_eq!((ids.len(), server.device().stats().silent_evicted), (3, 0));
}

/// Opens connections without an MPA Request, up to the peer's limit: beyond the limit, the connection that was silent
/// longest is reset, and an honest peer is served at once.
#[test]
fn silent_connections_do_not_block_others() {
    for count in [1, 7, 8, 9, 14] {
        // Half of the server's sixteen connections may be silent; so may half of its ids.
        let limits = Limits { qps: 32, ids: 64, cqe_max: 4096, ..Limits::default() };
        let mut net = Net::new(Setup { limits, ..Setup::default() });
        net.listen(PORT);
        net.payload_max = Box::new(|_| 0);
        let silent: Vec<CmId> = (0..count)
            .map(|at| {
                let (_, _, qp) = net.hosts[0].queue_pair(4);
                let device = net.hosts[0].verbs.device_mut();
                let id = device.create_id(None).unwrap();
                device.connect(id, qp, address(1, PORT), &ConnParam::default()).unwrap();
                net.run_until("a connection", SECOND, |net| net.hosts[1].verbs.rdma_cm_stats().accepted > at);
                id
            })
            .collect();
        let evicted = count.saturating_sub(8);
        assert_eq!(net.hosts[1].verbs.device().stats().silent_evicted, evicted);
        let ports = silent.iter().filter_map(|id| net.hosts[0].verbs.device().addresses(*id).ok()?.0);
        let ports: Vec<u16> = ports.map(|local| local.port()).collect();
        // Connections that were not evicted are still open.
        net.run_for(SECOND / 1000);
        let gone = silent.iter().map(|id| net.hosts[0].take_event(*id)).collect::<Vec<_>>();
        let evicted = usize::try_from(evicted).unwrap();
        assert!(
            gone[..evicted]
                .iter()
                .all(|kind| *kind == Some(CmEventKind::ConnectError { code: ErrorCode::TCP_LOST })),
            "{gone:?}"
        );
        assert!(gone[evicted..].iter().all(Option::is_none), "{gone:?}");
        net.payload_max = Box::new(move |port| if ports.contains(&port) { 0 } else { usize::MAX });
        let began = net.now;
        let pair = net.connect(PORT, 4);
        assert!(net.now.saturating_since(began) < SECOND / 100, "{count}: served at once");
        assert_eq!(qp_state(&net, 0, &pair), QpState::Rts);
        assert_eq!(net.hosts[1].verbs.rdma_cm_stats().drop_backlog, 0);
    }
}

/// A peer that is silent forever: its connection ends, and its work is flushed.
#[test]
fn a_peer_that_disappears() {
    let mut net = Net::new(Setup::default());
    net.listen(PORT);
    let pair = net.connect(PORT, 4);
    net.run_for(SECOND / 100);
    net.cut = true;
    let now = net.now;
    net.hosts[0].verbs.disconnect(pair.id[0], now);
    assert_eq!(wait_for(&mut net, 0, pair.id[0]), CmEventKind::Disconnected);
    net.run_for(SECOND * 130);
    assert_eq!(net.hosts[0].verbs.connections(), 0, "what the peer never acknowledges is given up");
    assert_eq!(qp_state(&net, 1, &pair), QpState::Rts);
}

/// A program's peer that begins an FPDU and never ends it: the packet buffer that holds its begin is in the budget of
/// retained data, and the time limit of an incomplete FPDU resets the connection.
#[test]
fn an_incomplete_fpdu_is_in_the_budget_and_times_out() {
    let mut net = Net::new(Setup::default());
    net.listen(PORT);
    let pair = net.connect(PORT, 4);
    let (_, from) = net.hosts[0].reg(pair.pd[0], vec![0x5a; 1000], Access::LOCAL_READ);
    net.payload_max = Box::new(|_| 600);
    let list = [sge(&from, 0, 1000)];
    let send = SendWr::new(1, SendOp::SEND, &list);
    net.hosts[0].verbs.device_mut().post_send(pair.qp[0], &send).unwrap();
    let retained = |net: &Net| {
        let stats = net.hosts[1].verbs.stack().stats();
        (stats.kept_buffers, stats.retained_buffers)
    };
    net.run_until("the begin of the FPDU", SECOND, |net| retained(net) == (1, 1));
    // Otherwise the sender would find a path MTU at which its segments arrive whole.
    net.cut = true;
    let began = net.now;
    let timeouts = |net: &Net| net.hosts[1].verbs.rdma_stats().drops.fpdu_timeout;
    net.run_until("the time limit", SECOND * 121, |net| timeouts(net) == 1);
    assert!(net.now.saturating_since(began) >= SECOND * 119);
    assert_eq!(wait_for(&mut net, 1, pair.id[1]), CmEventKind::Disconnected);
    assert_eq!(qp_state(&net, 1, &pair), QpState::Error);
    net.run_until("its buffer", SECOND, |net| retained(net) == (0, 0));
}
