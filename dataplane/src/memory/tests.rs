//! Tests of region memory on ordinary pages and on hugepages, and of a worker's table of regions.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rdma::{Access, AtomicOp, Memory, Origin, RegionId, Scope, StagTable, StreamId};

use super::{
    AttachError, HUGEPAGE_BYTES, MemoryError, OutOfBounds, Pages, RegionMemory, WorkerMemory, hugepages,
};

fn ordinary(bytes: u64) -> RegionMemory {
    RegionMemory::new("test", bytes, Pages::Ordinary).unwrap()
}

/// Opens the region's memfd as another process would.
fn file_of(memory: &RegionMemory) -> File {
    memory.descriptor().try_clone_to_owned().unwrap().into()
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
}

/// Issues tokens for whole regions.
struct Grants {
    stags: StagTable,
    origin: Origin,
}

impl Grants {
    fn new() -> Self {
        Self { stags: StagTable::new(16, [7; 32]), origin: Origin { stream: StreamId(1), pd: None } }
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
    worker.place(grants.stags.check_place(stag, 4090, 6, grants.origin).unwrap(), b"placed");
    let mut seen = [0; 6];
    memory.read(4090, &mut seen).unwrap();
    assert_eq!(&seen, b"placed");
    let mut out = [9; 7];
    worker.fetch(grants.stags.check_fetch(stag, 4089, 7, grants.origin).unwrap(), &mut out);
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
                seen.push(worker.atomic(word, AtomicOp::FetchAdd { add: 1, mask: 0 }));
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
    for stag in stags {
        worker.place(grants.stags.check_place(stag, 90, 10, grants.origin).unwrap(), b"ten bytes!");
    }
    assert_eq!(worker.faults(), 2);
    worker.place(grants.stags.check_place(stags[0], 91, 10, grants.origin).unwrap(), b"ten bytes!");
    worker.place(grants.stags.check_place(stags[0], 0, 9, grants.origin).unwrap(), b"ten bytes!");
    assert_eq!(worker.faults(), 4);
    let mut out = [1; 10];
    worker.fetch(grants.stags.check_fetch(stags[0], 95, 10, grants.origin).unwrap(), &mut out);
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
