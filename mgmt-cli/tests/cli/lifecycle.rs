//! Reload and drain of the daemon.

use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

use iwarp_control::Draining;
use iwarp_terminal::clock::{self, Clock};
use serde_json::json;

use crate::daemon::Daemon;
use crate::{command, finished, iwarpctl};

#[test]
fn a_reload_prints_what_has_changed() {
    let daemon = Daemon::start();
    daemon.memory.lock().unwrap().revokes = Some(2);
    let run = iwarpctl(daemon.socket(), &["reload"]);
    let text = "/etc/iwarpd/iwarpd.toml: 2 changes\nlog.level: info -> debug\nregion lab: removed\n\
                grants revoked: 2\n";
    assert_eq!((run.code, run.stdout.as_str()), (0, text));
    let run = iwarpctl(daemon.socket(), &["-j", "reload"]);
    assert_eq!(run.json()["changes"][0], json!({"object": "log.level", "change": "info -> debug"}));
    assert_eq!((run.code, &run.json()["grants_revoked"]), (0, &json!(2)));
}

#[test]
fn a_refused_reload_says_why() {
    let daemon = Daemon::start();
    let run = iwarpctl(daemon.socket(), &["reload"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("port p0: takes effect at a restart only"), "{}", run.stderr);
}

#[test]
fn a_drain_has_the_time_of_the_command_line_and_says_what_it_cut_off() {
    let daemon = Daemon::start();
    let run = iwarpctl(daemon.socket(), &["drain"]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "drained: all connections have ended\n"));
    assert_eq!(daemon.memory.lock().unwrap().drain.0, 10_000);
    daemon.memory.lock().unwrap().drain.1 = 2;
    let run = iwarpctl(daemon.socket(), &["drain", "--timeout", "0.5", "--json"]);
    assert_eq!((run.code, run.json()), (1, json!({"cut_off": 2})));
    assert_eq!(daemon.memory.lock().unwrap().drain.0, 500);
}

#[test]
fn status_shows_a_drain() {
    let daemon = Daemon::start();
    daemon.memory.lock().unwrap().draining = Some(Draining { connections: 3, left_ms: 1500 });
    let run = iwarpctl(daemon.socket(), &["status"]);
    assert_eq!(run.code, 0);
    assert!(run.stdout.contains("  state draining  "), "{}", run.stdout);
    assert!(run.stdout.ends_with("draining  3 connections have not ended, 1.50 s left\n"), "{}", run.stdout);
    let run = iwarpctl(daemon.socket(), &["-j", "status"]);
    assert_eq!(run.json()["draining"], json!({"connections": 3, "left_ms": 1500}));
}

/// The socket of a daemon that starts accepts connections, and nobody answers until the start has ended.
#[test]
fn status_waits_for_a_daemon_that_starts() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let pause = || clock::sleep(Duration::from_millis(300));
    let mut waiting = command(&socket);
    let waiting = waiting.args(["-j", "status", "--wait"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiting = waiting.spawn().unwrap();
    pause();
    // An attempt to start that fails, and the next one.
    let failing = UnixListener::bind(&socket).unwrap();
    pause();
    drop(failing);
    std::fs::remove_file(&socket).unwrap();
    pause();
    let daemon = Daemon::at(folder);
    let run = finished(&waiting.wait_with_output().unwrap());
    assert_eq!((run.code, run.json()["state"].as_str()), (0, Some("ok")), "{}", run.stderr);
    daemon.memory.lock().unwrap().degraded.push("port p0: no link".to_owned());
    assert_eq!(iwarpctl(daemon.socket(), &["status", "--wait", "5"]).code, 6);
}

#[test]
fn status_waits_no_longer_than_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let clock = Clock::start();
    let run = iwarpctl(&socket, &["status", "--wait", "0.5"]);
    assert_eq!((run.code, run.stdout.as_str()), (3, ""));
    assert!(run.stderr.contains("iwarpd did not serve within 0.5 s: cannot reach iwarpd"), "{}", run.stderr);
    // It accepts, and never answers.
    let _silent = UnixListener::bind(&socket).unwrap();
    let run = iwarpctl(&socket, &["-j", "status", "--wait", "0.5"]);
    assert_eq!((run.code, run.error()["kind"].as_str()), (3, Some("timeout")));
    assert!((0.8..8.0).contains(&clock.now().as_secs_f32()), "{:?}", clock.now());
}
