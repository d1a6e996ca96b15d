//! The program's side of a completion queue.

use core::sync::atomic::Ordering;

use iwarp_shared_queues::{Arm, Armed, AtomicU64, COMPLETION_WORDS, Consumer, decode_completion};
use rdma::verbs::{PollError, QpNum, Slots as Freed, WcOpcode, WcStatus, WorkCompletion};

use super::Slots;
use crate::CqPlace;

/// Completion queue (`ibv_poll_cq`, `ibv_req_notify_cq`).
#[derive(Debug)]
pub struct CompletionQueue<M> {
    memory: M,
    ring: Consumer<M>,
    place: CqPlace,
    /// Slots of the queue pairs that complete here, by [`QpNum::index`].
    qps: Vec<Option<(QpNum, Slots)>>,
    /// Completions taken from the ring and not yet polled, oldest last.
    taken: Vec<(WorkCompletion, Freed)>,
    /// Completions taken from the rings before the last resize.
    taken_before: u64,
    /// Completions since the queue was created that were in it when it was armed, or polled before. The worker raises
    /// the events of later ones.
    armed_at: u64,
    /// True once the worker has written something that is no completion.
    broken: bool,
    /// True once the worker has ended: nothing is taken from the ring any more.
    ended: bool,
}

impl<M: AsRef<[AtomicU64]> + Clone> CompletionQueue<M> {
    /// Creates the queue from the response to its request; `None` if the memory is shorter than the place says.
    pub fn new(memory: M, place: CqPlace) -> Option<Self> {
        let ring = Consumer::new(memory.clone(), place.ring(), place.shape)?;
        Some(Self {
            memory,
            ring,
            place,
            qps: Vec::new(),
            taken: Vec::new(),
            taken_before: 0,
            armed_at: 0,
            broken: false,
            ended: false,
        })
    }

    /// Prepares the queue for a request to resize it: the worker sees how many completions the program has taken.
    /// Returns false if `cqe` entries are fewer than the completions that are outstanding.
    pub fn begin_resize(&mut self, cqe: u32) -> bool {
        self.ring.release();
        let in_ring = self.ring.produced().unwrap_or(u64::MAX).saturating_sub(self.ring.taken());
        in_ring.saturating_add(self.taken.len() as u64) <= cqe.into()
    }

    /// Continues at the place of the response: the completions of the old ring are in the new one. Returns false if the
    /// memory is shorter than the place says.
    pub fn end_resize(&mut self, place: CqPlace) -> bool {
        let Some(ring) = Consumer::new(self.memory.clone(), place.ring(), place.shape) else { return false };
        self.taken_before = self.all_taken();
        (self.ring, self.place) = (ring, place);
        true
    }

    /// Adds a queue pair that completes here.
    pub fn add_qp(&mut self, qp: QpNum, slots: Slots) {
        if self.qps.len() <= qp.index() {
            self.qps.resize(qp.index().saturating_add(1), None);
        }
        if let Some(place) = self.qps.get_mut(qp.index()) {
            *place = Some((qp, slots));
        }
    }

    /// Removes a queue pair that was destroyed. Its completions are dropped.
    pub fn remove_qp(&mut self, qp: QpNum) {
        self.drop_completions(qp);
        if let Some(place) = self.qps.get_mut(qp.index()) {
            place.take_if(|(number, _)| *number == qp);
        }
    }

    /// Drops the completions of a queue pair that was reset or destroyed.
    pub fn drop_completions(&mut self, qp: QpNum) {
        self.take_all();
        self.ring.release();
        self.taken.retain(|(wc, _)| wc.qp_num != qp);
        // The counts do not tell any more which of the others came before the arming.
        self.armed_at = self.all_taken();
    }

    /// Returns the number of completions taken from the ring, and from those before it.
    fn all_taken(&self) -> u64 {
        self.taken_before.saturating_add(self.ring.taken())
    }

    /// Takes all completions of the ring.
    fn take_all(&mut self) {
        let mut all: Vec<_> = core::iter::from_fn(|| self.take()).collect();
        all.reverse();
        all.append(&mut self.taken);
        self.taken = all;
    }

    /// Returns true if no completion is left that the worker has delivered.
    pub fn is_drained(&mut self) -> bool {
        if self.taken.is_empty()
            && let Some(taken) = self.take()
        {
            self.taken.push(taken);
        }
        self.taken.is_empty()
    }

    /// Adds completions of work that the worker, which has ended, will not complete. Only once
    /// [`Self::is_drained`] is true.
    pub fn add_flushed(&mut self, flushed: Vec<WorkCompletion>) {
        // Otherwise the same work could complete twice.
        self.ended = true;
        let slots = |wc: &WorkCompletion| match wc.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => Freed::Receive,
            _ => Freed::Send(1),
        };
        self.taken.extend(flushed.into_iter().rev().map(|wc| (wc, slots(&wc))));
    }

    /// Moves completions to `out`, oldest first, and returns their number. Their slots are free then.
    ///
    /// # Errors
    /// `Overrun`: the queue is in error and empty; `out` is unchanged.
    #[inline]
    pub fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let mut polled = 0_usize;
        for place in out.iter_mut() {
            let Some(wc) = self.next() else { break };
            *place = wc;
            polled = polled.saturating_add(1);
        }
        if polled > 0 {
            self.ring.release();
        } else if !out.is_empty() && self.is_in_error() {
            return Err(PollError::Overrun);
        }
        Ok(polled)
    }

    /// Returns the oldest completion, and frees its slots. Completions of unknown queue pairs are dropped: these were
    /// destroyed.
    #[inline]
    fn next(&mut self) -> Option<WorkCompletion> {
        loop {
            let (wc, freed) = self.taken.pop().or_else(|| self.take())?;
            match self.qps.get(wc.qp_num.index()) {
                Some(Some((number, slots))) if *number == wc.qp_num => {
                    if slots.free(freed) {
                        return Some(wc);
                    }
                    self.broken = true;
                    return None;
                }
                _ => {}
            }
        }
    }

    /// Takes the oldest completion of the ring.
    #[inline]
    fn take(&mut self) -> Option<(WorkCompletion, Freed)> {
        if self.broken || self.ended {
            return None;
        }
        let mut words = [0; COMPLETION_WORDS];
        match self.ring.pop(&mut words) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_) => {
                self.broken = true;
                return None;
            }
        }
        let decoded = decode_completion(&words);
        self.broken = decoded.is_err();
        decoded.ok()
    }

    fn is_in_error(&self) -> bool {
        let error = self.memory.as_ref().get(self.place.error());
        self.broken || error.is_some_and(|error| error.load(Ordering::Acquire) != 0)
    }

    /// Arms the event for the next completion. The program polls once more after this call, before it sleeps.
    pub fn req_notify(&mut self, solicited_only: bool) {
        if let Some(arm) = self.arm() {
            arm.arm(if solicited_only { Armed::Solicited } else { Armed::Any });
        }
        // Read after the barrier of the arming: the worker finds the queue armed for all that it does not count.
        let produced = self.ring.produced().unwrap_or(self.ring.taken());
        self.armed_at = self.taken_before.saturating_add(produced);
    }

    /// Returns the number of completions that are left of those before the arming.
    fn left(&self) -> usize {
        if self.ended {
            return self.taken.len();
        }
        let polled = self.all_taken().saturating_sub(self.taken.len() as u64);
        usize::try_from(self.armed_at.saturating_sub(polled)).unwrap_or(usize::MAX)
    }

    /// Returns true if the queue is armed, and the program has left a completion in it that was there before, and for
    /// which an event is due: the caller raises the event. The queue is not armed any more then. The worker raises the
    /// events of completions that came after the arming: it may be about to, so that nobody else must.
    pub fn take_left_event(&mut self) -> bool {
        let left = self.left();
        let is_due = left > 0
            && match self.arm().and_then(Arm::armed) {
                None => false,
                Some(Armed::Any) => true,
                Some(Armed::Solicited) => {
                    self.take_all();
                    let mut oldest = self.taken.iter().rev().take(left);
                    oldest.any(|(wc, _)| wc.solicited || wc.status != WcStatus::Success)
                }
            };
        is_due && self.arm().is_some_and(Arm::disarm)
    }

    fn arm(&self) -> Option<Arm<'_>> {
        self.memory.as_ref().get(self.place.start).map(Arm)
    }

    /// Returns the number of events of the queue since it was created.
    pub fn events(&self) -> u64 {
        self.memory.as_ref().get(self.place.events()).map_or(0, |events| events.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::Arc;

    use iwarp_shared_queues::{Producer, encode_completion};

    use super::*;

    /// The worker has published a completion, and not looked at the arming yet. A program that raised the event itself
    /// and armed again would receive another one without a completion.
    #[test]
    fn the_event_of_a_completion_behind_the_arming_is_the_worker_s() {
        let shape = CqPlace::shape_for(8).unwrap();
        let memory: Arc<[AtomicU64]> = (0..CqPlace::words(shape)).map(|_| AtomicU64::new(0)).collect();
        let place = CqPlace { start: 0, shape };
        let mut worker = Producer::new(Arc::clone(&memory), place.ring(), shape).unwrap();
        let mut cq = CompletionQueue::new(memory, place).unwrap();
        let mut complete = |solicited| {
            let wc = WorkCompletion { solicited, ..WorkCompletion::default() };
            worker.push(&encode_completion(&wc, Freed::Send(1))).unwrap();
            worker.publish();
        };
        cq.req_notify(false);
        complete(false);
        assert!(!cq.take_left_event());
        cq.req_notify(true);
        complete(true);
        assert!(!cq.take_left_event(), "what was there is not solicited");
        cq.req_notify(true);
        assert_eq!([cq.take_left_event(), cq.take_left_event()], [true, false]);
    }

    /// The counts of the new ring begin at 0; the arming, and what was left at it, stay.
    #[test]
    fn a_queue_that_is_resized_stays_armed_for_the_same_completions() {
        let old = CqPlace { start: 0, shape: CqPlace::shape_for(8).unwrap() };
        let new = CqPlace { start: CqPlace::words(old.shape), ..old };
        let memory: Arc<[AtomicU64]> =
            (0..2 * CqPlace::words(old.shape)).map(|_| AtomicU64::new(0)).collect();
        let mut worker = Producer::new(Arc::clone(&memory), old.ring(), old.shape).unwrap();
        let mut cq = CompletionQueue::new(Arc::clone(&memory), old).unwrap();
        let complete = |worker: &mut Producer<Arc<[AtomicU64]>>| {
            worker.push(&encode_completion(&WorkCompletion::default(), Freed::Send(0))).unwrap();
            worker.publish();
        };
        cq.add_qp(QpNum::default(), Slots::new(true));
        let mut out = [WorkCompletion::default()];
        for _ in 0..3 {
            complete(&mut worker);
            assert_eq!(cq.poll(&mut out), Ok(1));
        }
        complete(&mut worker);
        cq.req_notify(false);
        assert!(!cq.begin_resize(0), "one is outstanding");
        assert!(cq.begin_resize(1));
        let mut moved = Producer::new(Arc::clone(&memory), new.ring(), new.shape).unwrap();
        assert_eq!(worker.pending(), Ok(1));
        while !worker.copy_pending(&mut moved, 2).unwrap() {}
        moved.publish();
        memory[new.start].store(memory[old.start].load(Ordering::Relaxed), Ordering::Relaxed);
        assert!(cq.end_resize(new));
        assert!(cq.take_left_event(), "it was there at the arming");
        assert_eq!(cq.poll(&mut out), Ok(1));
        cq.req_notify(false);
        complete(&mut moved);
        assert!(!cq.take_left_event(), "it came after the arming");
        assert_eq!([cq.poll(&mut out), cq.poll(&mut out)], [Ok(1), Ok(0)]);
    }
}
