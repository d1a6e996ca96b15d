//! Runs DPDK and region memory on hugepages from start to end. It is one test, because DPDK starts once per process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dataplane::dpdk::{Eal, EalConfig, EalMemory, Iova, Mempool, MempoolConfig, PoolError};
use dataplane::port::{Port, PortSpec};
use iwarp_config::Driver;
use iwarp_engine::memory::{HUGEPAGE_BYTES, Pages, RegionMemory, hugepages};
use rustix::thread::sched_getaffinity;

/// Most hugepages that the test reserves.
const NEEDED: u64 = 32;
const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Hugepages reserved for the test, released at its end.
struct SetAside(u64);

impl SetAside {
    fn new() -> Self {
        let missing = NEEDED.saturating_sub(hugepages().available());
        change(|count| count + missing);
        let available = hugepages().available();
        assert!(available >= NEEDED, "the machine has {available} hugepages to spare, {NEEDED} needed");
        Self(missing)
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        change(|count| count.saturating_sub(self.0));
    }
}

/// Returns the hugepages that this process has mapped. (Other processes map and unmap theirs meanwhile.)
fn mapped() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024 / HUGEPAGE_BYTES
}

fn change(to: impl Fn(u64) -> u64) {
    let count = fs::read_to_string(NR_HUGEPAGES).unwrap().trim_end().parse().unwrap();
    if to(count) != count {
        fs::write(NR_HUGEPAGES, to(count).to_string()).expect("tests run as root");
    }
}

fn config() -> EalConfig {
    EalConfig {
        control_cpus: vec![],
        file_prefix: "iwarp-test".into(), // nothing is shared under this name
        memory: EalMemory::Hugepages,
        pci: vec![],
        iova: Iova::Virtual,
        telemetry: false,
    }
}

#[test]
fn all_hugepages_are_mapped_and_unmapped() {
    let _set_aside = SetAside::new();
    let affinity = sched_getaffinity(None).unwrap();
    let eal = Eal::start(&config()).unwrap();
    assert_eq!(sched_getaffinity(None).unwrap(), affinity, "the calling thread is not pinned");
    assert!(Eal::version().starts_with(|first: char| first.is_ascii_digit()));
    assert!(Eal::start(&config()).is_err(), "once per process");

    let pool = MempoolConfig { count: 4095, cache: 0, data_room: 2176 };
    let pool = Arc::new(Mempool::new(&eal, pool).unwrap());
    assert!(mapped() >= 4095 * 2176 / HUGEPAGE_BYTES, "buffers are in hugepages");
    let opened = Port::open(&eal, &PortSpec::new("p0", Driver::Ring), &[Arc::clone(&pool)]).unwrap();
    region();
    contiguous(&eal);
    drop((opened, pool));
    assert!(mapped() <= 2, "DPDK's own heap is all that is left");
    drop(eal);
    assert!(Eal::start(&config()).is_err(), "nor does it start a second time");
}

/// Checks pools in their own memory: they map no more pages than their buffers fill, and none if there are too few.
fn contiguous(eal: &Eal) {
    let before = mapped();
    for (count, data_room) in [(1, 2176), (885, 2176), (886, 2176), (2047, 2240), (500, 9792)] {
        let config = MempoolConfig { count, cache: 0, data_room };
        let pool = Mempool::contiguous(eal, config, Pages::Huge).unwrap();
        let bytes = u64::from(count) * u64::from(pool.object_bytes());
        assert_eq!((mapped() - before, pool.available()), (bytes.div_ceil(HUGEPAGE_BYTES), count));
        drop(pool);
        assert_eq!(mapped(), before, "given back");
    }
    let many = u32::try_from((hugepages().total + 1) * 886).unwrap();
    let config = MempoolConfig { count: many, cache: 0, data_room: 2176 };
    let refused = Mempool::contiguous(eal, config, Pages::Huge).unwrap_err();
    assert!(matches!(refused, PoolError::Memory(_)), "{refused}");
    assert_eq!(mapped(), before);
    let few = MempoolConfig { count: 47_000, ..config };
    let pool = Mempool::contiguous(eal, few, Pages::Ordinary).unwrap();
    assert_eq!((mapped(), pool.available()), (before, 47_000), "ordinary pages do");
}

fn region() {
    let before = mapped();
    let memory = RegionMemory::new("huge", 3 * HUGEPAGE_BYTES - 1, Pages::Huge).unwrap();
    assert!(memory.is_huge());
    assert_eq!((memory.mapped_bytes(), memory.page_bytes()), (3 * HUGEPAGE_BYTES, HUGEPAGE_BYTES));
    assert_eq!(mapped(), before + 3, "all pages are there from the start");
    let mut out = [1; 4];
    assert!(memory.read(3 * HUGEPAGE_BYTES - 5, &mut out).is_ok());
    assert_eq!(out, [0; 4]);
    assert!(memory.write(3 * HUGEPAGE_BYTES - 5, b"last").is_ok());
    assert!(
        memory.write(3 * HUGEPAGE_BYTES - 4, b"last").is_err(),
        "beyond the region, though not beyond its pages"
    );
    let file = fs::File::from(memory.read_only_descriptor().unwrap());
    assert!(file.set_len(0).is_err());
    file.read_exact_at(&mut out, 3 * HUGEPAGE_BYTES - 5).unwrap();
    assert_eq!(&out, b"last");
    drop((memory, file));
    assert_eq!(mapped(), before);
}
