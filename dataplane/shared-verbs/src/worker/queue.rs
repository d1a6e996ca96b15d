//! Rings of send and receive queues: the worker takes a program's entries and posts them.

use iwarp_shared_queues::{AtomicU64, Consumer, RecvEntry, SendEntry};
use rdma::verbs::{Device, PostError, QpNum, QpState, SrqId, WcOpcode, WcStatus};

use super::EntryWords;
use crate::QueuePlace;

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
    entries: u32,
    /// Words of an entry.
    entry_words: usize,
    /// True if the queue waits for its turn.
    pub(super) waits: bool,
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
    pub(super) fn new(target: Target, memory: M, place: &QueuePlace) -> Option<Self> {
        let ring = Consumer::new(memory, place.start, place.shape)?;
        let entry_words = place.shape.entry_words() as usize;
        let entries = place.shape.entries();
        Some(Self { target, ring, entries, entry_words, waits: false, broken: false })
    }

    /// Drops all entries in the ring: their queue pair is reset.
    pub(super) fn discard(&mut self) {
        for _ in 0..self.entries {
            if self.ring.pop(&mut []) != Ok(true) {
                break;
            }
        }
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
        let Some(words) = words.get_mut(..self.entry_words).filter(|_| !self.broken) else {
            return (0, Posted::All);
        };
        let mut read = 0_usize;
        let end = loop {
            if read >= max {
                break Posted::Some;
            }
            match self.ring.pop(words) {
                Ok(true) => {}
                Ok(false) => break Posted::All,
                Err(_) => {
                    self.broken = true;
                    fail(self.target, device);
                    break Posted::All;
                }
            }
            read = read.saturating_add(1);
            let entry = match self.target {
                Target::Send(qp) => post_send(qp, words, device),
                Target::Recv(qp) => post_recv(qp, words, device),
                Target::Shared(srq) => post_srq_recv(srq, words, device),
            };
            match entry {
                Entry::Posted => {}
                Entry::Waits => {
                    self.ring.put_back();
                    break Posted::Waits;
                }
                Entry::Refused => {
                    self.broken = true;
                    break Posted::All;
                }
            }
        };
        self.ring.release();
        (read, end)
    }
}

#[inline]
fn post_send<C: AsRef<[u8]>>(qp: QpNum, words: &[u64], device: &mut Device<C>) -> Entry {
    let Ok(entry) = SendEntry::decode(words) else { return refuse_send(qp, words, WcOpcode::Send, device) };
    match device.post_send(qp, &entry.request()) {
        Ok(()) => Entry::Posted,
        Err(PostError::State) => Entry::Waits,
        Err(
            PostError::NoSuchObject
            | PostError::QueueFull
            | PostError::Length
            | PostError::NoReads
            | PostError::Window,
        ) => refuse_send(qp, words, entry.op.opcode(), device),
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
    let posted = RecvEntry::decode(words).map(|entry| device.post_recv(qp, &entry.request()));
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
    match RecvEntry::decode(words).map(|entry| device.post_srq_recv(srq, &entry.request())) {
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
