//! Builds the C program of docs/region-service.md by the command in that document.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

#[test]
fn the_client_is_built_as_the_document_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = std::fs::read_to_string(root.join("docs/region-service.md")).unwrap();
    let lines = document.lines().skip_while(|line| !line.starts_with("gcc "));
    // A backslash continues the command on the next line.
    let last = lines.clone().position(|line| !line.ends_with('\\')).unwrap();
    let command = lines.take(last + 1).collect::<Vec<_>>().join("\n");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("iwclient");
    assert!(command.contains(" -o iwclient "), "{command}");
    let command = command.replace(" -o iwclient ", &format!(" -o {} ", program.display()));
    let built = Command::new("bash").args(["-c", &command]).current_dir(root).output().unwrap();
    assert!(built.status.success(), "{command}: {}", String::from_utf8_lossy(&built.stderr));
    // Without options it prints its usage.
    assert_eq!(Command::new(program).output().unwrap().status.code(), Some(2));
}
