//! Checks the proofs that documents name: scripts, and tests by file and name.

use std::path::{Path, PathBuf};

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the text of a file.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Iterates over the names between backticks.
pub(crate) fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns true if `text` has a test of that name.
fn has_test(text: &str, name: &str) -> bool {
    text.match_indices(&format!("fn {name}(")).any(|(at, _)| {
        let attributes = text[..at].lines().rev().map(str::trim);
        let mut attributes =
            attributes.skip_while(|line| line.is_empty()).take_while(|line| line.starts_with(['#', '/']));
        attributes.any(|line| line == "#[test]")
    })
}

/// Fails, with the reason, if the proof of this name does not exist.
pub(crate) fn check(name: &str) -> Result<(), String> {
    let tcp_stack = repository().join("tcp-stack");
    if name.ends_with(".pkt") {
        let exists = tcp_stack.join("tests/scripts").join(name).is_file();
        return if exists { Ok(()) } else { Err(format!("there is no script {name}")) };
    }
    let Some((file, test)) = name.split_once("::").filter(|(file, _)| file.ends_with(".rs")) else {
        // A file alone proves nothing; any other name is part of the interface.
        return if name.contains(".rs") { Err(format!("{name} is no test")) } else { Ok(()) };
    };
    let path = tcp_stack.join(file);
    if !path.is_file() {
        return Err(format!("there is no file {file}"));
    }
    if has_test(&read(&path), test) { Ok(()) } else { Err(format!("{file} has no test {test}")) }
}
