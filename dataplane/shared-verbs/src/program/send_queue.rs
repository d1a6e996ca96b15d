//! The program's side of a send queue.

use iwarp_shared_queues::{AtomicU64, Producer, RingError, RingShape, SgeList, decode_send, encode_send};
use rdma::verbs::{Data, PostError, QpCap, QpNum, SendWr, WcOpcode, WcStatus, WorkCompletion};

use super::Slots;
use crate::QueuePlace;

/// Send queue of a queue pair (`ibv_post_send`).
#[derive(Debug)]
pub struct SendQueue<M> {
    memory: M,
    ring: Producer<M>,
    qp: QpNum,
    cap: QpCap,
    place: QueuePlace,
    slots: Slots,
    /// Entry that is encoded. Encoding overwrites what is used of it: to clear it takes longer than to encode it.
    entry: Box<[u64]>,
    /// True once the queue pair has, or had, a stream.
    ready: bool,
    /// Number of requests of the open batch; `None` without one.
    batch: Option<u32>,
}

impl<M: AsRef<[AtomicU64]> + Clone> SendQueue<M> {
    /// Creates the queue from the response to its request; `None` if the memory is shorter than the place says.
    pub fn new(memory: M, qp: QpNum, cap: QpCap, place: QueuePlace, slots: Slots) -> Option<Self> {
        let ring = Producer::new(memory.clone(), place.start, place.shape)?;
        let entry = vec![0; place.shape.entry_words() as usize].into_boxed_slice();
        Some(Self { memory, ring, qp, cap, place, slots, entry, ready: false, batch: None })
    }

    /// Returns the number of the queue pair.
    pub const fn qp(&self) -> QpNum {
        self.qp
    }

    /// States whether the queue pair accepts work to send: from its Established event on, or since the program has
    /// accepted the connection, until the program disconnects it. In state `Error` it accepts work, which is flushed.
    pub const fn set_ready(&mut self, ready: bool) {
        self.ready = ready;
    }

    /// Returns a completion with status `WrFlushError` for each request that occupies a slot, oldest first: the worker
    /// has ended and completes nothing any more. Polled through [`CompletionQueue::add_flushed`], each frees its slot.
    ///
    /// [`CompletionQueue::add_flushed`]: super::CompletionQueue::add_flushed
    ///
    /// Returns none while a batch is open: its requests are not posted yet.
    pub fn flushed(&mut self) -> Vec<WorkCompletion> {
        if self.batch.is_some() {
            return Vec::new();
        }
        let (used, _) = self.slots.used();
        let mut words = [0; RingShape::ENTRY_WORDS_MAX as usize];
        let entry = |back| {
            let found = self.ring.recall(back, &mut words);
            // The program may have overwritten the entry: then only its number is lost.
            let mut list = SgeList::new();
            let request = found.then(|| decode_send(&words, &mut list).ok()).flatten();
            let (wr_id, opcode) =
                request.map_or((0, WcOpcode::Send), |request| (request.wr_id, request.op.opcode()));
            let status = WcStatus::WrFlushError;
            WorkCompletion { wr_id, status, opcode, qp_num: self.qp, ..WorkCompletion::default() }
        };
        let flushed = (0..u64::from(used)).rev().map(entry).collect();
        self.ring.abandon();
        flushed
    }

    /// Queues a request. The worker sees it after [`Self::ring`].
    ///
    /// # Errors
    /// Reason why the request was not queued, as for [`Device::post_send`](rdma::verbs::Device::post_send).
    #[inline]
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if !self.ready {
            return Err(PostError::State);
        }
        let fits = match wr.data {
            Data::List(list) => list.len() <= usize::from(self.cap.max_send_sge),
            Data::Inline(bytes) => bytes.len() <= usize::from(self.cap.max_inline_data),
        };
        if !fits || !wr.op.takes(&wr.data) {
            return Err(PostError::Length);
        }
        let used = encode_send(wr, &mut self.entry).map_err(|_| PostError::Length)?;
        match self.ring.has_room() {
            Ok(true) if self.slots.take_send(self.cap.max_send_wr) => {}
            Ok(_) => return Err(PostError::QueueFull),
            Err(_) => return Err(PostError::NoSuchObject),
        }
        self.ring.push(self.entry.get(..used).unwrap_or(&self.entry)).map_err(|error| match error {
            RingError::Full => PostError::QueueFull,
            RingError::Corrupt | RingError::TooLong => PostError::NoSuchObject,
        })?;
        self.batch = self.batch.map(|queued| queued.saturating_add(1));
        Ok(())
    }

    /// Opens a batch: the worker sees none of the requests that are queued from here on until [`Self::end_batch`], and
    /// nobody rings meanwhile. Returns false if one is open.
    #[inline]
    pub const fn begin_batch(&mut self) -> bool {
        let is_first = self.batch.is_none();
        if is_first {
            self.batch = Some(0);
        }
        is_first
    }

    /// Returns true if a batch is open.
    #[inline]
    pub const fn has_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Ends the batch, and rings. Returns true if the worker sleeps and must be woken.
    #[inline]
    pub fn end_batch(&mut self) -> bool {
        self.batch.take().is_some_and(|queued| queued > 0) && self.ring()
    }

    /// Ends the batch, and drops its requests: the worker has not seen them, and their slots are free.
    pub fn abort_batch(&mut self) {
        if let Some(queued) = self.batch.take() {
            self.ring.retract(queued.into());
            self.slots.untake_send(queued);
        }
    }

    /// Shows all queued requests to the worker. Returns true if the worker sleeps and must be woken.
    #[inline]
    pub fn ring(&self) -> bool {
        self.ring.publish();
        super::ring(&self.memory, self.place.doorbell)
    }
}
