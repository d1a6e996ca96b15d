//! Datagrams in random order: queue pairs of two nodes send to each other and to themselves, begin anew, run out of
//! buffers; links break, stand still and are not opened. A datagram arrives once at most, unchanged, where it was sent
//! to; a request completes once; and in the end all reach all.

use core::time::Duration;
use std::collections::HashMap;

use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use rdma::testutil::verbs::*;
use rdma::verbs::*;

/// Queue pairs of a node.
const ENDS: usize = 3;
/// Slots of a receive queue; each has a buffer of its own.
const SLOTS: u64 = 16;
const BYTES: u32 = 8;
const BUFFER: u32 = 40 + BYTES;
const QKEY: u32 = 77;

/// A queue pair, as its program knows it.
struct End {
    party: Party,
    buffers: u64,
    outstanding: u64,
}

struct Model {
    net: Net,
    ends: [Vec<End>; 2],
    /// Sender and receiver of each datagram that has not arrived, by its number.
    sent: HashMap<u64, (QpNum, (usize, usize))>,
    arrived: u64,
    rng: SmallRng,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut net = Net::numbered(Limits { cqe_max: 4096, ..Limits::default() });
        let mut end = |at: usize| {
            let party = party_of(&mut net.nodes[at], QpType::Ud, CAP, None, 1);
            net.nodes[at].device.ready_for_datagrams(party.qp, QKEY).unwrap();
            End { party, buffers: 0, outstanding: 0 }
        };
        let ends = [(0..ENDS).map(|_| end(0)).collect(), (0..ENDS).map(|_| end(1)).collect()];
        Self { net, ends, sent: HashMap::new(), arrived: 0, rng: SmallRng::seed_from_u64(seed) }
    }

    fn any(&mut self) -> (usize, usize) {
        (self.rng.random_range(0..2), self.rng.random_range(0..ENDS))
    }

    fn send(&mut self, (at, own): (usize, usize), (there, peer): (usize, usize)) {
        let (local, remote) = (address(at).ip(), address(there).ip());
        let to = Destination { local, remote, qp_num: self.ends[there][peer].party.qp, qkey: QKEY };
        let number = self.rng.random::<u64>();
        let bytes = number.to_le_bytes();
        let op = SendOp::Datagram { to, imm_data: None };
        let wr = SendWr { wr_id: number, op, data: Data::Inline(&bytes), flags: SendFlags::SIGNALED };
        let end = &mut self.ends[at][own];
        if end.outstanding < u64::from(CAP.max_send_wr)
            && self.net.nodes[at].device.post_send(end.party.qp, &wr).is_ok()
        {
            end.outstanding += 1;
            self.sent.insert(number, (end.party.qp, (there, peer)));
        }
    }

    fn post_recv(&mut self, (at, own): (usize, usize)) {
        let end = &mut self.ends[at][own];
        let slot = end.buffers % SLOTS;
        let list = [end.party.mr.sge(slot * u64::from(BUFFER), BUFFER)];
        let used = self.net.nodes[at].device.query_qp(end.party.qp).unwrap().recv_used as u64;
        if used < SLOTS {
            let wr = RecvWr { wr_id: slot, sg_list: &list };
            self.net.nodes[at].device.post_recv(end.party.qp, &wr).unwrap();
            end.buffers += 1;
        }
    }

    fn reset(&mut self, (at, own): (usize, usize)) {
        let end = &mut self.ends[at][own];
        let device = &mut self.net.nodes[at].device;
        device.modify_qp(end.party.qp, QpState::Error, Duration::ZERO).unwrap();
        device.modify_qp(end.party.qp, QpState::Idle, Duration::ZERO).unwrap();
        device.ready_for_datagrams(end.party.qp, QKEY).unwrap();
        (end.buffers, end.outstanding) = (0, 0);
    }

    fn settle(&mut self) {
        self.net.run();
        for at in 0..2 {
            for own in 0..ENDS {
                let end = &mut self.ends[at][own];
                let node = &mut self.net.nodes[at];
                for wc in node.poll(end.party.cq) {
                    assert_eq!(wc.status, WcStatus::Success);
                    end.outstanding = end.outstanding.checked_sub(1).unwrap();
                }
                for wc in node.poll(end.party.recv_cq) {
                    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, BUFFER));
                    let from = (wc.wr_id * u64::from(BUFFER)) as usize + 40;
                    let number = node.bytes(&end.party.mr)[from..][..8].try_into().unwrap();
                    let (sender, receiver) = self.sent.remove(&u64::from_le_bytes(number)).unwrap();
                    assert_eq!((wc.src_qp, (at, own)), (sender, receiver));
                    self.arrived += 1;
                }
            }
        }
        self.net.drop_closed();
    }

    fn step(&mut self) {
        let (one, other) = (self.any(), self.any());
        match self.rng.random_range(0..100) {
            0..40 => (0..self.rng.random_range(1..20)).for_each(|_| self.send(one, other)),
            40..75 => (0..4).for_each(|_| self.post_recv(one)),
            75..79 => self.reset(one),
            79..82 => self.net.break_streams(),
            82..85 => self.net.refuses[one.0] ^= true,
            85..88 => self.net.paused ^= true,
            _ => {
                let ms = self.rng.random_range(0..40_000);
                self.net.run_for(Duration::from_millis(ms));
            }
        }
        self.settle();
    }

    /// All reach all, whatever was before.
    fn finish(mut self) -> [u64; 5] {
        (self.net.refuses, self.net.paused) = ([false; 2], false);
        self.net.run_for(Duration::from_secs(2));
        self.settle();
        let all: Vec<_> = (0..2).flat_map(|at| (0..ENDS).map(move |own| (at, own))).collect();
        for one in &all {
            self.reset(*one);
            (0..SLOTS).for_each(|_| self.post_recv(*one));
        }
        self.settle();
        let before = self.arrived;
        for one in &all {
            all.iter().for_each(|other| self.send(*one, *other));
        }
        self.net.run_for(Duration::from_secs(1));
        self.settle();
        assert_eq!(self.arrived - before, (all.len() * all.len()) as u64);
        assert!(self.ends.iter().flatten().all(|end| end.outstanding == 0));
        let stats = self.net.nodes.each_ref().map(|node| *node.device.stats());
        let sum = |of: fn(&DeviceStats) -> u64| stats.iter().map(of).sum();
        [
            self.arrived,
            sum(|stats| stats.datagrams_unreached),
            sum(|stats| stats.datagrams_congested),
            sum(|stats| stats.datagram_links_failed),
            self.net.nodes.iter().map(|node| node.stats.rdmap.datagrams_without_buffer).sum(),
        ]
    }
}

#[test]
fn random_datagrams_arrive_once_or_not_at_all() {
    let mut seen = [0; 5];
    for seed in 0..300 {
        let mut model = Model::new(seed);
        for _ in 0..150 {
            model.step();
        }
        seen.iter_mut().zip(model.finish()).for_each(|(all, of_one)| *all += of_one);
    }
    println!("arrived, unreached, congested, links failed, without buffer: {seen:?}");
    assert!(seen.iter().all(|times| *times > 5), "{seen:?}");
}
