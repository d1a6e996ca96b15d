//! Copies into and out of a program's memory that the daemon reaches through the kernel, made by a thread of their own.
//!
//! Such a copy takes as long as others like: the memory may be a file of a FUSE server or registered with userfaultfd,
//! and the program may fork, which locks its address space. So no worker makes one: it queues a job and goes on. Each
//! program has a thread, which can harm nobody else.
//!
//! ```text
//!  worker    Copier::write, read, atomic ──▶ jobs (a ring; one producer, one consumer)
//!  thread    Copier::work: copy, then `done` counts up
//!  worker    Copier::state: all jobs up to a number are done, or the oldest has waited too long
//! ```
//! When a job has waited longer than the limit, all jobs that are queued fail, and the thread skips them once the
//! kernel returns. It is never joined: if the kernel does not return, the thread stays until the program's server or
//! the program ends, and touches its own buffers and the program's memory only.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::task::Poll;
use std::thread::Thread;
use std::time::Duration;

use rdma::{AHEAD_BYTES, AtomicOp, CopyState};

use super::process::ProcessMemory;
use super::region::RegionMemory;

/// Jobs of a copier; a power of two.
const JOBS: u64 = 256;
/// Jobs that one segment takes at most: 64 KiB in pieces, of which a packet buffer, a list element and a part of the
/// memory each end one.
pub(super) const JOBS_OF_SEGMENT: u64 = 128;
/// Most bytes of a job that writes.
const JOB_BYTES: usize = 4096;
/// Messages that are read ahead at the same time.
const READS: usize = 4;
/// Attempts to find a place to read to, after which one that its stream does not use is taken.
const PATIENCE: u64 = 4096;
/// Checks for a new job before the thread sleeps: some 20 µs.
const SPINS: u32 = 1000;
/// Streams with a failed copy that are remembered.
const FAILED_MAX: usize = 1024;
/// Original values that are kept: those of all queue pairs that a worker may have. Those of streams that have ended
/// leave first.
const ORIGINALS_MAX: usize = 16_384;
/// Stack of the thread, bytes.
const STACK_BYTES: usize = 128 << 10;

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Returns milliseconds of the monotonic clock.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let number = |part: i64| u64::try_from(part).unwrap_or(0);
    number(now.tv_sec).saturating_mul(1000).saturating_add(number(now.tv_nsec) / 1_000_000)
}

/// Lock that orders atomic operations of the threads that share it.
pub type AtomicsLock = Arc<Mutex<()>>;

/// Bytes that a job accesses.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// Address in the program.
    Process(u64),
    /// Memory that the daemon maps, and an offset: what lies between bytes of the program keeps its order.
    Mapped(Arc<RegionMemory>, u64),
}

impl Target {
    fn after(&self, bytes: usize) -> Self {
        match self {
            Self::Process(address) => Self::Process(address.wrapping_add(bytes as u64)),
            Self::Mapped(memory, offset) => {
                Self::Mapped(Arc::clone(memory), offset.wrapping_add(bytes as u64))
            }
        }
    }
}

#[derive(Debug)]
enum Work {
    /// Writes this many bytes of the job.
    Write(usize),
    /// Reads `len` bytes to offset `at` of a place.
    Read { slot: usize, at: usize, len: usize },
    /// Updates eight bytes, a number.
    Atomic(AtomicOp),
}

#[derive(Debug)]
struct Job {
    stream: u64,
    work: Option<(Work, Target)>,
    bytes: Box<[u8]>,
}

/// Place that bytes are read to.
#[derive(Debug)]
struct ReadSlot {
    /// Number of the last job that reads to it; 0 while it is free. Changed by the worker alone.
    ticket: AtomicU64,
    /// Attempts to take it since its stream used it last.
    skipped: AtomicU64,
    bytes: Mutex<Box<[u8]>>,
}

/// Jobs of one program's address space, and the thread that does them.
///
/// One worker queues. A lock is never contended by design: the worker takes that of a job or a place only while the
/// thread has no business with it. It tries, and does not wait.
#[derive(Debug)]
pub struct Copier {
    number: u64,
    process: ProcessMemory,
    limit_ms: u64,
    jobs: Box<[Mutex<Job>]>,
    /// Time at which each job was queued, milliseconds.
    queued_at: Box<[AtomicU64]>,
    reads: Box<[ReadSlot]>,
    /// Number of jobs queued so far.
    queued: AtomicU64,
    /// Number of jobs done so far.
    done: AtomicU64,
    /// Set by the worker when the oldest job has waited too long. Nothing is queued, and jobs are skipped, until all of
    /// them are gone.
    stuck: AtomicBool,
    /// Set when the program has left: jobs are skipped, and the thread ends.
    closed: AtomicBool,
    sleeps: AtomicBool,
    thread: OnceLock<Thread>,
    /// Streams with a failed job.
    failed: Mutex<VecDeque<u64>>,
    /// Original values of atomic operations, by stream.
    originals: Mutex<VecDeque<(u64, u64)>>,
    atomics: AtomicsLock,
}

impl Copier {
    /// Starts a copier. A job that is not done after `limit` fails. Copiers that share `atomics` order their atomic
    /// operations.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn start(process: ProcessMemory, limit: Duration, atomics: AtomicsLock) -> io::Result<Arc<Self>> {
        let job = || Mutex::new(Job { stream: 0, work: None, bytes: vec![0; JOB_BYTES].into() });
        let slot = || ReadSlot {
            ticket: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            bytes: Mutex::new(vec![0; AHEAD_BYTES].into()),
        };
        let copier = Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            process,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            jobs: (0..JOBS).map(|_| job()).collect(),
            queued_at: (0..JOBS).map(|_| AtomicU64::new(0)).collect(),
            reads: (0..READS).map(|_| slot()).collect(),
            queued: AtomicU64::new(0),
            done: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            thread: OnceLock::new(),
            failed: Mutex::new(VecDeque::with_capacity(FAILED_MAX)),
            originals: Mutex::new(VecDeque::new()),
            atomics,
        });
        let own = Arc::clone(&copier);
        let builder = std::thread::Builder::new().name("copier".to_owned()).stack_size(STACK_BYTES);
        let handle = builder.spawn(move || own.work())?;
        let _ = copier.thread.set(handle.thread().clone());
        Ok(copier)
    }

    /// Returns the number that no other copier has.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of jobs queued so far.
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::SeqCst)
    }

    /// Returns the number of jobs done so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Skips all jobs that have not begun, and ends the thread after the one that has. Does not wait.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Returns true if the oldest job has waited too long, until all jobs are gone.
    pub(super) fn is_stuck(&self) -> bool {
        let done = self.done();
        if done == self.queued() {
            self.stuck.store(false, Ordering::SeqCst);
            return self.closed.load(Ordering::SeqCst);
        }
        if self.stuck.load(Ordering::SeqCst) {
            return true;
        }
        let since = self.queued_at.get(index(done)).map_or(0, |at| at.load(Ordering::Relaxed));
        let is_overdue = now_ms().saturating_sub(since) > self.limit_ms && self.done() == done;
        if is_overdue {
            self.stuck.store(true, Ordering::SeqCst);
        }
        is_overdue
    }

    /// Returns `Ok` if the jobs of a segment have room; otherwise the number of the job that is to be done first.
    pub(super) fn room(&self) -> Result<(), u64> {
        let waiting = self.queued().saturating_sub(self.done());
        if waiting <= JOBS - JOBS_OF_SEGMENT {
            Ok(())
        } else {
            Err(self.queued().saturating_sub((JOBS - JOBS_OF_SEGMENT) / 2))
        }
    }

    /// Queues jobs that write bytes. Returns their number; `None` if there is no room.
    pub(super) fn write(&self, stream: u64, target: &Target, bytes: &[u8]) -> Option<u64> {
        let mut at = 0;
        for piece in bytes.chunks(JOB_BYTES) {
            self.push(stream, Work::Write(piece.len()), target.after(at), piece)?;
            at = at.saturating_add(piece.len());
        }
        Some(bytes.len().div_ceil(JOB_BYTES) as u64)
    }

    /// Queues a job that reads bytes to a place, from its offset `at` on. Returns false if there is no room.
    pub(super) fn read(&self, stream: u64, target: Target, (slot, at, len): (usize, usize, usize)) -> bool {
        self.push(stream, Work::Read { slot, at, len }, target, &[]).is_some()
    }

    /// Queues an atomic operation. Returns false if there is no room.
    pub(super) fn atomic(&self, stream: u64, address: u64, op: AtomicOp) -> bool {
        self.push(stream, Work::Atomic(op), Target::Process(address), &[]).is_some()
    }

    fn push(&self, stream: u64, work: Work, target: Target, bytes: &[u8]) -> Option<()> {
        let number = self.queued();
        if number.saturating_sub(self.done()) >= JOBS {
            return None;
        }
        let mut job = self.jobs.get(index(number))?.try_lock().ok()?;
        job.stream = stream;
        job.work = Some((work, target));
        job.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        drop(job);
        self.queued_at.get(index(number))?.store(now_ms(), Ordering::Relaxed);
        self.queued.store(number.wrapping_add(1), Ordering::SeqCst);
        if self.sleeps.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
        Some(())
    }

    /// Returns the state of the jobs of a stream up to a number. Forgets a failure that it returns.
    pub(super) fn state(&self, stream: u64, number: u64) -> CopyState {
        let done = self.done() >= number;
        match self.failed.try_lock() {
            Ok(mut failed) => {
                if let Some(at) = failed.iter().position(|of| *of == stream) {
                    failed.remove(at);
                    return CopyState::Failed;
                }
            }
            Err(TryLockError::WouldBlock) => return CopyState::Pending,
            Err(TryLockError::Poisoned(_)) => return CopyState::Failed,
        }
        match done {
            true => CopyState::Done,
            false if self.is_stuck() => CopyState::Failed,
            false => CopyState::Pending,
        }
    }

    /// Takes a place to read to, until [`Self::release`].
    pub(super) fn take_slot(&self) -> Option<usize> {
        let free = self.reads.iter().position(|slot| slot.ticket.load(Ordering::Relaxed) == 0);
        free.or_else(|| self.unused_slot())
    }

    /// Returns a place whose stream has not used what was read for it, and may have ended.
    fn unused_slot(&self) -> Option<usize> {
        let done = self.done();
        self.reads.iter().position(|slot| {
            slot.ticket.load(Ordering::Relaxed) <= done
                && slot.skipped.fetch_add(1, Ordering::Relaxed) >= PATIENCE
        })
    }

    /// Makes a place that of the jobs up to a number.
    pub(super) fn mark_slot(&self, slot: usize, ticket: u64) {
        if let Some(slot) = self.reads.get(slot) {
            slot.ticket.store(ticket, Ordering::Relaxed);
            slot.skipped.store(0, Ordering::Relaxed);
        }
    }

    /// Copies bytes that were read by the jobs up to a number. Returns false if they are not there any more.
    pub(super) fn fetch(&self, (slot, ticket): (usize, u64), skip: usize, out: &mut [u8]) -> bool {
        let Some(slot) = self.reads.get(slot).filter(|slot| slot.ticket.load(Ordering::Relaxed) == ticket)
        else {
            return false;
        };
        slot.skipped.store(0, Ordering::Relaxed);
        let Ok(bytes) = slot.bytes.try_lock() else { return false };
        let Some(bytes) = bytes.get(skip..skip.saturating_add(out.len())) else { return false };
        out.copy_from_slice(bytes);
        true
    }

    /// Frees a place, if it is still that of the jobs up to a number.
    pub(super) fn release(&self, slot: usize, ticket: u64) {
        if let Some(slot) = self.reads.get(slot) {
            let _ = slot.ticket.compare_exchange(ticket, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the original value of the atomic operation of a stream. `Pending`: the thread adds one of another stream
    /// at this moment.
    pub(super) fn take_original(&self, stream: u64) -> Poll<Option<u64>> {
        let mut originals = match self.originals.try_lock() {
            Ok(originals) => originals,
            Err(TryLockError::WouldBlock) => return Poll::Pending,
            Err(TryLockError::Poisoned(originals)) => originals.into_inner(),
        };
        let at = originals.iter().position(|(of, _)| *of == stream);
        Poll::Ready(at.and_then(|at| originals.remove(at)).map(|(_, value)| value))
    }

    /// Does jobs until the copier is closed.
    fn work(&self) {
        loop {
            let number = self.done.load(Ordering::Relaxed);
            if number == self.queued() {
                if self.closed.load(Ordering::SeqCst) {
                    return;
                }
                self.sleep(number);
                continue;
            }
            let Some(job) = self.jobs.get(index(number)) else { return };
            let mut job = job.lock().unwrap_or_else(PoisonError::into_inner);
            let skips = self.stuck.load(Ordering::SeqCst) || self.closed.load(Ordering::SeqCst);
            let work = job.work.take();
            let done = !skips && work.is_some_and(|(work, target)| self.copy(&mut job, work, &target));
            let stream = job.stream;
            drop(job);
            if !done {
                self.note_failed(stream);
            }
            self.done.store(number.wrapping_add(1), Ordering::SeqCst);
        }
    }

    /// Waits for a job behind `number`.
    fn sleep(&self, number: u64) {
        for _ in 0..SPINS {
            if self.queued() != number {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleeps.store(true, Ordering::SeqCst);
        if self.queued() == number && !self.closed.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.sleeps.store(false, Ordering::SeqCst);
    }

    fn copy(&self, job: &mut Job, work: Work, target: &Target) -> bool {
        match (work, target) {
            (Work::Write(len), target) => {
                let Some(bytes) = job.bytes.get(..len) else { return false };
                match target {
                    Target::Process(address) => self.process.write(*address, bytes),
                    Target::Mapped(memory, offset) => memory.write(*offset, bytes).is_ok(),
                }
            }
            (Work::Read { slot, at, len }, target) => {
                let Some(slot) = self.reads.get(slot) else { return false };
                let mut bytes = slot.bytes.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(out) = bytes.get_mut(at..at.saturating_add(len)) else { return false };
                match target {
                    Target::Process(address) => self.process.read(*address, out),
                    Target::Mapped(memory, offset) => memory.read(*offset, out).is_ok(),
                }
            }
            (Work::Atomic(op), Target::Process(address)) => {
                let original = {
                    let _one = self.atomics.lock().unwrap_or_else(PoisonError::into_inner);
                    self.process.update(*address, |value| op.apply(value))
                };
                let Some(original) = original else { return false };
                let mut originals = self.originals.lock().unwrap_or_else(PoisonError::into_inner);
                originals.retain(|(of, _)| *of != job.stream);
                if originals.len() >= ORIGINALS_MAX {
                    originals.pop_front();
                }
                originals.push_back((job.stream, original));
                true
            }
            (Work::Atomic(_), Target::Mapped(..)) => false,
        }
    }

    fn note_failed(&self, stream: u64) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if !failed.contains(&stream) {
            if failed.len() >= FAILED_MAX {
                failed.pop_front();
            }
            failed.push_back(stream);
        }
    }
}

/// Returns the index of a job by its number.
fn index(number: u64) -> usize {
    usize::try_from(number % JOBS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::memory::kernel_tests::own_copier;

    /// The thread has the lock while it records the value of another stream: that says nothing about this one's.
    #[test]
    fn a_value_is_asked_for_again_while_another_is_recorded() {
        let copier = own_copier(Duration::from_secs(10));
        copier.originals.lock().unwrap().push_back((7, 70));
        let recording = copier.originals.lock().unwrap();
        assert_eq!(copier.take_original(7), Poll::Pending);
        drop(recording);
        assert_eq!(copier.take_original(8), Poll::Ready(None));
        assert_eq!(copier.take_original(7), Poll::Ready(Some(70)));
        assert_eq!(copier.take_original(7), Poll::Ready(None));
        copier.close();
    }
}
