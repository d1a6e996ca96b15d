//! Runs the peers' programs: each in its namespace, on its core, for a limited time.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::Budget;
use super::veth::{Host, Veth, run};
use crate::Cores;
use crate::clock::pause;

/// Longest run of a program, seconds; then it is killed.
const TIMEOUT_S: u64 = 30;
/// Longest wait for a server to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks until then.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A program of a peer, with its namespaces, cores and environment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) veth: &'a Veth,
    /// CPUs of client and server.
    pub(crate) cores: Cores,
    pub(crate) name: &'a str,
    /// Environment variables as `NAME=value`; `@` stands for the network device of the host.
    pub(crate) environment: &'a [&'a str],
    /// Time limit of all programs together.
    pub(crate) budget: &'a Budget,
}

impl Program<'_> {
    /// Starts the program as the server, and waits until it listens.
    pub(crate) fn serve(&self, port: u16, args: &[&str]) -> Result<Server> {
        self.timeout_s()?;
        let line = self.line(Host::Server, args);
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

    /// Runs the program as the client and returns its output.
    pub(crate) fn call(&self, args: &[&str]) -> Result<String> {
        let timeout = self.timeout_s()?;
        let line = self.line(Host::Client, args);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        run("timeout", &[&["--kill-after=2", &timeout.to_string()], words.as_slice()].concat())
    }

    /// Returns the time limit of a program that starts now, seconds.
    fn timeout_s(&self) -> Result<u64> {
        let left = self.budget.left_s();
        ensure!(left > 0, "no time was left for it");
        Ok(left.min(TIMEOUT_S))
    }

    /// Returns the command line. Each command in it executes the next, so that the started process becomes the program.
    fn line(&self, host: Host, args: &[&str]) -> Vec<String> {
        let Cores([client, server]) = self.cores;
        let core = if host == Host::Client { client } else { server }.to_string();
        let environment = self.environment.iter().map(|value| value.replace('@', Veth::device(host)));
        ["ip", "netns", "exec", self.veth.namespace(host), "taskset", "-c", &core, "env"]
            .map(str::to_owned)
            .into_iter()
            .chain(environment)
            .chain([self.name.to_owned()])
            .chain(args.iter().map(|arg| (*arg).to_owned()))
            .collect()
    }
}

/// A running server; dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Server {
    /// Checks the kernel's table of sockets, because the server would take a connection for its client.
    fn wait_until_listening(&mut self, port: u16) -> Result<()> {
        let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{}/net/{table}", self.0.id()));
        for _ in 0..START_TIMEOUT.as_millis() / CHECK_INTERVAL.as_millis() {
            if let Some(status) = self.0.try_wait()? {
                bail!("the server ended at once: {status}");
            }
            let mut tables = tables.iter().filter_map(|table| fs::read_to_string(table).ok());
            if tables.any(|table| is_listening(&table, port)) {
                return Ok(());
            }
            pause(CHECK_INTERVAL);
        }
        bail!("the server does not listen on port {port}")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This fails for a server that has exited, as some do after one client.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns true if a table in the form of /proc/net/tcp has a listening socket (state 0A) on the port.
fn is_listening(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        local.is_some_and(|address| address.ends_with(&format!(":{port:04X}"))) && state == Some("0A")
    })
}

/// Returns true if the program is in PATH or /usr/sbin.
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
    fn a_listening_socket_is_found_and_a_connection_is_not() {
        assert!(is_listening(TABLE, 5201));
        assert!(!is_listening(TABLE, 8080));
        assert!(!is_listening(TABLE, 520));
    }

    #[test]
    fn installed_programs_are_found() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program"));
    }
}
