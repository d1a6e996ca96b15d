//! Transfers by threads: writes, and everything if there is no ring.
//!
//! A ring is not used for writes: the kernel carries out those to files that share one of 64 hash values one behind the
//! other (io-wq), so that a slow file delays others. Here writes to one file, and none else, follow each other in the
//! order in which they came. That order also keeps a write of a broken connection before what its client writes next.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::fstat;

use crate::transfer::{Operation, Transfer};

/// A file: its device and its number there.
type FileId = (u64, u64);

/// Threads that are started as they are needed, and wait for work then.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    name: &'static str,
    count: usize,
    count_max: usize,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Event counter that the end of an operation adds to.
    wakes: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Job>,
    /// Files that are written, with the writes that wait for it.
    written: HashMap<FileId, VecDeque<Job>>,
    ended: VecDeque<(u64, Transfer)>,
    idle: usize,
    ends: bool,
}

#[derive(Debug)]
struct Job {
    number: u64,
    transfer: Transfer,
    /// The file, if it is written.
    file: Option<FileId>,
}

impl Threads {
    /// Makes at most this many threads of this name, which add to this event counter when an operation has ended.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub(crate) fn new(name: &'static str, count_max: u16, wakes: BorrowedFd<'_>) -> io::Result<Self> {
        let wakes = wakes.try_clone_to_owned()?;
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), wakes });
        Ok(Self { shared, name, count: 0, count_max: count_max.into() })
    }

    /// Starts the next operation of a transfer.
    pub(crate) fn start(&mut self, number: u64, transfer: Transfer) {
        let is_write = matches!(transfer.next(), Some(Operation::Write(_)));
        let found = is_write.then(|| fstat(transfer.file()).ok()).flatten();
        let file = found.map(|found| (found.st_dev, found.st_ino));
        let mut state = self.shared.state();
        state.enter(Job { number, transfer, file });
        let lacks_thread = state.ready.len() > state.idle && self.count < self.count_max;
        drop(state);
        self.shared.work.notify_one();
        if lacks_thread {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            if thread.spawn(move || shared.serve()).is_ok() {
                self.count = self.count.saturating_add(1);
            } else if self.count == 0 {
                // No thread at all: this one does the work.
                loop {
                    let job = self.shared.state().ready.pop_front();
                    let Some(job) = job else { break };
                    self.shared.carry_out(job);
                }
            }
        }
    }

    /// Returns a transfer whose operation has ended.
    pub(crate) fn ended(&self) -> Option<(u64, Transfer)> {
        self.shared.state().ended.pop_front()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A thread that waits for a disk keeps what it uses.
        self.shared.state().ends = true;
        self.shared.work.notify_all();
    }
}

impl State {
    /// Takes a job, which must wait if its file is being written.
    fn enter(&mut self, job: Job) {
        match job.file.map(|file| self.written.entry(file)) {
            Some(std::collections::hash_map::Entry::Occupied(mut waiting)) => {
                waiting.get_mut().push_back(job)
            }
            Some(std::collections::hash_map::Entry::Vacant(free)) => {
                free.insert(VecDeque::new());
                self.ready.push_back(job);
            }
            None => self.ready.push_back(job),
        }
    }

    /// Lets the next job have a file. Returns false if there is none.
    fn leave(&mut self, file: FileId) -> bool {
        match self.written.get_mut(&file).and_then(VecDeque::pop_front) {
            Some(next) => {
                self.ready.push_back(next);
                true
            }
            None => {
                self.written.remove(&file);
                false
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        while let Some(job) = self.next() {
            self.carry_out(job);
        }
    }

    /// Waits for a job; `None` once the threads end.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.ends {
                return None;
            }
            if let Some(job) = state.ready.pop_front() {
                return Some(job);
            }
            state.idle = state.idle.saturating_add(1);
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle = state.idle.saturating_sub(1);
        }
    }

    fn carry_out(&self, job: Job) {
        let Job { number, mut transfer, file } = job;
        transfer.perform_with_rights();
        let mut state = self.state();
        let has_next = file.is_some_and(|file| state.leave(file));
        state.ended.push_back((number, transfer));
        drop(state);
        if has_next {
            self.work.notify_one();
        }
        // It fails only if the counter is full, which wakes as well.
        let _ = rustix::io::write(&self.wakes, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::kernel::Durability;
    use crate::region::testing::span;
    use crate::transfer::Bytes;

    fn own(bytes: &[u8]) -> Bytes {
        Bytes::Own(bytes.to_vec())
    }

    /// Waits for transfers to end.
    fn wait(threads: &mut Threads, wakes: &OwnedFd, count: usize) -> Vec<(u64, Transfer)> {
        let mut ended = Vec::new();
        while ended.len() < count {
            rustix::io::read(wakes, &mut [0; 8]).unwrap();
            while let Some((number, transfer)) = threads.ended() {
                if transfer.next().is_some() {
                    threads.start(number, transfer);
                } else {
                    ended.push((number, transfer));
                }
            }
        }
        ended
    }

    #[test]
    fn writes_of_a_file_keep_their_order() {
        let wakes = eventfd(0, EventfdFlags::empty()).unwrap();
        let mut threads = Threads::new("files", 8, wakes.as_fd()).unwrap();
        let files: Vec<_> =
            (0..4).map(|_| Arc::new(memfd_create("f", MemfdFlags::CLOEXEC).unwrap())).collect();
        for number in 0..400_u64 {
            let file = Arc::clone(&files[(number % 4) as usize]);
            let byte = u8::try_from(number / 4).unwrap();
            let durability = Durability::Data;
            // Each overwrites the former one.
            threads.start(number, Transfer::write(file, None, own(&[byte; 10_000]), 0, durability));
        }
        let ended = wait(&mut threads, &wakes, 400);
        assert!(ended.into_iter().all(|(_, transfer)| transfer.result() == Ok(10_000)));
        for file in &files {
            let memory = span(0, 20_000);
            threads.start(0, Transfer::read(Arc::clone(file), 0, memory.clone()));
            let (_, read) = wait(&mut threads, &wakes, 1).pop().unwrap();
            assert_eq!(read.result(), Ok(10_000));
            assert_eq!(memory.copy(0, 10_000), Ok(vec![99; 10_000]));
        }
        assert!(threads.shared.state().written.is_empty());
    }

    #[test]
    fn a_file_that_is_written_delays_its_own_writes_only() {
        let wakes = eventfd(0, EventfdFlags::empty()).unwrap();
        let threads = Threads::new("files", 8, wakes.as_fd()).unwrap();
        let file = Arc::new(memfd_create("f", MemfdFlags::CLOEXEC).unwrap());
        let job = |number, file_id| Job {
            number,
            transfer: Transfer::write(Arc::clone(&file), None, own(&[1]), 0, Durability::None),
            file: file_id,
        };
        let mut state = threads.shared.state();
        for (number, file_id) in
            [(0, Some((1, 1))), (1, Some((1, 1))), (2, Some((1, 2))), (3, None), (4, Some((1, 1)))]
        {
            state.enter(job(number, file_id));
        }
        let ready = |state: &State| state.ready.iter().map(|job| job.number).collect::<Vec<_>>();
        assert_eq!(ready(&state), [0, 2, 3]);
        assert!(state.leave((1, 1)) && state.leave((1, 1)) && !state.leave((1, 1)));
        assert_eq!(ready(&state), [0, 2, 3, 1, 4]);
        assert!(!state.leave((1, 2)) && state.written.is_empty());
    }
}
