//! `iwarpctl serve`: its command line, and one server with a client.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{Run, alone, command};

/// A server on a port of the kernel's choice, which is killed if its test fails.
struct Server {
    child: Child,
    ready: Value,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut command = command(Path::new("/nonexistent/control.sock"));
        command.args(["-j", "serve", "--listen", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { child, ready: serde_json::from_str(&line).unwrap() }
    }

    /// Returns the text that names a region of the server.
    fn target(&self, name: &str) -> String {
        format!("{}/{name}", self.ready["addresses"][0].as_str().unwrap())
    }

    /// Ends the server by a signal. Nothing more may be on its stdout.
    fn end(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn remote(arguments: &[&str]) -> Run {
    alone(&[&["-j", "remote"][..], arguments].concat())
}

#[test]
fn a_wrong_command_line_says_what_is_right() {
    for (arguments, said) in [
        (&["serve"][..], "--region <NAME=FILE|SIZE>"),
        (&["serve", "-r", "lab"], "write NAME=FILE or NAME=SIZE"),
        (&["serve", "-r", "lab=0"], "a size must not be 0"),
        (&["serve", "-r", "=1M"], "a region name must not be empty"),
        (&["serve", "-r", "a=1", "-r", "a=2"], "region `a` is named twice"),
        (
            &["serve", "-r", "a=1", "-a", "write"],
            "the rights are remote-read, remote-write and remote-atomic",
        ),
        (&["serve", "-r", "a=1", "--listen", "host"], "write an IP address of this machine"),
        (&["serve", "-r", "a=1", "--allow", "10.0.0.0/40"], "--allow"),
        (&["serve", "-r", "a=/etc/hostname", "-a", "remote-atomic"], "has no atomic operations"),
    ] {
        let run = alone(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(run.stderr.contains(said), "{arguments:?}: {}", run.stderr);
    }
}

#[test]
fn what_cannot_be_served_is_said_before_a_peer_comes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("empty"), "").unwrap();
    let region = |name: &str| format!("lab={}", path(name));
    for (arguments, code, kind, said) in [
        (["-r", &region("none"), "-a", "remote-read"], 1, "file", "cannot open"),
        (["-r", &region("empty"), "-a", "remote-read"], 1, "file", "it is empty"),
        (["-r", "lab=/dev/zero", "-a", "remote-read"], 1, "file", "it is not a regular file"),
        (["-r", &region("."), "-a", "remote-read"], 1, "file", "it is not a regular file"),
        (["-r", "lab=1M", "--token-file", &path("none")], 1, "token", "no token can be read"),
        (["-r", "lab=1M", "--listen", "192.0.2.1"], 1, "listen", "no interface of this machine"),
        (["-r", "lab=64T", "-a", "remote-read"], 1, "no_resources", "region `lab`: "),
    ] {
        let run = alone(&[&["-j", "serve"][..], &arguments].concat());
        let error = run.error();
        assert_eq!((run.code, &error["kind"]), (code, &json!(kind)), "{arguments:?}: {error}");
        assert!(error["message"].as_str().unwrap().contains(said), "{arguments:?}: {error}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let run = alone(&["serve", "-r", "lab=1M", "-l", &taken.local_addr().unwrap().to_string()]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("another program listens there: choose another port"), "{}", run.stderr);
}

#[test]
fn files_and_memory_are_written_and_read_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let bytes: Vec<u8> = (0..300_001_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(path("source"), &bytes).unwrap();
    std::fs::write(path("image"), vec![0; bytes.len()]).unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let image = format!("image={}", path("image"));
        let server = Server::start(&["-r", "lab=1M", "-r", &image, "-a", "remote-read,remote-write"]);
        let regions = server.ready["regions"].as_array().unwrap();
        let access = json!(["remote-read", "remote-write"]);
        let (none, file) = (json!([]), json!(path("image")));
        assert_eq!(
            regions,
            &[
                json!({"name": "image", "bytes": 300_001, "access": access, "token_required": false,
                       "allow": none, "file": file}),
                json!({"name": "lab", "bytes": 1 << 20, "access": access, "token_required": false,
                       "allow": none, "file": null}),
            ]
        );
        for name in ["image", "lab"] {
            let target = server.target(name);
            remote(&["put", &path("source"), &target, "--verify"]).json();
            remote(&["get", &target, &path(name), "--length", "300001"]).json();
            assert!(std::fs::read(path(name)).unwrap() == bytes, "{name}");
            remote(&["ping", &target, "--count", "10"]).json();
        }
        let missing = remote(&["ping", &server.target("none"), "--count", "1"]);
        assert_eq!((missing.code, &missing.error()["kind"]), (4, &json!("no_such_object")));
        assert_eq!(server.end(signal).code(), Some(0), "{signal:?}");
    }
}

#[test]
fn the_default_is_to_read_and_a_token_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "open sesame\n").unwrap();
    let token = token.to_str().unwrap();
    let server = Server::start(&["-r", "lab=4k", "--token-file", token]);
    let region = &server.ready["regions"][0];
    assert_eq!((&region["access"], &region["token_required"]), (&json!(["remote-read"]), &json!(true)));
    let target = server.target("lab");
    assert_eq!(remote(&["ping", &target, "--count", "1"]).error()["kind"], "not_permitted");
    remote(&["ping", &target, "--count", "1", "--token-file", token]).json();
    let written = remote(&["put", token, &target, "--token-file", token]);
    assert_eq!((written.code, &written.error()["kind"]), (5, &json!("not_permitted")));
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
}
