//! Support for the tests of this crate: DPDK on ordinary pages, pools, network namespaces.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use iwarp_engine::memory::Pages;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tcp_stack::{Buf, BufClass, BufPool};

use super::{Eal, EalConfig, EalMemory, Iova, Mbuf, MbufPool, Mempool, MempoolConfig};

/// DPDK, started once per test process.
pub(crate) fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        let config = EalConfig {
            control_cpus: vec![],
            file_prefix: "iwarp-test".into(), // nothing is shared under this name
            memory: EalMemory::Ordinary { mib: 128 },
            pci: vec![],
            iova: Iova::Virtual,
            telemetry: false,
        };
        Eal::start(&config).expect("DPDK starts on ordinary pages")
    })
}

/// A pool of `count` buffers for an MTU of 1500, without per-thread caches.
pub(crate) fn pool(count: u32) -> Arc<Mempool> {
    pool_for(count, 1500)
}

/// A pool for an MTU.
pub(crate) fn pool_for(count: u32, mtu: u16) -> Arc<Mempool> {
    let data_room = 128 + (mtu + 18).max(2048);
    let config = MempoolConfig { count, cache: 0, data_room };
    Arc::new(Mempool::contiguous(eal(), config, Pages::Ordinary).expect("there is memory for a pool"))
}

/// A frame with these bytes.
pub(crate) fn frame(pool: &Arc<Mempool>, bytes: &[u8]) -> Mbuf {
    let mut frame = MbufPool::new(Arc::clone(pool), 0).alloc(BufClass::Control).expect("a buffer is left");
    frame.append(bytes.len()).expect("the bytes fit").copy_from_slice(bytes);
    frame
}

/// A network namespace in which the calling thread is, until the end of the test.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    before: File,
}

impl Namespace {
    /// Makes a namespace and enters it.
    pub(crate) fn enter() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("iwt-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let before = File::open("/proc/thread-self/ns/net").expect("the thread has a namespace");
        ip(&format!("netns add {name}"));
        let namespace = Self { before, name };
        let file = File::open(format!("/run/netns/{}", namespace.name)).expect("ip made it");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("tests run as root");
        ip("link set lo up");
        namespace
    }
}

impl Namespace {
    /// Moves an interface of the namespace before into this one.
    pub(crate) fn take(&self, interface: &str) {
        move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("tests run as root");
        ip(&format!("link set {interface} netns {}", self.name));
        let file = File::open(format!("/run/netns/{}", self.name)).expect("ip made it");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("tests run as root");
    }

    /// Moves an interface of this namespace into the one before.
    pub(crate) fn give_back(&self, interface: &str) {
        let fd = self.before.as_raw_fd();
        ip(&format!("link set {interface} netns /proc/{}/fd/{fd}", std::process::id()));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::Network));
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// `ip …`, in the calling thread's network namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Asks `done` again and again for 30 s: the machine may be busy.
pub(crate) fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    for _ in 0..30_000 {
        if let Some(result) = done() {
            return result;
        }
        pause();
    }
    panic!("not within 30 s: {what}");
}

#[allow(clippy::disallowed_methods, reason = "tests wait for the kernel")]
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(1));
}
