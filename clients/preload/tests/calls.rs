//! Calls with paths of a program in C, under the preload library.

#![allow(clippy::unwrap_used, reason = "tests may end their process")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns an empty folder of this test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the library, which Cargo has built in the folder of the tests.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("librspreload.so")
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
    output
}

#[test]
fn every_call_with_a_path_sees_the_files_of_a_device() {
    let folder = scratch("calls");
    let (device, nodes) =
        (folder.join("sys/class/iwarp0dev/infiniband/iwarp0"), folder.join("dev/infiniband"));
    for folder in [&device, &nodes, &folder.join("sys/class/infiniband")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(device.join("node_type"), "1: CA\n").unwrap();
    symlink("../iwarp0dev/infiniband/iwarp0", folder.join("sys/class/infiniband/iwarp0")).unwrap();
    symlink("/dev/null", nodes.join("uverbs0")).unwrap();

    let program = folder.join("calls");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls.c");
    done(Command::new("cc").args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source));
    let mut command = Command::new(&program);
    command.arg(&folder).env("LD_PRELOAD", library()).env("IWARP_PRELOAD_PEERS", "");
    assert_eq!(done(command.env("IWARP_PRELOAD_FILES", &folder)).stdout, b"right\n");

    // Without the folder, all paths are the system's.
    let output = command.env_remove("IWARP_PRELOAD_FILES").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let has_devices = Path::new("/sys/class/infiniband/iwarp0").exists();
    assert!(has_devices || said.contains("is_type(open(TYPE, O_RDONLY))"), "{said}");
    assert!(!said.contains("allocations"), "{said}");
    fs::remove_dir_all(&folder).unwrap();
}
