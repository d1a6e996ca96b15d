//! A program that forks, and ends before its child does.
#![allow(unsafe_code, reason = "forks; listed in UNSAFE.md")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::*;

#[test]
fn a_child_does_not_keep_its_parents_connections() {
    const NAME: &str = "IRONWARP_TEST_FORK";
    if let Some(peer) = std::env::var_os(NAME) {
        return connect_and_fork(peer.to_str().unwrap().parse().unwrap());
    }
    let (server, at) = (End::new(), free("127.0.0.1"));
    let listener = server.context.create_id(Some(at)).unwrap();
    listener.listen(NonZeroU16::new(4).unwrap(), &ConnParam::default()).unwrap();
    let test = "embedded::tests::fork::a_child_does_not_keep_its_parents_connections";
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(NAME, at.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let request = server.event(|kind| matches!(kind, CmEventKind::ConnectRequest { .. }));
    let accepted = server.context.id(request.id);
    accepted.accept(&server.qp, b"").unwrap();
    server.event(|kind| matches!(kind, CmEventKind::Established { .. }));
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let child = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("child ")?.parse::<i32>().ok());
    let child = child.unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    // Not before the child has ended, without the handler.
    let began = Instant::now();
    server.event(|kind| matches!(kind, CmEventKind::Disconnected));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // SAFETY: the child of the program above, which sleeps.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0, "the child lives");
}

/// Connects, forks a child that sleeps, and sleeps.
fn connect_and_fork(peer: SocketAddr) {
    let client = End::new();
    let id = client.context.create_id(None).unwrap();
    id.connect(&client.qp, peer, &ConnParam::default()).unwrap();
    client.event(|kind| matches!(kind, CmEventKind::Established { .. }));
    // SAFETY: the child calls nothing but functions that are safe after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sleeps, for half a minute at most.
        unsafe { libc::sleep(30) };
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    println!("\nchild {child}");
    std::thread::sleep(WAIT);
}
