//! Shared memory between two processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use iwarp_config::{Driver, Memif, MemifRole};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use tcp_stack::Buf;

use super::{frame_bytes, receive, receive_bytes, send, send_bytes};
use crate::dpdk::testutil::{eal, eventually, pool};
use crate::port::memif::make_way;
use crate::port::{Port, PortError, PortSpec};

/// The test, as the test runner calls it.
const TEST: &str = "port::tests::memif::frames_go_to_another_process_and_back";
/// Set in the other process: the socket to connect to.
const SOCKET: &str = "IWARP_TEST_MEMIF_SOCKET";
/// The same for the test of a client.
const SERVER_TEST: &str = "port::tests::memif::a_client_finds_its_server_late_and_again";
/// Set in its other process: the socket to serve.
const SERVED: &str = "IWARP_TEST_MEMIF_SERVED";
/// The same for the test of a socket in use.
const OWNER_TEST: &str = "port::tests::memif::a_server_removes_no_socket_on_which_another_program_listens";
/// Set in its other process: the socket to serve.
const OWNED: &str = "IWARP_TEST_MEMIF_OWNED";

fn spec(role: MemifRole, socket: PathBuf) -> PortSpec {
    PortSpec::new("p0", Driver::Memif(Memif { id: 7, role, socket }))
}

#[test]
fn frames_go_to_another_process_and_back() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return answer(MemifRole::Client, PathBuf::from(socket));
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

/// Opens one end, and sends back what it receives, 100 added to each byte of payload, until that is 0.
fn answer(role: MemifRole, socket: PathBuf) {
    let (port, mut pairs) = Port::open(eal(), &spec(role, socket), &[pool(1023)]).unwrap();
    eventually("the other end answers", || port.link().unwrap().up.then_some(()));
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

/// A server in another process.
fn serve(socket: &Path) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", SERVER_TEST]).env(SERVED, socket).spawn().unwrap()
}

#[test]
fn a_client_finds_its_server_late_and_again() {
    if let Some(socket) = std::env::var_os(SERVED) {
        return answer(MemifRole::Server, PathBuf::from(socket));
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let (pool, spec) = (pool(1023), spec(MemifRole::Client, socket.clone()));
    let pools = [Arc::clone(&pool)];
    let missing = Port::open(eal(), &spec, &pools).unwrap_err().to_string();
    assert!(missing.contains("no memif server accepts"), "{missing}");
    let (mut port, none) = Port::open_or_wait(eal(), &spec, &pools).unwrap();
    assert!(none.is_empty() && port.queues() == 1);
    for (round, killed) in (1..).zip([false, true, true, false]) {
        assert!(port.is_closed() && !port.is_gone() && !port.has_vanished());
        assert!(!port.link().unwrap().up);
        let mut server = serve(&socket);
        let mut pairs = eventually("the client connects", || {
            let pairs = port.can_return().then(|| port.reopen(eal(), &spec, &pools).ok()).flatten()?;
            let is_up = eventually("the link comes up, or the server refuses", || {
                let up = port.link().unwrap().up;
                (up || port.has_vanished()).then_some(up)
            });
            // A server that listens may not be set up yet.
            if !is_up {
                drop(pairs);
                port.lose();
                return None;
            }
            Some(pairs)
        });
        for (tag, len) in [(1, 60), (2, 1514)] {
            send_bytes(&mut pairs[0], &pool, &frame_bytes(len, tag));
            receive_bytes(&mut pairs[0], &frame_bytes(len, tag + 100));
        }
        assert!(!port.has_vanished());
        assert_eq!(port.stats().unwrap().rx_frames, 2 * round);
        if killed {
            server.kill().unwrap();
        } else {
            send_bytes(&mut pairs[0], &pool, &frame_bytes(60, 0));
        }
        assert_eq!(server.wait().unwrap().success(), !killed);
        eventually("the client notices", || port.has_vanished().then_some(()));
        drop(pairs);
        port.lose();
        assert_eq!(socket.exists(), killed, "net_memif removes its socket when it is closed");
        assert!(matches!(port.reopen(eal(), &spec, &pools), Err(PortError::NoServer { .. })));
    }
    assert_eq!(port.stats().unwrap().rx_frames, 8, "as before the last server ended");
    drop(port);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_server_removes_no_socket_on_which_another_program_listens() {
    if let Some(socket) = std::env::var_os(OWNED) {
        return answer(MemifRole::Server, PathBuf::from(socket));
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", OWNER_TEST])
        .env(OWNED, &socket)
        .spawn()
        .unwrap();
    let (pool, client) = (pool(1023), spec(MemifRole::Client, socket.clone()));
    let pools = [Arc::clone(&pool)];
    eventually("the socket exists", || socket.exists().then_some(()));
    let second = PortSpec::new("p1", Driver::Memif(Memif { id: 8, role: MemifRole::Server, socket }));
    for _ in 0..20 {
        let refused = Port::open(eal(), &second, &pools).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {} serves", server.id())), "{refused}");
    }
    let (port, mut pairs) = Port::open(eal(), &client, &pools).unwrap();
    eventually("the link comes up", || port.link().unwrap().up.then_some(()));
    send_bytes(&mut pairs[0], &pool, &frame_bytes(60, 1));
    receive_bytes(&mut pairs[0], &frame_bytes(60, 101));
    send_bytes(&mut pairs[0], &pool, &frame_bytes(60, 0));
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_socket_is_served_as_soon_as_it_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let spec = spec(MemifRole::Server, socket.clone());
    let kinds = [SocketType::SEQPACKET, SocketType::STREAM, SocketType::DGRAM];
    for kind in kinds {
        let bound = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::bind(&bound, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        // This process holds it, as one with two ports would.
        make_way(&spec, &socket).unwrap();
        assert!(socket.exists(), "{kind:?}");
        drop(bound);
        make_way(&spec, &socket).unwrap();
        assert!(!socket.exists(), "{kind:?}: nobody holds it");
    }
}

#[test]
fn two_servers_of_one_process_share_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let of = |id| Driver::Memif(Memif { id, role: MemifRole::Server, socket: socket.clone() });
    let pools = [pool(1023)];
    let _first = Port::open(eal(), &PortSpec::new("p0", of(1)), &pools).unwrap();
    let _second = Port::open(eal(), &PortSpec::new("p1", of(2)), &pools).unwrap();
    assert!(socket.exists());
}
