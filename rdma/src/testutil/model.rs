//! A plain model of both memories of a connection: random work on both queue pairs, after which every byte matches the
//! model, and every work request completes exactly once and in order, also after a cut. [`Lab`] runs it on any
//! implementation of the verbs.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::pattern;
use super::verbs::*;
use crate::AtomicOp;
use crate::verbs::*;

/// Implementation of the verbs under test: two connected queue pairs.
pub trait Verbs {
    /// Returns the network, for its memory and its clock.
    fn net(&mut self) -> &mut Net;
    /// Returns the objects of an end, 0 or 1.
    fn party(&self, at: usize) -> Party;
    /// Posts a send request.
    fn post_send(&mut self, at: usize, wr: &SendWr<'_>);
    /// Posts a receive buffer.
    fn post_recv(&mut self, at: usize, wr: &RecvWr<'_>);
    /// Polls all completions of sends, or of receives.
    fn poll(&mut self, at: usize, receives: bool) -> Vec<WorkCompletion>;
    /// Runs both nodes until nothing is left to do.
    fn run(&mut self);
    /// Resizes the completion queue of sends, or of receives.
    ///
    /// # Errors
    /// As [`Device::resize_cq`].
    fn resize(&mut self, at: usize, receives: bool, cqe: u32) -> Result<(), VerbsError>;
}

/// The verbs of a [`Device`] in this process.
#[derive(Debug)]
pub struct InProcess {
    net: Net,
    parties: [Party; 2],
}

impl InProcess {
    /// Returns two connected queue pairs. An FPDU has at most `mss` bytes; a node receives up to `chunk` bytes in one
    /// piece.
    pub fn new(mss: usize, chunk: usize) -> Self {
        let mut net = Net::new();
        (net.mss, net.chunk) = (mss, chunk);
        let (a, b) = pair(&mut net);
        Self { net, parties: [a, b] }
    }
}

impl Verbs for InProcess {
    fn net(&mut self) -> &mut Net {
        &mut self.net
    }

    fn party(&self, at: usize) -> Party {
        self.parties[at]
    }

    fn post_send(&mut self, at: usize, wr: &SendWr<'_>) {
        self.net.nodes[at].device.post_send(self.parties[at].qp, wr).unwrap();
    }

    fn post_recv(&mut self, at: usize, wr: &RecvWr<'_>) {
        self.net.nodes[at].device.post_recv(self.parties[at].qp, wr).unwrap();
    }

    fn poll(&mut self, at: usize, receives: bool) -> Vec<WorkCompletion> {
        let Party { cq, recv_cq, .. } = self.parties[at];
        self.net.nodes[at].poll(if receives { recv_cq } else { cq })
    }

    fn run(&mut self) {
        self.net.run();
    }

    fn resize(&mut self, at: usize, receives: bool, cqe: u32) -> Result<(), VerbsError> {
        let Party { cq, recv_cq, .. } = self.parties[at];
        self.net.nodes[at].device.resize_cq(if receives { recv_cq } else { cq }, cqe)
    }
}

/// Quarters of the memory: source of local requests, destination of reads, receive buffers, and target of the peer's
/// writes. They do not overlap, so the order in which the two directions meet does not matter.
const QUARTER: usize = MEMORY / 4;
const SOURCE: u64 = 0;
const ANSWERS: u64 = QUARTER as u64;
const INBOX: u64 = 2 * QUARTER as u64;
const TARGET: u64 = 3 * QUARTER as u64;
const SLOT: u32 = 200;

/// A random work request.
#[derive(Clone, Debug)]
pub struct Work {
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

/// Returns random work requests.
pub fn work() -> impl Strategy<Value = Work> {
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
#[derive(Debug)]
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

/// The model of both sides, and the implementation under test.
#[derive(Debug)]
pub struct Lab<V> {
    /// Set once a read of the writable quarter is posted: later changes to it are fenced, as RFC 5040 §5.5 allows a
    /// Write to be placed before an earlier Read is answered.
    reads_target: bool,
    /// Implementation under test.
    pub verbs: V,
    models: [Model; 2],
    /// Completions of both nodes so far: sends, then receives.
    pub completions: [Vec<WorkCompletion>; 4],
}

impl<V: Verbs> Lab<V> {
    /// Begins with two connected queue pairs that have done no work.
    pub fn new(mut verbs: V) -> Self {
        // The responder may send once it has received a message.
        let op = verbs.party(1).write_to(0);
        verbs.post_send(0, &SendWr { wr_id: 0, op, data: Data::NONE, flags: SendFlags::SIGNALED });
        verbs.run();
        verbs.poll(0, false);
        Self {
            reads_target: false,
            verbs,
            models: [Model::new(1), Model::new(2)],
            completions: Default::default(),
        }
    }

    /// Posts buffers of two elements for one more message at `at`.
    fn feed(&mut self, at: usize) {
        let (party, model) = (self.verbs.party(at), &mut self.models[at]);
        let slot = INBOX + (model.posted % 16) * u64::from(SLOT);
        let (wr_id, list) =
            (model.posted, [party.mr.sge(slot, SLOT / 2), party.mr.sge(slot + 100, SLOT / 2)]);
        self.verbs.post_recv(at, &RecvWr { wr_id, sg_list: &list });
        self.models[at].buffers.push_back(wr_id);
        self.models[at].posted += 1;
    }

    /// Posts a work request at `at`, and performs it in the models.
    pub fn post(&mut self, at: usize, wr_id: u64, work: &Work) {
        let (party, peer) = (self.verbs.party(at), self.verbs.party(1 - at));
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
        self.verbs.post_send(at, &wr);
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
    pub fn check_completions(&mut self, cut: bool) {
        for at in 0..2 {
            let sent = self.verbs.poll(at, false);
            let received = self.verbs.poll(at, true);
            self.completions[at].extend_from_slice(&sent);
            self.completions[2 + at].extend_from_slice(&received);
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

    /// Compares both memories with the model.
    pub fn check_memory(&mut self) {
        for at in 0..2 {
            let party = self.verbs.party(at);
            let node = &self.verbs.net().nodes[at];
            let bytes = node.bytes(&party.mr);
            let wrong = bytes.iter().zip(&self.models[at].bytes).position(|(is, should)| is != should);
            assert_eq!(wrong, None, "node {at}");
            assert_eq!(node.memory.faults(), 0);
        }
    }

    /// Posts each round of work at one side, alternately, and compares memories and completions after each.
    pub fn run_rounds(&mut self, rounds: &[Vec<Work>]) {
        for (round, works) in rounds.iter().enumerate() {
            // Only one direction at a time posts work on the peer's target; the other's answers arrive meanwhile.
            for (wr_id, work) in (1..).zip(works) {
                self.post(round % 2, wr_id, work);
            }
            // The last is signaled, so that slots are freed.
            let last = Work { signaled: true, kind: 2, ..works[0].clone() };
            self.post(round % 2, 99, &last);
            self.verbs.run();
            self.check_completions(false);
            self.check_memory();
        }
    }

    /// Posts rounds of work like [`Self::run_rounds`], and resizes both completion queues of both sides: after the work
    /// is posted, and again while completions are outstanding. A queue that has fewer entries than these refuses.
    pub fn run_resized(&mut self, rounds: &[Vec<Work>], sizes: &[u32]) {
        let mut sizes = sizes.iter().copied().cycle();
        for (round, works) in rounds.iter().enumerate() {
            for (wr_id, work) in (1..).zip(works) {
                self.post(round % 2, wr_id, &Work { signaled: true, ..work.clone() });
            }
            for _ in 0..2 {
                for (at, receives) in [(0, false), (0, true), (1, false), (1, true)] {
                    let size = sizes.next().unwrap_or(256).max(64);
                    assert_eq!(self.verbs.resize(at, receives, size), Ok(()));
                }
                self.verbs.run();
            }
            // Each round has completed all of its requests, and none of them is polled.
            let outstanding = works.len() as u32;
            let at = round % 2;
            assert_eq!(self.verbs.resize(at, false, outstanding - 1), Err(VerbsError::Invalid));
            assert_eq!(self.verbs.resize(at, false, outstanding), Ok(()));
            self.check_completions(false);
            assert_eq!(self.verbs.resize(at, false, 256), Ok(()));
            self.check_memory();
        }
    }

    /// Completes `before`, posts `after` at both sides, ends the connection, and compares the completions: the network
    /// breaks if `cut_by` is 0; otherwise a queue pair of node 0 or 1 enters `Error`.
    pub fn run_cut(&mut self, before: &[Work], after: &[Work], cut_by: u8) {
        for at in 0..2 {
            for (wr_id, work) in (1..).zip(before) {
                self.post(at, wr_id, work);
            }
        }
        self.verbs.run();
        for at in 0..2 {
            for (wr_id, work) in (100..).zip(after) {
                self.post(at, wr_id, work);
            }
        }
        let parties = [self.verbs.party(0), self.verbs.party(1)];
        let net = self.verbs.net();
        let now = net.now;
        match cut_by {
            0 => net.cut(),
            1 => net.nodes[0].device.modify_qp(parties[0].qp, QpState::Error, now).unwrap(),
            _ => net.nodes[1].device.modify_qp(parties[1].qp, QpState::Error, now).unwrap(),
        }
        self.verbs.run();
        self.check_completions(true);
        for (at, party) in parties.iter().enumerate() {
            let attr = self.verbs.net().nodes[at].device.query_qp(party.qp).unwrap();
            assert_eq!((attr.state, attr.recv_used), (QpState::Error, 0));
        }
    }
}
