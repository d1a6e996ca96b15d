//! Peers that do as they should.

use std::fs;

use serde_json::json;

use crate::responder::{LAB, LAB_ID, Manner, Responder, TOKEN};
use crate::{names, noise, place, put_piped, remote, text};

#[test]
fn what_was_put_is_there_and_can_be_got() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let (sent, got) = (dir.path().join("sent"), dir.path().join("got"));
    let bytes = noise(LAB - 4321);
    fs::write(&sent, &bytes).unwrap();
    let target = place(responder.address, "lab+4321");
    let report = remote(&["put", text(&sent), &target]).json();
    assert_eq!(
        (&report["operation"], &report["bytes"], &report["offset"]),
        (&json!("put"), &json!(bytes.len()), &json!(4321))
    );
    assert_eq!(
        (&report["crc"], &report["mpa_revision"], &report["region"]),
        (&json!(true), &json!(2), &json!("lab"))
    );
    assert!(report["bytes_per_second"].as_u64().unwrap() > 0);
    let lab = responder.lab();
    assert!(lab[..4321].iter().all(|byte| *byte == 0) && lab[4321..] == bytes);

    let report = remote(&["get", &target, text(&got), "--length", &bytes.len().to_string()]).json();
    assert_eq!((&report["operation"], &report["bytes"]), (&json!("get"), &json!(bytes.len())));
    assert!(fs::read(&got).unwrap() == bytes);
    assert_eq!(names(dir.path()), ["got", "sent"]);
}

#[test]
fn every_length_and_way() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let (sent, got) = (dir.path().join("sent"), dir.path().join("got"));
    for length in [0, 1, 3, 1427, 1428, 1429, 65_536, (512 << 10) + 1] {
        for options in [&[][..], &["--crc", "off"], &["--mpa-revision", "1"]] {
            let bytes = noise(length);
            fs::write(&sent, &bytes).unwrap();
            let target = place(responder.address, "lab+7");
            let run = remote(&[&["put", text(&sent), &target], options].concat());
            assert_eq!(run.code, 0, "{length} {options:?}: {}", run.stderr);
            assert_eq!(responder.lab()[7..7 + length], bytes, "{length} {options:?}");
            let length = length.to_string();
            let report =
                remote(&[&["get", &target, text(&got), "--length", &length], options].concat()).json();
            assert_eq!(fs::read(&got).unwrap(), bytes, "{length} {options:?}");
            assert_eq!(report["crc"], !options.contains(&"off"));
            assert_eq!(report["mpa_revision"], if options.contains(&"1") { 1 } else { 2 });
        }
    }
}

#[test]
fn get_without_a_length_reads_to_the_end() {
    let responder = Responder::start(Manner::Honest);
    let bytes = noise(LAB);
    responder.fill_lab(&bytes);
    let dir = tempfile::tempdir().unwrap();
    let got = dir.path().join("got");
    fs::write(&got, b"what was there before").unwrap();
    remote(&["get", &place(responder.address, "lab+8000000"), text(&got)]).json();
    assert!(fs::read(&got).unwrap() == bytes[8_000_000..]);
}

#[test]
fn verify_reads_back() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let sent = dir.path().join("sent");
    fs::write(&sent, noise(3 << 20)).unwrap();
    let report = remote(&["put", text(&sent), &place(responder.address, "lab"), "--verify"]).json();
    assert_eq!(report["verified"], true);
    assert_eq!(remote(&["put", text(&sent), &place(responder.address, "lab-wo"), "--verify"]).code, 5);
}

#[test]
fn rights_and_tokens() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let (file, token) = (dir.path().join("file"), dir.path().join("token"));
    fs::write(&file, noise(4096)).unwrap();
    fs::write(&token, TOKEN).unwrap();
    let secret = place(responder.address, "secret");
    assert_eq!(remote(&["put", text(&file), &secret]).kind(), "not_permitted");
    assert_eq!(remote(&["put", text(&file), &secret, "--token-file", text(&token)]).code, 0);
    fs::write(&token, "wrong").unwrap();
    assert_eq!(remote(&["put", text(&file), &secret, "--token-file", text(&token)]).code, 5);
    assert_eq!(remote(&["put", text(&file), &place(responder.address, "lab-ro")]).code, 5);
    assert_eq!(remote(&["put", text(&file), &place(responder.address, "lab-wo")]).code, 0);
    assert_eq!(remote(&["ping", &place(responder.address, "lab-wo")]).code, 5);
    assert_eq!(remote(&["ping", &place(responder.address, "elsewhere")]).kind(), "not_permitted");
}

#[test]
fn ping_counts_round_trips() {
    let responder = Responder::start(Manner::Honest);
    let report =
        remote(&["ping", &place(responder.address, "lab-ro+96"), "-c", "50", "--size", "4000"]).json();
    assert_eq!((&report["count"], &report["bytes"]), (&json!(50), &json!(4000)));
    let times: Vec<u64> = ["min_ns", "median_ns", "p99_ns", "max_ns"]
        .iter()
        .map(|name| report[name].as_u64().unwrap())
        .collect();
    assert!(times.is_sorted() && times[0] > 1000, "{times:?}");
    let shared = responder.shared.lock().unwrap();
    assert_eq!(shared.stats.rdmap.in_rdma_reads, 50);
    assert_eq!(shared.memory.bytes(LAB_ID).unwrap().len(), LAB);
}

#[test]
fn an_ipv6_peer() {
    let responder = Responder::start_at("[::1]:0", Manner::Honest);
    let report = remote(&["ping", &place(responder.address, "lab"), "-c", "3", "--size", "0"]).json();
    assert_eq!(report["peer"], responder.address.to_string());
}

#[test]
fn an_ipv6_peer_with_a_zone() {
    let responder = Responder::start_at("[::1]:0", Manner::Honest);
    let target = format!("[::1%1]:{}/lab", responder.address.port());
    let report = remote(&["ping", &target, "-c", "1"]).json();
    assert_eq!(report["peer"], format!("[::1%1]:{}", responder.address.port()));
}

#[test]
fn text_for_people() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, noise(1 << 20)).unwrap();
    let run = |arguments: &[&str]| {
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_iwarpctl")).args(arguments).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        String::from_utf8(output.stdout).unwrap()
    };
    let target = place(responder.address, "lab");
    let shown = run(&["remote", "put", text(&file), &target]);
    assert!(
        shown.starts_with(&format!("put 1 MiB to {target}+0 in ")) && shown.ends_with(", placed\n"),
        "{shown}"
    );
    let shown = run(&["remote", "ping", &target, "-c", "10"]);
    assert!(shown.starts_with(&format!("ping {target}+0: 10 reads of 8 B\nmin ")), "{shown}");
}

#[test]
fn get_to_stdout_writes_the_bytes_and_nothing_else() {
    let responder = Responder::start(Manner::Honest);
    let bytes = noise(100_000);
    responder.fill_lab(&bytes);
    let target = place(responder.address, "lab");
    for name in ["-", "/dev/stdout"] {
        for options in [&[][..], &["--json"]] {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_iwarpctl"))
                .args([&["remote", "get", &target, name, "--length", "100000"], options].concat())
                .output()
                .unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{name} {options:?}");
            assert!(output.stdout == bytes, "{name} {options:?}: {} bytes", output.stdout.len());
        }
    }
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn names_may_have_what_addresses_have() {
    let responder = Responder::start(Manner::Honest);
    for region in ["a/b+c", "a/b+c+0", "a/b+c+1k"] {
        assert_eq!(remote(&["ping", &place(responder.address, region), "-c", "1"]).code, 0, "{region}");
    }
    assert_eq!(remote(&["ping", &place(responder.address, "a/b+1"), "-c", "1"]).kind(), "no_such_object");
}

#[test]
fn a_pipe_can_be_put() {
    for length in [0, 1, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, 3_000_001, LAB] {
        let responder = Responder::start(Manner::Honest);
        let bytes = noise(length);
        let target = place(responder.address, "lab");
        for name in ["-", "/dev/stdin"] {
            responder.fill_lab(&vec![0; LAB]);
            let report = put_piped(&[name, &target], &bytes).json();
            assert_eq!(report["bytes"], json!(length), "{name}");
            assert!(responder.lab()[..length] == bytes, "{name} {length}");
            assert!(responder.lab()[length..].iter().all(|byte| *byte == 0), "{name} {length}");
        }
    }
}

#[test]
fn a_named_pipe_can_be_put() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let bytes = noise(1_000_000);
    let (path, content) = (fifo.clone(), bytes.clone());
    let writer = std::thread::spawn(move || fs::write(path, content).unwrap());
    let report = remote(&["put", text(&fifo), &place(responder.address, "lab+7")]).json();
    writer.join().unwrap();
    assert_eq!((&report["bytes"], &report["offset"]), (&json!(bytes.len()), &json!(7)));
    assert!(responder.lab()[7..][..bytes.len()] == bytes);
}

#[test]
fn a_stream_that_does_not_fit_is_told() {
    let responder = Responder::start(Manner::Honest);
    let target = place(responder.address, "lab-wo");
    assert_eq!(put_piped(&["-", &target], &noise(4096)).code, 0);
    for length in [4097, 1_000_000] {
        let run = put_piped(&["-", &target], &noise(length));
        assert_eq!((run.code, run.kind().as_str()), (1, "out_of_bounds"), "{}", run.stderr);
    }
    let run = put_piped(&["-", &place(responder.address, "lab"), "--verify"], b"x");
    assert_eq!((run.code, run.kind().as_str()), (2, "usage"), "{}", run.stderr);
}

#[test]
fn a_name_that_ends_like_an_offset_is_explained() {
    let responder = Responder::start(Manner::Honest);
    let error = remote(&["ping", &place(responder.address, "x+4k"), "-c", "1"]).error();
    assert_eq!(error["kind"], "no_such_object");
    assert!(error["help"].as_str().unwrap().contains("write +0 behind it"), "{error}");
}

/// Runs a command on a terminal (`script` provides it for stdout and stderr) and returns its output.
fn at_a_terminal(arguments: &[&str]) -> String {
    let command = [&[env!("CARGO_BIN_EXE_iwarpctl"), "remote"], arguments].concat().join(" ");
    let output = std::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm")
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn progress_is_for_people() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let (sent, got) = (dir.path().join("sent"), dir.path().join("got"));
    fs::write(&sent, noise(LAB)).unwrap();
    let target = place(responder.address, "lab");
    for (arguments, bar) in [
        (&["put", text(&sent), &target, "--verify"][..], &["put [", "verify ["][..]),
        (&["get", &target, text(&got)], &["get ["]),
        (&["ping", &target], &["ping ["]),
    ] {
        let seen = at_a_terminal(arguments);
        assert!(bar.iter().all(|bar| seen.contains(bar)), "{seen}");
        // One unit for a rate, under way and in the result.
        assert!(!seen.contains("iB/s"), "{seen}");
        let seen = at_a_terminal(&[arguments, &["--json"]].concat());
        assert!(!seen.contains(" ["), "{seen}");
    }
}
