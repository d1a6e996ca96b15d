//! Random work on both queue pairs of a connection, against a plain model of both memories: every byte matches the
//! model, and every work request completes exactly once and in order, also after a cut.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "lengths are small, and a test may panic"
)]

use proptest::prelude::*;
use rdma::AtomicOp;
use rdma::testutil::pattern;
use rdma::testutil::verbs::*;
use rdma::verbs::*;
use std::collections::VecDeque;

/// Quarters of the memory: source of local requests, destination of reads, receive buffers, and target of the peer's
/// writes. They do not overlap, so the order in which the two directions meet does not matter.
const QUARTER: usize = MEMORY / 4;
const SOURCE: u64 = 0;
const ANSWERS: u64 = QUARTER as u64;
const INBOX: u64 = 2 * QUARTER as u64;
const TARGET: u64 = 3 * QUARTER as u64;
const SLOT: u32 = 200;

#[derive(Clone, Debug)]
struct Work {
    kind: u8,
    /// Elements: offset and length.
    sges: Vec<(u16, u8)>,
    remote: u16,
    value: u64,
    signaled: bool,
    solicited: bool,
    fence: bool,
    inline: bool,
}

fn work() -> impl Strategy<Value = Work> {
    let sges = proptest::collection::vec((0..3500u16, prop_oneof![3 => 0..40u8, 1 => Just(0)]), 0..=SGE_MAX);
    let flags = any::<(bool, bool, bool, bool)>();
    (0..9u8, sges, 0..3000u16, any::<u64>(), flags).prop_map(
        |(kind, sges, remote, value, (signaled, solicited, fence, inline))| Work {
            kind,
            sges,
            remote,
            value,
            signaled,
            solicited,
            fence,
            inline,
        },
    )
}

/// Expected state of one side.
struct Model {
    bytes: Vec<u8>,
    /// Requests that must produce a completion: number, and true for the queue whose end the model knows.
    due: VecDeque<(u64, bool)>,
    /// Posted buffers, oldest first.
    buffers: VecDeque<u64>,
    posted: u64,
    received: u64,
}

impl Model {
    fn new(salt: u8) -> Self {
        Self {
            bytes: pattern(MEMORY, salt),
            due: VecDeque::new(),
            buffers: VecDeque::new(),
            posted: 0,
            received: 0,
        }
    }
}

/// Returns the elements of a work request in a quarter.
fn list(party: &Party, quarter: u64, sges: &[(u16, u8)]) -> Vec<Sge> {
    sges.iter().map(|(at, len)| party.mr.sge(quarter + u64::from(*at), u32::from(*len))).collect()
}

fn gather(bytes: &[u8], quarter: u64, sges: &[(u16, u8)]) -> Vec<u8> {
    let piece = |(at, len): &(u16, u8)| {
        let start = quarter as usize + usize::from(*at);
        bytes[start..start + usize::from(*len)].to_vec()
    };
    sges.iter().flat_map(piece).collect()
}

fn scatter(memory: &mut [u8], quarter: u64, sges: &[(u16, u8)], mut bytes: &[u8]) {
    for (at, len) in sges {
        let start = quarter as usize + usize::from(*at);
        let (here, rest) = bytes.split_at(usize::from(*len).min(bytes.len()));
        memory[start..start + here.len()].copy_from_slice(here);
        bytes = rest;
    }
}

struct Lab {
    /// Set once a read of the writable quarter is posted: later changes to it are fenced, as RFC 5040 §5.5 allows a
    /// Write to be placed before an earlier Read is answered.
    reads_target: bool,
    net: Net,
    parties: [Party; 2],
    models: [Model; 2],
}

impl Lab {
    fn new(mss: usize, chunk: usize) -> Self {
        let mut net = Net::new();
        (net.mss, net.chunk) = (mss, chunk);
        let (a, b) = pair(&mut net);
        // The responder may send once it has received a message.
        a.post(&mut net.nodes[0], 0, b.write_to(0), &[]);
        net.run();
        net.nodes[0].poll(a.cq);
        Self { reads_target: false, net, parties: [a, b], models: [Model::new(1), Model::new(2)] }
    }

    /// Posts buffers of two elements for one more message at `at`.
    fn feed(&mut self, at: usize) {
        let (party, model) = (self.parties[at], &mut self.models[at]);
        let slot = INBOX + (model.posted % 16) * u64::from(SLOT);
        let (wr_id, list) =
            (model.posted, [party.mr.sge(slot, SLOT / 2), party.mr.sge(slot + 100, SLOT / 2)]);
        party.post_recv(&mut self.net.nodes[at], wr_id, &list);
        self.models[at].buffers.push_back(wr_id);
        self.models[at].posted += 1;
    }

    /// Posts a work request at `at`, and performs it in the models.
    fn post(&mut self, at: usize, wr_id: u64, work: &Work) {
        let (party, peer) = (self.parties[at], self.parties[1 - at]);
        let (remote_addr, rkey) = (peer.mr.mr.addr, peer.mr.mr.rkey);
        let constant = work.kind == 3 && !work.fence;
        let target = if constant { SOURCE } else { TARGET } + u64::from(work.remote);
        let word = remote_addr + TARGET + u64::from(work.remote / 8) * 8;
        let mut sges = work.sges.clone();
        let imm_data = work.value.to_be_bytes();
        let sends = matches!(work.kind, 0 | 1 | 6 | 7);
        let reads = matches!(work.kind, 3..=5);
        let mut quarter = SOURCE;
        let op = match work.kind {
            0 | 1 => {
                let mut left = SLOT as u8;
                sges.iter_mut().for_each(|(_, len)| {
                    *len = (*len).min(left);
                    left -= *len;
                });
                SEND
            }
            2 => SendOp::RdmaWrite { remote_addr: remote_addr + target, rkey },
            3 => {
                quarter = ANSWERS;
                SendOp::RdmaRead { remote_addr: remote_addr + target, rkey }
            }
            4 | 5 => {
                (quarter, sges) = (ANSWERS, vec![(work.remote, 3), (work.remote + 9, 5)]);
                let op = if work.kind == 4 {
                    AtomicOp::FetchAdd { add: work.value, mask: 0x8000_8000 }
                } else {
                    let (compare, swap) = (work.value >> 3, work.value);
                    AtomicOp::CompareSwap { compare, compare_mask: 1, swap, swap_mask: 0xff00_ffff }
                };
                SendOp::Atomic { remote_addr: word, rkey, op }
            }
            6 => SendOp::RdmaWriteWithImm { remote_addr: remote_addr + target, rkey, imm_data },
            7 => {
                sges.clear();
                SendOp::Immediate { imm_data }
            }
            _ => SendOp::RdmaWrite { remote_addr: remote_addr + target, rkey },
        };
        if sends {
            self.feed(1 - at);
        }
        let bytes = gather(&self.models[at].bytes, quarter, &sges);
        let elements = list(&party, quarter, &sges);
        let inline = work.inline && !reads && op != SendOp::Immediate { imm_data } && bytes.len() <= 64;
        let data = if inline { Data::Inline(&bytes) } else { Data::List(&elements) };
        let Work { signaled, solicited, mut fence, .. } = *work;
        self.reads_target |= work.kind == 3 && !constant;
        fence |= self.reads_target;
        let flags = SendFlags { signaled, solicited, fence };
        let wr = SendWr { wr_id, op, data, flags };
        self.net.nodes[at].device.post_send(party.qp, &wr).unwrap();
        self.models[at].due.push_back((wr_id, signaled));
        self.carry_out(at, work.kind, target, word - remote_addr, quarter, &sges, &bytes, &op);
    }

    /// Performs a work request on the two memories.
    #[allow(clippy::too_many_arguments, reason = "all that is known of a work request")]
    fn carry_out(
        &mut self,
        at: usize,
        kind: u8,
        target: u64,
        word: u64,
        quarter: u64,
        sges: &[(u16, u8)],
        bytes: &[u8],
        op: &SendOp,
    ) {
        let there = 1 - at;
        let span = |from: u64, len: usize| from as usize..from as usize + len;
        match kind {
            0 | 1 => {
                let slot = INBOX + (self.models[there].received % 16) * u64::from(SLOT);
                self.models[there].bytes[span(slot, bytes.len())].copy_from_slice(bytes);
                self.models[there].received += 1;
            }
            3 => {
                let read = self.models[there].bytes[span(target, bytes.len())].to_vec();
                scatter(&mut self.models[at].bytes, quarter, sges, &read);
            }
            4 | 5 => {
                let SendOp::Atomic { op, .. } = op else { unreachable!() };
                let place = &mut self.models[there].bytes[span(word, 8)];
                let was = u64::from_ne_bytes((&*place).try_into().unwrap());
                place.copy_from_slice(&op.apply(was).unwrap_or(was).to_ne_bytes());
                scatter(&mut self.models[at].bytes, quarter, sges, &was.to_ne_bytes());
            }
            7 => self.models[there].received += 1,
            _ => {
                self.models[there].bytes[span(target, bytes.len())].copy_from_slice(bytes);
                self.models[there].received += u64::from(kind == 6);
            }
        }
    }

    /// Polls all completions and compares them with the expected ones. After a cut, every request completes, and all
    /// from the first flushed one on are flushed.
    fn check_completions(&mut self, cut: bool) {
        for at in 0..2 {
            let (party, node) = (self.parties[at], &mut self.net.nodes[at]);
            let sent = node.poll(party.cq);
            let received = node.poll(party.recv_cq);
            let model = &mut self.models[at];
            let mut flushed = false;
            for wc in &sent {
                let was_flushed = flushed;
                flushed |= wc.status == WcStatus::WrFlushError;
                assert!(if flushed {
                    wc.status == WcStatus::WrFlushError
                } else {
                    wc.status == WcStatus::Success
                });
                // Before the first flushed request, unsignaled ones may have succeeded.
                let is_told =
                    |(wr_id, signaled): &(u64, bool)| *signaled || was_flushed || *wr_id == wc.wr_id;
                let due = core::iter::from_fn(|| model.due.pop_front()).find(is_told);
                assert_eq!(due.map(|(wr_id, _)| wr_id), Some(wc.wr_id));
            }
            let told = model.due.iter().any(|(_, signaled)| *signaled);
            assert!(!told, "work that was never told of: {:?}", model.due);
            if cut && flushed {
                assert!(model.due.is_empty());
            }
            for wc in &received {
                assert_eq!(model.buffers.pop_front(), Some(wc.wr_id));
            }
            assert!(model.buffers.is_empty(), "buffers that were never told of");
        }
    }

    fn check_memory(&self) {
        for at in 0..2 {
            let bytes = self.net.nodes[at].bytes(&self.parties[at].mr);
            let wrong = bytes.iter().zip(&self.models[at].bytes).position(|(is, should)| is != should);
            assert_eq!(wrong, None, "node {at}");
            assert_eq!(self.net.nodes[at].memory.faults(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_memories_are_those_of_the_model(
        rounds in proptest::collection::vec(
            proptest::collection::vec(work(), 1..14), 1..if cfg!(miri) { 3 } else { 8 }
        ),
        mss in 136..1500usize,
        chunk in prop_oneof![1..40usize, Just(1448)],
    ) {
        let mut lab = Lab::new(mss, chunk);
        for (round, works) in rounds.iter().enumerate() {
            // Only one direction at a time posts work on the peer's target; the other's answers arrive meanwhile.
            for (wr_id, work) in (1..).zip(works) {
                lab.post(round % 2, wr_id, work);
            }
            // The last is signaled, so that slots are freed.
            let told = Work { signaled: true, kind: 2, ..works[0].clone() };
            lab.post(round % 2, 99, &told);
            lab.net.run();
            lab.check_completions(false);
            lab.check_memory();
        }
    }

    #[test]
    fn a_cut_flushes_the_rest_exactly_once(
        before in proptest::collection::vec(work(), 0..10),
        after in proptest::collection::vec(work(), 1..10),
        cut_by in 0..3u8,
    ) {
        let mut lab = Lab::new(300, 100);
        for at in 0..2 {
            for (wr_id, work) in (1..).zip(&before) {
                lab.post(at, wr_id, work);
            }
        }
        lab.net.run();
        for at in 0..2 {
            for (wr_id, work) in (100..).zip(&after) {
                lab.post(at, wr_id, work);
            }
        }
        let now = lab.net.now;
        match cut_by {
            0 => lab.net.cut(),
            1 => lab.net.nodes[0].device.modify_qp(lab.parties[0].qp, QpState::Error, now).unwrap(),
            _ => lab.net.nodes[1].device.modify_qp(lab.parties[1].qp, QpState::Error, now).unwrap(),
        }
        lab.net.run();
        lab.check_completions(true);
        for at in 0..2 {
            let attr = lab.net.nodes[at].device.query_qp(lab.parties[at].qp).unwrap();
            prop_assert_eq!((attr.state, attr.recv_used), (QpState::Error, 0));
        }
    }
}
