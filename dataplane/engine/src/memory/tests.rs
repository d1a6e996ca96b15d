//! Tests of region memory on ordinary pages and on hugepages, and of a worker's table of regions.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rdma::{Access, AtomicOp, Memory, Message, Notification, Origin, RegionId, Scope, StagTable, StreamId};
use rustix::fs::{FallocateFlags, SealFlags};

use super::{
    AttachError, CloseFileError, HUGEPAGE_BYTES, MemoryError, OutOfBounds, Pages, RegionMemory, SharedWords,
    Watch, WorkerMemory, hugepages,
};
use crate::wake::testutil::{USER, taken, wait_readable, wakes};

pub(super) fn ordinary(bytes: u64) -> RegionMemory {
    RegionMemory::new("test", bytes, Pages::Ordinary).unwrap()
}

/// Opens the region's memfd as another process would.
fn file_of(memory: &RegionMemory) -> File {
    memory.descriptor().unwrap().into()
}

#[test]
fn a_region_is_zeroed_bounded_and_shared() {
    let memory = ordinary(10_000);
    assert_eq!((memory.bytes(), memory.mapped_bytes()), (10_000, 12_288));
    assert_eq!((memory.is_huge(), memory.page_bytes()), (false, 4096));
    let mut all = vec![1; 10_000];
    memory.read(0, &mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == 0));

    memory.write(9_990, b"the end 10").unwrap();
    let beyond = |offset, length| Err(OutOfBounds { offset, length, bytes: 10_000 });
    assert_eq!(memory.write(9_991, b"the end 10"), beyond(9_991, 10), "one too far");
    for (offset, bytes) in [(10_000, &b"x"[..]), (u64::MAX, b"x"), (u64::MAX - 5, &[0; 10])] {
        assert_eq!(memory.write(offset, bytes), beyond(offset, bytes.len()));
    }
    memory.write(10_000, b"").expect("nothing fits everywhere");
    let mut out = [0; 10];
    assert_eq!(memory.read(9_991, &mut out), beyond(9_991, 10));
    assert_eq!(memory.read(u64::MAX, &mut out), beyond(u64::MAX, 10));
    assert_eq!(out, [0; 10], "unchanged when refused");

    let file = file_of(&memory);
    file.read_exact_at(&mut out, 9_990).unwrap();
    assert_eq!(&out, b"the end 10");
    file.write_all_at(b"from outside", 5).unwrap();
    let mut seen = [0; 12];
    memory.read(5, &mut seen).unwrap();
    assert_eq!(&seen, b"from outside");
}

#[test]
fn the_file_can_be_neither_cut_nor_grown() {
    let memory = ordinary(8192);
    let file = file_of(&memory);
    assert!(file.set_len(4096).is_err());
    assert!(file.set_len(1 << 20).is_err());
    memory.write(8191, b"x").unwrap();
}

/// Frees the pages of a range of a file, as any holder of a descriptor may try.
fn punch(file: &File, range: std::ops::Range<u64>) -> rustix::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, range.start, range.end - range.start)
}

fn for_programs() -> [RegionMemory; 3] {
    [
        RegionMemory::for_program("test", 3 << 20, true).unwrap(),
        RegionMemory::for_program("test", 5000, true).unwrap(),
        RegionMemory::for_exchange("test", 1 << 20).unwrap(),
    ]
}

#[test]
fn a_closed_file_keeps_its_pages() {
    for memory in for_programs() {
        let file = file_of(&memory);
        file.write_all_at(b"the program's", 0).ok();
        memory.write(0, b"the program's").unwrap();
        punch(&file, memory.page_bytes()..memory.mapped_bytes()).ok();
        memory.close_file().unwrap();
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
        assert_eq!(blocks, memory.mapped_bytes(), "holes are filled");
        assert!(punch(&file, 0..memory.mapped_bytes()).is_err());
        let mut out = [0; 13];
        memory.read(0, &mut out).unwrap();
        assert_eq!(&out, b"the program's");
        memory.close_file().expect("closed already");
    }
}

/// A program that sets F_SEAL_SEAL itself keeps the daemon from forbidding holes, after which an access would end it.
#[test]
fn memory_that_its_program_has_sealed_is_refused() {
    for memory in for_programs() {
        let file = file_of(&memory);
        rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL).unwrap();
        for _ in 0..2 {
            let refused = memory.close_file().unwrap_err();
            assert!(
                matches!(refused, CloseFileError::Sealed { missing: SealFlags::FUTURE_WRITE }),
                "{refused}"
            );
        }
    }
}

/// Seals that a program sets do not make the daemon believe that it has filled the holes.
#[test]
fn holes_are_filled_whatever_seals_the_program_has_set() {
    for seals in [SealFlags::FUTURE_WRITE, SealFlags::FUTURE_WRITE | SealFlags::SEAL] {
        for memory in for_programs() {
            let file = file_of(&memory);
            punch(&file, 0..memory.mapped_bytes()).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            memory.close_file().unwrap();
            let blocks = rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
            assert_eq!(blocks, memory.mapped_bytes(), "{seals:?}");
        }
    }
}

/// The other seals cannot be set while the daemon maps the file for writing, and memory of a region has no others.
#[test]
fn a_region_cannot_be_closed() {
    let memory = ordinary(8192);
    assert!(rustix::fs::fcntl_add_seals(memory.descriptor().unwrap(), SealFlags::WRITE).is_err());
    assert!(matches!(memory.close_file(), Err(CloseFileError::Sealed { .. })));
}

#[test]
fn a_read_only_descriptor_cannot_be_mapped_for_writing() {
    let memory = ordinary(4096);
    memory.write(0, b"read me").unwrap();
    let mut file = File::from(memory.read_only_descriptor().unwrap());
    let mut out = [0; 7];
    file.read_exact(&mut out).unwrap();
    assert_eq!(&out, b"read me");
    file.seek(SeekFrom::Start(0)).unwrap();
    assert!(file.write_all(b"no").is_err());
    let mode = rustix::fs::fstat(&file).unwrap().st_mode & 0o777;
    assert_eq!(mode, 0o600, "it cannot be opened again by others");
}

#[test]
fn invalid_sizes_are_refused() {
    for pages in [Pages::Ordinary, Pages::Huge] {
        assert!(matches!(RegionMemory::new("test", 0, pages), Err(MemoryError::Empty)));
        for bytes in [u64::MAX, 1 << 63] {
            assert!(matches!(RegionMemory::new("test", bytes, pages), Err(MemoryError::TooLarge { .. })));
        }
    }
}

/// All pages are allocated at once: without the check, the kernel would end a process.
#[test]
fn a_region_larger_than_free_memory_is_refused() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024;
    for bytes in [total, 1 << 62] {
        let refused = RegionMemory::new("test", bytes, Pages::Ordinary).unwrap_err();
        let MemoryError::Ordinary { needed, available } = refused else { panic!("{refused}") };
        assert!(needed == bytes && available < total, "{refused}");
    }
}

#[test]
fn too_few_hugepages_are_named() {
    let status = hugepages();
    let needed = status.total + 1;
    let refused = RegionMemory::new("test", needed * HUGEPAGE_BYTES, Pages::Huge).unwrap_err();
    let MemoryError::Hugepages { needed: said, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*said, needed);
    assert!(refused.to_string().contains("hugepages of 2 MiB needed"), "{refused}");
    // A report of all causes has the kernel's once.
    let report = format!("{:#}", anyhow::Error::new(refused));
    assert_eq!(report.matches("os error").count(), 1, "{report}");
}

/// Issues tokens for whole regions.
pub(super) struct Grants {
    pub(super) stags: StagTable,
    pub(super) origin: Origin,
}

impl Grants {
    pub(super) fn new() -> Self {
        Self { stags: StagTable::new(16, [7; 32]), origin: Origin::new(StreamId(1), None) }
    }

    fn stag(&mut self, number: u32, bytes: u64) -> rdma::Stag {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.stags.grant(RegionId(number), bytes, access, Scope::Stream(StreamId(1))).unwrap()
    }
}

#[test]
fn a_worker_places_and_fetches() {
    let memory = Arc::new(ordinary(4096));
    let mut worker = WorkerMemory::new(4);
    worker.attach(RegionId(3), Arc::clone(&memory)).unwrap();
    let mut grants = Grants::new();
    let stag = grants.stag(3, 4096);
    assert!(worker.place(grants.stags.check_place(stag, 4090, 6, grants.origin).unwrap(), b"placed"));
    let mut seen = [0; 6];
    memory.read(4090, &mut seen).unwrap();
    assert_eq!(&seen, b"placed");
    let mut out = [9; 7];
    assert!(worker.fetch(grants.stags.check_fetch(stag, 4089, 7, grants.origin).unwrap(), &mut out));
    assert_eq!(&out, b"\0placed");
    let bytes = worker.bytes(RegionId(3));
    assert_eq!((bytes.placed, bytes.fetched, worker.faults()), (6, 7, 0));
}

#[test]
fn no_atomic_operation_of_concurrent_workers_is_lost() {
    const ROUNDS: u64 = 20_000;
    let memory = Arc::new(ordinary(4096));
    let add = |number: u32| {
        let memory = Arc::clone(&memory);
        move || {
            let mut worker = WorkerMemory::new(4);
            worker.attach(RegionId(number), memory).unwrap();
            let mut grants = Grants::new();
            let access = Access::REMOTE_ATOMIC;
            let stag =
                grants.stags.grant(RegionId(number), 4096, access, Scope::Stream(StreamId(1))).unwrap();
            let mut seen = Vec::new();
            for _ in 0..ROUNDS {
                let word = grants.stags.check_atomic(stag, 64, grants.origin).unwrap().unwrap();
                seen.push(worker.atomic(word, AtomicOp::FetchAdd { add: 1, mask: 0 }).unwrap());
            }
            assert_eq!(
                grants.stags.check_atomic(stag, 4088, grants.origin).map(|word| word.is_some()),
                Ok(true)
            );
            assert_eq!(grants.stags.check_atomic(stag, 4084, grants.origin), Ok(None));
            assert_eq!(worker.faults(), 0);
            seen
        }
    };
    let workers = [add(0), add(1)].map(std::thread::spawn);
    let mut seen = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..2 * ROUNDS), "every value was found once");
    let mut value = [0; 8];
    memory.read(64, &mut value).unwrap();
    assert_eq!(u64::from_ne_bytes(value), 2 * ROUNDS);
    assert_eq!(memory.update(4, |_| Some(1)), None, "not aligned");
    assert_eq!(memory.update(4096, |_| Some(1)), None, "not there");
}

#[test]
fn a_wrong_token_touches_nothing() {
    let memory = Arc::new(ordinary(100));
    let mut worker = WorkerMemory::new(4);
    worker.attach(RegionId(0), Arc::clone(&memory)).unwrap();
    let mut grants = Grants::new();
    // Wrong grants: longer than the region, for a region that is not attached, or outside of the table.
    let stags = [grants.stag(0, 4096), grants.stag(1, 100), grants.stag(9, 100)];
    let placed = stags.map(|stag| {
        worker.place(grants.stags.check_place(stag, 90, 10, grants.origin).unwrap(), b"ten bytes!")
    });
    assert_eq!(placed, [true, false, false]);
    assert_eq!(worker.faults(), 2);
    assert!(!worker.place(grants.stags.check_place(stags[0], 91, 10, grants.origin).unwrap(), b"ten bytes!"));
    assert!(!worker.place(grants.stags.check_place(stags[0], 0, 9, grants.origin).unwrap(), b"ten bytes!"));
    assert_eq!(worker.faults(), 4);
    let mut out = [1; 10];
    assert!(!worker.fetch(grants.stags.check_fetch(stags[0], 95, 10, grants.origin).unwrap(), &mut out));
    assert_eq!((out, worker.faults()), ([0; 10], 5));
    assert!(worker.holds(RegionId(0), 90, 10) && worker.holds(RegionId(0), 100, 0));
    assert!(!worker.holds(RegionId(0), 91, 10) && !worker.holds(RegionId(0), u64::MAX, 10));
    assert!(!worker.holds(RegionId(1), 0, 1) && !worker.holds(RegionId(9), 0, 1));
    let mut all = [0; 100];
    memory.read(0, &mut all).unwrap();
    assert_eq!((&all[..90], &all[90..]), (&[0; 90][..], &b"ten bytes!"[..]));
}

#[test]
fn memory_is_unmapped_when_the_last_worker_drops_it() {
    let memory = Arc::new(ordinary(4096));
    let gone = Arc::downgrade(&memory);
    let (mut first, mut second) = (WorkerMemory::new(1), WorkerMemory::new(1));
    first.attach(RegionId(0), Arc::clone(&memory)).unwrap();
    second.attach(RegionId(0), memory).unwrap();
    assert_eq!(first.attach(RegionId(0), Arc::new(ordinary(1))), Err(AttachError::InUse(0)));
    assert_eq!(
        first.attach(RegionId(1), Arc::new(ordinary(1))),
        Err(AttachError::Full { number: 1, places: 1 })
    );
    assert!(first.detach(RegionId(0)).is_some());
    assert!(first.detach(RegionId(0)).is_none() && first.detach(RegionId(9)).is_none());
    assert!(gone.upgrade().is_some());
    drop(second);
    assert!(gone.upgrade().is_none());
}

/// A watch of a region by one program, with its side of the ring.
fn watched(
    number: u64,
    entries: u32,
) -> (Watch, iwarp_shared_verbs::program::Notifications<SharedWords>, std::os::fd::OwnedFd) {
    use iwarp_shared_verbs::{notification_ring, notification_ring_words, program, worker};
    let shape = notification_ring(entries).unwrap();
    let memory = SharedWords::new("watch", notification_ring_words(shape)).unwrap();
    let ring = worker::NotificationRing::new(memory.clone(), 0, shape).unwrap();
    let (waker, woken) = wakes().waker(USER).unwrap();
    let program = program::Notifications::new(memory, 1, shape).unwrap();
    (Watch { number, ring, waker: Arc::new(waker) }, program, woken)
}

#[test]
fn a_message_reaches_each_watch_of_its_region() {
    let (one, other) = (RegionId(0), RegionId(2));
    let mut memory = WorkerMemory::new(3);
    for region in [one, other] {
        memory.attach(region, Arc::new(ordinary(4096))).unwrap();
    }
    let watches: [_; 3] = std::array::from_fn(|number| watched(number as u64, 2));
    let [(a, mut ring_a, woken_a), (b, mut ring_b, woken_b), (c, mut ring_c, _)] = watches;
    assert!(memory.watch(one, a) && memory.watch(one, b) && memory.watch(other, c));
    let (absent, ..) = watched(9, 2);
    assert!(!memory.watch(RegionId(1), absent), "there is no such region");
    assert!(memory.is_watched(one) && !memory.is_watched(RegionId(1)));
    ring_a.arm();
    let message = Message::Immediate([7; 8]);
    let notification = Notification { message, solicited: false, written: 5 };
    for _ in 0..3 {
        memory.notify(one, &notification);
    }
    assert_eq!([taken(&woken_a), taken(&woken_b)], [1, 0], "once per arming");
    for ring in [&mut ring_a, &mut ring_b] {
        assert_eq!(
            std::iter::from_fn(|| ring.poll()).map(|notice| notice.written).collect::<Vec<_>>(),
            [5, 5]
        );
        assert_eq!(ring.lost(), 1);
    }
    assert_eq!(ring_c.poll(), None);
    let stats = memory.watch_stats(one, 1).unwrap();
    assert_eq!((stats.delivered, stats.lost), (2, 1));
    memory.unwatch(one, 1);
    memory.notify(one, &notification);
    assert!(ring_a.poll().is_some() && ring_b.poll().is_none() && memory.watch_stats(one, 1).is_none());
    // The region goes: its programs learn it, others do not.
    ring_a.arm();
    drop(memory.detach(one));
    wait_readable(&woken_a);
    assert!(ring_a.is_gone() && !ring_b.is_gone() && !ring_c.is_gone());
    assert!(!memory.is_watched(one) && memory.is_watched(other));
    memory.attach(one, Arc::new(ordinary(4096))).unwrap();
    assert!(!memory.is_watched(one), "a new region with that number");
}
