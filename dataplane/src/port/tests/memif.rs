//! Shared memory between two processes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use iwarp_config::{Driver, Memif, MemifRole};
use tcp_stack::Buf;

use super::{frame_bytes, receive, receive_bytes, send, send_bytes};
use crate::dpdk::testutil::{eal, eventually, pool};
use crate::port::{Port, PortSpec};

/// The test, as the test runner calls it.
const TEST: &str = "port::tests::memif::frames_go_to_another_process_and_back";
/// Set in the other process: the socket to connect to.
const SOCKET: &str = "IWARP_TEST_MEMIF_SOCKET";

fn spec(role: MemifRole, socket: PathBuf) -> PortSpec {
    PortSpec::new("p0", Driver::Memif(Memif { id: 7, role, socket }))
}

#[test]
fn frames_go_to_another_process_and_back() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return other_process(PathBuf::from(socket));
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let pool = pool(1023);
    let (port, mut pairs) =
        Port::open(eal(), &spec(MemifRole::Server, socket.clone()), &[Arc::clone(&pool)]).unwrap();
    let pair = &mut pairs[0];
    assert!(!port.link().unwrap().up, "nobody is there yet");
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST])
        .env(SOCKET, &socket)
        .spawn()
        .unwrap();
    eventually("the other process connects", || port.link().unwrap().up.then_some(()));
    for (tag, len) in [(1, 60), (2, 1514), (3, 999)] {
        send_bytes(pair, &pool, &frame_bytes(len, tag));
        receive_bytes(pair, &frame_bytes(len, tag + 100));
    }
    send_bytes(pair, &pool, &frame_bytes(60, 0));
    assert!(other.wait().unwrap().success());
    drop((port, pairs));
    assert_eq!(pool.in_use(), 0);
}

/// Sends back what it receives, 100 added to each byte of payload, until that is 0.
fn other_process(socket: PathBuf) {
    let (port, mut pairs) = Port::open(eal(), &spec(MemifRole::Client, socket), &[pool(1023)]).unwrap();
    eventually("the server answers", || port.link().unwrap().up.then_some(()));
    loop {
        let mut got = receive(&mut pairs[0], |_| true);
        let payload = &mut got.bytes_mut().unwrap()[14..];
        if payload[0] == 0 {
            break;
        }
        payload.iter_mut().for_each(|byte| *byte += 100);
        send(&mut pairs[0], got);
    }
}
