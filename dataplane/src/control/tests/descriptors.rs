//! Descriptors whose close blocks: they cost their sender a connection, and nobody else.
#![allow(clippy::disallowed_methods, reason = "tests wait for threads")]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

use super::*;

const ECHO: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":{}}\n";
/// Longest time in which another client must be served.
const SERVED: Duration = Duration::from_secs(5);

/// A TCP socket that lingers: closing it waits for a peer that does not read.
struct Lingering {
    socket: TcpStream,
    peer: TcpStream,
}

impl Lingering {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        Self { socket, peer }
    }
}

/// Closes the test's own copy. Returns true if that did not block: then the server has the last one. If the server was
/// quicker, this copy is the last.
fn hand_over(socket: TcpStream) -> bool {
    let closing = std::thread::spawn(move || drop(socket));
    for _ in 0..20 {
        if closing.is_finished() {
            return true;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    false
}

/// Sends bytes with more descriptors than the server takes.
fn send_many(stream: &UnixStream, bytes: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) {
    try_send_many(stream, bytes, fds).unwrap();
}

fn try_send_many(
    stream: &UnixStream,
    bytes: &[u8],
    fds: &[std::os::fd::BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// A way to give a server a descriptor.
type Way = fn(&UnixStream, &TcpStream);

/// The ways, each with true if the connection ends after it.
const WAYS: &[(&str, bool, Way)] = &[
    ("with a request", false, |stream, fd| send_many(stream, ECHO, &[fd.as_fd()])),
    ("with a request, and the client ends", true, |stream, fd| send_many(stream, ECHO, &[fd.as_fd()])),
    ("more than find room", false, |stream, fd| send_many(stream, ECHO, &[fd.as_fd(); 12])),
    ("with an unfinished line", true, |stream, fd| send_many(stream, b"{", &[fd.as_fd()])),
    ("with no request", false, |stream, fd| send_many(stream, b"\n\n", &[fd.as_fd()])),
    ("with a line that is no request", false, |stream, fd| send_many(stream, b"x\n", &[fd.as_fd()])),
    ("behind a request that takes long", true, |mut stream, fd| {
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"wait\"}\n").unwrap();
        send_many(stream, ECHO, &[fd.as_fd()]);
        send_many(stream, ECHO, &[fd.as_fd()]);
    }),
    ("out of band", true, |stream, fd| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        // Linux before 5.15 has no urgent data here.
        let _ = sendmsg(stream, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::OOB);
    }),
    ("behind a stream", true, |mut stream, fd| {
        stream
            .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stream\",\"params\":{\"ends\":false}}\n")
            .unwrap();
        send_many(stream, b"\n", &[fd.as_fd()]);
    }),
];

#[track_caller]
fn served(server: &Running, why: &str) {
    let begun = Instant::now();
    server.connect().works();
    assert!(begun.elapsed() < SERVED, "{why}: {:?}", begun.elapsed());
}

#[test]
fn closing_such_a_socket_blocks() {
    let Lingering { socket, peer } = Lingering::new();
    let closing = std::thread::spawn(move || drop(socket));
    std::thread::park_timeout(Duration::from_millis(300));
    assert!(!closing.is_finished(), "the other tests of this file test nothing");
    drop(peer);
    closing.join().unwrap();
}

#[test]
fn a_descriptor_whose_close_blocks_delays_no_other_client() {
    for (why, ends, send) in WAYS {
        let server = Running::start(|_| ());
        let (raw, peer) = loop {
            let raw = server.connect();
            let Lingering { socket, peer } = Lingering::new();
            send(&raw.stream, &socket);
            if hand_over(socket) {
                break (raw, peer);
            }
        };
        let raw = (!ends).then_some(raw);
        std::thread::park_timeout(Duration::from_millis(50));
        for _ in 0..3 {
            served(&server, why);
        }
        // The server stops although a thread is blocked.
        let begun = Instant::now();
        server.stop();
        assert!(begun.elapsed() < SERVED, "{why}");
        drop((raw, peer));
    }
}

/// A client that is refused has sent descriptors before: they wait in a socket that has no thread.
#[test]
fn refused_clients_delay_nobody() {
    let server = Running::start(|config| config.clients_max = 2);
    let mut admitted: Vec<Raw> = (0..3).map(|_| server.connect()).collect();
    admitted.iter_mut().for_each(Raw::works);
    let mut peers = Vec::new();
    for _ in 0..40 {
        let Lingering { socket, peer } = Lingering::new();
        let refused = server.connect();
        // Fails if the server was quicker.
        let _ = try_send_many(&refused.stream, ECHO, &[socket.as_fd()]);
        // One that the server has closed before blocks no longer than its peer.
        std::thread::spawn(move || drop(socket));
        peers.push(peer);
    }
    let begun = Instant::now();
    admitted.iter_mut().take(2).for_each(Raw::works);
    assert!(begun.elapsed() < SERVED);
    drop(admitted);
    // The places are free again for others, and the refused sockets are closed once they can be.
    let begun = Instant::now();
    while begun.elapsed() < SERVED {
        let mut again = server.connect();
        again.stream.write_all(ECHO).ok();
        if again.receive()["id"] == 1 {
            break;
        }
    }
    assert!(begun.elapsed() < SERVED);
    drop(peers);
    server.stop();
}

/// Only sockets with descriptors wait for one that blocks: others would use up the daemon's descriptors.
#[test]
fn refused_clients_without_descriptors_are_closed_at_once() {
    let server = Running::start(|config| config.clients_max = 2);
    let mut admitted: Vec<Raw> = (0..3).map(|_| server.connect()).collect();
    admitted.iter_mut().for_each(Raw::works);
    let peer = loop {
        let Lingering { socket, peer } = Lingering::new();
        let refused = server.connect();
        let sent = try_send_many(&refused.stream, ECHO, &[socket.as_fd()]);
        drop(refused);
        if hand_over(socket) && sent.is_ok() {
            break peer;
        }
    };
    for bytes in [&b""[..], ECHO, &[b' '; 50_000]].repeat(10) {
        let mut refused = server.connect();
        refused.stream.set_nonblocking(true).unwrap();
        // Fails if the server was quicker.
        let _ = refused.stream.write_all(bytes);
        refused.stream.set_nonblocking(false).unwrap();
        refused.stream.set_read_timeout(Some(SERVED)).unwrap();
        match refused.stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{}", bytes.len()),
        }
    }
    drop((admitted, peer));
    server.stop();
}

/// A connection counts for its user until its thread has ended: blocked threads are bounded.
#[test]
fn a_blocked_thread_keeps_its_place() {
    let server = Running::start(|config| config.user_clients_max = 3);
    let mut blocked = Vec::new();
    for _ in 0..3 {
        let peer = loop {
            let mut raw = server.connect();
            // Refused while the connection of the former try has its place.
            raw.stream.write_all(ECHO).ok();
            if raw.receive()["id"] != 1 {
                continue;
            }
            let Lingering { socket, peer } = Lingering::new();
            send_many(&raw.stream, ECHO, &[socket.as_fd()]);
            if hand_over(socket) {
                break peer;
            }
        };
        blocked.push(peer);
    }
    // Until the server has seen the third one, and connections that were not blocked have ended.
    std::thread::park_timeout(Duration::from_millis(300));
    let refused = server.connect().receive();
    assert_eq!(kind(&refused), "no_resources");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("3 connections") && message.contains("control.clients_max"), "{message}");
    drop(blocked);
    let begun = Instant::now();
    while begun.elapsed() < SERVED {
        let mut again = server.connect();
        again.stream.write_all(ECHO).ok();
        if again.receive()["id"] == 1 {
            return;
        }
    }
    panic!("the places were never free again");
}

/// Connections that nobody has accepted end with the listener.
#[test]
fn descriptors_in_the_accept_queue_do_not_keep_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let socket_path = folder.path().join("s");
    let server = Server::bind(&config(&socket_path)).unwrap();
    let Lingering { socket, peer } = Lingering::new();
    let client = UnixStream::connect(&socket_path).unwrap();
    send_many(&client, ECHO, &[socket.as_fd()]);
    drop(socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begun = Instant::now();
    runtime.block_on(server.run(Rc::new(Fake), std::future::ready(()))).unwrap();
    assert!(begun.elapsed() < SERVED);
    drop((client, peer));
}
