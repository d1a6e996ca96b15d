//! Every command has a manual page with all of its options, the configuration has one, and every program has a
//! completion for each shell.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command as Process;

use clap::Command;
use iwarp_manual::{Program, SHELLS, programs, write_all};

/// Returns a page as a reader sees it, 500 columns wide, and fails if the formatter complains.
fn read(page: &Path) -> String {
    let mut man = Process::new("man");
    man.args(["--warnings=all", "-l"]).arg(page).env("MANWIDTH", "500").env("LC_ALL", "C.UTF-8");
    let output = man.output().expect("man is installed");
    let (text, complaints) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && complaints.is_empty(), "{}: {complaints}", page.display());
    text
}

fn check_pages(command: &Command, section: &str, share: &Path) -> usize {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let text = read(&share.join(format!("man/man{section}/{name}.{section}")));
    assert!(text.contains(&format!("{name} - ")), "{name}: {text}");
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        if let Some(long) = argument.get_long() {
            assert!(text.contains(&format!("--{long}")), "{name} lacks --{long}: {text}");
        }
    }
    if let Some(notes) = command.get_after_help() {
        let notes = notes.to_string();
        // An example stays on one line, to be copied.
        let examples = notes.lines().map(str::trim).filter(|line| line.starts_with("iwarp"));
        examples.for_each(|line| assert!(text.contains(line), "{name} lacks {line:?}: {text}"));
    }
    let visible = command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help");
    1 + visible.map(|subcommand| check_pages(subcommand, section, share)).sum::<usize>()
}

#[test]
fn every_command_has_a_page() {
    let share = tempfile::tempdir().unwrap();
    write_all(share.path()).unwrap();
    for Program { mut command, section } in programs() {
        command.build();
        let pages = check_pages(&command, section, share.path());
        let has_subcommands = command.get_subcommands().any(|subcommand| subcommand.get_name() != "help");
        let expected = if has_subcommands { 4..60 } else { 1..2 };
        assert!(expected.contains(&pages), "{}: {pages}", command.get_name());
    }
}

#[test]
fn each_configuration_has_a_page() {
    let share = tempfile::tempdir().unwrap();
    write_all(share.path()).unwrap();
    let of_iwarpd =
        ["[tcp]", "receive_window_bytes = \"1280k\"", "[[region]]", "access = [\"remote-read\", "];
    let of_nfsd = ["[rdma]", "transfer = \"256k\"", "[[export]]", "path = \"/data\"", "[[export.client]]"];
    for (name, lines) in [("iwarpd.toml", of_iwarpd.as_slice()), ("nfsd.toml", &of_nfsd)] {
        let text = read(&share.path().join(format!("man/man5/{name}.5")));
        assert!(text.contains(&format!("{name} - ")), "{text}");
        for line in lines {
            assert!(text.lines().any(|shown| shown.trim_start().starts_with(line)), "{line}: {text}");
        }
    }
}

#[test]
fn every_program_has_a_completion_for_each_shell() {
    let share = tempfile::tempdir().unwrap();
    write_all(share.path()).unwrap();
    for Program { command, .. } in programs() {
        for (shell, folder) in SHELLS {
            let name = command.get_name();
            let file = match folder.split('/').next().unwrap() {
                "bash-completion" => name.to_owned(),
                "zsh" => format!("_{name}"),
                _ => format!("{name}.fish"),
            };
            let script = fs::read_to_string(share.path().join(folder).join(file)).unwrap();
            assert!(script.contains(name), "{shell} {name}");
        }
    }
}

#[test]
fn every_program_tells_its_version() {
    for Program { command, .. } in programs() {
        let name = command.get_name().to_owned();
        let error = command.try_get_matches_from([name.as_str(), "--version"]).unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::DisplayVersion, "{name}");
        let version = format!("{name} {}", env!("CARGO_PKG_VERSION"));
        assert!(error.to_string().starts_with(&version), "{error}");
    }
}
