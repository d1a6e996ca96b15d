//! Habits that every command keeps: help, exit codes, JSON, colors, pipes.

use std::io::Read as _;
use std::process::Stdio;

use serde_json::json;

use crate::daemon::Daemon;
use crate::{alone, command, iwarpctl};

const COMMANDS: &[&[&str]] = &[
    &["status"],
    &["region"],
    &["region", "register"],
    &["region", "list"],
    &["region", "show"],
    &["region", "deregister"],
    &["conn"],
    &["conn", "list"],
    &["conn", "show"],
    &["port"],
    &["port", "list"],
    &["port", "show"],
    &["port", "stats"],
    &["stats"],
    &["drops"],
    &["config"],
    &["config", "check"],
    &["remote"],
    &["remote", "put"],
    &["remote", "get"],
    &["remote", "ping"],
    &["call"],
    &["completion"],
    &["version"],
];

#[test]
fn every_command_has_help_with_examples() {
    for arguments in COMMANDS.iter().copied().chain([&[][..]]) {
        let mut line = arguments.to_vec();
        line.push("--help");
        let run = alone(&line);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{line:?}");
        let example = format!("iwarpctl {}", arguments.first().unwrap_or(&"status"));
        assert!(
            run.stdout.contains("Examples:\n") && run.stdout.contains(&example),
            "{line:?}: {}",
            run.stdout
        );
    }
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["region"],
        &["region", "register", "lab", "--access", "remote-read"],
        &["region", "register", "lab", "--size", "64M"],
        &["region", "register", "lab", "--size", "64X", "--access", "remote-read"],
        &["region", "register", "lab", "--size", "0", "--access", "remote-read"],
        &["region", "register", "lab", "--size", "1M", "--access", "write"],
        &["region", "register", "lab", "--size", "1M", "--access", "remote-read", "--allow", "10.0.0.0/40"],
        &["region", "register", "lab", "--size", "1M", "--access", "remote-read", "--allow", "10.77.0.99/24"],
        &["region", "register", "l\u{202e}ab", "--size", "1M", "--access", "remote-read"],
        &["region", "show", ""],
        &["region", "show", "0123456789012345678901234567890123456789012345678901234567890123"],
        &["conn", "show", "x"],
        &["stats", "--watch", "0"],
        &["stats", "--count", "3"],
        &["status", "--timeout", "never"],
        &["remote", "get", "nowhere", "file"],
        &["remote", "ping", "h:1/r", "--size", "2M"],
        &["remote", "ping", "h:1/r", "--count", "0"],
        &["remote", "ping", "h:1/r", "--mpa-revision", "3"],
    ] {
        let run = alone(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(!run.stderr.is_empty());
    }
    let run = alone(&["--json", "region", "register", "lab", "--size", "64X", "--access", "remote-read"]);
    assert_eq!(run.code, 2);
    assert_eq!((&run.error()["kind"], &run.error()["exit_code"]), (&json!("usage"), &json!(2)));
}

#[test]
fn no_daemon_is_said_plainly() {
    for arguments in [&["status"][..], &["region", "list"], &["stats", "--watch"], &["call", "hello"]] {
        let run = alone(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{arguments:?}");
        assert!(
            run.stderr.starts_with("error: cannot reach iwarpd at /nonexistent/control.sock: "),
            "{}",
            run.stderr
        );
        assert!(run.stderr.contains("  help: "), "{}", run.stderr);
    }
    let run = alone(&["-j", "status"]);
    assert_eq!((&run.error()["kind"], run.error()["exit_code"].as_i64()), (&json!("unreachable"), Some(3)));
}

#[test]
fn the_option_names_the_socket_before_the_environment_does() {
    let daemon = Daemon::start();
    let run = alone(&["-S", daemon.socket().to_str().unwrap(), "status"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
}

#[test]
fn commands_can_be_shortened() {
    let daemon = Daemon::start();
    for arguments in [&["stat"][..], &["reg", "l"], &["r", "list"], &["c", "l"], &["p", "st"]] {
        let run = iwarpctl(daemon.socket(), arguments);
        let expected = if ["stat", "r", "c"].contains(&arguments[0]) { 2 } else { 0 };
        assert_eq!(run.code, expected, "{arguments:?}: {}", run.stderr);
    }
    assert_eq!(iwarpctl(daemon.socket(), &["region", "ls"]).code, 0);
}

#[test]
fn colors_only_where_they_are_wanted() {
    let daemon = Daemon::start();
    let colored = |arguments: &[&str], set: &[(&str, &str)]| {
        let output = command(daemon.socket()).args(arguments).envs(set.iter().copied()).output().unwrap();
        output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b)
    };
    assert!(!colored(&["region", "list"], &[]), "a pipe is no terminal");
    assert!(colored(&["region", "list", "--color", "always"], &[]));
    assert!(!colored(&["region", "list", "--color=never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!colored(&["region", "list"], &[("NO_COLOR", "1")]));
    assert!(!colored(&["region", "list", "--json", "--color", "always"], &[]), "JSON has no color");
    assert!(colored(&["conn", "show", "1", "--color", "always"], &[]), "errors have");
}

#[test]
fn json_is_one_line_or_pretty() {
    let daemon = Daemon::start();
    let line = iwarpctl(daemon.socket(), &["-j", "status"]).stdout;
    assert_eq!(line.lines().count(), 1);
    let pretty = iwarpctl(daemon.socket(), &["-p", "status"]).stdout;
    assert!(pretty.starts_with("{\n  \"api\": 1,\n"), "{pretty}");
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(parse(&line), parse(&pretty));
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let daemon = Daemon::start();
    let mut child = command(daemon.socket())
        .args(["stats", "--watch", "0.01"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn version_and_completions_need_no_daemon() {
    let run = alone(&["version"]);
    assert_eq!(run.stdout, format!("iwarpctl {} (api 1)\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(alone(&["version", "-j"]).json(), json!({"version": env!("CARGO_PKG_VERSION"), "api": 1}));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = alone(&["completion", shell]);
        assert_eq!(run.code, 0);
        assert!(run.stdout.contains("deregister"), "{shell}");
    }
}
