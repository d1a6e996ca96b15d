//! Tests against a fake daemon over a socket pair, with real sealed memory.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;

use iwarp_control::{ErrorKind, ErrorObject, Request, Response, transfer};
use rdma::Access;
use rustix::fs::{MemfdFlags, SealFlags, ftruncate, memfd_create};

use super::*;
use crate::mapping::OutOfBounds;

/// Creates a memfd of this size, sealed as the daemon seals it.
fn memory(size: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, size).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn attached(bytes: u64, page_bytes: u64) -> RegionAttached {
    RegionAttached { name: "lab".to_owned(), bytes, page_bytes, access: Access::REMOTE_READ }
}

/// Attaches to a daemon that gives one answer.
fn attach_to(
    answer: Result<RegionAttached, ErrorObject>,
    fd: Option<&OwnedFd>,
) -> Result<Region, AttachError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let fd = fd.map(|fd| fd.try_clone().unwrap());
    let daemon = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let request: Request = serde_json::from_str(&line).unwrap();
        assert_eq!(request.method, "region.attach");
        assert_eq!(request.params["name"], "lab");
        let reply = match answer {
            Ok(result) => Response::success(request.id, result).to_line().unwrap(),
            Err(error) => Response::<()>::failure(request.id, error).to_line().unwrap(),
        };
        transfer::send(&stream, &reply, fd.as_ref().map(AsFd::as_fd).as_slice()).unwrap();
    });
    let mapping = attach(&path, "lab");
    daemon.join().unwrap();
    mapping
}

fn mapping(bytes: u64) -> (Region, OwnedFd) {
    let fd = memory(bytes.next_multiple_of(4096), SealFlags::SHRINK | SealFlags::GROW);
    (attach_to(Ok(attached(bytes, 4096)), Some(&fd)).unwrap(), fd)
}

#[test]
fn peers_read_what_the_other_end_wrote() {
    let (region, fd) = mapping(10_000);
    assert_eq!((region.name(), region.len(), region.is_empty()), ("lab", 10_000, false));
    assert_eq!(region.access(), Access::REMOTE_READ);
    rustix::io::pwrite(&fd, b"placed by a peer", 4090).unwrap();
    let mut out = [0; 16];
    region.read(4090, &mut out).unwrap();
    assert_eq!(&out, b"placed by a peer");
    region.write(9_990, b"from here!").unwrap();
    let mut out = [0; 10];
    rustix::io::pread(&fd, &mut out, 9_990).unwrap();
    assert_eq!(&out, b"from here!");
}

/// Compares every alignment of start and end with a plain copy.
#[test]
fn copies_are_exact_at_every_alignment() {
    let (region, fd) = mapping(4096);
    let pattern: Vec<u8> = (0..64u8).map(|n| n.wrapping_mul(37) ^ 0xA5).collect();
    for offset in 0..17u16 {
        for length in 0..40 {
            let mut plain = vec![0xEE; 64];
            region.write(0, &plain).unwrap();
            let (from, to) = (usize::from(offset), usize::from(offset) + length);
            plain[from..to].copy_from_slice(&pattern[..length]);
            region.write(offset.into(), &pattern[..length]).unwrap();
            let mut seen = vec![0; 64];
            rustix::io::pread(&fd, &mut seen, 0).unwrap();
            assert_eq!(seen, plain, "write of {length} at {offset}");
            let mut read = vec![0; length];
            region.read(offset.into(), &mut read).unwrap();
            assert_eq!(read, pattern[..length], "read of {length} at {offset}");
        }
    }
}

#[test]
fn nothing_outside_the_region_is_touched() {
    let (region, fd) = mapping(5000);
    let before = vec![7; 8192];
    rustix::io::pwrite(&fd, &before, 0).unwrap();
    for (offset, length) in [(5000, 1), (4999, 2), (0, 5001), (u64::MAX, 1), (u64::MAX - 3, 8), (1 << 63, 0)]
    {
        let mut out = vec![1; length];
        let refused = OutOfBounds { offset, length, bytes: 5000 };
        assert_eq!(region.read(offset, &mut out), Err(refused));
        assert!(out.iter().all(|&byte| byte == 1), "nothing is copied");
        assert_eq!(region.write(offset, &out), Err(refused));
    }
    assert!(region.read(5000, &mut []).is_ok() && region.write(5000, &[]).is_ok(), "nothing at the end");
    let mut after = vec![0; 8192];
    rustix::io::pread(&fd, &mut after, 0).unwrap();
    assert_eq!(after, before);
}

#[test]
fn a_mapping_can_be_shared_by_threads() {
    let (region, _fd) = mapping(1 << 20);
    std::thread::scope(|scope| {
        for n in 0..4u8 {
            let region = &region;
            scope.spawn(move || {
                let place = u64::from(n) * 1000;
                for round in 0..100 {
                    region.write(place, &[n ^ round; 999]).unwrap();
                    let mut out = [0; 999];
                    region.read(place, &mut out).unwrap();
                    assert_eq!(out, [n ^ round; 999]);
                }
            });
        }
    });
}

#[test]
fn mappings_go_when_dropped() {
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:gone-later").count();
    let fd = memfd_create("gone-later", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let region = attach_to(Ok(attached(1, 4096)), Some(&fd)).unwrap();
    assert_eq!(mapped(), 1);
    drop(region);
    assert_eq!(mapped(), 0);
}

/// Hugepages are mapped whole; on a machine without them, the system refuses.
#[test]
fn a_region_of_hugepages() {
    const PAGE: u64 = 2 << 20;
    let free = || {
        let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
        std::fs::read_to_string(path).ok().and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let before = free();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd = memfd_create("huge", flags).unwrap();
    ftruncate(&fd, 2 * PAGE).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    match attach_to(Ok(attached(PAGE + 1, PAGE)), Some(&fd)) {
        Ok(region) => {
            region.write(PAGE - 3, b"ab").unwrap();
            region.write(PAGE - 1, b"cd").unwrap();
            let mut out = [9; 5];
            region.read(PAGE - 4, &mut out).unwrap();
            assert_eq!(&out, b"\0abcd");
            assert!(region.write(PAGE, b"xy").is_err());
        }
        Err(AttachError::Map { .. }) => assert!(before.min(free()) < 2, "{before} hugepages were free"),
        Err(other) => panic!("{other}"),
    }
}

#[track_caller]
fn is_no_region(result: Result<Region, AttachError>, what: &str) {
    match result {
        Err(AttachError::NotARegion { reason, .. }) => assert!(reason.contains(what), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_that_are_no_region_are_refused() {
    let good = memory(8192, SealFlags::SHRINK);
    is_no_region(attach_to(Ok(attached(1, 4096)), None), "no descriptor");
    is_no_region(attach_to(Ok(attached(1, 4096)), Some(&memory(4096, SealFlags::GROW))), "not sealed");
    is_no_region(attach_to(Ok(attached(8193, 4096)), Some(&good)), "has 8192 bytes, not 12288");
    is_no_region(attach_to(Ok(attached(0, 4096)), Some(&good)), "empty");
    is_no_region(attach_to(Ok(attached(1, 0)), Some(&good)), "a page of 0");
    is_no_region(attach_to(Ok(attached(1, 5000)), Some(&good)), "a page of 5000");
    is_no_region(attach_to(Ok(attached(u64::MAX, 4096)), Some(&good)), "a size of");
    let null = std::fs::File::open("/dev/null").unwrap().into();
    is_no_region(attach_to(Ok(attached(1, 4096)), Some(&null)), "not sealed");
}

#[test]
fn the_daemons_refusal_is_passed_on() {
    let refusal = ErrorObject::new(ErrorKind::NoSuchObject, "no region lab");
    match attach_to(Err(refusal), None) {
        Err(e @ AttachError::Daemon(ClientError::Refused(_))) => assert_eq!(e.to_string(), "no region lab"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        attach("/nonexistent/s", "lab"),
        Err(AttachError::Daemon(ClientError::Unreachable { .. }))
    ));
}
