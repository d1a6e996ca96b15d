//! Peers and paths that do not do as they should: each ends in an error that says so, and in no file.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use crate::proxy::{self, Harm};
use crate::responder::{LAB, LAB_ID, Manner, Responder};
use crate::{Run, names, noise, place, remote, text};

struct Files {
    dir: tempfile::TempDir,
    sent: PathBuf,
}

impl Files {
    fn new(length: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sent = dir.path().join("sent");
        fs::write(&sent, noise(length)).unwrap();
        Self { dir, sent }
    }

    fn put(&self, target: &str) -> Run {
        remote(&["put", text(&self.sent), target])
    }

    /// A `get` that fails and leaves nothing behind.
    fn get(&self, target: &str, length: usize) -> Run {
        let run =
            remote(&["get", target, text(&self.dir.path().join("got")), "--length", &length.to_string()]);
        assert_ne!(run.code, 0);
        assert_eq!(names(self.dir.path()), ["sent"]);
        run
    }
}

/// A server that is no iWARP peer.
fn server(conversation: impl Fn(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().for_each(|stream| conversation(stream.unwrap())));
    address
}

#[test]
fn no_such_region() {
    let responder = Responder::start(Manner::Honest);
    let run = Files::new(1).put(&place(responder.address, "nothing"));
    assert_eq!((run.code, run.kind().as_str()), (4, "no_such_object"));
    assert!(run.error()["message"].as_str().unwrap().contains("`nothing`"));
}

#[test]
fn nobody_listens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = Files::new(1).put(&place(free, "lab"));
    assert_eq!((run.code, run.kind().as_str()), (3, "unreachable"));
    let run = remote(&["ping", "no-such-host.invalid:7400/lab"]);
    assert_eq!((run.code, run.kind().as_str()), (3, "unreachable"));
}

#[test]
fn outside_of_the_region() {
    let responder = Responder::start(Manner::Honest);
    let files = Files::new(4097);
    assert_eq!(files.put(&place(responder.address, "lab-wo")).kind(), "out_of_bounds");
    assert_eq!(files.get(&place(responder.address, "lab-ro+1"), 4096).kind(), "out_of_bounds");
    assert_eq!(files.get(&place(responder.address, "lab+0xffffffffffffffff"), 2).kind(), "out_of_bounds");
    assert!(responder.shared.lock().unwrap().memory.bytes(LAB_ID).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_revoked_grant_is_named_by_the_peers_terminate() {
    let responder = Responder::start(Manner::Revokes);
    let files = Files::new(LAB);
    let run = files.put(&place(responder.address, "lab"));
    assert_eq!((run.code, run.kind().as_str()), (1, "terminated"));
    assert!(run.error()["message"].as_str().unwrap().contains("tagged buffer error: invalid STag"));
    let run = files.get(&place(responder.address, "lab"), LAB);
    assert_eq!(run.kind(), "terminated");
    assert!(run.error()["message"].as_str().unwrap().contains("remote protection error: invalid STag"));
    assert!(responder.lab().iter().all(|byte| *byte == 0));
}

#[test]
fn a_peer_that_takes_no_reads() {
    let responder = Responder::start(Manner::NoReads);
    let files = Files::new(10);
    let run = files.put(&place(responder.address, "lab"));
    assert_eq!((run.code, run.kind().as_str()), (1, "protocol"));
    assert_eq!(files.get(&place(responder.address, "lab"), 10).kind(), "protocol");
}

#[test]
fn a_peer_that_closes_midway() {
    for bytes in [0, 1, 1_000_000] {
        let responder = Responder::start(Manner::ClosesAfter(bytes));
        let run = Files::new(LAB).put(&place(responder.address, "lab"));
        assert_eq!((run.code, run.kind().as_str()), (1, "connection_lost"), "{bytes}: {}", run.stderr);
    }
    let responder = Responder::start(Manner::ClosesAfter(1));
    assert_eq!(Files::new(1).get(&place(responder.address, "lab"), LAB).kind(), "connection_lost");
}

#[test]
fn a_path_that_breaks() {
    let responder = Responder::start(Manner::Honest);
    let files = Files::new(LAB);
    for position in [100, 2_000_000, LAB as u64] {
        let address = proxy::start(responder.address, Harm::Cut(position), Harm::None);
        assert_eq!(files.put(&place(address, "lab")).kind(), "connection_lost", "{position}");
        let address = proxy::start(responder.address, Harm::None, Harm::Cut(position));
        assert_eq!(files.get(&place(address, "lab"), LAB).kind(), "connection_lost", "{position}");
    }
    let address = proxy::start(responder.address, Harm::None, Harm::Cut(10));
    let run = files.put(&place(address, "lab"));
    assert_eq!((run.code, run.kind().as_str()), (1, "connection_lost"));
}

#[test]
fn a_flipped_bit_is_found() {
    let responder = Responder::start(Manner::Honest);
    let files = Files::new(LAB);
    for position in [1000, 12_345, 4_000_000] {
        let address = proxy::start(responder.address, Harm::Flip(position), Harm::None);
        let run = files.put(&place(address, "lab"));
        assert_eq!(run.code, 1);
        assert!(["terminated", "connection_lost"].contains(&run.kind().as_str()), "{}", run.stderr);
        let address = proxy::start(responder.address, Harm::None, Harm::Flip(position));
        let run = files.get(&place(address, "lab"), LAB);
        assert_eq!((run.code, run.kind().as_str()), (1, "protocol"), "{}", run.stderr);
        assert!(run.error()["message"].as_str().unwrap().contains("CRC"), "{}", run.stderr);
    }
    assert!(responder.shared.lock().unwrap().stats.mpa.crc_errors >= 3);
}

#[test]
fn peers_that_are_no_iwarp_peers() {
    let files = Files::new(1);
    let address = server(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let run = files.put(&place(address, "lab"));
    assert_eq!((run.code, run.kind().as_str()), (1, "protocol"), "{}", run.stderr);
    let address = server(drop);
    assert_eq!(files.put(&place(address, "lab")).kind(), "connection_lost");
}

#[test]
fn a_silent_peer_is_given_up() {
    let address = server(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let files = Files::new(1);
    let started = std::time::Instant::now();
    let run = remote(&["--timeout", "0.3", "put", text(&files.sent), &place(address, "lab")]);
    assert_eq!((run.code, run.kind().as_str()), (1, "timeout"), "{}", run.stderr);
    assert!(started.elapsed().as_secs() < 4);
}

#[test]
fn a_peer_that_falls_silent_is_given_up() {
    let responder = Responder::start(Manner::FallsSilent);
    let files = Files::new(LAB);
    let target = place(responder.address, "lab");
    let got = files.dir.path().join("got");
    let started = std::time::Instant::now();
    for command in [["put", text(&files.sent), &target], ["get", &target, text(&got)]] {
        let run = remote(&[&["--timeout", "0.4"][..], &command].concat());
        assert_eq!((run.code, run.kind().as_str()), (1, "timeout"), "{}", run.stderr);
    }
    assert_eq!(names(files.dir.path()), ["sent"]);
    assert!(started.elapsed().as_secs() < 8);
}

#[test]
fn a_get_that_is_interrupted_leaves_no_file() {
    let responder = Responder::start(Manner::FallsSilent);
    let dir = tempfile::tempdir().unwrap();
    for signal in ["-INT", "-TERM", "-KILL"] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_iwarpctl"))
            .args(["remote", "get", &place(responder.address, "lab"), text(&dir.path().join("got"))])
            .spawn()
            .unwrap();
        let granted =
            |shared: &mut crate::responder::Shared| std::mem::take(&mut shared.stats.mpa.accepts_out);
        while granted(&mut responder.shared.lock().unwrap()) == 0 {
            std::thread::yield_now();
        }
        let kill = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), None, "{signal} ends it");
        assert_eq!(names(dir.path()), [""; 0], "{signal}");
    }
}

#[test]
fn a_file_that_is_shorter_than_it_says_is_put_as_it_reads() {
    // The kernel says a page of each of these.
    let path = Path::new("/sys/kernel/uevent_seqnum");
    assert_eq!(fs::metadata(path).unwrap().len(), 4096);
    let responder = Responder::start(Manner::Honest);
    let run = remote(&["put", text(path), &place(responder.address, "lab")]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["bytes"], fs::read(path).unwrap().len());
}

#[test]
fn a_disk_that_is_full() {
    let responder = Responder::start(Manner::Honest);
    let run = remote(&["get", &place(responder.address, "lab"), "/dev/full"]);
    assert_eq!((run.code, run.kind().as_str()), (1, "file"));
    assert!(run.error()["message"].as_str().unwrap().contains("No space left"), "{}", run.stderr);
}

#[test]
fn files_that_are_not_there() {
    let responder = Responder::start(Manner::Honest);
    let target = place(responder.address, "lab");
    assert_eq!(remote(&["put", "/nonexistent", &target]).kind(), "file");
    assert_eq!(remote(&["put", "/", &target]).kind(), "file");
    assert_eq!(remote(&["get", &target, "/nonexistent/file", "--length", "1"]).kind(), "file");
    assert_eq!(remote(&["ping", &target, "--token-file", "/nonexistent"]).kind(), "token");
    assert!(!Path::new("/nonexistent").exists());
}
