//! Runs the examples in C and Python against a fake daemon.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::Daemon;

/// Returns both programs; that in C is compiled into the folder.
fn programs(folder: &Path) -> [PathBuf; 2] {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let binary = folder.join("wait");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&binary)
        .arg(examples.join("wait.c"));
    assert!(cc.status().unwrap().success());
    [binary, examples.join("wait.py")]
}

fn start(program: &Path, daemon: &Daemon, arguments: [&str; 3]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).env("IWARPCTL_SOCKET", daemon.socket());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_write_is_awaited_and_printed() {
    let built = tempfile::tempdir().unwrap();
    for program in programs(built.path()) {
        for (offset, length) in [(0_u64, 1_usize), (4000, 8192), (99_000, 1000)] {
            let daemon = Daemon::start();
            let mut child = start(&program, &daemon, ["lab", &offset.to_string(), &length.to_string()]);
            let mut errors = BufReader::new(child.stderr.take().unwrap());
            let mut line = String::new();
            errors.read_line(&mut line).unwrap();
            assert_eq!(line, "mapped lab, 100000 bytes\n", "{}", program.display());
            let written: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251 + 1).unwrap()).collect();
            let (last, head) = written.split_last().unwrap();
            rustix::io::pwrite(&daemon.memory, head, offset).unwrap();
            assert!(child.try_wait().unwrap().is_none(), "the last byte is not there yet");
            rustix::io::pwrite(&daemon.memory, &[*last], offset + head.len() as u64).unwrap();
            let mut printed = Vec::new();
            child.stdout.take().unwrap().read_to_end(&mut printed).unwrap();
            assert!(child.wait().unwrap().success());
            assert_eq!(printed, written, "{} {offset} {length}", program.display());
        }
    }
}

#[test]
fn a_failure_is_explained() {
    let built = tempfile::tempdir().unwrap();
    for program in programs(built.path()) {
        for (arguments, message) in [
            (["none", "0", "1"], "there is no region none"),
            (["lab", "99999", "2"], "the bytes are not inside the region"),
            (["lab", "0", "0"], "the bytes are not inside the region"),
        ] {
            let daemon = Daemon::start();
            let output = start(&program, &daemon, arguments).wait_with_output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{error}");
            assert!(error.contains(message), "{}: {error}", program.display());
        }
        let output = Command::new(&program).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "without arguments it is a usage error");
    }
}
