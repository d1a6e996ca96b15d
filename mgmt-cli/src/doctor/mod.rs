//! `iwarpctl doctor`: compares the machine with a configuration, and names the remedy of everything that it finds.
//!
//! ```text
//!  iwarp_config::Config::load_on ─► cores, interfaces, MTU, PCI drivers, groups, folders, hugepages  ─┐
//!  memory, cores, devices, limits: facts that a start does not depend on, and the rate does          ─┴─► Findings
//! ```
//! All facts are files below the root of a [`Machine`], so that a test can build a machine in a folder of its own.

mod cores;
mod devices;
mod limits;
mod memory;
#[cfg(test)]
mod tests;
mod traffic;

use std::path::{Path, PathBuf};

use iwarp_config::{Config, Machine, Mistake};
use iwarp_control::{Exit, PortDetails, State, Status};
use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// Nothing is to be done.
    Ok,
    /// The daemon starts, and is slower or less reliable than it could be.
    Warning,
    /// The daemon does not start.
    Error,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    /// The name of the check; several findings may share it.
    pub(crate) check: &'static str,
    pub(crate) level: Level,
    /// One sentence: the object, and its state.
    pub(crate) message: String,
    /// The commands or the settings that help; absent when nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

/// All findings about a machine.
#[derive(Debug, Serialize)]
pub(crate) struct Examination {
    /// The configuration file that is looked at.
    pub(crate) config: PathBuf,
    /// The most severe level of the findings.
    pub(crate) state: Level,
    pub(crate) findings: Vec<Finding>,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, message: message.into(), remedy: None }
    }

    fn warning(check: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, message: message.into(), remedy: Some(remedy.into()) }
    }
}

impl Examination {
    /// Returns the exit code of the command: 0, 6 if there are warnings only, 1 if the daemon would not start.
    pub(crate) fn exit(&self) -> Exit {
        match self.state {
            Level::Ok => Exit::Ok,
            Level::Warning => Exit::Degraded,
            Level::Error => Exit::Failed,
        }
    }
}

/// The daemon that runs on the machine already.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) status: Status,
    /// Its ports in detail.
    pub(crate) ports: Vec<PortDetails>,
}

/// Compares a machine with a configuration file, beside the daemon that runs there already.
pub(crate) fn examine(file: &Path, machine: &Machine, daemon: Option<&Daemon>) -> Examination {
    let mistakes = Config::load_on(file, machine).err().map(|errors| errors.mistakes().to_vec());
    let mistakes = mistakes.unwrap_or_default();
    let mut findings: Vec<Finding> = daemon.map(|daemon| running(&daemon.status)).unwrap_or_default();
    findings.extend(mistakes.iter().map(mistake));
    if let Ok(config) = Config::load(file) {
        findings.insert(0, Finding::ok("config", format!("{} has no mistakes", file.display())));
        let more = [
            present(&config),
            memory::examine(&config, machine),
            devices::examine(&config, machine),
            daemon.map(|daemon| traffic::examine(&daemon.ports, machine)).unwrap_or_default(),
            cores::examine(&config, machine),
            limits::examine(&config, machine, daemon.map(|daemon| daemon.status.pid)),
        ];
        // A check that the daemon's start depends on has said more than its finding here.
        let failed = |finding: &Finding| {
            finding.level == Level::Ok
                && mistakes.iter().any(|mistake| check_of(&mistake.key) == finding.check)
        };
        findings.extend(more.into_iter().flatten().filter(|finding| !failed(finding)));
    }
    let state = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    Examination { config: file.to_path_buf(), state, findings }
}

/// Returns the findings about what a start depends on and is there; a mistake replaces its finding.
fn present(config: &Config) -> Vec<Finding> {
    let group = config.control.group.as_deref().unwrap_or("of the daemon itself");
    let socket = config.control.socket.display();
    vec![
        Finding::ok("cores", format!("the workers' cores {:?} are online", config.workers.cores)),
        Finding::ok("group", format!("the group {group} may use the control socket")),
        Finding::ok("folders", format!("there is a folder for the control socket {socket}")),
    ]
}

/// Returns the findings about the running daemon: that it runs, and why it is degraded.
fn running(status: &Status) -> Vec<Finding> {
    let runs = format!("iwarpd {} runs as process {}", status.version, status.pid);
    let mut findings = vec![Finding::ok("daemon", runs)];
    if status.state == State::Degraded {
        let reasons = status.degraded.iter();
        let remedy = "the section *Degraded* of observing.md explains each reason";
        findings.extend(reasons.map(|reason| Finding::warning("daemon", reason, remedy)));
    }
    findings
}

/// Returns the finding for a mistake that keeps the daemon from starting.
fn mistake(mistake: &Mistake) -> Finding {
    let Mistake { file, line, column, key, message, help, allowed, .. } = mistake;
    let place = if *line == 0 { file.clone() } else { format!("{file}:{line}:{column}: {key}") };
    let allowed = allowed.as_ref().map(|allowed| format!("; allowed: {allowed}")).unwrap_or_default();
    Finding {
        check: if mistake.source == iwarp_config::Source::Machine { check_of(key) } else { "config" },
        level: Level::Error,
        message: format!("{place}: {message}{allowed}"),
        remedy: Some(help.clone()),
    }
}

/// Returns the check that a key of the configuration belongs to.
fn check_of(key: &str) -> &'static str {
    match key.rsplit('.').next().unwrap_or_default() {
        _ if key.starts_with("workers.") => "cores",
        "hugepages" => "hugepages",
        "address" => "pci",
        "mtu" => "mtu",
        "interface" => "interfaces",
        "group" => "group",
        "socket" | "rx_file" | "tx_file" => "folders",
        _ => "config",
    }
}
