//! A service that offers memory as a client of the device: its connections have no queue pairs, its listener has
//! settings of its own, and peers that never ask do not lock out those that do.

use std::collections::VecDeque;

use rdma::testutil::verbs::*;
use rdma::verbs::*;
use rdma::{EndpointConfig, Env, RegionId, Scope, StreamId};

const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };

/// Creates the service's listener on node 1.
fn service(net: &mut Net, config: EndpointConfig) -> CmId {
    let listener = net.nodes[1].device.create_listener(address(1), config, Owner::Region(None)).unwrap();
    net.nodes[1].listener = Some(listener);
    listener
}

/// Connects node 0 with the service. Returns the initiator's objects and the service's id.
fn request(net: &mut Net) -> (Party, CmId) {
    let a = party(&mut net.nodes[0], CAP, None, 1);
    let param = ConnParam { private_data: b"name", ..ConnParam::default() };
    net.nodes[0].device.connect(a.id, a.qp, address(1), &param).unwrap();
    net.run();
    let event = net.nodes[1].cm.pop().unwrap();
    let CmEventKind::ConnectRequest { private_data, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(&*private_data, b"name");
    (a, event.id)
}

#[test]
fn a_connection_without_a_queue_pair_serves_memory() {
    let mut net = Net::new();
    service(&mut net, EndpointConfig::default());
    assert_eq!(net.nodes[1].device.poll_transport(), None, "the adapter listens already");
    let (a, id) = request(&mut net);
    let Node { device, stags, memory, .. } = &mut net.nodes[1];
    assert_eq!(device.owner(id), Some(Owner::Region(None)), "the listener's");
    device.set_owner(id, Owner::Region(Some(RegionId(3)))).unwrap();
    assert_eq!(device.owner(id), Some(Owner::Region(Some(RegionId(3)))));
    assert!(!device.is_evictable(id), "it waits for an answer");
    let region = memory.add(vec![5; 4096]).unwrap();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let stag = stags.grant(region, 4096, access, Scope::Stream(device.stream(id).unwrap())).unwrap();
    assert_eq!(device.accept_without_qp(id, &[0; 600], None), Err(VerbsError::Invalid));
    device.accept_without_qp(id, b"granted", None).unwrap();
    assert_eq!(device.accept_without_qp(id, b"", None), Err(VerbsError::State), "it is answered");
    net.run();
    assert_eq!(net.nodes[1].device.accept_without_qp(id, b"", None), Err(VerbsError::State));
    assert!(matches!(net.nodes[0].cm.pop().unwrap().kind, CmEventKind::Established { .. }));
    assert!(matches!(net.nodes[1].cm.pop().unwrap().kind, CmEventKind::Established { .. }));
    a.post(&mut net.nodes[0], 1, SendOp::RdmaRead { rkey: stag, remote_addr: 8 }, &[a.mr.sge(0, 100)]);
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, WcStatus::Success)]);
    assert_eq!(net.nodes[0].bytes(&a.mr)[..100], [5; 100]);
    let info = net.nodes[1].device.stream_info(id).unwrap();
    assert_eq!((info.counters.in_reads, info.work_pending), (1, 0));
    // The grant ends with the stream.
    net.nodes[0].device.destroy_id(a.id).unwrap();
    net.run();
    let Node { device, stags, cm, .. } = &mut net.nodes[1];
    assert_eq!(cm.pop().map(|event| (event.id, event.kind)), Some((id, CmEventKind::Disconnected)));
    assert!(device.is_evictable(id) && stags.is_empty());
    device.destroy_id(id).unwrap();
    assert_eq!(device.owner(id), None);
}

#[test]
fn a_send_to_a_connection_without_a_queue_pair_ends_it() {
    let mut net = Net::new();
    service(&mut net, EndpointConfig::default());
    let (a, id) = request(&mut net);
    net.nodes[1].device.accept_without_qp(id, b"", None).unwrap();
    net.run();
    a.post(&mut net.nodes[0], 1, SEND, &[a.mr.sge(0, 8)]);
    net.run();
    assert!(matches!(net.nodes[0].async_events()[..], [AsyncEvent::QpTerminated(..)]));
    assert_eq!(net.nodes[1].async_events(), []);
    assert_eq!(net.nodes[1].cm.pop().unwrap().kind, CmEventKind::Disconnected);
}

#[test]
fn a_listener_has_settings_of_its_own() {
    for (ird_max, ord_max) in [(1, 2), (4, 3), (16, 16)] {
        let mut net = Net::new();
        let mut config = EndpointConfig::default();
        (config.mpa.ird_max, config.mpa.ord_max) = (ird_max, ord_max);
        service(&mut net, config);
        let (_, id) = request(&mut net);
        net.nodes[1].device.accept_without_qp(id, b"", None).unwrap();
        net.run();
        let info = net.nodes[1].device.stream_info(id).unwrap();
        assert_eq!((info.ird, info.ord), (ird_max, ord_max));
    }
}

/// The order of eviction is that of arrival, whichever connections have left the list in between.
#[test]
fn the_oldest_silent_connection_gives_way() {
    let mut random = tcp_stack::testutil::Random::new(20);
    let mut net = Net::with(Limits { silent: 50, ids: 64, ..Limits::default() });
    let listener = service(&mut net, EndpointConfig::default());
    let Node { device, stags, memory, stats, .. } = &mut net.nodes[1];
    let mut model: VecDeque<CmId> = VecDeque::new();
    for stream in 0..5000 {
        if model.len() == 50 {
            assert!(device.make_room(listener));
            let oldest = model.pop_front().unwrap();
            let Some(TransportRequest::Close { id, .. }) = device.poll_transport() else { panic!() };
            assert_eq!(id, oldest);
            device.closed(id, stags);
        }
        let ends = (address(1), address(0));
        let id = device.incoming(listener, StreamId(stream), ends, net.now).unwrap();
        assert!(device.is_evictable(id));
        model.push_back(id);
        // Some peers hang up, wherever they are in the list.
        if random.below(3) == 0 {
            let gone = model.remove(random.below(model.len() as u64) as usize).unwrap();
            device.peer_closed(gone, net.now, stats);
            device.transport_lost(gone);
            while let Some(request) = device.poll_transport() {
                if let TransportRequest::Close { id, .. } = request {
                    device.closed(id, stags);
                }
            }
            assert!(device.addresses(gone).is_err());
        }
        if random.below(4) == 0 && !model.is_empty() {
            // Bytes that are no MPA Request yet keep a connection silent.
            let id = model[random.below(model.len() as u64) as usize];
            device.receive(id, net.now, 0, Vec::new(), &mut Env { stags, memory, stats });
        }
    }
    assert!(device.stats().silent_evicted > 1000, "{}", device.stats().silent_evicted);
}
