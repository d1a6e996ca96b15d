//! Immediate Data and Sends of a peer to a region that a local program watches: they consume no buffer, tell how many
//! bytes were written before, and end the stream if nobody watches.

use rdma::testutil::verbs::*;
use rdma::verbs::*;
use rdma::{EndpointConfig, Notified, Scope};

/// Connects node 0 with a service of node 1 that grants it a region of [`MEMORY`] bytes.
fn granted(net: &mut Net) -> (Party, RegionId, Stag) {
    let listener =
        net.nodes[1].device.create_listener(address(1), EndpointConfig::default(), Owner::Region(None));
    net.nodes[1].listener = Some(listener.unwrap());
    let a = party(&mut net.nodes[0], CAP, None, 1);
    net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
    net.run();
    let id = net.nodes[1].cm.pop().unwrap().id;
    let Node { device, stags, memory, .. } = &mut net.nodes[1];
    let region = memory.add(vec![0; MEMORY]).unwrap();
    let scope = Scope::Stream(device.stream(id).unwrap());
    let stag = stags.grant(region, MEMORY as u64, Access::REMOTE_WRITE, scope).unwrap();
    device.accept_without_qp(id, b"", Some(region)).unwrap();
    net.run();
    net.nodes[1].cm.clear();
    (a, region, stag)
}

fn send(region: RegionId, bytes: &[u8], written: u64) -> Notified {
    Notified { region, immediate: None, bytes: bytes.to_vec(), solicited: false, written }
}

#[test]
fn immediate_data_tells_how_many_bytes_were_written_before() {
    let mut net = Net::new();
    let (a, region, rkey) = granted(&mut net);
    net.nodes[1].memory.watch(region);
    for (number, length) in [0_u32, 1, 1000, 16_384, 7].into_iter().enumerate() {
        let imm_data = (0xfeed_0000 + number as u64).to_be_bytes();
        let op = SendOp::RdmaWriteWithImm { remote_addr: 0, rkey, imm_data };
        a.post(&mut net.nodes[0], 1, op, &[a.mr.sge(0, length)]);
        net.run();
        let expected = Notified {
            region,
            immediate: Some(imm_data),
            bytes: Vec::new(),
            solicited: false,
            written: length.into(),
        };
        assert_eq!(net.nodes[1].memory.take_notified(), [expected], "{length}");
        let placed = &net.nodes[1].memory.bytes(region).unwrap()[..length as usize];
        assert_eq!(placed, &net.nodes[0].bytes(&a.mr)[..length as usize]);
    }
    assert_eq!(net.nodes[0].async_events(), []);
}

#[test]
fn several_writes_count_for_the_next_message() {
    let mut net = Net::new();
    let (a, region, rkey) = granted(&mut net);
    net.nodes[1].memory.watch(region);
    let write = SendOp::RdmaWrite { remote_addr: 64, rkey };
    for length in [100, 5000] {
        a.post(&mut net.nodes[0], 1, write, &[a.mr.sge(0, length)]);
    }
    a.post(&mut net.nodes[0], 2, SEND, &[a.mr.sge(0, 5)]);
    let flags = SendFlags { solicited: true, ..SendFlags::SIGNALED };
    let immediate = SendOp::Immediate { imm_data: [9; 8] };
    let wr = SendWr { wr_id: 3, op: immediate, data: Data::NONE, flags };
    net.nodes[0].device.post_send(a.qp, &wr).unwrap();
    net.run();
    let bytes = net.nodes[0].bytes(&a.mr)[..5].to_vec();
    let last = Notified { immediate: Some([9; 8]), solicited: true, ..send(region, &[], 0) };
    assert_eq!(net.nodes[1].memory.take_notified(), [send(region, &bytes, 5100), last]);
}

#[test]
fn a_send_of_at_most_64_bytes_is_passed_on_whole() {
    for (mss, chunk) in [(1448, 1448), (1448, 1), (120, 50)] {
        let mut net = Net::new();
        (net.mss, net.chunk) = (mss, chunk);
        let (a, region, _) = granted(&mut net);
        net.nodes[1].memory.watch(region);
        for length in [0, 1, 63, 64] {
            a.post(&mut net.nodes[0], 1, SEND, &[a.mr.sge(10, length)]);
            net.run();
            let bytes = net.nodes[0].bytes(&a.mr)[10..][..length as usize].to_vec();
            assert_eq!(net.nodes[1].memory.take_notified(), [send(region, &bytes, 0)], "{mss}");
        }
        a.post(&mut net.nodes[0], 1, SEND, &[a.mr.sge(10, 65)]);
        net.run();
        assert_eq!(net.nodes[1].memory.take_notified(), [], "longer than a notification");
        assert!(matches!(net.nodes[0].async_events()[..], [AsyncEvent::QpTerminated(..)]));
    }
}

#[test]
fn without_a_watcher_the_stream_ends() {
    let immediate = SendOp::Immediate { imm_data: [1; 8] };
    for (op, length) in [(SEND, 8), (SEND, 100), (immediate, 0)] {
        let mut net = Net::new();
        let (a, _, _) = granted(&mut net);
        let other = net.nodes[1].memory.add(vec![0; 8]).unwrap();
        net.nodes[1].memory.watch(other);
        let list = [a.mr.sge(0, length)];
        a.post(&mut net.nodes[0], 1, op, if length == 0 { &[] } else { &list });
        net.run();
        assert!(matches!(net.nodes[0].async_events()[..], [AsyncEvent::QpTerminated(..)]), "{op:?}");
        assert_eq!(net.nodes[1].memory.take_notified(), []);
    }
}
