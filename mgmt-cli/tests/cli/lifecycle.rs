//! Reload and drain of the daemon.

use iwarp_control::Draining;
use serde_json::json;

use crate::daemon::Daemon;
use crate::iwarpctl;

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
