//! Habits that every command keeps: help, exit codes, JSON, colors, pipes.

use std::io::Read as _;
use std::process::Stdio;

use serde_json::json;

use crate::daemon::Daemon;
use crate::{alone, command, iwarpctl};

const COMMANDS: &[&[&str]] = &[
    &["status"],
    &["top"],
    &["worker"],
    &["worker", "list"],
    &["region"],
    &["region", "register"],
    &["region", "list"],
    &["region", "show"],
    &["region", "deregister"],
    &["conn"],
    &["conn", "list"],
    &["conn", "show"],
    &["conn", "close"],
    &["app"],
    &["app", "list"],
    &["app", "show"],
    &["qp"],
    &["qp", "list"],
    &["cq"],
    &["cq", "list"],
    &["mr"],
    &["mr", "list"],
    &["port"],
    &["port", "list"],
    &["port", "show"],
    &["port", "stats"],
    &["stats"],
    &["drops"],
    &["config"],
    &["config", "check"],
    &["doctor"],
    &["remote"],
    &["remote", "put"],
    &["remote", "get"],
    &["remote", "ping"],
    &["remote", "bench"],
    &["serve"],
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
        &["stats", "--watch", "--interval", "0"],
        &["stats", "--interval", "2"],
        &["top", "nonsense"],
        &["top"],
        &["top", "--json"],
        &["stats", "--count", "3"],
        &["status", "--timeout", "never"],
        &["remote", "get", "nowhere", "file"],
        &["remote", "ping", "h:1/r", "--size", "2M"],
        &["remote", "put", "h:1/r"],
        &["remote", "get", "h:1/r"],
        &["remote", "put", "file", "h:1/r", "--retries", "3"],
        &["remote", "bench", "write", "h:1/r", "--depth", "129"],
        &["remote", "bench", "h:1/r"],
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
    for arguments in [
        &["status"][..],
        &["region", "list"],
        &["stats", "--watch"],
        &["conn", "list", "-w"],
        &["call", "hello"],
    ] {
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

/// `doctor` with a machine in a folder: warnings, errors and nothing each have their exit code, in text and in JSON.
#[test]
fn the_doctor_s_exit_code_says_how_bad_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (root, file) = (folder.path(), folder.path().join("t.toml"));
    let write = |path: &str, text: &str| {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), text).unwrap();
    };
    let config = |core: u16| {
        format!(
            "[memory]\nhugepages = 'prefer'\n[workers]\ncores = [{core}]\n\
                 [[port]]\ndriver = 'ring'\naddresses = ['10.0.0.2/24']\n"
        )
    };
    write("sys/devices/system/cpu/online", "0-1");
    write("sys/devices/system/cpu/isolated", "1");
    write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4096");
    write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4096");
    write("proc/self/limits", "Max open files  65536 65536 files");
    write("run/x", "");
    write("usr/lib/librte_eal.so.25", "");
    write("usr/lib/dpdk/pmds-25.0/librte_net_ring.so.25", "");
    for (core, code, state) in [(1, 0, "ok"), (0, 6, "warning"), (9, 1, "error")] {
        write("t.toml", &config(core));
        let arguments = ["doctor", file.to_str().unwrap(), "--root", root.to_str().unwrap()];
        let text = alone(&arguments);
        assert_eq!((text.code, text.stderr.as_str()), (code, ""), "{}", text.stdout);
        assert_eq!(text.stdout.contains("\n  help: "), code != 0, "{}", text.stdout);
        assert!(code == 0 || text.stdout.contains(&format!("{state}: ")), "{}", text.stdout);
        let run = alone(&[&arguments[..], &["-j"]].concat());
        let json = run.json();
        assert_eq!((run.code, &json["state"]), (code, &json!(state)));
        let findings = json["findings"].as_array().unwrap();
        assert!(
            findings.len() > 8
                && findings
                    .iter()
                    .all(|finding| finding["check"].is_string() && finding["message"].is_string())
        );
        let helped = |finding: &&serde_json::Value| finding["remedy"].is_string();
        assert_eq!(findings.iter().filter(helped).count() == 0, code == 0);
    }
}

/// A daemon that runs is seen, and the reasons why it is degraded are findings.
#[test]
fn the_doctor_asks_the_daemon() {
    let daemon = Daemon::start();
    daemon.memory.lock().unwrap().degraded.push("port p0: no link".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.toml");
    std::fs::write(&file, "[[port]]\ndriver = 'ring'\naddresses = ['10.0.0.2/24']\n").unwrap();
    let run = iwarpctl(daemon.socket(), &["-j", "doctor", file.to_str().unwrap()]);
    let findings = run.json()["findings"].clone();
    let said = |text: &str| {
        findings.as_array().unwrap().iter().any(|finding| finding["message"].as_str().unwrap().contains(text))
    };
    assert!(said("runs as process") && said("port p0: no link"), "{findings:#}");
    assert!([1, 6].contains(&run.code), "{}", run.code);
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
        .args(["stats", "--watch", "--interval", "0.01"])
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
fn the_version_needs_no_daemon() {
    let run = alone(&["version"]);
    assert_eq!(run.stdout, format!("iwarpctl {} (api 1)\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(alone(&["version", "-j"]).json(), json!({"version": env!("CARGO_PKG_VERSION"), "api": 1}));
    let short = alone(&["-V"]);
    assert_eq!((short.code, &short.stdout), (0, &run.stdout));
    assert_eq!(alone(&["--version"]).stdout, run.stdout);
}

/// `help COMMAND…` prints the same as `COMMAND… --help`, for every command.
#[test]
fn help_is_a_command() {
    for arguments in COMMANDS.iter().copied().chain([&[][..]]) {
        let asked = alone(&[&["help"][..], arguments].concat());
        let option = alone(&[arguments, &["--help"][..]].concat());
        assert_eq!((asked.code, asked.stderr.as_str()), (0, ""), "{arguments:?}");
        assert_eq!(asked.stdout, option.stdout, "{arguments:?}");
    }
    assert_eq!(alone(&["help", "nonsense"]).code, 2);
}
