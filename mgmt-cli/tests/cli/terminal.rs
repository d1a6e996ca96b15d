//! Results on a terminal: nothing is wider than it, and a watch is drawn in place. In a pipe lines have any length.

use crate::daemon::Daemon;
use crate::{alone, iwarpctl};

/// Bytes that a terminal of that size gets from a command: `script` gives it one.
fn at_a_terminal(daemon: &Daemon, columns: usize, rows: usize, arguments: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_iwarpctl");
    let socket = daemon.socket().display();
    let command = format!("stty cols {columns} rows {rows}; {binary} --socket {socket} {arguments}");
    let output = std::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

/// The same without escape sequences.
fn unstyled(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn with_a_region() -> Daemon {
    let daemon = Daemon::start();
    let register = ["region", "register", "lab", "-s", "64M", "-a", "remote-read,remote-write"];
    assert_eq!(iwarpctl(daemon.socket(), &register).code, 0);
    daemon
}

const LISTS: [&[&str]; 16] = [
    &["region", "list"],
    &["conn", "list"],
    &["app", "list"],
    &["qp", "list"],
    &["cq", "list"],
    &["mr", "list"],
    &["port", "list"],
    &["worker", "list"],
    &["region", "show", "lab"],
    &["conn", "show", "17"],
    &["app", "show", "3"],
    &["port", "show", "p0"],
    &["port", "stats"],
    &["status"],
    &["stats", "--details"],
    &["drops"],
];

#[test]
fn every_noun_can_be_watched() {
    let daemon = with_a_region();
    for arguments in LISTS {
        let once = iwarpctl(daemon.socket(), arguments).stdout;
        let watch = [arguments, &["--watch", "--interval", "0.01", "--count", "3"][..]].concat();
        let drawn = at_a_terminal(&daemon, 80, 50, &watch.join(" "));
        assert_eq!(drawn.matches("\x1b[H").count(), 3, "{arguments:?}: {drawn:?}");
        let piped = iwarpctl(daemon.socket(), &watch).stdout;
        let json = iwarpctl(daemon.socket(), &[&watch[..], &["-j"]].concat()).stdout;
        assert_eq!(json.lines().count(), 3, "{arguments:?}: {json}");
        assert!(json.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
        assert_eq!(piped.matches("\n\n").count(), 2, "{arguments:?}: {piped}");
        if arguments[0] != "stats" {
            assert_eq!(piped, [once.as_str(); 3].join("\n"), "{arguments:?}");
        }
    }
}

#[test]
fn wide_shows_every_column() {
    let daemon = with_a_region();
    for arguments in LISTS.into_iter().filter(|list| list[0] != "stats") {
        let wide = at_a_terminal(&daemon, 60, 24, &(arguments.join(" ") + " --wide"));
        assert_eq!(unstyled(&wide), iwarpctl(daemon.socket(), arguments).stdout, "{arguments:?}");
    }
}

#[test]
fn nothing_is_wider_than_the_terminal() {
    let daemon = with_a_region();
    for arguments in LISTS {
        for columns in [60, 72, 80, 100, 132] {
            let text = unstyled(&at_a_terminal(&daemon, columns, 24, &arguments.join(" ")));
            for line in text.lines() {
                assert!(line.chars().count() <= columns, "{arguments:?} at {columns}:\n{text}");
            }
        }
    }
}

#[test]
fn what_is_left_out_is_named() {
    let daemon = with_a_region();
    let text = unstyled(&at_a_terminal(&daemon, 80, 24, "region list"));
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(header[..4], ["NAME", "SIZE", "ACCESS", "TOKEN"]);
    assert!(lines.next().unwrap().starts_with("lab   64 MiB  remote-read,remote-write"), "{text}");
    assert!(lines.next().unwrap().starts_with("(too narrow for ORIGIN, BACKING"), "{text}");
}

#[test]
fn a_wide_terminal_and_a_pipe_get_the_same() {
    let daemon = with_a_region();
    // Counters of `stats` differ from one report to the next.
    for arguments in LISTS.into_iter().filter(|list| list[0] != "stats") {
        let piped = iwarpctl(daemon.socket(), arguments).stdout;
        assert!(!piped.contains('\x1b'));
        assert_eq!(unstyled(&at_a_terminal(&daemon, 400, 24, &arguments.join(" "))), piped, "{arguments:?}");
    }
    assert!(iwarpctl(daemon.socket(), &["port", "list"]).stdout.lines().any(|line| line.len() > 120));
}

#[test]
fn a_watch_is_drawn_in_place() {
    let daemon = Daemon::start();
    for options in ["", " --color never"] {
        let watch = format!("stats --watch --interval 0.02 --count 3{options}");
        let drawn = at_a_terminal(&daemon, 80, 24, &watch);
        assert_eq!(drawn.matches("\x1b[H").count(), 3, "{drawn:?}");
        assert_eq!(drawn.matches("\x1b[J").count(), 3, "{drawn:?}");
        // A screen that is not high enough is not scrolled.
        let drawn = at_a_terminal(&daemon, 80, 4, &watch);
        for report in drawn.split("\x1b[H").skip(1) {
            assert_eq!(report.matches('\n').count(), 3, "{report:?}");
            assert!(report.contains("lines more"), "{report:?}");
        }
    }
    let json = at_a_terminal(&daemon, 80, 24, "-j stats --watch --interval 0.02 --count 3");
    assert!(!json.contains('\x1b') && json.lines().count() == 3, "{json}");
    let piped = iwarpctl(daemon.socket(), &["stats", "--watch", "--interval", "0.02", "--count", "3"]).stdout;
    assert!(!piped.contains('\x1b') && piped.matches("GROUP").count() == 3, "{piped}");
}

#[test]
fn version_and_help_are_found_where_one_looks() {
    let version = alone(&["version"]).stdout;
    for arguments in [&["--version"][..], &["-V"]] {
        let run = alone(arguments);
        assert_eq!((run.code, run.stdout, run.stderr.as_str()), (0, version.clone(), ""), "{arguments:?}");
    }
    assert_eq!(alone(&["help"]).stdout, alone(&["--help"]).stdout);
    for command in [&["region"][..], &["region", "list"], &["remote", "put"], &["stats"]] {
        let help = alone(&[&["help"], command].concat());
        assert_eq!(
            (help.code, help.stdout),
            (0, alone(&[command, &["--help"]].concat()).stdout),
            "{command:?}"
        );
    }
    assert!(alone(&["--help"]).stdout.contains("  help"));
}
