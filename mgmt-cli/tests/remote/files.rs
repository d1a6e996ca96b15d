//! Several files in one `put` or `get`: one behind the other.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::responder::{LAB, Manner, Responder};
use crate::{names, noise, place, put_piped, remote, text};

#[test]
fn several_files_stand_one_behind_the_other() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(3_000_000);
    // The second one ends in the middle of a Write, the third one is empty.
    let (a, rest) = bytes.split_at(1_234_567);
    let paths = [("a", a), ("b", &rest[..100]), ("c", &[]), ("d", &rest[100..])].map(|(name, content)| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    });
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| text(&paths[at]));
    let target = place(responder.address, "lab+5");
    let report = remote(&["put", a, b, c, d, &target, "--verify"]).json();
    assert_eq!((&report["bytes"], &report["verified"]), (&json!(3_000_000), &json!(true)));
    let file = |file: &str, offset: u64, bytes: u64| json!({"file": file, "offset": offset, "bytes": bytes});
    let files = json!([
        file(a, 5, 1_234_567),
        file(b, 1_234_572, 100),
        file(c, 1_234_672, 0),
        file(d, 1_234_672, 1_765_333)
    ]);
    assert_eq!(report["files"], files);
    assert!(responder.lab()[5..][..3_000_000] == bytes);

    let got = ["w", "x", "y", "z"].map(|name| dir.path().join(name));
    let [w, x, y, z] = [0, 1, 2, 3].map(|at| text(&got[at]));
    let lengths = "1234567,100,0,1765333";
    let report = remote(&["get", &target, w, x, y, z, "--length", lengths]).json();
    assert_eq!((&report["bytes"], &report["files"][3]), (&json!(3_000_000), &file(z, 1_234_672, 1_765_333)));
    for (sent, got) in paths.iter().zip(&got) {
        assert!(fs::read(sent).unwrap() == fs::read(got).unwrap(), "{}", got.display());
    }
}

#[test]
fn the_last_file_takes_the_rest_of_the_region() {
    let responder = Responder::start(Manner::Honest);
    let bytes = noise(LAB);
    responder.fill_lab(&bytes);
    let dir = tempfile::tempdir().unwrap();
    let (head, tail) = (dir.path().join("head"), dir.path().join("tail"));
    let target = place(responder.address, "lab+8000000");
    let report = remote(&["get", &target, text(&head), text(&tail), "--length", "1k"]).json();
    assert_eq!(report["bytes"], json!(LAB - 8_000_000));
    assert!(fs::read(&head).unwrap() == bytes[8_000_000..8_001_024]);
    assert!(fs::read(&tail).unwrap() == bytes[8_001_024..]);
}

#[test]
fn all_files_appear_or_none() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let target = place(responder.address, "lab-ro");
    for (lengths, kind) in [("4096,1", "out_of_bounds"), ("4097", "out_of_bounds"), ("1,1,1", "usage")] {
        let run = remote(&["get", &target, text(&a), text(&b), "--length", lengths]);
        assert_eq!(run.kind(), kind, "{lengths}");
        assert_eq!(names(dir.path()), [""; 0], "{lengths}");
    }
    assert_eq!(remote(&["get", &target, text(&a), text(&b)]).kind(), "usage");
    let run = remote(&["get", &target, text(&a), "/nonexistent/file", "--length", "1,1"]);
    assert_eq!((run.kind().as_str(), names(dir.path()).len()), ("file", 0));
}

#[test]
fn files_that_do_not_fit_are_not_written() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, noise(2049)).unwrap();
    let target = place(responder.address, "lab-wo");
    let run = remote(&["put", text(&file), text(&file), &target]);
    assert_eq!((run.code, run.kind().as_str()), (1, "out_of_bounds"));
    assert_eq!(responder.shared.lock().unwrap().stats.rdmap.payload_bytes_placed, 0);
    assert_eq!(remote(&["put", text(&file), "/nonexistent", &target]).kind(), "file");
}

#[test]
fn a_pipe_may_be_the_last_of_several() {
    let responder = Responder::start(Manner::Honest);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, noise(1000)).unwrap();
    let target = place(responder.address, "lab");
    let report = put_piped(&[text(&file), "-", &target], b"and a pipe").json();
    assert_eq!(report["files"][1], json!({"file": "-", "offset": 1000, "bytes": 10}));
    assert_eq!(responder.lab()[1000..1010], *b"and a pipe");
    let run = put_piped(&["-", text(&file), &target], b"x");
    assert_eq!((run.code, run.kind().as_str()), (2, "usage"), "{}", run.stderr);
    // The files fill the region but for four bytes.
    let run = put_piped(&[text(&file), "-", &place(responder.address, "lab-wo+3092")], b"12345");
    assert_eq!((run.code, run.kind().as_str()), (1, "out_of_bounds"));
    assert!(run.error()["message"].as_str().unwrap().contains("the 1004 bytes of region"), "{}", run.stderr);
}

#[test]
fn nothing_is_a_transfer_too() {
    let responder = Responder::start(Manner::Honest);
    let target = place(responder.address, "lab");
    let nothing = Path::new("/dev/null");
    assert_eq!(remote(&["put", text(nothing), &target]).json()["bytes"], 0);
    let report = put_piped(&["-", &target], b"").json();
    assert_eq!((&report["bytes"], &report["files"][0]["bytes"]), (&json!(0), &json!(0)));
}
