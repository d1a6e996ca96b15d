//! Applications and their objects: the lists of a daemon with two applications, and what iwarpctl makes of them.

use iwarp_control::{
    AppInfo, AppObjects, CqInfo, ErrorKind, ErrorObject, MrInfo, MrKind, QpInfo, UsageInfo, UserInfo,
    WatchInfo,
};
use serde_json::json;

use crate::daemon::Daemon;
use crate::iwarpctl;

/// An application with objects, and one that has not opened a device.
pub(crate) fn apps() -> Vec<AppInfo> {
    let worker = AppInfo {
        app: 3,
        pid: 4242,
        uid: 1000,
        command: "ib_write_bw".into(),
        device: Some("p0".into()),
        worker: Some(1),
        age_ms: 61_000,
        queue_pairs: 2,
        completion_queues: 1,
        shared_receive_queues: 1,
        memory_regions: 2,
        registered_bytes: 65 << 20,
        queue_bytes: 4 << 20,
        work_requests: 1_000_000,
        completions: 31_250,
        errors: 7,
        watches: vec![WatchInfo { region: "lab".into(), notifications: 12, lost: 3 }],
    };
    let idle = AppInfo {
        app: 9,
        pid: 0,
        command: String::new(),
        device: None,
        worker: None,
        queue_pairs: 0,
        completion_queues: 0,
        shared_receive_queues: 0,
        memory_regions: 0,
        registered_bytes: 0,
        queue_bytes: 0,
        work_requests: 0,
        completions: 0,
        errors: 0,
        watches: Vec::new(),
        ..worker.clone()
    };
    vec![worker, idle]
}

/// Returns the application of this number.
pub(crate) fn app(number: u32) -> Result<AppInfo, ErrorObject> {
    apps().into_iter().find(|app| app.app == number).ok_or_else(|| {
        let message = format!("there is no application {number}");
        ErrorObject::new(ErrorKind::NoSuchObject, message)
            .with_help("`iwarpctl app list` shows those there are")
    })
}

/// A user with two limits.
pub(crate) fn users() -> Vec<UserInfo> {
    let usage = |what: &str, used, max, key: &str, per_device| UsageInfo {
        what: what.into(),
        used,
        max,
        key: format!("applications.{key}"),
        per_device,
    };
    let usage = vec![
        usage("bytes of queues and memory", 3 << 20, 1 << 30, "user_memory", false),
        usage("ids", 7, 1536, "user_share", true),
    ];
    vec![UserInfo { uid: 1000, usage }]
}

#[test]
fn users_are_listed_with_their_limits() {
    let daemon = Daemon::start();
    let run = iwarpctl(daemon.socket(), &["app", "users"]);
    let lines: Vec<Vec<&str>> = run.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["UID", "OBJECTS", "USED", "MAX", "KEY"], "{}", run.stdout);
    assert_eq!(lines[1][0], "1000");
    assert!(
        run.stdout.contains("applications.user_memory") && run.stdout.contains("3 MiB"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("ids per worker and port"), "{}", run.stdout);
    let json = iwarpctl(daemon.socket(), &["-j", "app", "users"]).json();
    assert_eq!(
        json[0]["usage"][1],
        json!({
            "what": "ids", "used": 7, "max": 1536, "key": "applications.user_share", "per_device": true
        })
    );
}

/// Returns the rows of the application that is asked for.
pub(crate) fn of<T>(asked: AppObjects, rows: Vec<T>, owner: fn(&T) -> u32) -> Result<Vec<T>, ErrorObject> {
    asked.app.map(app).transpose()?;
    Ok(rows.into_iter().filter(|row| asked.app.is_none_or(|app| app == owner(row))).collect())
}

pub(crate) fn queue_pairs() -> Vec<QpInfo> {
    let connected = QpInfo {
        app: 3,
        number: 65_540,
        state: "rts".into(),
        peer: Some("[fd77::1]:18515".parse().unwrap()),
        send_slots: 128,
        send_slots_used: 32,
        recv_slots: 512,
        recv_slots_used: 0,
        shared_receive_queue: None,
    };
    let idle = QpInfo {
        number: 5,
        state: "idle".into(),
        peer: None,
        send_slots_used: 0,
        shared_receive_queue: Some(65_536),
        ..connected.clone()
    };
    vec![connected, idle]
}

pub(crate) fn completion_queues() -> Vec<CqInfo> {
    vec![CqInfo { app: 3, number: 65_537, entries: 4096, events: 12, completions: 31_250, errors: 7 }]
}

pub(crate) fn memory_regions() -> Vec<MrInfo> {
    let access = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let own = MrInfo {
        app: 3,
        number: 1,
        bytes: 1 << 20,
        access: access(&["remote-read", "remote-write", "local-read", "local-write"]),
        kind: MrKind::Pages,
        region: None,
        kernel_bytes: 0,
    };
    let region = MrInfo {
        number: 2,
        bytes: 64 << 20,
        access: access(&["local-read"]),
        kind: MrKind::Region,
        region: Some("lab".into()),
        ..own.clone()
    };
    vec![own, region]
}

fn text(daemon: &Daemon, arguments: &[&str]) -> String {
    let run = iwarpctl(daemon.socket(), arguments);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{arguments:?}: {}", run.stdout);
    run.stdout
}

#[test]
fn applications_are_listed_with_their_counters() {
    let daemon = Daemon::start();
    assert_eq!(
        text(&daemon, &["app", "list"]),
        "ID  PID   UID   COMMAND      DEVICE  WORKER  QPS  CQS  MRS  REGISTERED  REQUESTS  COMPLETIONS  ERRORS  \
         AGE\n\
         3   4242  1000  ib_write_bw  p0      1       2    1    2    65 MiB      1000000   31250        7       \
         1m01s\n\
         9   0     1000  -            -       -       0    0    0    0 B         0         0            0       \
         1m01s\n"
    );
    let listed = iwarpctl(daemon.socket(), &["app", "ls", "-j"]).json();
    assert_eq!(
        listed[0],
        json!({
            "app": 3, "pid": 4242, "uid": 1000, "command": "ib_write_bw", "device": "p0", "worker": 1,
            "age_ms": 61_000, "queue_pairs": 2, "completion_queues": 1, "shared_receive_queues": 1,
            "memory_regions": 2, "registered_bytes": 68_157_440, "queue_bytes": 4_194_304,
            "work_requests": 1_000_000, "completions": 31_250, "errors": 7,
            "watches": [{ "region": "lab", "notifications": 12, "lost": 3 }]
        })
    );
    assert_eq!(listed[1].get("device"), None, "none is opened");
}

#[test]
fn one_application_is_shown() {
    let daemon = Daemon::start();
    let shown = text(&daemon, &["app", "show", "3"]);
    for line in [
        "app                    3",
        "command                ib_write_bw",
        "device                 p0",
        "shared_receive_queues  1",
        "registered_bytes       68157440 (65 MiB)",
        "queue_bytes            4194304 (4 MiB)",
        "work_requests          1000000",
        "errors                 7",
        "watch lab              12 notifications, 3 lost",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    assert!(text(&daemon, &["app", "show", "9"]).contains("device                 -\n"));
    let one = iwarpctl(daemon.socket(), &["app", "show", "3", "-j"]).json();
    assert_eq!(one, iwarpctl(daemon.socket(), &["app", "list", "-j"]).json()[0]);
}

#[test]
fn objects_are_listed_by_application() {
    let daemon = Daemon::start();
    assert_eq!(
        text(&daemon, &["qp", "list"]),
        "APP  NUMBER  STATE  PEER             SEND    RECV   SRQ\n\
         3    65540   rts    [fd77::1]:18515  32/128  0/512  -\n\
         3    5       idle   -                0/128   0/512  65536\n"
    );
    assert_eq!(
        text(&daemon, &["cq", "list"]),
        "APP  NUMBER  ENTRIES  EVENTS  COMPLETIONS  ERRORS\n\
         3    65537   4096     12      31250        7\n"
    );
    assert_eq!(
        text(&daemon, &["mr", "list"]),
        "APP  NUMBER  SIZE    KIND        ACCESS\n\
         3    1       1 MiB   pages       remote-read,remote-write,local-read,local-write\n\
         3    2       64 MiB  region lab  local-read\n"
    );
    for (noun, rows) in [("qp", 2), ("cq", 1), ("mr", 2)] {
        for (filter, rows) in [(&[][..], rows), (&["--app", "3"], rows), (&["--app", "9"], 0)] {
            let arguments = [&["-j", noun, "list"][..], filter].concat();
            let listed = iwarpctl(daemon.socket(), &arguments).json();
            assert_eq!(listed.as_array().unwrap().len(), rows, "{arguments:?}");
        }
    }
    let mr = iwarpctl(daemon.socket(), &["-j", "mr", "list"]).json();
    assert_eq!(
        mr[1],
        json!({
            "app": 3, "number": 2, "bytes": 67_108_864, "access": ["local-read"], "kind": "region", "region": "lab",
            "kernel_bytes": 0
        })
    );
    assert_eq!((&mr[0]["kind"], mr[0].get("rkey")), (&json!("pages"), None), "a key is a secret");
    let qp = iwarpctl(daemon.socket(), &["-j", "qp", "list"]).json();
    assert_eq!((&qp[0]["peer"], qp[1].get("peer")), (&json!("[fd77::1]:18515"), None));
}

#[test]
fn an_application_that_is_not_there_has_its_own_exit_code() {
    let daemon = Daemon::start();
    for arguments in [
        &["app", "show", "4"][..],
        &["qp", "list", "--app", "4"],
        &["cq", "ls", "--app", "4"],
        &["mr", "list", "--app=4"],
    ] {
        let run = iwarpctl(daemon.socket(), arguments);
        assert_eq!(run.code, 4, "{arguments:?}");
        assert_eq!(
            run.stderr,
            "error: there is no application 4\n  help: `iwarpctl app list` shows those there are\n"
        );
    }
    for arguments in [
        &["app"][..],
        &["app", "show"],
        &["app", "show", "x"],
        &["qp"],
        &["cq", "list", "--app"],
        &["mr", "show"],
    ] {
        assert_eq!(iwarpctl(daemon.socket(), arguments).code, 2, "{arguments:?}");
    }
}

#[test]
fn a_connection_names_its_application() {
    let daemon = Daemon::start();
    let row = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let app_of = |listed: &str| {
        let mut lines = listed.lines().map(row);
        let at = lines.next().unwrap().iter().position(|name| name == "APP").unwrap();
        lines.next().unwrap().swap_remove(at)
    };
    assert_eq!(app_of(&text(&daemon, &["conn", "list"])), "-");
    assert!(text(&daemon, &["conn", "show", "17"]).contains("\napp              -\n"));
    assert_eq!(iwarpctl(daemon.socket(), &["conn", "show", "17", "-j"]).json().get("app"), None);
    daemon.memory.lock().unwrap().owner = Some(3);
    let listed = text(&daemon, &["conn", "list"]);
    assert_eq!(app_of(&listed), "3", "{listed}");
    assert!(listed.contains("  verbs    3    -"), "{listed}");
    assert!(text(&daemon, &["conn", "show", "17"]).contains("\napp              3\n"));
    assert_eq!(iwarpctl(daemon.socket(), &["conn", "list", "-j"]).json()[0]["app"], 3);
}
