//! `--resume`: connections that break, and transfers that are whole all the same.

use std::fs;
use std::net::TcpListener;

use serde_json::json;

use crate::proxy::{self, Harm};
use crate::responder::{BIG, LAB, Manner, Responder};
use crate::{names, noise, place, put_piped, remote, text};

#[test]
fn a_put_continues_behind_what_is_proved() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let sent = dir.path().join("sent");
    let bytes = noise(BIG);
    fs::write(&sent, &bytes).unwrap();
    // An MPA Reply has 20 bytes and 36 of private data, an empty Read Response 20: the second one does not come, which
    // proves the end, but the first one does, behind 16 MiB.
    let address = proxy::start_with(responder.address, [(Harm::None, Harm::Cut(80))]);
    let report = remote(&["put", text(&sent), &place(address, "big"), "--resume"]).json();
    assert_eq!((&report["bytes"], &report["resumed"]), (&json!(BIG), &json!(1)));
    assert!(responder.big() == bytes);
    let placed = responder.shared.lock().unwrap().stats.rdmap.payload_bytes_placed;
    assert_eq!(placed, 2 * BIG as u64 - (16 << 20));
}

#[test]
fn breaks_one_after_the_other() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let (sent, got) = (dir.path().join("sent"), dir.path().join("got"));
    fs::write(&sent, noise(LAB)).unwrap();
    let cut = |at| (Harm::Cut(at), Harm::None);
    let harms = [cut(3_000_000), (Harm::None, Harm::Cut(10)), cut(100), (Harm::None, Harm::Cut(6_000_000))];
    let address = proxy::start_with(responder.address, harms);
    let report = remote(&["put", text(&sent), &place(address, "lab"), "--resume", "--verify"]).json();
    assert_eq!((&report["resumed"], &report["verified"]), (&json!(4), &json!(true)));
    assert!(responder.lab() == fs::read(&sent).unwrap());

    let harms = [100_000, 10, 5_000_000].map(|at| (Harm::None, Harm::Cut(at)));
    // The first connection must reach the grant: before, there is nothing to resume.
    let address = proxy::start_with(responder.address, harms);
    let report = remote(&["get", &place(address, "lab"), text(&got), "--resume"]).json();
    assert_eq!(report["resumed"], 3);
    assert!(fs::read(&got).unwrap() == fs::read(&sent).unwrap());
    assert_eq!(names(dir.path()), ["got", "sent"]);
}

#[test]
fn attempts_in_vain_are_bounded() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let (sent, got) = (dir.path().join("sent"), dir.path().join("got"));
    fs::write(&sent, noise(LAB)).unwrap();
    let address = proxy::start(responder.address, Harm::Cut(1_000_000), Harm::Cut(100));
    for command in [
        ["put", text(&sent), &place(address, "lab")],
        // Not a whole FPDU of the Read Response comes back.
        ["get", &place(address, "lab"), text(&got)],
    ] {
        let run = remote(&[&command[..], &["--resume", "--retries", "2"]].concat());
        assert_eq!((run.code, run.kind().as_str()), (1, "connection_lost"));
        assert!(run.error()["help"].as_str().unwrap().contains("2 attempts in a row"), "{}", run.stderr);
    }
    assert_eq!(names(dir.path()), ["sent"]);
}

#[test]
fn what_cannot_pass_is_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let sent = dir.path().join("sent");
    fs::write(&sent, noise(4097)).unwrap();
    let put = |target: &str| remote(&["put", text(&sent), target, "--resume", "--retries", "1000"]);
    // Nobody was there to begin with.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(put(&place(free, "lab")).kind(), "unreachable");
    let responder = Responder::start(Manner::Honest);
    assert_eq!(put(&place(responder.address, "nothing")).kind(), "no_such_object");
    assert_eq!(put(&place(responder.address, "lab-ro")).kind(), "not_permitted");
    assert_eq!(put(&place(responder.address, "lab-wo")).kind(), "out_of_bounds");
    let responder = Responder::start(Manner::Revokes);
    assert_eq!(put(&place(responder.address, "lab")).kind(), "terminated");
    let run = put_piped(&["-", &place(responder.address, "lab"), "--resume"], b"x");
    assert_eq!((run.code, run.kind().as_str()), (2, "usage"));
    let run = remote(&["put", text(&sent), &place(responder.address, "lab"), "--retries", "3"]);
    assert_eq!(run.code, 2, "--retries needs --resume");
}
