//! Runs each RDMA benchmark with few messages: it ends, reports its flags, and its results are consistent.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// Two spinning threads on as many CPUs as there are, little memory, few messages.
const SMALL: [&str; 9] =
    ["-m", "1500", "--region", "1M", "--packet-buffers", "4095", "--descriptors", "128", "--json"];

/// Serializes the tests: each spins on two threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the program and reads its report.
fn bench(arguments: &[&str]) -> Value {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let output =
        Command::new(env!("CARGO_BIN_EXE_iwarp-bench")).args(arguments).args(SMALL).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    // Such as buffers that outlive their pool.
    assert!(!errors.contains("ERROR"), "{arguments:?}: {errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["benchmark"], arguments[0]);
    assert!(report["machine"]["dpdk"].as_str().is_some_and(|version| version.contains('.')));
    report["report"].clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Returns the rows of a bandwidth benchmark with `messages` messages on each queue pair.
fn bandwidth(command: &str, messages: u64, more: &[&str]) -> Vec<Value> {
    let count = messages.to_string();
    let mut arguments = vec![command, "-n", &count, "--runs", "1", "--no-roofline"];
    arguments.extend(more);
    let report = bench(&arguments);
    let rows = report["rows"].as_array().unwrap().clone();
    for row in &rows {
        let (bits, rate) = (number(&row["gbps"]) * 1e9, number(&row["mpps"]) * 1e6);
        let expected = rate * number(&row["size"]) * 8.0;
        assert!(bits > 0.0 && (bits - expected).abs() < bits / 1e6, "{row}");
    }
    rows
}

#[test]
fn every_operation_moves_as_many_messages_as_it_is_told_to() {
    for command in ["write-bw", "read-bw", "send-bw"] {
        let rows = bandwidth(command, 600, &["-s", "100,4k", "-q", "1,3"]);
        let messages: Vec<u64> = rows.iter().map(|row| row["messages"].as_u64().unwrap()).collect();
        assert_eq!(messages, [600, 1800, 600, 1800], "{command}");
        // 600 messages of 4 KiB go through a region of 1 MiB twice: it is compared, byte for byte.
        let compared: Vec<bool> = rows.iter().map(|row| row["bytes_verified"] != 0).collect();
        assert_eq!(compared, [false, false, true, true], "{command}");
    }
}

#[test]
fn both_ends_send_without_crc_too() {
    for command in ["write-bw", "read-bw", "send-bw"] {
        let rows = bandwidth(command, 300, &["-s", "8k", "-b", "--crc", "off"]);
        assert_eq!((rows[0]["messages"].as_u64(), &rows[0]["crc"]), (Some(600), &"off".into()), "{command}");
        assert!(rows[0]["bytes_verified"].as_u64() >= Some(2 << 19));
    }
}

/// The target is a process of its own, and all that the two share is what memif maps.
#[test]
fn two_processes_do_the_same_over_memif() {
    for command in ["write-bw", "read-bw", "send-bw"] {
        let rows = bandwidth(command, 600, &["-s", "4k", "-q", "1,3", "--link", "memif"]);
        for (row, messages) in rows.iter().zip([600, 1800]) {
            assert_eq!((&row["link"], &row["messages"]), (&"memif".into(), &messages.into()), "{command}");
            assert!(row["bytes_verified"].as_u64() >= Some(1 << 19), "{command}: {row}");
            let [busy, all] = ["cpu_busy_s_per_gib", "cpu_s_per_gib"].map(|name| number(&row[name]));
            assert!(0.0 < busy && busy <= all, "{command}: {row}");
        }
    }
    let rows = bandwidth("write-bw", 300, &["-s", "8k", "-b", "--link", "memif"]);
    assert_eq!(rows[0]["messages"], 600);
    for command in ["write-lat", "read-lat", "send-lat"] {
        let report = bench(&[command, "-n", "200", "-D", "0.2", "-s", "64", "--link", "memif"]);
        assert_eq!(report["rows"][0]["histogram"]["samples"], 200);
    }
}

/// Both ends are contexts of an `iwarpd`, which does the work of the nodes; its binary is beside that of the benchmark.
#[test]
fn an_application_of_the_daemon_does_the_same() {
    for command in ["write-bw", "read-bw", "send-bw"] {
        let rows = bandwidth(command, 600, &["-s", "4k", "-q", "1,3", "--link", "daemon"]);
        for (row, messages) in rows.iter().zip([600, 1800]) {
            assert_eq!((&row["link"], &row["messages"]), (&"daemon".into(), &messages.into()), "{command}");
            assert!(row["bytes_verified"].as_u64() >= Some(1 << 19), "{command}: {row}");
            assert!(row["busy"].is_null() && row["retransmits"].is_null(), "the daemon's: {row}");
        }
    }
    let rows = bandwidth("send-bw", 300, &["-s", "8k", "-b", "--link", "daemon"]);
    assert_eq!(rows[0]["messages"], 600);
    for command in ["write-lat", "read-lat", "send-lat"] {
        let report = bench(&[command, "-n", "200", "-D", "0.2", "-s", "64", "--link", "daemon"]);
        assert_eq!(report["rows"][0]["histogram"]["samples"], 200);
    }
}

#[test]
fn both_ends_take_turns_for_a_profiler() {
    let alone = bench(&["fpdus", "-n", "300", "-s", "64", "-t", "1"]);
    assert_eq!(alone["rows"][0]["fpdus"], 300, "{alone}");
    let report = bench(&["fpdus", "-n", "300", "-s", "4k"]);
    let row = &report["rows"][0];
    // Segments of 1428 bytes of payload: three for each message.
    assert_eq!(row["fpdus"], 900, "{row}");
    assert!(number(&row["initiator_ns"]) > 0.0 && number(&row["target_ns"]) > 0.0, "{row}");
}

#[test]
fn small_messages_inline_or_not() {
    for inline in ["0", "64"] {
        let rows = bandwidth("msg-rate", 50_000, &["-I", inline]);
        let sizes: Vec<u64> = rows.iter().map(|row| row["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [8, 64, 8, 64]);
    }
}

#[test]
fn round_trips_are_counted_and_logged() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("lat.hlog");
    for command in ["write-lat", "read-lat", "send-lat"] {
        let report =
            bench(&[command, "-n", "200", "-D", "0.2", "-s", "64,3k", "--hdr", log.to_str().unwrap()]);
        for row in report["rows"].as_array().unwrap() {
            let numbers = &row["histogram"];
            assert_eq!(numbers["samples"], 200);
            let order = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "max_ns"]
                .map(|name| number(&numbers[name]));
            assert!(order.is_sorted() && order[0] > 0.0, "{numbers}");
        }
        let floor = &report["floor"][0];
        let order = ["min_ns", "p50_ns", "p99_ns", "p99_9_ns"].map(|name| number(&floor[name]));
        assert!(order.is_sorted() && order[0] > 0.0 && number(&floor["samples"]) > 0.0, "{floor}");
        let log = std::fs::read_to_string(&log).unwrap();
        let name = command.trim_end_matches("-lat");
        assert!(log.contains(&format!("Tag={name}-64-mtu1500,")), "{log}");
    }
}

#[test]
fn an_open_loop_counts_the_wait_of_those_that_should_have_begun() {
    // A round trip each nanosecond: all but the first begin late, each later than the one before.
    let report = bench(&["write-lat", "-n", "500", "-D", "0.2", "-s", "64", "--rate", "1e9"]);
    let open = number(&report["rows"][0]["histogram"]["max_ns"]);
    let closed = bench(&["write-lat", "-n", "500", "-D", "0.2", "-s", "64"]);
    let mean = number(&closed["rows"][0]["histogram"]["p50_ns"]);
    assert!(open > 100.0 * mean, "{open} ns is not the wait of 500 round trips of {mean} ns");
}

#[test]
fn a_bad_wire_loses_and_overtakes_and_everything_arrives() {
    let report = bench(&["lossy", "-n", "100", "--runs", "1", "--no-peer", "--congestion", "newreno"]);
    assert_eq!((&report["congestion"], &report["peer"]), (&"newreno".into(), &Value::Array(Vec::new())));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12);
    for row in rows {
        let number_of = |name: &str| number(&row["weather"][name]);
        let (loss, reorder, bursts) = (number_of("loss"), number_of("reorder"), number_of("bursts"));
        let placed_early = number(&row["early_per_byte"]);
        assert!(number(&row["gbps"]) > 0.0, "{row}");
        let disorder = loss + reorder > 0.0 && row["out_of_order_placement"] == true;
        // So few frames may see no burst.
        assert!(bursts > 0.0 || (placed_early > 0.0) == disorder, "{row}");
        if loss > 0.005 {
            assert!(number(&row["retransmitted_per_byte"]) > 0.0, "{row}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["write-bw", "--cores", "0,5000", "-s", "64"][..], "5000"),
        (&["write-bw", "-s", "2M", "--no-roofline"], "too small"),
        (&["write-lat", "-s", "2M"], "does not fit"),
        (&["write-bw", "-m", "99"], "mtu"),
        (&["write-bw", "-m", "9000", "--link", "memif"], "MTU 9000 is out of range: net_memif does"),
        (&["lossy", "--link", "memif"], "takes rings"),
        (&["lossy", "--congestion", "vegas"], "vegas"),
        (&["fpdus", "--link", "memif"], "takes rings"),
    ] {
        let command = Command::new(env!("CARGO_BIN_EXE_iwarp-bench")).args(arguments).args(SMALL).output();
        let output = command.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(reason), "{arguments:?}: {errors}");
    }
}
