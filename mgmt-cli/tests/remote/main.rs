//! `iwarpctl remote` against a responder in this process, over the loopback's TCP.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "the responder's edge reads the clock")]

mod bench;
mod faults;
mod files;
mod honest;
mod proxy;
mod responder;
mod resume;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The result of a run of the binary.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn json(&self) -> Value {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The error object on stderr.
    fn error(&self) -> Value {
        assert_eq!(self.stdout, "");
        let error: Value = serde_json::from_str(&self.stderr).unwrap();
        assert_eq!(error["error"]["exit_code"], self.code);
        error["error"].clone()
    }

    fn kind(&self) -> String {
        self.error()["kind"].as_str().unwrap().to_owned()
    }
}

/// Runs `iwarpctl --json remote …`.
fn remote(arguments: &[&str]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_iwarpctl"))
        .args(["--json", "--timeout", "5", "remote"])
        .args(arguments)
        .output()
        .unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A `put` whose stdin is a pipe with these bytes in it.
fn put_piped(arguments: &[&str], bytes: &[u8]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_iwarpctl"))
        .args([&["--json", "--timeout", "5", "remote", "put"], arguments].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early does not read it all.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    let output = child.wait_with_output().unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn place(peer: SocketAddr, region: &str) -> String {
    format!("{peer}/{region}")
}

/// Bytes that look like nothing and are the same each time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The names in a folder: what a failed `get` must not add to.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
