//! Runs the example `watch` against a fake daemon.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::Daemon;
use sha2::{Digest, Sha256};

fn watch(daemon: &Daemon, args: &[&str]) -> Child {
    // Cargo builds the examples beside its tests: target/PROFILE/{deps,examples}.
    let this: PathBuf = std::env::current_exe().unwrap();
    let program = this.parent().unwrap().with_file_name("examples").join("watch");
    Command::new(&program)
        .arg("--socket")
        .arg(daemon.socket())
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| {
            panic!("{}: {e}; `cargo build -p iwarp-verbs --examples` makes it", program.display())
        })
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn digest_is_the_sha256_of_the_bytes() {
    let content: Vec<u8> = (0..50_000u32).flat_map(|n| n.to_be_bytes()).take(100_000).collect();
    for (args, expected) in [
        (&["--digest", "lab"][..], &content[..]),
        (&["--digest", "lab", "--length", "4097"], &content[..4097]),
        (&["--digest", "lab", "--offset", "3", "--length", "70001"], &content[3..70_004]),
    ] {
        let daemon = Daemon::start();
        rustix::io::pwrite(&daemon.memory, &content, 0).unwrap();
        let output = watch(&daemon, args).wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", hex(expected)));
    }
}

#[test]
fn changes_are_printed_with_their_offsets() {
    let daemon = Daemon::start();
    let mut child = watch(&daemon, &["--once", "--interval-ms", "10", "lab"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "region lab 100000 bytes, peers may remote-read, remote-write\n");
    rustix::io::pwrite(&daemon.memory, b"inside page one", 8000).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let mut page = vec![0; 4096];
    page[8000 - 4096..][..15].copy_from_slice(b"inside page one");
    assert_eq!(rest, format!("changed offset 4096 length 4096 sha256 {}\n", hex(&page)));
    assert!(child.wait().unwrap().success());
}

#[test]
fn errors_end_the_program() {
    let daemon = Daemon::start();
    let output = watch(&daemon, &["--digest", "lab", "--length", "100001"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("100001 bytes at offset 0 are not inside a region of 100000 bytes"), "{error}");
}
