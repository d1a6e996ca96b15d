//! Completes words of the command line for a shell: names and numbers of the daemon's objects, and fixed names.
//!
//! The shell runs iwarpctl with `COMPLETE` in its environment ([`clap_complete::CompleteEnv`]). Candidates of a daemon
//! that does not answer are missing; the shell shows no error.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use iwarp_control::{
    Client, ConnListMethod, METHODS, Method, NoParams, PortListMethod, RegionListMethod, StatsMethod, bounds,
};
use rdma::Access;

/// The longest time that a shell waits for the daemon.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns the completion of a region's name, with its size.
pub(crate) fn regions() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let regions = ask::<RegionListMethod>().into_iter().flatten();
        let size = |bytes| iwarp_terminal::units::size(bytes);
        regions.map(|region| candidate(region.name, size(region.bytes))).collect()
    })
}

/// Returns the completion of a connection's number, with its peer.
pub(crate) fn conns() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let conns = ask::<ConnListMethod>().into_iter().flatten();
        conns
            .map(|conn| candidate(conn.id.to_string(), format!("{} {}", conn.remote, conn.service)))
            .collect()
    })
}

/// Returns the completion of a port's name, with its driver.
pub(crate) fn ports() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let ports = ask::<PortListMethod>().into_iter().flatten();
        ports.map(|port| candidate(port.name, port.driver)).collect()
    })
}

/// Returns the completion of a group of counters.
pub(crate) fn groups() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let stats = ask::<StatsMethod>();
        let groups = stats.into_iter().flat_map(|stats| stats.groups);
        groups.map(|group| CompletionCandidate::new(group.group)).collect()
    })
}

/// Returns the completion of a right that a region can grant.
pub(crate) fn rights() -> ArgValueCandidates {
    ArgValueCandidates::new(|| Access::REGION_NAMES.into_iter().map(CompletionCandidate::new).collect())
}

/// Returns the completion of a method of the control socket.
pub(crate) fn methods() -> ArgValueCandidates {
    ArgValueCandidates::new(|| METHODS.iter().map(CompletionCandidate::new).collect())
}

/// Answers the shell and ends this process if the shell asks for candidates.
pub(crate) fn if_asked() {
    clap_complete::CompleteEnv::with_factory(crate::command).complete();
}

/// Writes the script that completes iwarpctl's command line in a shell.
pub(crate) fn write_script(shell: Shell, to: &mut dyn Write) -> io::Result<()> {
    let shells = clap_complete::env::Shells::builtins();
    let completer = shells.completer(&shell.to_string()).ok_or(io::ErrorKind::Unsupported)?;
    completer.write_registration("COMPLETE", "iwarpctl", "iwarpctl", "iwarpctl", to)?;
    if shell == Shell::Zsh {
        // zsh runs a file of its search path as the completion itself, the first time.
        let first = "[ \"${funcstack[1]-}\" != _iwarpctl ] || _clap_dynamic_completer_iwarpctl \"$@\"";
        writeln!(to, "{first}")?;
    }
    Ok(())
}

fn candidate(value: String, help: String) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(help.into()))
}

/// Calls a method of the daemon that the completed command line names.
fn ask<M: Method<Params = NoParams>>() -> Option<M::Reply> {
    let named = socket_of(&std::env::args_os().collect::<Vec<_>>());
    let socket = named.or_else(|| std::env::var_os("IWARPCTL_SOCKET").map(PathBuf::from));
    let socket = socket.unwrap_or_else(|| bounds::DEFAULT_SOCKET.into());
    Client::connect_with(socket, PATIENCE).ok()?.call::<M>(&NoParams {}).ok()
}

/// Returns the socket in a command line that is not complete and cannot be parsed.
fn socket_of(words: &[OsString]) -> Option<PathBuf> {
    let option = |word: &OsStr| word == "-S" || word == "--socket";
    let joined = words.iter().find_map(|word| word.to_str()?.strip_prefix("--socket=").map(PathBuf::from));
    let next = words.iter().zip(words.iter().skip(1)).find(|(word, _)| option(word));
    joined.or_else(|| next.map(|(_, socket)| socket.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_found_in_an_incomplete_command_line() {
        let socket = |line: &str| socket_of(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["iwarpctl -S /s region show ", "iwarpctl --socket /s conn", "iwarpctl conn --socket=/s"]
        {
            assert_eq!(socket(line), Some("/s".into()), "{line}");
        }
        for line in ["iwarpctl region show -S", "iwarpctl conn"] {
            assert_eq!(socket(line), None, "{line}");
        }
    }
}
