//! Queue pairs that are connected by number, in random order: transitions, resets, work, pauses, streams that break,
//! nodes that cannot be reached. A Send is received once at most, by the peer that its queue pair names, in the order
//! of posting; one that has completed was received; and queue pairs that both ends begin anew always work.

use core::time::Duration;
use std::collections::{HashSet, VecDeque};

use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use rdma::testutil::verbs::*;
use rdma::verbs::*;

/// Pairs of queue pairs.
const PAIRS: usize = 3;
/// Slots of a receive queue; each has a buffer of its own.
const SLOTS: u64 = 16;
const BYTES: u32 = 12;

/// Content of a Send: its pair, the round of its sender, and its number.
type Content = (u32, u32, u32);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    Rtr,
    Rts,
}

/// One end of a pair, as its program knows it.
struct End {
    party: Party,
    state: State,
    /// Times that the queue pair was used anew.
    round: u32,
    /// Sends in this round.
    sent: u32,
    /// Sends that the device does not take yet.
    waiting: VecDeque<u32>,
    /// Sends and Reads that have not completed.
    outstanding: VecDeque<u32>,
    /// Those of this round that are Reads.
    reads: HashSet<u32>,
    buffers: u64,
    /// Content that was received last.
    last: Option<Content>,
}

struct Model {
    net: Net,
    ends: [Vec<End>; 2],
    received: [HashSet<Content>; 2],
    rng: SmallRng,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut net = Net::numbered(Limits { cqe_max: 4096, ..Limits::default() });
        let mut end = |at: usize| End {
            party: party(&mut net.nodes[at], CAP, None, 1),
            state: State::Idle,
            round: 0,
            sent: 0,
            waiting: VecDeque::new(),
            outstanding: VecDeque::new(),
            reads: HashSet::new(),
            buffers: 0,
            last: None,
        };
        // The larger number is now here, now there.
        let spare = end(1);
        let ends = [(0..PAIRS).map(|_| end(0)).collect(), (0..PAIRS).map(|_| end(1)).collect()];
        net.nodes[1].device.destroy_qp(spare.party.qp).unwrap();
        Self { net, ends, received: Default::default(), rng: SmallRng::seed_from_u64(seed) }
    }

    fn enter_rtr(&mut self, at: usize, pair: usize) {
        let attr = rtr(&self.ends[1 - at][pair].party, at);
        let end = &mut self.ends[at][pair];
        self.net.nodes[at].device.ready_to_receive(end.party.qp, &attr).unwrap();
        end.state = State::Rtr;
    }

    fn enter_rts(&mut self, at: usize, pair: usize) {
        let end = &mut self.ends[at][pair];
        self.net.nodes[at].device.ready_to_send(end.party.qp, &RtsAttr { timeout: 0, ..RTS }).unwrap();
        end.state = State::Rts;
    }

    fn reset(&mut self, at: usize, pair: usize) {
        let end = &mut self.ends[at][pair];
        let device = &mut self.net.nodes[at].device;
        device.modify_qp(end.party.qp, QpState::Error, Duration::ZERO).unwrap();
        device.modify_qp(end.party.qp, QpState::Idle, Duration::ZERO).unwrap();
        (end.state, end.round, end.sent, end.buffers) = (State::Idle, end.round + 1, 0, 0);
        end.waiting.clear();
        end.outstanding.clear();
        end.reads.clear();
    }

    fn post_recv(&mut self, at: usize, pair: usize) {
        let end = &mut self.ends[at][pair];
        let slot = end.buffers % SLOTS;
        let sge = [end.party.mr.sge(slot * u64::from(BYTES), BYTES)];
        let wr = RecvWr { wr_id: slot, sg_list: &sge };
        if self.net.nodes[at].device.post_recv(end.party.qp, &wr).is_ok() {
            end.buffers += 1;
        }
    }

    /// Has the end send, or read from its peer: several segments.
    fn send(&mut self, at: usize, pair: usize, reads: bool) {
        let end = &mut self.ends[at][pair];
        if end.state == State::Rts && end.outstanding.len() < 8 {
            if reads {
                end.reads.insert(end.sent);
            }
            end.waiting.push_back(end.sent);
            end.outstanding.push_back(end.sent);
            end.sent += 1;
        }
    }

    /// Posts what waits, and checks what has completed.
    fn settle(&mut self) {
        self.net.run();
        for at in 0..2 {
            for pair in 0..PAIRS {
                let source = self.ends[1 - at][pair].party;
                let end = &mut self.ends[at][pair];
                while let Some(number) = end.waiting.front().copied() {
                    let content: [u32; 3] = [pair as u32, end.round, number];
                    let bytes = content.map(u32::to_le_bytes);
                    let data = Data::Inline(bytes.as_flattened());
                    let flags = SendFlags::SIGNALED;
                    let (op, sink) = (source.read_from(4000), [end.party.mr.sge(4000, 5000)]);
                    let wr = match end.reads.contains(&number) {
                        true => SendWr { wr_id: number.into(), op, data: Data::List(&sink), flags },
                        false => SendWr { wr_id: number.into(), op: SEND, data, flags },
                    };
                    match self.net.nodes[at].device.post_send(end.party.qp, &wr) {
                        Ok(()) => end.waiting.pop_front(),
                        Err(PostError::State) => break,
                        Err(error) => panic!("{error}"),
                    };
                }
            }
        }
        self.net.run();
        // Both nodes are at rest: what has completed at one was received at the other.
        (0..2).for_each(|at| self.take_received(at));
        (0..2).for_each(|at| self.take_completed(at));
    }

    fn take_received(&mut self, at: usize) {
        for pair in 0..PAIRS {
            let end = &mut self.ends[at][pair];
            for wc in self.net.nodes[at].poll(end.party.recv_cq) {
                assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, BYTES));
                let from = (wc.wr_id * u64::from(BYTES)) as usize;
                let bytes = &self.net.nodes[at].bytes(&end.party.mr)[from..from + BYTES as usize];
                let word = |at: usize| u32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap());
                let content = (word(0), word(1), word(2));
                assert_eq!(content.0, pair as u32, "a stream between the wrong queue pairs");
                assert!(end.last.is_none_or(|last| last < content), "{:?} before {content:?}", end.last);
                end.last = Some(content);
                self.received[at].insert(content);
            }
        }
    }

    fn take_completed(&mut self, at: usize) {
        for pair in 0..PAIRS {
            let end = &mut self.ends[at][pair];
            for wc in self.net.nodes[at].poll(end.party.cq) {
                assert_eq!(wc.status, WcStatus::Success);
                let number = end.outstanding.pop_front();
                assert_eq!(number.map(u64::from), Some(wc.wr_id), "in order, and once");
                let content = (pair as u32, end.round, wc.wr_id as u32);
                assert!(
                    end.reads.contains(&number.unwrap_or(0)) || self.received[1 - at].contains(&content),
                    "{content:?} has completed, and was not received"
                );
            }
        }
    }

    fn step(&mut self) {
        let (at, pair) = (self.rng.random_range(0..2), self.rng.random_range(0..PAIRS));
        match (self.rng.random_range(0..100), self.ends[at][pair].state) {
            (0..25, State::Idle) => self.enter_rtr(at, pair),
            (0..25, State::Rtr) => self.enter_rts(at, pair),
            (25..50, _) => {
                let reads = self.rng.random_range(0..3) == 0;
                self.send(at, pair, reads);
            }
            (50..75, State::Idle | State::Rtr | State::Rts) => self.post_recv(at, pair),
            (75..79, _) => self.reset(at, pair),
            (79..81, _) => self.net.break_streams(),
            (81..84, _) => self.net.refuses[at] ^= true,
            (84..87, _) => self.net.paused ^= true,
            (87.., _) => {
                let ms = self.rng.random_range(0..1500);
                self.net.run_for(Duration::from_millis(ms));
            }
            _ => {}
        }
        self.settle();
        self.net.drop_closed();
    }

    /// Both ends begin anew, whatever was before.
    fn finish(mut self) -> [u64; 5] {
        (self.net.refuses, self.net.paused) = ([false; 2], false);
        for pair in 0..PAIRS {
            for at in 0..2 {
                self.reset(at, pair);
                self.enter_rtr(at, pair);
                self.enter_rts(at, pair);
            }
        }
        self.net.run_for(Duration::from_secs(20));
        for _ in 0..6 {
            for pair in 0..PAIRS {
                for at in 0..2 {
                    self.send(at, pair, false);
                    self.post_recv(at, pair);
                }
            }
            self.settle();
        }
        for end in self.ends.iter().flatten() {
            assert!(end.outstanding.is_empty() && end.sent == 6, "work of a new connection is done");
        }
        let received = self.received.iter().map(|of| of.len() as u64).sum();
        let stats = self.net.nodes.each_ref().map(|node| *node.device.stats());
        let sum = |of: fn(&DeviceStats) -> u64| stats.iter().map(of).sum();
        [
            received,
            sum(|stats| stats.qp_requests_held),
            sum(|stats| stats.qp_requests_rejected),
            sum(|stats| stats.qp_collisions),
            sum(|stats| stats.qp_orphans),
        ]
    }
}

#[test]
fn random_programs_find_their_peers() {
    let mut seen = [0; 5];
    for seed in 0..1000 {
        let mut model = Model::new(seed);
        for _ in 0..150 {
            model.step();
        }
        seen.iter_mut().zip(model.finish()).for_each(|(all, of_one)| *all += of_one);
    }
    println!("received, held, rejected, collided, orphans: {seen:?}");
    assert!(seen.iter().all(|times| *times > 5), "{seen:?}");
}
