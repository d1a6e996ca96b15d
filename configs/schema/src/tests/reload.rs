//! Reloads: what can change while the daemon runs, and what needs a restart.

use crate::check::{DriverKeys, TcpPath, TcpStack};
use crate::keys::{Class, Keys, Row};
use crate::{Config, Plan, Refusals, RegionDiff, Step, plan};

const BASE: &str = r#"
[memory]
packet_buffers = 16384
[[port]]
name = "p0"
driver = "ring"
addresses = ["10.0.0.1/24"]
[[port.neighbor]]
address = "10.0.0.7"
mac = "02:00:00:00:00:07"
[limits]
regions_max = 8
[[listener]]
port = 7400
service = "region"
[[listener]]
port = 7
service = "echo"
[[region]]
name = "lab"
size = "4M"
access = ["remote-read", "remote-write"]
token = "open sesame"
[[region]]
name = "wal"
size = "2M"
access = ["remote-write"]
[applications]
[log]
level = "info"
"#;

fn config(text: &str) -> Config {
    Config::parse("test.toml", text).unwrap_or_else(|e| panic!("{}", e.short()))
}

/// Returns the plan for the base with a part of its text replaced.
fn replaced(pairs: &[(&str, &str)]) -> Result<Plan, Refusals> {
    let text = pairs.iter().fold(BASE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    plan(&config(BASE), &config(BASE), &config(&text))
}

fn lines(plan: &Plan) -> Vec<String> {
    plan.lines.iter().map(ToString::to_string).collect()
}

fn refused(pairs: &[(&str, &str)]) -> Vec<String> {
    replaced(pairs).unwrap_err().0.iter().map(|line| line.object.clone()).collect()
}

#[test]
fn the_same_file_changes_nothing() {
    let plan = replaced(&[]).unwrap();
    assert!(plan.steps.is_empty() && plan.lines.is_empty());
}

#[test]
fn regions_are_added_removed_and_changed() {
    let plan = replaced(&[
        ("name = \"wal\"", "name = \"log\""),
        ("\"remote-read\", \"remote-write\"", "\"remote-read\""),
        ("open sesame", "close sesame"),
    ])
    .unwrap();
    assert_eq!(
        lines(&plan),
        [
            "region wal: removed",
            "region lab.access: remote-read,remote-write -> remote-read",
            "region lab.token: another one",
            "region log: added, 2097152 bytes, remote-write",
        ]
    );
    let [Step::RegionRemove(wal), Step::RegionChange(lab, diff), Step::RegionAdd(log)] =
        plan.steps.as_slice()
    else {
        panic!("{:?}", plan.steps)
    };
    assert_eq!((wal.name.as_str(), lab.name.as_str(), log.name.as_str()), ("wal", "lab", "log"));
    assert_eq!(*diff, RegionDiff { access: true, token: true, allow: false });
    assert!(!lines(&plan).concat().contains("sesame"), "no token is shown");
}

#[test]
fn a_token_that_comes_or_goes_is_a_change() {
    let gone = replaced(&[("token = \"open sesame\"\n", "")]).unwrap();
    assert_eq!(lines(&gone), ["region lab.token: no longer required"]);
    let first =
        replaced(&[("\"remote-write\"]\n[applications]", "\"remote-write\"]\ntoken = 'x'\n[applications]")]);
    assert_eq!(lines(&first.unwrap()), ["region wal.token: required now"]);
}

#[test]
fn prefixes_change() {
    let plan = replaced(&[("token = \"open", "allow = ['10.0.0.0/8']\ntoken = \"open")]).unwrap();
    assert_eq!(lines(&plan), ["region lab.allow: every source -> 10.0.0.0/8"]);
}

#[test]
fn listeners_are_added_removed_changed_and_replaced() {
    let plan = replaced(&[
        ("port = 7\nservice = \"echo\"", "port = 9\nservice = \"discard\""),
        ("service = \"region\"", "service = \"region\"\nbacklog = 64\ncongestion = \"bbr\""),
    ])
    .unwrap();
    assert_eq!(
        lines(&plan),
        [
            "listener 7: removed; its connections stay",
            "listener 7400.backlog: 128 -> 64",
            "listener 7400.congestion: default -> bbr",
            "listener 9: added, service discard",
        ]
    );
    let replaced = replaced(&[("\"echo\"", "\"chargen\"")]).unwrap();
    assert_eq!(lines(&replaced), ["listener 7.service: echo -> chargen"]);
    assert!(matches!(replaced.steps.as_slice(), [Step::ListenerReplace(listener)] if listener.port == 7));
}

#[test]
fn limits_sockets_users_and_the_log_change() {
    let plan = replaced(&[
        ("regions_max = 8", "regions_max = 4\ngrants_max = 100"),
        ("[memory]", "[tcp]\nconnections_per_source_max = 9\n[memory]"),
        (
            "[applications]",
            "[applications]\nmode = '0600'\ngroup = '7'\nuser_memory = '2M'\nuser_contexts_max = 1",
        ),
        ("[log]", "[control]\nclients_max = 3\nmode = '0600'\n[drain]\ntimeout_ms = 7\n[log]"),
        ("\"info\"", "\"debug\"\nevents_per_s_max = 3"),
    ])
    .unwrap();
    assert_eq!(
        lines(&plan),
        [
            "limits.regions_max: 8 -> 4",
            "limits.grants_max: 8192 -> 100",
            "tcp.connections_per_source_max: 3072 -> 9",
            "control.mode: 0660 -> 0600",
            "control.clients_max: 64 -> 3",
            "drain.timeout_ms: 2000 -> 7",
            "applications.mode: 0660 -> 0600",
            "applications.group: default -> 7",
            "applications.user_contexts_max: 32 -> 1",
            "applications.user_memory: 1073741824 -> 2097152",
            "log.level: info -> debug",
            "log.events_per_s_max: 10 -> 3",
        ]
    );
}

#[test]
fn what_needs_a_restart_refuses_everything() {
    let both = [("\"info\"", "\"debug\""), ("[memory]", "[workers]\ncores = [2]\n[memory]")];
    assert_eq!(refused(&both), ["workers.cores"]);
    assert_eq!(refused(&[("10.0.0.1", "10.0.0.2")]), ["port p0.addresses"]);
    let both = "addresses = [\"10.0.0.9/24\", \"fd00::9/64\"]\nmtu = 9000";
    let before = "addresses = [\"10.0.0.1/24\"]";
    assert_eq!(
        refused(&[(before, both)]),
        ["port p0.mtu", "port p0.addresses"],
        "the memory for data follows"
    );
    assert_eq!(refused(&[("16384", "32768")]), ["memory.packet_buffers"], "the shares of it follow");
    assert_eq!(
        refused(&[("[log]", "[tcp]\nreceive_memory_bytes = '1G'\nreceived_buffers_max = 100\n[log]")]),
        ["tcp.receive_memory_bytes", "tcp.received_buffers_max"]
    );
    assert_eq!(
        refused(&[("packet_buffers = 16384", ""), ("[limits]", "[workers]\ncores = [1, 2]\n[limits]")]),
        ["workers.cores", "memory.packet_buffers"],
    );
    assert_eq!(refused(&[("\"ring\"", "\"tap\"\ninterface = \"iw0\"")]), ["port p0"]);
    assert_eq!(refused(&[("\"p0\"", "\"p1\"")]), ["port p0", "port p1"]);
    assert_eq!(refused(&[("size = \"4M\"", "size = \"8M\"")]), ["region lab.size"]);
    assert_eq!(refused(&[("[applications]\n", "")]), ["applications"]);
    assert_eq!(
        refused(&[("[applications]", "[applications]\nqueue_pairs_max = 7")]),
        ["applications.queue_pairs_max"]
    );
    assert_eq!(refused(&[("[log]", "[metrics]\nlisten = '127.0.0.1:9464'\n[log]")]), ["metrics"]);
    assert_eq!(
        refused(&[("[log]", "[mpa]\ncrc = 'off'\n[tcp]\nsack = false\n[log]\nformat = 'json'")]),
        ["tcp.sack", "mpa.crc", "log.format"]
    );
    let all = replaced(&[("[log]", "[control]\nsocket = '/run/other'\n[log]")]).unwrap_err().to_string();
    assert_eq!(all, "control.socket: takes effect at a restart only");
}

/// A reload has steps for the live keys of some tables only, and code of its own for those of the other classes.
#[test]
fn each_class_has_code_that_honors_it() {
    let Config {
        memory,
        ports,
        workers,
        ip,
        tcp,
        mpa,
        placement,
        privileges,
        limits,
        listeners,
        regions,
        control,
        drain,
        log,
        ..
    } = config(BASE);
    let keys = |rows: Vec<Row>, class: Class| -> Vec<&'static str> {
        rows.into_iter().filter(|row| row.class == class).map(|row| row.path).collect()
    };
    let without_step = [
        memory.rows(),
        ports[0].rows(),
        DriverKeys::rows(),
        ports[0].neighbors.iter().flat_map(Keys::rows).collect(),
        workers.rows(),
        ip.rows(),
        tcp.rows(),
        TcpStack::rows(&tcp.stack),
        TcpPath::rows(&tcp.stack),
        mpa.rows(),
        placement.rows(),
        privileges.rows(),
    ];
    let without_step = without_step.concat();
    assert_eq!(keys(without_step.clone(), Class::Live), ["tcp.connections_per_source_max"]);
    assert_eq!(
        keys(without_step.clone(), Class::Derived),
        ["memory.packet_buffers", "tcp.receive_memory_bytes", "tcp.received_buffers_max"]
    );
    assert_eq!(keys(limits.rows(), Class::UpToStart), ["limits.regions_max", "limits.grants_max"]);
    assert_eq!(keys(regions[0].all_rows(), Class::Restart), ["region.size"]);
    assert!(listeners[0].all_rows().iter().all(|row| row.class == Class::Live));
    let others = [without_step, control.rows(), drain.rows(), log.rows()].concat();
    assert!(keys(others, Class::UpToStart).is_empty());
}

/// A limit may return to that of the start, but not exceed it: its table was allocated then.
#[test]
fn limits_of_tables_stay_within_those_of_the_start() {
    let with = |regions: &str| config(&BASE.replace("regions_max = 8", regions));
    let (started, low, high) = (config(BASE), with("regions_max = 3"), with("regions_max = 9"));
    let raised = plan(&started, &low, &started).unwrap();
    assert_eq!(lines(&raised), ["limits.regions_max: 3 -> 8"]);
    let refused = plan(&started, &low, &high).unwrap_err().to_string();
    assert!(refused.contains("limits.regions_max") && refused.contains("allocated for 8"), "{refused}");
}
