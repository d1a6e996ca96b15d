//! What documents name as proofs: scripts, and tests by their file and name.

use std::path::{Path, PathBuf};

/// The root of the tree.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What is between backticks.
pub(crate) fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether `text` defines something of that name.
fn defines(text: &str, name: &str) -> bool {
    ["fn ", "const "].iter().any(|keyword| {
        text.match_indices(&format!("{keyword}{name}"))
            .any(|(at, found)| text[at + found.len()..].starts_with(['(', '<', ':']))
    })
}

/// What is wrong with the name of a proof.
pub(crate) fn check(name: &str) -> Result<(), String> {
    let tcp_stack = repository().join("tcp-stack");
    if name.ends_with(".pkt") {
        let exists = tcp_stack.join("tests/scripts").join(name).is_file();
        return if exists { Ok(()) } else { Err(format!("there is no script {name}")) };
    }
    let (file, item) = name.split_once("::").unwrap_or((name, ""));
    if !file.ends_with(".rs") {
        // A word of the interface.
        return Ok(());
    }
    let path = tcp_stack.join(file);
    if !path.is_file() {
        return Err(format!("there is no file {file}"));
    }
    let found = item.is_empty() || defines(&read(&path), item);
    if found { Ok(()) } else { Err(format!("{file} has no {item}")) }
}
