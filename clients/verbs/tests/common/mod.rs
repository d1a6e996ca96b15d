//! A daemon with one region, for the tests of the examples.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use iwarp_control::{ErrorKind, ErrorObject, RegionAttached, RegionQuery, Request, Response, transfer};
use rdma::Access;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Bytes of the region.
pub(crate) const BYTES: u64 = 100_000;

/// A daemon with the region `lab`, which serves one client.
pub(crate) struct Daemon {
    folder: tempfile::TempDir,
    /// The memory of the region, which is a whole number of pages.
    pub(crate) memory: OwnedFd,
}

impl Daemon {
    /// Starts the daemon. Its reply takes the path in two parts.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let memory = memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, BYTES.next_multiple_of(4096)).unwrap();
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let daemon = Self { folder, memory };
        let listener = UnixListener::bind(daemon.socket()).unwrap();
        let fd = daemon.memory.try_clone().unwrap();
        std::thread::spawn(move || serve(&listener, &fd));
        daemon
    }

    /// Returns the path of its control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }
}

fn serve(listener: &UnixListener, fd: &OwnedFd) {
    let (stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let request: Request = serde_json::from_str(&line).unwrap();
    assert_eq!(request.method, "region.attach");
    let RegionQuery { name } = serde_json::from_value(request.params).unwrap();
    if name != "lab" {
        let error = ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no region {name}"));
        let reply = Response::<()>::failure(request.id, error).to_line().unwrap();
        transfer::send(&stream, &reply, &[]).unwrap();
        return;
    }
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let attached = RegionAttached { name, bytes: BYTES, page_bytes: 4096, access };
    let reply = Response::success(request.id, attached).to_line().unwrap();
    let (first, rest) = reply.split_at(20);
    transfer::send(&stream, first, &[fd.as_fd()]).unwrap();
    transfer::send(&stream, rest, &[]).unwrap();
}
