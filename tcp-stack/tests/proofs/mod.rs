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

/// Whether `text` has a test of that name.
fn has_test(text: &str, name: &str) -> bool {
    text.match_indices(&format!("fn {name}(")).any(|(at, _)| {
        let attributes = text[..at].lines().rev().map(str::trim);
        let mut attributes =
            attributes.skip_while(|line| line.is_empty()).take_while(|line| line.starts_with(['#', '/']));
        attributes.any(|line| line == "#[test]")
    })
}

/// What is wrong with the name of a proof.
pub(crate) fn check(name: &str) -> Result<(), String> {
    let tcp_stack = repository().join("tcp-stack");
    if name.ends_with(".pkt") {
        let exists = tcp_stack.join("tests/scripts").join(name).is_file();
        return if exists { Ok(()) } else { Err(format!("there is no script {name}")) };
    }
    let Some((file, test)) = name.split_once("::").filter(|(file, _)| file.ends_with(".rs")) else {
        // A file proves nothing; what is none is a word of the interface.
        return if name.contains(".rs") { Err(format!("{name} is no test")) } else { Ok(()) };
    };
    let path = tcp_stack.join(file);
    if !path.is_file() {
        return Err(format!("there is no file {file}"));
    }
    if has_test(&read(&path), test) { Ok(()) } else { Err(format!("{file} has no test {test}")) }
}
