use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

fn file(bytes: usize) -> OwnedFd {
    let file = memfd_create("exchange", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    file
}

/// Anonymous memory, unmapped when dropped.
struct Anonymous(Pages);

impl Anonymous {
    fn new(bytes: usize) -> Self {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, rights, MapFlags::PRIVATE) }.unwrap();
        Self(Pages { start: start.expose_provenance(), bytes })
    }

    /// Maps memory that begins behind a number of bytes, where the kernel would not place it.
    fn behind(skipped: usize, bytes: usize) -> Self {
        let Pages { start, .. } = std::mem::ManuallyDrop::new(Self::new(skipped + bytes)).0;
        if skipped > 0 {
            // SAFETY: mapped above, and nobody uses it.
            unsafe { munmap(ptr::with_exposed_provenance_mut(start), skipped) }.unwrap();
        }
        Self(Pages { start: start + skipped, bytes })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped for as long as `self`, aligned, accessed atomically.
        unsafe { std::slice::from_raw_parts(self.0.address().cast(), self.0.bytes / 8) }
    }

    fn is_shared(&self) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let begins = format!("{:x}-", self.0.start);
        maps.lines().find(|line| line.starts_with(&begins)).is_some_and(|line| line.contains("rw-s"))
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { munmap(self.0.address(), self.0.bytes) }.unwrap();
    }
}

/// Returns true if this machine lets a program with several threads exchange pages.
fn is_possible() -> bool {
    user_faults().is_ok()
}

#[test]
fn contents_stay_in_both_directions() {
    if !is_possible() {
        return;
    }
    // The longest ones have hugepages, at every place within the range.
    for (pages, skipped) in
        [(1, 0), (2, 0), (17, 0), (1000, 1), (1024, 0), (1025, 511), (3000, 100), (5000, 300)]
    {
        let memory = Anonymous::behind(skipped * PAGE, pages * PAGE);
        let lead = memory.0.lead();
        let file = file(lead + pages * PAGE);
        // Some pages are never touched.
        let touched = |at: usize| at / 512 % 3 != 1;
        for (at, word) in memory.words().iter().enumerate().filter(|(at, _)| touched(*at)) {
            word.store(at as u64 ^ 0x5A5A, Ordering::Relaxed);
        }
        let unchanged = || {
            let mut words = memory.words().iter().enumerate();
            words.all(|(at, w)| w.load(Ordering::Relaxed) == if touched(at) { at as u64 ^ 0x5A5A } else { 0 })
        };
        // SAFETY: nobody else knows the memory.
        unsafe { to_shared(memory.0, &file) }.unwrap();
        assert!(unchanged() && memory.is_shared(), "{pages} pages");
        rustix::io::pwrite(&file, &7_u64.to_ne_bytes(), lead as u64 + 8).unwrap();
        assert_eq!(
            memory.words()[1].swap(1 ^ 0x5A5A, Ordering::Relaxed),
            7,
            "the other side's bytes are seen"
        );
        // SAFETY: as above.
        unsafe { to_private(memory.0) }.unwrap();
        assert!(unchanged() && !memory.is_shared(), "{pages} pages back");
        rustix::io::pwrite(&file, &8_u64.to_ne_bytes(), lead as u64 + 8).unwrap();
        assert_eq!(memory.words()[1].load(Ordering::Relaxed), 1 ^ 0x5A5A, "the other side is gone");
    }
}

/// Each thread increments words of its own: a write that is lost is missing at the end. One writes by a system call.
#[test]
fn no_write_of_another_thread_is_lost() {
    if !is_possible() {
        return;
    }
    const PAGES: usize = 256;
    let memory = Anonymous::new(PAGES * PAGE);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_usize)
            .map(|thread| {
                let (memory, end) = (&memory, &end);
                scope.spawn(move || {
                    let mut rounds = 0_u64;
                    while !end.load(Ordering::Relaxed) {
                        rounds += 1;
                        for page in 0..PAGES {
                            let before = memory.words()[page * 512 + thread].swap(rounds, Ordering::Relaxed);
                            assert_eq!(before, rounds - 1, "thread {thread}, page {page}");
                        }
                    }
                    rounds
                })
            })
            .collect();
        let by_call = scope.spawn(|| {
            let mut zeros = std::fs::File::open("/proc/self/stat").unwrap();
            let mut reads = 0_u64;
            while !end.load(Ordering::Relaxed) {
                for page in 0..PAGES {
                    let at = ptr::with_exposed_provenance_mut::<u8>(memory.0.start + page * PAGE + 1024);
                    // SAFETY: mapped, and only this thread accesses these bytes.
                    let out = unsafe { std::slice::from_raw_parts_mut(at, 16) };
                    std::io::Seek::rewind(&mut zeros).unwrap();
                    let read = zeros.read(out).expect("a system call writes the memory");
                    assert_eq!(read, 16);
                    reads += 1;
                }
            }
            reads
        });
        for _ in 0..40 {
            let file = file(PAGES * PAGE);
            // SAFETY: the threads access the memory atomically, and nothing of this library is in it.
            unsafe { to_shared(memory.0, &file) }.unwrap();
            std::thread::yield_now();
            // SAFETY: as above.
            unsafe { to_private(memory.0) }.unwrap();
        }
        end.store(true, Ordering::Relaxed);
        let rounds: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!(rounds.iter().all(|rounds| *rounds > 0) && by_call.join().unwrap() > 0, "{rounds:?}");
        for page in 0..PAGES {
            for (thread, rounds) in rounds.iter().enumerate() {
                assert_eq!(memory.words()[page * 512 + thread].load(Ordering::Relaxed), *rounds);
            }
        }
    });
}

/// The kernel refuses to protect a range that is not all mapped. What is there stays.
#[test]
fn after_a_refusal_the_pages_are_as_before() {
    let memory = Anonymous::new(4 * PAGE);
    memory.words()[0].store(1, Ordering::Relaxed);
    // SAFETY: the last page, which nobody uses.
    unsafe { munmap(memory.0.address().wrapping_byte_add(3 * PAGE), PAGE) }.unwrap();
    // SAFETY: the kernel refuses.
    assert!(unsafe { to_shared(memory.0, &file(4 * PAGE)) }.is_err());
    assert!(memory.words()[0].load(Ordering::Relaxed) == 1 && !memory.is_shared());
}

#[test]
fn signals_are_blocked_only_meanwhile() {
    let blocked = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("SigBlk")).unwrap().to_owned()
    };
    let before = blocked();
    let guard = SignalsBlocked::all();
    assert_ne!(blocked(), before);
    drop(guard);
    assert_eq!(blocked(), before);
}
