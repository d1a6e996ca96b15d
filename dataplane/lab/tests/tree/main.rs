//! Tests that judge the whole tree; they compile without DPDK.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod commands;
mod language;
mod tidy;
mod unsafe_list;

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of build products, which are not ours to judge and missing in a fresh clone.
const BUILT: &str = "target";

/// Returns the folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the folder of the repository exists")
}

/// Returns every file below the root with one of these extensions: path from the root, and text.
fn files(extensions: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
                if !hidden && name != BUILT {
                    folders.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted))
            {
                let from_root = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                found.push((from_root, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no file with extension {extensions:?} below {}", root.display());
    found.sort();
    found
}

/// Fails with the list of all offences.
fn assert_none(offences: &[String]) {
    assert!(offences.is_empty(), "{} offences:\n{}", offences.len(), offences.join("\n"));
}
