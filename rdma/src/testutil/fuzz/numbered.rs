//! Private data of connections by number: none brings a queue pair to another peer than the one that it names, and none
//! keeps that one out.

use core::time::Duration;

use super::Input;
use crate::qp::Extensions;
use crate::testutil::verbs::*;
use crate::verbs::datagram_links::Ends;
use crate::verbs::rendezvous::wire::{Kind, Reply, Request, Status, gid};
use crate::verbs::*;
use crate::wire::datagram::DatagramHeader;

/// Time in which the named peer must be connected after all, whatever the forger has done.
const LATER: Duration = Duration::from_secs(5);
/// PSN of both directions, as [`rtr`] and [`RTS`] have it.
const PSN: u32 = 7;

/// The first byte selects the forger's role. Then follow changes to what would be right, or bytes as they are.
pub fn numbered(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 3 {
        0 => requested(&mut input),
        1 => answered(&mut input),
        _ => sent(&mut input),
    }
}

/// A worker that has a link sends messages of its own making over it. Those that are a datagram to a queue pair, with
/// its key, arrive as they are; no other reaches one.
fn sent(input: &mut Input<'_>) {
    const QKEY: u32 = 0x0102_0304;
    let mut net = Net::numbered(Limits::default());
    let victim = party_of(&mut net.nodes[1], QpType::Ud, CAP, None, 1);
    let connected = party(&mut net.nodes[1], CAP, None, 2);
    net.nodes[1].device.ready_for_datagrams(victim.qp, QKEY).unwrap();
    net.run();
    let (local, remote) = (address(0).ip(), address(1).ip());
    let handle = net.nodes[0].device.datagram_link(Ends { local, remote, worker: 0 }, None);
    for wr_id in 0..8 {
        let len = 40 + input.below(100) as u32;
        victim.post_recv(&mut net.nodes[1], wr_id, &[victim.mr.sge(0, len)]);
        let payload = vec![input.byte(); input.below(100)];
        let receiver = if input.sometimes() { victim.qp } else { connected.qp };
        let (qkey, sender) = (if input.rarely() { input.u32() } else { QKEY }, input.u32() & 0xff_ffff);
        let header = DatagramHeader { receiver: receiver.0, sender, qkey, immediate: None, solicited: false };
        let bytes = damage(input, [&header.emit()[..], &payload].concat());
        net.nodes[0].device.send_message(handle, &bytes);
        net.run();
        let expected = DatagramHeader::parse(&bytes).ok().filter(|(header, payload)| {
            header.receiver == victim.qp.0
                && header.sender != 0
                && header.qkey == QKEY
                && payload.len() + 40 <= len as usize
        });
        let received = net.nodes[1].poll(victim.recv_cq);
        assert_eq!(received.len(), usize::from(expected.is_some()), "{bytes:x?}");
        if let (Some((header, payload)), [wc]) = (expected, received.as_slice()) {
            assert_eq!((wc.status, wc.src_qp), (WcStatus::Success, QpNum(header.sender)));
            assert_eq!(net.nodes[1].bytes(&victim.mr)[40..40 + payload.len()], *payload);
        } else {
            net.nodes[1].device.modify_qp(victim.qp, QpState::Error, net.now).unwrap();
            net.nodes[1].poll(victim.recv_cq);
            net.nodes[1].device.modify_qp(victim.qp, QpState::Idle, net.now).unwrap();
            net.nodes[1].device.ready_for_datagrams(victim.qp, QKEY).unwrap();
            net.run();
        }
        assert_eq!(victim.state(&net.nodes[1]), QpState::Rts);
    }
    assert_eq!(connected.state(&net.nodes[1]), QpState::Idle);
}

/// Changes bytes, cuts, extends, or replaces all.
fn damage(input: &mut Input<'_>, mut bytes: Vec<u8>) -> Vec<u8> {
    if input.rarely() {
        return input.0.iter().copied().take(250).collect();
    }
    for _ in 0..input.byte() % 4 {
        let at = input.below(bytes.len());
        bytes[at] = if input.sometimes() { input.byte() } else { bytes[at] ^ 1 << (input.byte() % 8) };
    }
    if input.sometimes() {
        bytes.truncate(input.below(bytes.len()));
    } else if input.sometimes() {
        bytes.extend(vec![0xee; input.below(100)]);
    }
    bytes
}

/// A program of the peer's host sends a request of its own making to a queue pair that waits.
fn requested(input: &mut Input<'_>) {
    let mut net = Net::numbered(Limits::default());
    let named = party(&mut net.nodes[0], CAP, None, 1);
    let forger = party(&mut net.nodes[0], CAP, None, 2);
    let victim = party(&mut net.nodes[1], CAP, None, 3);
    let (sends, begins) = (input.sometimes(), input.sometimes());
    net.nodes[1].device.ready_to_receive(victim.qp, &rtr(&named, 1)).unwrap();
    if sends {
        net.nodes[1].device.ready_to_send(victim.qp, &RTS).unwrap();
    }
    let request = Request {
        kind: Kind::QueuePairs,
        extensions: Extensions::default(),
        sender: named.qp,
        receiver: victim.qp,
        rq_psn: PSN,
        sq_psn: input.sometimes().then_some(PSN),
        sender_gid: gid(address(0).ip()),
        receiver_gid: gid(address(1).ip()),
        nonce: input.u64(),
        min_rnr_timer: 12,
    };
    let bytes = damage(input, request.emit().to_vec());
    let is_right = Request::parse(&bytes).is_some_and(|sent| {
        sent.kind == Kind::QueuePairs
            && (sent.sender, sent.receiver) == (request.sender, request.receiver)
            && (sent.sender_gid, sent.receiver_gid) == (request.sender_gid, request.receiver_gid)
            && (sent.rq_psn == PSN || !sends)
            && sent.sq_psn.is_none_or(|psn| psn == PSN)
    });
    let param = ConnParam { private_data: &bytes, ..ConnParam::default() };
    net.nodes[0].device.connect(forger.id, forger.qp, address(1), &param).unwrap();
    if begins {
        net.run_sender(0);
    } else {
        net.run();
        assert_eq!(net.nodes[1].device.stats().qp_requests_accepted, u64::from(is_right), "{bytes:x?}");
    }
    if is_right {
        return net.run_for(LATER);
    }
    connects(&mut net, (&named, &victim), sends);
}

/// A service of another kind has the peer's port.
fn answered(input: &mut Input<'_>) {
    let mut net = Net::numbered(Limits::default());
    let own = party(&mut net.nodes[0], CAP, None, 1);
    let named = party(&mut net.nodes[1], CAP, None, 2);
    let forger = party(&mut net.nodes[1], CAP, None, 3);
    let listener = net.nodes[1].listener;
    listen(&mut net, 4);
    net.nodes[0].device.ready_to_receive(own.qp, &rtr(&named, 0)).unwrap();
    net.run();
    let id = asked(&mut net)[0];
    let statuses = [Status::Connected, Status::Busy, Status::Psn, Status::NoSuchQueuePair];
    let reply = Reply {
        kind: Kind::QueuePairs,
        extensions: Extensions::default(),
        status: input.pick(&statuses),
        responder: named.qp,
        sq_psn: input.sometimes().then_some(PSN),
        min_rnr_timer: 12,
        retry_after_ms: input.u32(),
    };
    let bytes = damage(input, reply.emit().to_vec());
    let accepts = !input.sometimes();
    let is_right = accepts
        && Reply::parse(&bytes).is_some_and(|sent| {
            sent.kind == Kind::QueuePairs
                && sent.status == Status::Connected
                && sent.responder == named.qp
                && sent.sq_psn.is_none_or(|psn| psn == PSN)
        });
    let answered = match accepts {
        true => net.nodes[1].device.accept(id, forger.qp, &bytes),
        false => net.nodes[1].device.reject(id, &bytes),
    };
    answered.unwrap();
    net.run();
    assert_eq!(own.state(&net.nodes[0]) == QpState::Rts, is_right, "{bytes:x?}");
    if is_right {
        return net.run_for(LATER);
    }
    net.nodes[1].listener = listener;
    net.nodes[1].device.ready_to_receive(named.qp, &rtr(&own, 1)).unwrap();
    net.run_for(LATER);
    assert_eq!((own.state(&net.nodes[0]), named.state(&net.nodes[1])), (QpState::Rts, QpState::Rts));
}

/// Connects the peer that the queue pair names.
fn connects(net: &mut Net, (named, victim): (&Party, &Party), sends: bool) {
    net.nodes[0].device.ready_to_receive(named.qp, &rtr(victim, 0)).unwrap();
    if sends {
        net.nodes[0].device.ready_to_send(named.qp, &RTS).unwrap();
    }
    net.run_for(LATER);
    assert_eq!((named.state(&net.nodes[0]), victim.state(&net.nodes[1])), (QpState::Rts, QpState::Rts));
}
