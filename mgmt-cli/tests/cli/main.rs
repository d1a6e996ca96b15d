//! The binary iwarpctl against a daemon that is played by the test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod applications;
mod commands;
mod completion;
mod daemon;
mod habits;
mod lifecycle;
mod nfs;
mod serve;
mod terminal;
mod top;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The result of a run of the binary.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout, self.stderr))
    }

    /// The error object on stderr.
    fn error(&self) -> Value {
        serde_json::from_str::<Value>(&self.stderr)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stderr))
            .get("error")
            .unwrap()
            .clone()
    }
}

fn command(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_iwarpctl"));
    command.env_clear().env("IWARPCTL_SOCKET", socket).stdin(Stdio::null());
    command
}

fn finished(output: &Output) -> Run {
    Run {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout.clone()).unwrap(),
        stderr: String::from_utf8(output.stderr.clone()).unwrap(),
    }
}

/// Runs the binary against the daemon at `socket`.
fn iwarpctl(socket: &Path, arguments: &[&str]) -> Run {
    finished(&command(socket).args(arguments).output().unwrap())
}

/// Runs the binary where no daemon is.
fn alone(arguments: &[&str]) -> Run {
    iwarpctl(Path::new("/nonexistent/control.sock"), arguments)
}

fn with_stdin(socket: &Path, arguments: &[&str], input: &[u8]) -> Run {
    let mut command = command(socket);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    finished(&child.wait_with_output().unwrap())
}
