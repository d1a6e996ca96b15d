//! Tests of memory that a program's copier reaches through the kernel.
#![allow(clippy::disallowed_methods, reason = "tests wait for threads")]

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rdma::{
    Access, AtomicOp, CopyState, Fetch, Memory, Placement, Reach, RegionId, Scope, Stag, StreamId, Ticket,
    Word,
};

use super::tests::{Grants, ordinary};
use super::{AtomicsLock, Backing, Copier, KernelStats, Part, Parts, ProcessMemory, Source, WorkerMemory};

const STREAM: StreamId = StreamId(1);
const REGION: RegionId = RegionId(0);

fn own_memory() -> ProcessMemory {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    ProcessMemory::new(file.into()).unwrap()
}

/// Returns a copier of this process's own memory, as the daemon has one of a program.
pub(super) fn own_copier(limit: Duration) -> Arc<Copier> {
    Copier::start(own_memory(), limit, AtomicsLock::default()).unwrap()
}

const LIMIT: Duration = Duration::from_secs(10);

/// A worker with one region of parts.
struct Worker {
    memory: WorkerMemory,
    grants: Grants,
    stag: Stag,
}

impl Worker {
    fn new(start: u64, parts: Vec<Part>) -> Self {
        let mut memory = WorkerMemory::new(1);
        memory.attach(REGION, Backing::Parts(Box::new(Parts::new(start, parts).unwrap()))).unwrap();
        let mut grants = Grants::new();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let stag = grants.stags.grant(REGION, 1 << 20, access, Scope::Stream(STREAM)).unwrap();
        Self { memory, grants, stag }
    }

    fn to(&self, offset: u64, len: usize) -> Placement {
        self.grants.stags.check_place(self.stag, offset, len, self.grants.origin).unwrap()
    }

    fn from(&self, offset: u64, len: usize) -> Fetch {
        self.grants.stags.check_fetch(self.stag, offset, len, self.grants.origin).unwrap()
    }

    fn word(&self, offset: u64) -> Word {
        self.grants.stags.check_atomic(self.stag, offset, self.grants.origin).unwrap().unwrap()
    }

    /// Waits for a copy.
    fn settle(&mut self, ticket: Ticket) -> CopyState {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match self.memory.copy_state(STREAM, ticket) {
                CopyState::Pending if Instant::now() < until => std::thread::yield_now(),
                state => return state,
            }
        }
    }

    /// Places bytes as a stream does. Returns the reach, and the state of the copy if one was queued.
    fn place(&mut self, to: u64, bytes: &[u8]) -> (Reach, CopyState) {
        let reach = self.memory.reach(STREAM, REGION, to, bytes.len());
        let token = self.to(to, bytes.len());
        assert!(self.memory.place(token, bytes));
        if reach == Reach::Direct {
            return (reach, CopyState::Done);
        }
        let ticket = self.memory.last_queued().unwrap();
        (reach, self.settle(ticket))
    }

    /// Reads bytes ahead as a stream does.
    fn read(&mut self, from: u64, len: usize) -> Option<Vec<u8>> {
        let token = self.from(from, len);
        let ahead = self.memory.read_ahead(STREAM, &mut std::iter::once(token)).unwrap();
        assert_eq!(ahead.len, len);
        let state = self.settle(ahead.ticket);
        let mut out = vec![0; len];
        let is_there = state == CopyState::Done && self.memory.fetch_ahead(&ahead, 0, &mut out);
        self.memory.release(ahead);
        is_there.then_some(out)
    }

    fn add(&mut self, at: u64) -> Option<u64> {
        let word = self.word(at);
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        if self.memory.reach(STREAM, REGION, at, 8) == Reach::Direct {
            return self.memory.atomic(word, op);
        }
        let ticket = self.memory.begin_atomic(STREAM, word, op).unwrap();
        if self.settle(ticket) != CopyState::Done {
            return None;
        }
        loop {
            if let Poll::Ready(original) = self.memory.take_atomic(STREAM, ticket) {
                return original;
            }
        }
    }
}

/// A memory region of three parts, which begins in the middle of a page: bytes at its edges, and pages between.
#[test]
fn parts_are_one_memory() {
    const START: u64 = 4000;
    let (pages, copier) = (Arc::new(ordinary(8192)), own_copier(LIMIT));
    let edges = [0xEE_u8; 200];
    let address = edges.as_ptr() as u64;
    let kernel = |at, bytes| Part { bytes, source: Source::Kernel(Arc::clone(&copier), address + at) };
    let mapped = Part { bytes: 8192, source: Source::Mapped(Arc::clone(&pages), 0) };
    let parts = vec![kernel(0, 96), mapped, kernel(96, 50)];
    let joined = Parts::new(START, parts.clone()).unwrap();
    assert_eq!((joined.start(), joined.bytes(), joined.kernel_bytes()), (START, 8338, 146));
    let mut worker = Worker::new(START, parts);
    let pattern: Vec<u8> = (0..8338_u32).map(|at| (at * 7 % 251).to_le_bytes()[0]).collect();
    // Pieces that end at and cross the borders of the parts.
    let mut at = 0;
    for (length, deferred) in
        [(1, true), (95, true), (1, false), (3000, false), (5000, false), (200, true), (41, true)]
    {
        let reach = if deferred { Reach::Deferred } else { Reach::Direct };
        let placed = worker.place(START + at as u64, &pattern[at..at + length]);
        assert_eq!(placed, (reach, CopyState::Done), "{length} bytes at {at}");
        at += length;
    }
    assert_eq!(at, 8338);
    let mut seen = vec![0; 8192];
    pages.read(0, &mut seen).unwrap();
    let edges = std::hint::black_box(&edges);
    assert!(
        seen == pattern[96..96 + 8192] && edges[..96] == pattern[..96] && edges[96..146] == pattern[8288..]
    );
    assert!(edges[146..].iter().all(|byte| *byte == 0xEE), "nothing beyond the parts is written");
    assert_eq!(worker.read(START, 8338).unwrap(), pattern);
    let stats = worker.memory.kernel_stats();
    assert_eq!((stats.kernel_copy_errors, stats.kernel_copy_timeouts, worker.memory.faults()), (0, 0, 0));
    let direct = |offset, len| worker.memory.direct_len(REGION, offset, len);
    assert_eq!([direct(START, 100), direct(START + 96, 100), direct(START + 8280, 50)], [0, 100, 8]);
    let reach = |offset, len| worker.memory.reach(STREAM, REGION, offset, len);
    for (offset, len) in [(START - 1, 1), (START + 8338, 1), (START, 8339), (u64::MAX, 2)] {
        assert_eq!(reach(offset, len), Reach::Gone);
    }
}

#[test]
fn memory_that_a_program_has_unmapped_is_an_error() {
    // Nothing is mapped at the lowest addresses.
    let part = Part { bytes: 4096, source: Source::Kernel(own_copier(LIMIT), 8192) };
    let mut worker = Worker::new(0, vec![part]);
    assert_eq!(worker.place(0, b"placed"), (Reach::Deferred, CopyState::Failed));
    assert_eq!((worker.read(0, 4), worker.add(64)), (None, None));
    // A failure is reported once, and to its stream only.
    assert_eq!(worker.memory.copy_state(StreamId(2), worker.memory.last_queued().unwrap()), CopyState::Done);
    let KernelStats { kernel_copies, kernel_copy_errors, kernel_copy_timeouts } =
        worker.memory.kernel_stats();
    assert_eq!((kernel_copies, kernel_copy_errors, kernel_copy_timeouts), (3, 3, 0));
}

#[test]
fn parts_outside_of_their_memory_are_refused() {
    let (memory, copier) = (Arc::new(ordinary(4096)), own_copier(LIMIT));
    let mapped = |offset, bytes| Part { bytes, source: Source::Mapped(Arc::clone(&memory), offset) };
    let kernel = |address, bytes| Part { bytes, source: Source::Kernel(Arc::clone(&copier), address) };
    for wrong in [mapped(0, 0), mapped(1, 4096), mapped(u64::MAX, 2), kernel(4096, 0), kernel(u64::MAX, 2)] {
        assert!(Parts::new(0, vec![mapped(0, 4096), wrong.clone()]).is_none(), "{wrong:?}");
    }
    assert!(Parts::new(0, Vec::new()).is_none(), "no bytes");
    assert!(Parts::new(4095, vec![kernel(0, u64::MAX)]).is_none(), "more than can be counted");
}

/// Atomic operations reach numbers in all parts.
#[test]
fn numbers_in_parts_are_updated() {
    let numbers = [5_u64, 6];
    let pages = Arc::new(ordinary(4096));
    let source = Source::Kernel(own_copier(LIMIT), numbers.as_ptr() as u64);
    let parts =
        vec![Part { bytes: 16, source }, Part { bytes: 4096, source: Source::Mapped(Arc::clone(&pages), 0) }];
    let mut worker = Worker::new(4080, parts);
    let sums = [4080, 4088, 4096, 4096].map(|at| worker.add(at));
    assert_eq!(sums, [Some(5), Some(6), Some(0), Some(1)]);
    assert_eq!(*std::hint::black_box(&numbers), [6, 7]);
}

/// A read-ahead of memory in more parts than it has jobs fails; it neither hangs nor blocks the next.
#[test]
fn memory_in_countless_parts_is_refused() {
    let (bytes, copier) = (vec![7_u8; 4096], own_copier(LIMIT));
    let address = bytes.as_ptr() as u64;
    let part = |at: u64| Part { bytes: 1, source: Source::Kernel(Arc::clone(&copier), address + at) };
    let mut worker = Worker::new(0, (0..4096).map(part).collect());
    for _ in 0..8 {
        let token = worker.from(0, 4096);
        let refused = worker.memory.read_ahead(STREAM, &mut std::iter::once(token)).unwrap_err();
        assert!(matches!(refused, Reach::Gone | Reach::Busy(_)), "{refused:?}");
    }
    let until = Instant::now() + LIMIT;
    while copier.done() < copier.queued() && Instant::now() < until {
        std::thread::yield_now();
    }
    for _ in 0..100_000 {
        let token = worker.from(0, 64);
        if let Ok(ahead) = worker.memory.read_ahead(STREAM, &mut std::iter::once(token)) {
            assert_eq!(worker.settle(ahead.ticket), CopyState::Done);
            let mut out = [0; 64];
            assert!(worker.memory.fetch_ahead(&ahead, 0, &mut out));
            assert_eq!(out, [7; 64]);
            return;
        }
    }
    panic!("places of readings that nobody uses are taken again");
}

/// A piece of a segment in memory that the worker maps does not overtake one before it that is copied.
#[test]
fn a_mapped_piece_waits_for_the_piece_before_it() {
    let (pages, edge) = (Arc::new(ordinary(4096)), vec![0_u8; 64]);
    let atomics = AtomicsLock::default();
    let copier = Copier::start(own_memory(), LIMIT, Arc::clone(&atomics)).unwrap();
    let source = Source::Kernel(Arc::clone(&copier), edge.as_ptr() as u64);
    let mapped = Part { bytes: 4096, source: Source::Mapped(Arc::clone(&pages), 0) };
    let mut worker = Worker::new(4032, vec![Part { bytes: 64, source }, mapped]);
    let blocked = atomics.lock().unwrap();
    let word = worker.word(4032);
    worker.memory.begin_atomic(STREAM, word, AtomicOp::FetchAdd { add: 0, mask: 0 }).unwrap();
    assert_eq!(worker.memory.reach(STREAM, REGION, 4088, 16), Reach::Deferred);
    for (at, piece) in [(4088, b"edge and"), (4096, b" mapped.")] {
        let token = worker.to(at, 8);
        assert!(worker.memory.place(token, piece));
    }
    let mut seen = [1; 8];
    pages.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 8], "the piece before is not there");
    drop(blocked);
    let ticket = worker.memory.last_queued().unwrap();
    assert_eq!(worker.settle(ticket), CopyState::Done);
    pages.read(0, &mut seen).unwrap();
    assert_eq!((&std::hint::black_box(&edge)[56..], &seen), (&b"edge and"[..], b" mapped."));
}

/// The queue fills, is busy until half of its room is free, and takes no more than that.
#[test]
fn a_queue_that_is_full_takes_nothing() {
    let bytes = vec![0_u8; 4096];
    let atomics = AtomicsLock::default();
    let copier = Copier::start(own_memory(), LIMIT, Arc::clone(&atomics)).unwrap();
    let part = Part { bytes: 4096, source: Source::Kernel(Arc::clone(&copier), bytes.as_ptr() as u64) };
    let mut worker = Worker::new(0, vec![part]);
    let word = worker.word(0);
    // The copier waits for this lock with its first job, as it waits for a kernel that does not return.
    let blocked = atomics.lock().unwrap();
    worker.memory.begin_atomic(STREAM, word, AtomicOp::FetchAdd { add: 1, mask: 0 }).unwrap();
    let mut placed = 0;
    let busy = loop {
        match worker.memory.reach(STREAM, REGION, 8, 8) {
            Reach::Deferred => {
                let token = worker.to(8, 8);
                assert!(worker.memory.place(token, &[placed; 8]));
                placed += 1;
            }
            Reach::Busy(ticket) => break ticket,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(worker.memory.copy_state(STREAM, busy), CopyState::Pending);
    drop(blocked);
    assert_eq!(worker.settle(busy), CopyState::Done);
    assert_eq!(worker.memory.reach(STREAM, REGION, 8, 8), Reach::Deferred);
    let last = worker.memory.last_queued().unwrap();
    assert_eq!(worker.settle(last), CopyState::Done);
    assert_eq!(std::hint::black_box(&bytes)[8..16], [placed - 1; 8], "in order");
}

/// All that is queued fails after the limit. Once the kernel returns, the copier serves again, without what was queued.
#[test]
fn a_copy_that_takes_too_long_fails_all_that_is_queued() {
    let bytes = vec![0_u8; 4096];
    let atomics = AtomicsLock::default();
    let limit = Duration::from_millis(100);
    let copier = Copier::start(own_memory(), limit, Arc::clone(&atomics)).unwrap();
    let part = Part { bytes: 4096, source: Source::Kernel(Arc::clone(&copier), bytes.as_ptr() as u64) };
    let mut worker = Worker::new(0, vec![part]);
    let blocked = atomics.lock().unwrap();
    let word = worker.word(0);
    let ticket = worker.memory.begin_atomic(STREAM, word, AtomicOp::FetchAdd { add: 1, mask: 0 }).unwrap();
    let began = Instant::now();
    assert_eq!(worker.place(64, b"too late"), (Reach::Deferred, CopyState::Failed));
    assert!((limit..limit * 20).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(worker.memory.copy_state(STREAM, ticket), CopyState::Failed);
    assert_eq!(worker.memory.reach(STREAM, REGION, 64, 8), Reach::Gone, "nothing is queued behind it");
    assert!(copier.done() < copier.queued(), "whoever deregisters waits");
    drop(blocked);
    let until = Instant::now() + LIMIT;
    while copier.done() < copier.queued() && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(std::hint::black_box(&bytes)[64..72], [0; 8], "skipped");
    // The failures of the skipped jobs are not those of the next stream.
    assert_eq!(worker.memory.reach(StreamId(2), REGION, 64, 8), Reach::Deferred);
    let token = worker.to(64, 8);
    assert!(worker.memory.place(token, b"in time!"));
    let ticket = worker.memory.last_queued().unwrap();
    while worker.memory.copy_state(StreamId(2), ticket) == CopyState::Pending && Instant::now() < until {}
    assert_eq!(std::hint::black_box(&bytes)[64..72], *b"in time!");
    assert!(worker.memory.kernel_stats().kernel_copy_timeouts >= 1);
}

/// The thread ends once the copier is closed, and skips what waits.
#[test]
fn a_closed_copier_ends() {
    let atomics = AtomicsLock::default();
    let copier = Copier::start(own_memory(), LIMIT, Arc::clone(&atomics)).unwrap();
    let weak = Arc::downgrade(&copier);
    copier.close();
    drop(copier);
    let until = Instant::now() + LIMIT;
    while weak.strong_count() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(weak.strong_count(), 0);
}
