//! The program's side of a receive queue or a shared receive queue.

use iwarp_shared_queues::{AtomicU64, Producer, RingError, RingShape, SgeList, decode_recv, encode_recv};
use rdma::verbs::{PostError, QpNum, RecvWr, WcOpcode, WcStatus, WorkCompletion};

use super::Slots;
use crate::QueuePlace;

/// Receive queue of a queue pair (`ibv_post_recv`), or shared receive queue (`ibv_post_srq_recv`).
#[derive(Debug)]
pub struct RecvQueue<M> {
    memory: M,
    ring: Producer<M>,
    place: QueuePlace,
    max_wr: u16,
    max_sge: u16,
    /// Slots of the queue pair; `None` for a shared receive queue.
    slots: Option<Slots>,
    /// Entry that is encoded, over the one before.
    entry: Box<[u64]>,
}

impl<M: AsRef<[AtomicU64]> + Clone> RecvQueue<M> {
    /// Creates the queue from the response to its request; `None` if the memory is shorter than the place says.
    pub fn new(
        memory: M,
        place: QueuePlace,
        (max_wr, max_sge): (u16, u16),
        slots: Option<Slots>,
    ) -> Option<Self> {
        let ring = Producer::new(memory.clone(), place.start, place.shape)?;
        let entry = vec![0; place.shape.entry_words() as usize].into_boxed_slice();
        Some(Self { memory, ring, place, max_wr, max_sge, slots, entry })
    }

    /// Returns a completion with status `WrFlushError` for each buffer of the queue pair `qp` that occupies a slot,
    /// oldest first, as [`SendQueue::flushed`](super::SendQueue::flushed). A shared receive queue returns none.
    pub fn flushed(&mut self, qp: QpNum) -> Vec<WorkCompletion> {
        let (_, used) = self.slots.as_ref().map_or((0, 0), Slots::used);
        let mut words = [0; RingShape::ENTRY_WORDS_MAX as usize];
        let entry = |back| {
            let found = self.ring.recall(back, &mut words);
            let mut list = SgeList::new();
            let request = found.then(|| decode_recv(&words, &mut list).ok()).flatten();
            let wr_id = request.map_or(0, |request| request.wr_id);
            let (status, opcode) = (WcStatus::WrFlushError, WcOpcode::Recv);
            WorkCompletion { wr_id, status, opcode, qp_num: qp, ..WorkCompletion::default() }
        };
        let flushed = (0..u64::from(used)).rev().map(entry).collect();
        self.ring.abandon();
        flushed
    }

    /// Queues a buffer. The worker sees it after [`Self::ring`].
    ///
    /// # Errors
    /// Reason why the buffer was not queued, as for [`Device::post_recv`](rdma::verbs::Device::post_recv). A shared
    /// receive queue is full once its ring is.
    #[inline]
    pub fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if wr.sg_list.len() > usize::from(self.max_sge) {
            return Err(PostError::Length);
        }
        encode_recv(wr, &mut self.entry).map_err(|_| PostError::Length)?;
        let slot = || self.slots.as_ref().is_none_or(|slots| slots.take_recv(self.max_wr));
        match self.ring.has_room() {
            Ok(true) if slot() => {}
            Ok(_) => return Err(PostError::QueueFull),
            Err(_) => return Err(PostError::NoSuchObject),
        }
        self.ring.push(&self.entry).map_err(|error| match error {
            RingError::Full => PostError::QueueFull,
            RingError::Corrupt | RingError::TooLong => PostError::NoSuchObject,
        })
    }

    /// Shows all queued buffers to the worker. Returns true if the worker sleeps and must be woken.
    #[inline]
    pub fn ring(&self) -> bool {
        self.ring.publish();
        super::ring(&self.memory, self.place.doorbell)
    }
}
