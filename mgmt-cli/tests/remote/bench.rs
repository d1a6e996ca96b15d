//! `remote bench`.

use std::process::Command;

use serde_json::{Value, json};

use crate::responder::{LAB, Manner, Responder};
use crate::{place, remote};

fn rows(report: &Value) -> &Vec<Value> {
    report["rows"].as_array().unwrap()
}

#[test]
fn every_message_arrives() {
    let responder = Responder::start(Manner::Honest);
    let target = place(responder.address, "lab+7");
    let bench = |what| ["bench", what, &target, "--size", "1,4k,1M", "-n", "20", "--connections", "3"];
    let report = remote(&bench("write")).json();
    assert_eq!(
        (&report["operation"], &report["measurement"], &report["connections"], &report["depth"]),
        (&json!("bench"), &json!("write"), &json!(3), &json!(16))
    );
    for (row, bytes) in rows(&report).iter().zip([1u64, 4096, 1 << 20]) {
        let number = |name: &str| row[name].as_u64().unwrap();
        assert_eq!((number("bytes"), number("iterations")), (bytes, 60));
        // Rates are rounded down.
        let average = u128::from(60 * bytes) * 1_000_000_000 / u128::from(number("duration_ns"));
        assert_eq!(u128::from(number("bytes_per_second")), average);
        assert!(number("peak_bytes_per_second") >= number("bytes_per_second"), "{row}");
    }
    let placed = |responder: &Responder| responder.shared.lock().unwrap().stats.rdmap.payload_bytes_placed;
    assert_eq!(placed(&responder), 60 * (1 + 4096 + (1 << 20)));
    let reads = |responder: &Responder| responder.shared.lock().unwrap().stats.rdmap.in_rdma_reads;
    let before = reads(&responder);
    assert_eq!(before, 9, "one Read of each connection and size proves the Writes");

    let report = remote(&[&bench("read")[..], &["--depth", "4"]].concat()).json();
    assert_eq!((&report["depth"], rows(&report).len()), (&json!(4), 3));
    assert_eq!(reads(&responder) - before, 180);
    assert!(responder.lab().iter().all(|byte| *byte == 0), "the messages are of zeros");
}

#[test]
fn latency_is_a_distribution() {
    let responder = Responder::start_at("[::1]:0", Manner::Honest);
    let target = place(responder.address, "lab-ro");
    let report = remote(&["bench", "latency", &target, "-n", "50", "-q", "2", "--size", "8,4096"]).json();
    assert_eq!((&report["peer"], &report["depth"]), (&json!(responder.address.to_string()), &json!(1)));
    for row in rows(&report) {
        let times =
            ["min_ns", "median_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| row[name].as_u64().unwrap());
        assert!(times.is_sorted() && times[0] > 1000, "{row}");
        assert_eq!(row["iterations"], 100);
        assert!(row["mean_ns"].as_u64().unwrap() >= times[0] && row["stdev_ns"].is_u64(), "{row}");
    }
}

#[test]
fn all_sizes_are_those_that_fit() {
    let responder = Responder::start(Manner::Honest);
    let sizes = |target: &str| {
        let report = remote(&["bench", "read", target, "--all", "-n", "2"]).json();
        rows(&report).iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(
        sizes(&place(responder.address, "lab-ro")),
        (1..=12).map(|bit| 1 << bit).collect::<Vec<u64>>()
    );
    assert_eq!(sizes(&place(responder.address, "lab")).last(), Some(&(LAB as u64)));
}

#[test]
fn a_measurement_of_a_given_time() {
    let responder = Responder::start(Manner::Honest);
    let target = place(responder.address, "lab");
    for what in ["write", "read", "latency"] {
        let report = remote(&["bench", what, &target, "--duration", "0.3", "--size", "64"]).json();
        let row = &rows(&report)[0];
        assert!(row["duration_ns"].as_u64().unwrap() >= 300_000_000, "{row}");
        assert!(row["iterations"].as_u64().unwrap() > 1, "{row}");
    }
}

#[test]
fn the_columns_are_those_of_perftest() {
    let responder = Responder::start(Manner::Honest);
    let target = place(responder.address, "lab");
    for (what, columns) in [
        ("write", "#bytes #iterations BW peak[MB/s] BW average[MB/s] MsgRate[Mpps]"),
        ("latency", "#bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_iwarpctl"))
            .args(["remote", "bench", what, &target, "--size", "2,4", "-n", "10"])
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        let shown = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with(&format!("bench {what} {target}+0: 1 connection, ")), "{shown}");
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>().join(" "), columns);
        assert!(lines[2].starts_with("      2          10 ") && lines[3].starts_with("      4          10 "));
        assert!(lines.len() == 4 && lines.iter().all(|line| line.chars().count() <= 80), "{shown}");
    }
}

#[test]
fn what_cannot_be_measured() {
    let responder = Responder::start(Manner::Honest);
    let at = |region: &str| place(responder.address, region);
    for (arguments, code, kind) in [
        (&["write", &at("nothing")][..], 4, "no_such_object"),
        (&["write", &at("lab-ro")], 5, "not_permitted"),
        (&["read", &at("lab-wo"), "-q", "8"], 5, "not_permitted"),
        (&["write", &at("secret")], 5, "not_permitted"),
        (&["write", &at("lab-wo"), "--size", "64,4097"], 1, "out_of_bounds"),
        (&["write", &at("lab-wo+4097"), "--all"], 1, "out_of_bounds"),
        (&["latency", &at("lab"), "--depth", "2"], 2, "usage"),
        (&["read", &at("lab"), "--size", "0"], 2, "usage"),
        (&["read", &at("lab"), "--size", "9M"], 2, "usage"),
        (&["read", &at("lab"), "-n", "5", "-D", "5"], 2, "usage"),
        (&["read", &at("lab"), "-a", "-s", "5"], 2, "usage"),
        (&["sideways", &at("lab")], 2, "usage"),
    ] {
        let run = remote(&[&["bench"], arguments].concat());
        assert_eq!((run.code, run.kind().as_str()), (code, kind), "{arguments:?}: {}", run.stderr);
    }
    let responder = Responder::start(Manner::ClosesAfter(1_000_000));
    let target = place(responder.address, "lab");
    let run = remote(&["bench", "write", &target, "--duration", "3600", "-q", "4"]);
    assert_eq!((run.code, run.kind().as_str()), (1, "connection_lost"), "{}", run.stderr);
}
