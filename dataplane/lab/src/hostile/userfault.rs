//! Memory under userfaultfd whose handler is silent: a thread that touches it waits as long as the handler likes.
//!
//! The program has the daemon read and write pages that are missing, while a thread of its own waits for each of them.
//! It needs the right to handle the faults of system calls (`vm.unprivileged_userfaultfd`).
#![allow(unsafe_code, reason = "maps memory under userfaultfd, and registers it")]

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr::NonNull;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use iwarp_verbs::{Context, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
use serde_json::json;

use super::fuse::{Connection, FAILS_WITHIN, connected};
use super::{Attack, Connecting};

const PAGE: usize = 4096;
/// Pages of the mapping. The first has bytes; the others are missing.
const PAGES: usize = 4;
/// Longest time until a fault is reported to the handler.
const REPORTED_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Version of userfaultfd (`UFFD_API`), and its events of missing pages (`UFFD_EVENT_PAGEFAULT`).
const API: u64 = 0xAA;
const PAGE_FAULT: u8 = 0x12;
/// Faults of missing pages are handled (`UFFDIO_REGISTER_MODE_MISSING`).
const MISSING: u64 = 1;
/// `struct uffdio_api`: version, features, requests.
const UFFDIO_API: Opcode = opcode::read_write::<[u64; 3]>(0xAA, 0x3F);
/// `struct uffdio_register`: start, length, mode, requests.
const UFFDIO_REGISTER: Opcode = opcode::read_write::<[u64; 4]>(0xAA, 0x00);

pub(super) fn run(options: &Connecting) -> Result<Attack> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which lives as long as the program.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE * PAGES, rights, MapFlags::PRIVATE)? };
    let start = NonNull::new(start.cast::<u8>()).context("no mapping")?;
    // SAFETY: the first page of the mapping.
    unsafe { start.write_volatile(1) };
    let faults = silent_handler(start)?;
    let context = Context::open(&options.target.socket, None)?;
    let pd = context.alloc_pd()?;
    // Fewer bytes than a page, which the daemon reaches through the kernel.
    let connect = |number: u16| {
        // SAFETY: inside the mapping.
        let page = unsafe { start.add(PAGE * usize::from(number)) };
        let local = SocketAddr::new(options.local.ip(), options.local.port() + number);
        connected(&context, &pd, page, local)
    };
    let answered = connect(0)?;
    let missing = [connect(1)?, connect(2)?, connect(3)?];
    let (status, _) = answered.request(&context, 0)?;
    ensure!(status == WcStatus::Success, "a page that is there: {status:?}");
    let waiting: Vec<JoinHandle<u8>> =
        (1..PAGES).map(|page| touch(&faults, start, page)).collect::<Result<_>>()?;
    let (mut failed, mut longest) = (0, Duration::ZERO);
    for (connection, kind) in missing.iter().zip(0..) {
        let (status, took) = Connection::request(connection, &context, kind)?;
        ensure!(status != WcStatus::Success, "a missing page was copied");
        ensure!(took < FAILS_WITHIN, "a request has failed after {took:?} only");
        (failed, longest) = (failed + 1, longest.max(took));
    }
    std::thread::sleep(options.target.end().saturating_duration_since(Instant::now()));
    ensure!(!waiting.iter().any(JoinHandle::is_finished), "a fault was handled: nothing was attacked");
    let report = json!({
        "case": "userfault", "pending": waiting.len(), "failed": failed, "longest_ms": longest.as_millis(),
    });
    Ok((report, Box::new((context, pd, faults, answered, missing, waiting))))
}

/// Puts all pages of the mapping but the first under userfaultfd.
fn silent_handler(start: NonNull<u8>) -> Result<OwnedFd> {
    // SAFETY: the descriptor handles faults of this program's own mapping.
    let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) };
    let faults = faults.context("userfaultfd: set vm.unprivileged_userfaultfd")?;
    let from = (start.addr().get() + PAGE) as u64;
    request::<UFFDIO_API, 3>(&faults, [API, 0, 0])?;
    request::<UFFDIO_REGISTER, 4>(&faults, [from, (PAGE * (PAGES - 1)) as u64, MISSING, 0])?;
    Ok(faults)
}

/// Starts a thread that touches a page, and checks that it waits: the fault is reported to the handler.
fn touch(faults: &OwnedFd, start: NonNull<u8>, page: usize) -> Result<JoinHandle<u8>> {
    let address = start.addr().get() + PAGE * page;
    start.as_ptr().expose_provenance();
    let thread = std::thread::spawn(move || {
        let at = std::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: inside the mapping, which lives as long as the program.
        unsafe { at.read_volatile() }
    });
    let reported = poll(&mut [PollFd::new(faults, PollFlags::IN)], Some(&REPORTED_WITHIN))?;
    ensure!(reported == 1, "no fault is reported for page {page}");
    let mut message = [0; 32];
    let length = rustix::io::read(faults.as_fd(), &mut message)?;
    let at = message.get(16..).and_then(<[u8]>::first_chunk).map(|bytes| u64::from_ne_bytes(*bytes));
    let is_page = at.is_some_and(|at| at & !(PAGE as u64 - 1) == address as u64);
    ensure!(length == message.len() && message[0] == PAGE_FAULT && is_page, "{message:?}");
    ensure!(!thread.is_finished(), "the thread does not wait for page {page}");
    Ok(thread)
}

/// Sends a request to a userfaultfd.
fn request<const REQUEST: Opcode, const WORDS: usize>(
    faults: &OwnedFd,
    mut words: [u64; WORDS],
) -> Result<()> {
    // SAFETY: the requests of this file take a structure of as many 64-bit words, as `REQUEST` encodes.
    let update = unsafe { Updater::<REQUEST, [u64; WORDS]>::new(&mut words) };
    // SAFETY: the range is a mapping of this program.
    Ok(unsafe { ioctl(faults, update) }?)
}
