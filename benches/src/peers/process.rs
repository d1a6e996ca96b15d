//! The peers' own programs: each in its namespace, on its core, for a limited time.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::Budget;
use super::veth::{Side, Veth, run};
use crate::Cores;
use crate::clock::pause;

/// Seconds that a program may take before it is ended.
const PATIENCE_S: u64 = 30;
/// How long a server may take to listen.
const START: Duration = Duration::from_secs(10);
/// How often it is looked at until then.
const LOOK: Duration = Duration::from_millis(20);

/// A program of a peer, where it runs and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) veth: &'a Veth,
    /// The cores of the near and of the far side.
    pub(crate) cores: Cores,
    pub(crate) name: &'a str,
    /// Of its environment, as `NAME=value`; `@` stands for the device of its side.
    pub(crate) environment: &'a [&'a str],
    /// What time is left.
    pub(crate) budget: &'a Budget,
}

impl Program<'_> {
    /// Starts it as the server, and waits until it listens.
    pub(crate) fn serve(&self, port: u16, args: &[&str]) -> Result<Server> {
        self.patience_s()?;
        let line = self.line(Side::Far, args);
        let mut words = line.iter();
        let Some(program) = words.next() else { bail!("nothing to run") };
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Server(child);
        server.wait_until_listening(port)?;
        Ok(server)
    }

    /// Runs it as the client; what it prints.
    pub(crate) fn call(&self, args: &[&str]) -> Result<String> {
        let patience = self.patience_s()?;
        let line = self.line(Side::Near, args);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        run("timeout", &[&["--kill-after=2", &patience.to_string()], words.as_slice()].concat())
    }

    /// How long it may take that is begun now.
    fn patience_s(&self) -> Result<u64> {
        let left = self.budget.left_s();
        ensure!(left > 0, "no time was left for it");
        Ok(left.min(PATIENCE_S))
    }

    /// Every word of this execs the next: the process that is started becomes the program.
    fn line(&self, side: Side, args: &[&str]) -> Vec<String> {
        let Cores([near, far]) = self.cores;
        let core = if side == Side::Near { near } else { far }.to_string();
        let environment = self.environment.iter().map(|it| it.replace('@', Veth::device(side)));
        ["ip", "netns", "exec", self.veth.namespace(side), "taskset", "-c", &core, "env"]
            .map(str::to_owned)
            .into_iter()
            .chain(environment)
            .chain([self.name.to_owned()])
            .chain(args.iter().map(|it| (*it).to_owned()))
            .collect()
    }
}

/// A server that runs; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Server {
    /// A connection would be taken for the client, so the kernel's table of sockets is asked.
    fn wait_until_listening(&mut self, port: u16) -> Result<()> {
        let tables = ["tcp", "tcp6"].map(|it| format!("/proc/{}/net/{it}", self.0.id()));
        for _ in 0..START.as_millis() / LOOK.as_millis() {
            if let Some(status) = self.0.try_wait()? {
                bail!("the server ended at once: {status}");
            }
            let mut tables = tables.iter().filter_map(|table| fs::read_to_string(table).ok());
            if tables.any(|table| is_listening(&table, port)) {
                return Ok(());
            }
            pause(LOOK);
        }
        bail!("the server does not listen on port {port}")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, as some do after one client.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a table like /proc/net/tcp has a socket that listens (state 0A) on a port.
fn is_listening(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        local.is_some_and(|it| it.ends_with(&format!(":{port:04X}"))) && state == Some("0A")
    })
}

/// Whether a program is to be had.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain([Path::new("/usr/sbin").into()]).any(|at| at.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
        0: 0200000A:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n   \
        1: 0200000A:1F90 0100000A:D431 01 00000000:00000000 00:00000000 00000000     0\n";

    #[test]
    fn a_listener_is_seen_and_a_connection_is_not() {
        assert!(is_listening(TABLE, 5201));
        assert!(!is_listening(TABLE, 8080));
        assert!(!is_listening(TABLE, 520));
    }

    #[test]
    fn programs_are_found() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program"));
    }
}
