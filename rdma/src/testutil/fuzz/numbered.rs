//! Private data of connections by number: none brings a queue pair to another peer than the one that it names, and none
//! keeps that one out.

use core::time::Duration;

use super::Input;
use crate::qp::Extensions;
use crate::testutil::verbs::*;
use crate::verbs::rendezvous::wire::{Reply, Request, Status, gid};
use crate::verbs::*;

/// Time in which the named peer must be connected after all, whatever the forger has done.
const LATER: Duration = Duration::from_secs(5);
/// PSN of both directions, as [`rtr`] and [`RTS`] have it.
const PSN: u32 = 7;

/// The first byte selects the forger's role. Then follow changes to what would be right, or bytes as they are.
pub fn numbered(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 2 {
        0 => requested(&mut input),
        _ => answered(&mut input),
    }
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
        (sent.sender, sent.receiver) == (request.sender, request.receiver)
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
            sent.status == Status::Connected
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
