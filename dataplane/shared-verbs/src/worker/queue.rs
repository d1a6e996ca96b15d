//! Rings of send and receive queues: the worker takes a program's entries and posts them.

use iwarp_shared_queues::{
    AtomicU64, Consumer, LINE_WORDS, SgeList, decode_recv, decode_send, recv_length, send_length,
};
use rdma::verbs::{Device, PostError, QpNum, QpState, SrqId, WcOpcode, WcStatus};

use super::EntryWords;
use crate::QueuePlace;

/// Entries whose first lines are copied at once.
const PEEKED_MAX: usize = 8;

/// Queue whose entries a ring carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Send(QpNum),
    Recv(QpNum),
    Shared(SrqId),
}

/// Ring of a send queue, a receive queue or a shared receive queue.
#[derive(Debug)]
pub(super) struct Queue<M> {
    target: Target,
    ring: Consumer<M>,
    /// Words of an entry.
    entry_words: usize,
    /// True if the queue waits for its turn.
    pub(super) waits: bool,
    /// True while the queue pair is being reset or destroyed: no entry is posted.
    pub(super) paused: bool,
    /// True once the ring cannot be used any more.
    broken: bool,
}

/// State of a queue after its entries were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// The ring is empty, or cannot be used any more.
    All,
    /// More entries may be posted at once.
    Some,
    /// The next entry must wait: the queue pair has no stream, or its stream closes; or the shared queue is full.
    Waits,
}

/// Result of one entry.
enum Entry {
    Posted,
    Waits,
    Refused,
}

impl<M: AsRef<[AtomicU64]>> Queue<M> {
    /// True for a queue of requests to send.
    pub(super) const fn sends(&self) -> bool {
        matches!(self.target, Target::Send(_))
    }

    pub(super) fn new(target: Target, memory: M, place: &QueuePlace) -> Option<Self> {
        let ring = Consumer::new(memory, place.start, place.shape)?;
        let entry_words = place.shape.entry_words() as usize;
        Some(Self { target, ring, entry_words, waits: false, paused: false, broken: false })
    }

    /// Returns true if the ring has entries that were not posted.
    pub(super) fn has_entries(&mut self) -> bool {
        // A ring that is corrupt ends its queue pair anyway.
        !self.broken && self.ring.peek(&mut [[0; 1]]) != Ok(0)
    }

    /// Drops all entries in the ring: their queue pair is reset.
    pub(super) fn discard(&mut self) {
        // A ring that is corrupt shows itself when its entries are posted.
        let _ = self.ring.take_all();
        self.ring.release();
    }

    /// Posts up to `max` entries. Returns the number of entries read.
    #[inline]
    pub(super) fn post<C: AsRef<[u8]>>(
        &mut self,
        device: &mut Device<C>,
        max: usize,
        words: &mut EntryWords,
    ) -> (usize, Posted) {
        let Some(words) = words.get_mut(..self.entry_words).filter(|_| !self.broken && !self.paused) else {
            return (0, Posted::All);
        };
        let mut read = 0_usize;
        let end = 'ring: loop {
            let mut first = [[0; LINE_WORDS]; PEEKED_MAX];
            let most = max.saturating_sub(read).min(PEEKED_MAX);
            if most == 0 {
                break Posted::Some;
            }
            let peeked = match self.ring.peek(first.get_mut(..most).unwrap_or_default()) {
                Ok(0) => break Posted::All,
                Ok(peeked) => peeked,
                Err(_) => {
                    self.broken = true;
                    fail(self.target, device);
                    break Posted::All;
                }
            };
            for first in first.iter().take(peeked) {
                read = read.saturating_add(1);
                match self.post_entry(first, words, device) {
                    Entry::Posted => self.ring.take(),
                    Entry::Waits => break 'ring Posted::Waits,
                    Entry::Refused => {
                        self.broken = true;
                        break 'ring Posted::All;
                    }
                }
            }
        };
        self.ring.release();
        (read, end)
    }

    /// Copies the words of the next entry behind its first ones to `words`, and returns all.
    fn whole<'a>(&self, first: &[u64; LINE_WORDS], words: &'a mut [u64]) -> &'a [u64] {
        if let Some((head, rest)) = words.split_first_chunk_mut() {
            *head = *first;
            self.ring.peek_rest(LINE_WORDS, rest);
        }
        words
    }

    /// Posts the next entry of the ring, whose first words were copied.
    #[inline]
    fn post_entry<C: AsRef<[u8]>>(
        &self,
        first: &[u64; LINE_WORDS],
        words: &mut [u64],
        device: &mut Device<C>,
    ) -> Entry {
        let taken = match self.target {
            Target::Send(_) => send_length(first),
            Target::Recv(_) | Target::Shared(_) => recv_length(first),
        };
        let taken = taken.min(self.entry_words);
        let entry = match first.get(..taken) {
            Some(entry) => entry,
            None => self.whole(first, words.get_mut(..taken).unwrap_or_default()),
        };
        match self.target {
            Target::Send(qp) => post_send(qp, entry, device),
            Target::Recv(qp) => post_recv(qp, entry, device),
            Target::Shared(srq) => post_srq_recv(srq, entry, device),
        }
    }
}

#[inline]
fn post_send<C: AsRef<[u8]>>(qp: QpNum, words: &[u64], device: &mut Device<C>) -> Entry {
    let mut list = SgeList::new();
    let Ok(request) = decode_send(words, &mut list) else {
        return refuse_send(qp, words, WcOpcode::Send, device);
    };
    match device.post_send(qp, &request) {
        Ok(()) => Entry::Posted,
        Err(PostError::State) => Entry::Waits,
        Err(
            PostError::NoSuchObject
            | PostError::QueueFull
            | PostError::Length
            | PostError::NoReads
            | PostError::NotNegotiated
            | PostError::Operation
            | PostError::Window,
        ) => refuse_send(qp, words, request.op.opcode(), device),
    }
}

#[cold]
fn refuse_send<C: AsRef<[u8]>>(qp: QpNum, words: &[u64], opcode: WcOpcode, device: &mut Device<C>) -> Entry {
    let wr_id = words.first().copied().unwrap_or(0);
    match device.refuse_send(qp, (wr_id, opcode), WcStatus::LocalQpOperationError) {
        Ok(()) => Entry::Posted,
        Err(_) => Entry::Refused,
    }
}

#[inline]
fn post_recv<C: AsRef<[u8]>>(qp: QpNum, words: &[u64], device: &mut Device<C>) -> Entry {
    let mut list = SgeList::new();
    let posted = decode_recv(words, &mut list).map(|request| device.post_recv(qp, &request));
    if matches!(posted, Ok(Ok(()))) {
        return Entry::Posted;
    }
    let wr_id = words.first().copied().unwrap_or(0);
    match device.refuse_recv(qp, wr_id, WcStatus::LocalQpOperationError) {
        Ok(()) => Entry::Posted,
        Err(_) => Entry::Refused,
    }
}

#[inline]
fn post_srq_recv<C: AsRef<[u8]>>(srq: SrqId, words: &[u64], device: &mut Device<C>) -> Entry {
    let mut list = SgeList::new();
    match decode_recv(words, &mut list).map(|request| device.post_srq_recv(srq, &request)) {
        Ok(Ok(())) => Entry::Posted,
        Ok(Err(PostError::QueueFull)) => Entry::Waits,
        // The buffer belongs to no queue pair, so no completion can report it: the queue takes no more of them.
        Ok(Err(_)) | Err(_) => Entry::Refused,
    }
}

/// Ends the queue pair of a ring that cannot be used any more. A shared receive queue takes no more buffers.
#[cold]
fn fail<C: AsRef<[u8]>>(target: Target, device: &mut Device<C>) {
    match target {
        Target::Send(qp) | Target::Recv(qp) => {
            // Fails only if the queue pair is not there.
            let _ = device.modify_qp(qp, QpState::Error, core::time::Duration::ZERO);
        }
        Target::Shared(_) => {}
    }
}
