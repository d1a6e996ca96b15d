//! Completion of the command line: a real bash with the script that iwarpctl writes, and the questions of zsh and fish.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::daemon::Daemon;
use crate::{alone, iwarpctl};

/// Returns the words that bash offers at the end of a command line.
fn bash(socket: &Path, line: &str) -> Vec<String> {
    const SCRIPT: &str = "source <(iwarpctl completion bash); read -ra COMP_WORDS <<<\"$1\"; \
                          [[ $1 != *' ' ]] || COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
                          COMP_LINE=$1; COMP_POINT=${#1}; COMP_TYPE=9; \
                          _clap_complete_iwarpctl iwarpctl \"${COMP_WORDS[COMP_CWORD]}\" \
                          \"${COMP_WORDS[COMP_CWORD - 1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let program = Path::new(env!("CARGO_BIN_EXE_iwarpctl")).parent().unwrap();
    let mut path = OsString::from(program);
    path.push(":/usr/bin:/bin");
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", SCRIPT, "bash", line]).env_clear().env("PATH", path);
    let output = bash.env("IWARPCTL_SOCKET", socket).output().unwrap();
    assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let offered = String::from_utf8(output.stdout).unwrap();
    offered.lines().map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

fn with_regions() -> Daemon {
    let daemon = Daemon::start();
    for name in ["lab", "logs", "wal"] {
        let line = ["region", "register", name, "--size", "64k", "--access", "remote-read"];
        assert_eq!(iwarpctl(daemon.socket(), &line).code, 0);
    }
    daemon
}

#[test]
fn bash_completes_commands_and_options() {
    let nowhere = Path::new("/nonexistent/control.sock");
    assert_eq!(bash(nowhere, "iwarpctl reg"), ["region"]);
    assert_eq!(bash(nowhere, "iwarpctl region reg"), ["register"]);
    for command in ["list", "show", "deregister"] {
        assert!(bash(nowhere, "iwarpctl region ").contains(&command.to_owned()), "{command}");
    }
    assert_eq!(bash(nowhere, "iwarpctl stats --nonz"), ["--nonzero"]);
    assert_eq!(bash(nowhere, "iwarpctl completion z"), ["zsh"]);
}

#[test]
fn bash_completes_names_of_the_daemon() {
    let daemon = with_regions();
    let offered = |line: &str| bash(daemon.socket(), line);
    assert_eq!(offered("iwarpctl region show l"), ["lab", "logs"]);
    assert_eq!(offered("iwarpctl region deregister w"), ["wal"]);
    assert_eq!(offered("iwarpctl port show p"), ["p0"]);
    assert!(offered("iwarpctl stats tc").contains(&"tcp".to_owned()));
    assert!(offered("iwarpctl call region.").contains(&"region.list".to_owned()));
    for line in ["iwarpctl conn show ", "iwarpctl conn close "] {
        assert!(offered(line).contains(&"17".to_owned()), "{line}: {:?}", offered(line));
    }
    // The socket in the command line is the one that is asked.
    let named = format!("iwarpctl --socket {} region show w", daemon.socket().display());
    assert_eq!(bash(Path::new("/nonexistent"), &named), ["wal"]);
}

#[test]
fn rights_are_completed_one_by_one() {
    let nowhere = Path::new("/nonexistent/control.sock");
    let access = |right: &str| bash(nowhere, &format!("iwarpctl region register lab --access {right}"));
    assert_eq!(access("remote-r"), ["remote-read"]);
    assert_eq!(access("remote-"), ["remote-read", "remote-write", "remote-atomic"]);
    assert_eq!(access("remote-read,remote-w"), ["remote-read,remote-write"]);
}

/// Without a daemon nothing is offered, and nothing is written where the user types.
#[test]
fn an_absent_daemon_is_no_error() {
    let nowhere = Path::new("/nonexistent/control.sock");
    for line in ["iwarpctl region show l", "iwarpctl port show p", "iwarpctl stats tc"] {
        assert_eq!(bash(nowhere, line), [""; 0], "{line}");
    }
}

#[test]
fn zsh_and_fish_get_the_same_candidates() {
    let daemon = with_regions();
    for (shell, between) in [("zsh", ':'), ("fish", '\t')] {
        let mut command = crate::command(daemon.socket());
        command.env("COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "3").env("_CLAP_IFS", "\n");
        command.args(["--", "iwarpctl", "region", "show", "l"]);
        let offered = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let names: Vec<_> = offered.lines().map(|line| line.split(between).next().unwrap()).collect();
        assert_eq!(names, ["lab", "logs"], "{shell}: {offered}");
        assert!(offered.contains("64 KiB"), "{shell} shows sizes: {offered}");
    }
}

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = alone(&["completion", shell]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{shell}");
        assert!(
            run.stdout.contains("COMPLETE") && run.stdout.contains("iwarpctl"),
            "{shell}: {}",
            run.stdout
        );
    }
}
