//! The tables of a daemon with traffic, drawn on screens of every size, and the keys.

use std::time::Duration;

use clap::Parser as _;
use iwarp_terminal::Failure;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::draw::{self, Theme};
use super::model::{Action, Mode, Model};
use super::sample::Sample;
use super::tables::{TABS, columns};
use crate::args::{Args, Command, Tab, Top};

const SECOND: Duration = Duration::from_secs(1);

fn options(arguments: &[&str]) -> Top {
    let line = ["iwarpctl", "top"].iter().chain(arguments);
    match Args::try_parse_from(line).unwrap().command {
        Command::Top(options) => options,
        other => panic!("{other:?}"),
    }
}

fn port(name: &str, megabytes: u64) -> Value {
    json!({
        "name": name, "driver": "net_tap", "device": "net_tap0", "mac": "02:00:00:00:00:01", "mtu": 1500,
        "link": "up", "speed_mbps": 10_000, "addresses": ["10.77.0.2/24", "fd77::2/64"], "rx_queues": 1,
        "tx_queues": 1, "offloads": [], "rx_packets": 1000 * megabytes, "tx_packets": 500 * megabytes,
        "rx_bytes": 1_000_000 * megabytes, "tx_bytes": 50_000 * megabytes, "rx_missed": 3, "rx_errors": 0,
        "tx_errors": 1, "rx_nombuf": 0
    })
}

/// A connection, as `conn.list` has it.
const CONN: &str = r#"{
    "id": 0, "worker": 0, "local": "10.77.0.2:7400", "remote": "10.77.0.1:1", "state": "ESTABLISHED",
    "service": "region", "age_ms": 61000, "bytes_in": 0, "bytes_out": 0, "segments_in": 800,
    "segments_out": 400, "retransmits": 0, "rtt_us": 42, "rttvar_us": 6, "min_rtt_us": 31, "rto_ms": 201,
    "attempts": 0, "soft_error": false, "timeouts": 1, "recoveries": 3, "congestion": "cubic", "ecn": "off",
    "delivery_app_limited": false, "cwnd_bytes": 14480, "ssthresh_bytes": 65536, "in_flight_bytes": 0,
    "mss": 1448, "path_mtu": 1500, "snd_wnd": 65536, "rcv_wnd": 65536, "unread_bytes": 0, "urgent_bytes": 0,
    "held_bytes": 0, "sack": true, "timestamps": true, "wscale": [7, 10],
    "rdma": {
        "mpa_revision": 2, "crc": true, "ird": 128, "ord": 16, "region": "lab", "state": "RTS",
        "in_writes": 12, "in_reads": 3, "bytes_placed": 0, "bytes_fetched": 0, "last_terminate": null
    }
}"#;

fn conn(id: u64, remote: &str, bytes_in: u64) -> Value {
    let mut conn: Value = serde_json::from_str(CONN).unwrap();
    let own = json!({
        "id": id, "remote": remote, "retransmits": id, "bytes_in": bytes_in, "bytes_out": bytes_in / 10
    });
    for (name, value) in own.as_object().unwrap() {
        conn[name] = value.clone();
    }
    conn
}

/// A sample of a daemon that has run for `seconds`: connection 17 receives 1 MB/s, 18 receives 2 MB/s, 19 nothing.
fn sample(seconds: u64) -> Sample {
    let worker = json!({
        "worker": 0, "core": 1, "idle": "adaptive", "iterations": 1_000_000 * seconds, "busy_permille": 123,
        "rx_bursts": 100, "rx_packets_per_burst_x100": 1250, "rx_packets": 1250 * seconds,
        "tx_packets": 900 * seconds, "sleeps": 7 * seconds
    });
    let app = json!({
        "app": 3, "pid": 4242, "uid": 1000, "command": "ib_write_bw", "device": "p0", "worker": 0,
        "age_ms": 61_000, "queue_pairs": 2, "completion_queues": 1, "shared_receive_queues": 0,
        "memory_regions": 2, "registered_bytes": 65 << 20, "queue_bytes": 4 << 20,
        "work_requests": 1000 * seconds, "completions": 500 * seconds, "errors": 7
    });
    let region = json!({
        "name": "lab", "bytes": 64 << 20, "access": ["remote-read", "remote-write"], "backing": "hugepages",
        "page_bytes": 2 << 20, "token_required": false, "allow": [], "origin": "config", "grants": 3,
        "bytes_placed": 3_000_000 * seconds, "bytes_fetched": 0
    });
    let status = json!({
        "api": 1, "version": "0.1.0", "pid": 4711, "uptime_ms": 1000 * seconds, "state": "ok", "degraded": [],
        "dpdk_version": "22.11.11", "config_path": "/etc/iwarpd/iwarpd.toml",
        "hugepages": {"required": true, "page_bytes": 2 << 20, "total": 256, "free": 200},
        "workers": [worker], "ports": [port("p0", 3 * seconds), port("p1", 0)],
        "connections": {"established": 3, "opening": 0, "closing": 0, "time_wait": 2, "max": 4096},
        "regions": {"count": 1, "bytes": 64 << 20, "max": 256}, "pools": [], "rss_bytes": 50 << 20
    });
    serde_json::from_value(json!({
        "status": status, "regions": [region], "apps": [app], "drops": 5 * seconds,
        "conns": [
            conn(17, "10.77.0.1:40000", 1_000_000 * seconds),
            conn(18, "[fd77::1]:40001", 2_000_000 * seconds),
            conn(19, "10.77.0.9:40002", 0),
        ]
    }))
    .unwrap()
}

/// A model that has seen samples of seconds 1 to 4.
fn model(arguments: &[&str]) -> Model {
    let mut model = Model::new(&options(arguments), sample(1), SECOND);
    for seconds in 2..=4_u32 {
        model.update(sample(seconds.into()), seconds * SECOND);
    }
    model
}

/// Returns the screen, a string for each row, without trailing blanks.
fn drawn(model: &mut Model, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw::screen(frame, model, Theme { colored: true })).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cells = buffer.content().chunks(usize::from(columns).max(1));
    cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
}

fn press(model: &mut Model, keys: &[KeyCode]) -> Action {
    let mut action = Action::None;
    for key in keys {
        action = model.key(KeyEvent::new(*key, KeyModifiers::NONE));
    }
    action
}

fn typed(model: &mut Model, text: &str) {
    press(model, &text.chars().map(KeyCode::Char).collect::<Vec<_>>());
}

/// Returns the first cell of each row.
fn ids(model: &Model) -> Vec<&str> {
    model.rows().iter().map(|row| row[0].text.as_str()).collect()
}

#[test]
fn a_screen_of_80_by_24_shows_totals_and_the_table() {
    let screen = drawn(&mut model(&[]), 80, 24);
    assert_eq!(screen.len(), 24);
    assert_eq!(screen[0], "iwarpd 0.1.0  ok  up 4.00 s  pid 4711  every 1 s");
    assert_eq!(screen[1], "rx    24 Mb/s  3 k/s         ███");
    assert_eq!(screen[2], "tx    1.2 Mb/s  1.5 k/s      ███");
    assert_eq!(screen[3], "busy  12.3 % busiest worker  ▁▁▁▁");
    assert_eq!(screen[4], "conns 3 established, 0 opening, 0 closing, 2 time-wait  drops 20 (5 /s)");
    assert_eq!(screen[5], " 1 workers  2 ports  3 connections  4 regions  5 applications   3");
    assert_eq!(screen[6], "ID  STATE        REMOTE           REGION  APP  IN      OUT       ACTIVITY▼");
    assert_eq!(screen[7], "18  ESTABLISHED  [fd77::1]:40001  lab     -    2 MB/s  200 kB/s  ███");
    assert!(
        screen[8].starts_with("17  ESTABLISHED  10.77.0.1:40000  lab     -    1 MB/s  100 kB/s"),
        "{screen:#?}"
    );
    assert!(
        screen[9].starts_with("19  ESTABLISHED  10.77.0.9:40002  lab     -    0 B/s   0 B/s"),
        "{screen:#?}"
    );
    assert!(screen[23].starts_with("q quit  ? help  Tab table  s sort"), "{screen:#?}");
    assert!(screen[23].contains("(+7 columns)"), "{screen:#?}");
}

#[test]
fn a_wide_screen_has_more_columns() {
    let screen = drawn(&mut model(&[]), 132, 50);
    assert_eq!(screen.len(), 50);
    for column in ["RETRANSMITS", "SERVICE", "AGE", "LOCAL"] {
        assert!(screen[6].contains(column), "{column}: {screen:#?}");
    }
    assert!(screen[7].contains("10.77.0.2:7400") && screen[7].contains("1m01s"), "{screen:#?}");
    assert!(screen[10].is_empty() && screen[49].starts_with("q quit"), "{screen:#?}");
}

#[test]
fn every_table_has_a_cell_for_each_column() {
    for (tab, (rows, wanted)) in TABS.into_iter().zip([
        (1, "0        1     adaptive  12.3 %  ▁▁▁▁"),
        (2, "p0     up    10 Gb/s  24 Mb/s  3 k/s"),
        (3, "18"),
        (1, "lab   64 MiB  3       3 MB/s   0 B/s  ███"),
        (1, "3   4242  1000  ib_write_bw  p0      2    2    65 MiB      1 k/s"),
    ]) {
        let mut model = model(&[]);
        press(&mut model, &[KeyCode::Char(['1', '2', '3', '4', '5'][tab as usize])]);
        assert_eq!((model.tab, model.rows().len()), (tab, rows));
        let header = columns(tab).header;
        assert!(model.rows().iter().all(|row| row.len() == header.len()), "{tab:?}");
        let screen = drawn(&mut model, 200, 24);
        assert!(header.iter().all(|name| screen[6].contains(name)), "{screen:#?}");
        assert!(screen[7].starts_with(wanted), "{screen:#?}");
        // Names of columns that may be omitted are names of columns.
        assert!(columns(tab).spare.iter().all(|name| header.contains(name)), "{tab:?}");
    }
}

/// Every size, with the help, the filter and a warning: nothing panics.
#[test]
fn any_screen_can_be_drawn_on() {
    for arguments in [&["workers"][..], &["ports"], &["connections"], &["regions"], &["applications"]] {
        let mut model = model(arguments);
        model.problem =
            Some("cannot reach iwarpd at /run/iwarpd/control.sock: Connection refused".to_owned());
        for mode in [Mode::Tables, Mode::Filter, Mode::Help] {
            model.mode = mode;
            for columns in (0..12).chain([20, 39, 79, 80, 132]) {
                for rows in (0..14).chain([24]) {
                    let screen = drawn(&mut model, columns, rows);
                    assert!(screen.iter().all(|row| row.chars().count() <= columns.into()));
                }
            }
        }
    }
}

#[test]
fn rows_are_sorted_by_any_column() {
    let mut model = model(&[]);
    assert_eq!(ids(&model), ["18", "17", "19"]);
    press(&mut model, &[KeyCode::Char('r')]);
    assert_eq!(ids(&model), ["19", "17", "18"]);
    // From ACTIVITY two columns on: retransmits, which are the numbers of the connections.
    press(&mut model, &[KeyCode::Char('s'), KeyCode::Right]);
    assert_eq!(ids(&model), ["17", "18", "19"]);
    press(&mut model, &[KeyCode::Char('r')]);
    assert_eq!(ids(&model), ["19", "18", "17"]);
    press(&mut model, &[KeyCode::Char('S'), KeyCode::Left, KeyCode::Left, KeyCode::Left]);
    let order = model.sort();
    assert_eq!(columns(Tab::Connections).header[order.column], "IN");
    // As many steps as there are columns lead back.
    let steps = vec![KeyCode::Char('s'); columns(Tab::Connections).header.len()];
    press(&mut model, &steps);
    assert_eq!(model.sort(), order);
}

#[test]
fn a_filter_selects_rows() {
    let mut model = model(&["--filter", "FD77"]);
    assert_eq!(ids(&model), ["18"]);
    assert!(drawn(&mut model, 80, 24)[5].ends_with("1 of 3"));
    assert!(drawn(&mut model, 80, 24)[23].starts_with("filter FD77  q quit"));
    press(&mut model, &[KeyCode::Esc, KeyCode::Char('/')]);
    typed(&mut model, "10.77.0.9q");
    assert_eq!((ids(&model).len(), model.mode), (0, Mode::Filter));
    assert!(drawn(&mut model, 80, 24)[23].starts_with("/10.77.0.9q"));
    press(&mut model, &[KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!((ids(&model), model.mode), (vec!["19"], Mode::Tables));
    // The next sample is filtered, too.
    model.update(sample(5), 5 * SECOND);
    assert_eq!(ids(&model), ["19"]);
    press(&mut model, &[KeyCode::Char('/'), KeyCode::Esc]);
    assert_eq!((ids(&model).len(), model.filter.as_str()), (3, ""));
}

#[test]
fn a_table_scrolls() {
    let mut many = sample(1);
    let first = many.conns[0].clone();
    many.conns = (0..100).map(|id| iwarp_control::ConnInfo { id, ..first.clone() }).collect();
    let mut model = Model::new(&options(&[]), many, SECOND);
    let top = |model: &mut Model| drawn(model, 80, 24)[7].split_whitespace().next().unwrap().to_owned();
    assert_eq!(top(&mut model), "0");
    for (key, expected) in [
        (KeyCode::Down, "1"),
        (KeyCode::PageDown, "17"),
        (KeyCode::End, "84"),
        (KeyCode::Down, "84"),
        (KeyCode::Up, "83"),
        (KeyCode::PageUp, "67"),
        (KeyCode::Home, "0"),
        (KeyCode::Up, "0"),
    ] {
        press(&mut model, &[key]);
        assert_eq!(top(&mut model), expected, "{key:?}");
    }
}

#[test]
fn keys_change_the_table_the_pace_and_the_help() {
    let mut model = model(&["ports"]);
    press(&mut model, &[KeyCode::Tab]);
    assert_eq!(model.tab, Tab::Connections);
    press(&mut model, &[KeyCode::BackTab, KeyCode::BackTab, KeyCode::BackTab]);
    assert_eq!(model.tab, Tab::Applications);
    press(&mut model, &[KeyCode::Char('-'), KeyCode::Char('-')]);
    assert_eq!(model.interval, 5 * SECOND);
    press(&mut model, &[KeyCode::Char('+'); 20]);
    assert_eq!(model.interval, SECOND / 10);
    press(&mut model, &[KeyCode::Char('p')]);
    assert!(model.paused && drawn(&mut model, 80, 24)[0].ends_with("every 0.1 s  paused"));
    press(&mut model, &[KeyCode::Char('?')]);
    let help = drawn(&mut model, 80, 24).join("\n");
    assert!(help.contains("Keys (any key closes this)") && help.contains("Shift-Tab"), "{help}");
    assert!(help.contains("workers, ports, connections, regions, applications "), "{help}");
    // The help takes the key: it does not quit.
    assert_eq!(press(&mut model, &[KeyCode::Char('q')]), Action::None);
    assert_eq!(press(&mut model, &[KeyCode::Char('q')]), Action::Quit);
    let control =
        |model: &mut Model, letter| model.key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    assert_eq!(control(&mut model, 'c'), Action::Quit);
    assert_eq!(control(&mut model, 'l'), Action::Redraw);
    assert_eq!(control(&mut model, 'z'), Action::Suspend);
    assert_eq!(control(&mut model, 'x'), Action::None);
}

#[test]
fn another_daemon_counts_from_zero() {
    let mut model = model(&["regions"]);
    let mut other = sample(9);
    other.status.pid = 1;
    model.update(other, 5 * SECOND);
    assert_eq!(model.rows()[0][3].text, "-", "no rate of two daemons");
    let mut other = sample(10);
    other.status.pid = 1;
    model.update(other, 6 * SECOND);
    assert_eq!(model.rows()[0][3].text, "3 MB/s");
}

#[test]
fn a_daemon_that_is_degraded_or_gone_is_named() {
    let mut model = model(&[]);
    let mut degraded = sample(5);
    degraded.status.degraded = vec!["port p0: no link".into(), "port p1: no link".into()];
    degraded.status.state = iwarp_control::State::Degraded;
    model.update(degraded, 5 * SECOND);
    let screen = drawn(&mut model, 80, 24);
    assert!(screen[0].contains("  degraded  "), "{screen:#?}");
    assert_eq!(screen[5], "! port p0: no link (and 1 more)");
    model.problem = Some(Failure::usage("cannot reach iwarpd").message);
    assert_eq!(drawn(&mut model, 80, 24)[5], "! cannot reach iwarpd");
    model.update(sample(6), 6 * SECOND);
    assert!(drawn(&mut model, 80, 24)[5].starts_with(" 1 workers"));
}

/// A program's name is chosen by the program: it cannot send the terminal commands.
#[test]
fn a_name_cannot_write_control_characters() {
    let mut hostile = sample(1);
    hostile.apps[0].command = "x\u{1b}[2Jy\nz".into();
    let mut model = Model::new(&options(&["applications"]), hostile, SECOND);
    let screen = drawn(&mut model, 200, 24);
    assert!(screen.iter().all(|row| !row.chars().any(char::is_control)), "{screen:#?}");
    assert!(screen[7].contains("x[2Jyz"), "{screen:#?}");
}
