//! The shared object exports every symbol of Debian's libibverbs and librdmacm, with its version.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may end their process")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Returns the symbols that a library exports, as `name@@VERSION`, without the names of the versions.
fn exports(library: &Path) -> BTreeSet<String> {
    let list =
        output(Command::new("nm").args(["-D", "--with-symbol-versions", "--defined-only"]).arg(library));
    let symbols = list.lines().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, kind, symbol] if kind != "A" => Some(symbol.to_owned()),
        _ => None,
    });
    symbols.collect()
}

/// Returns the file of an installed library.
fn installed(name: &str) -> PathBuf {
    let list = output(Command::new("/sbin/ldconfig").arg("-p"));
    let file = list
        .lines()
        .find(|line| line.trim_start().starts_with(name))
        .and_then(|line| line.split(" => ").nth(1));
    file.unwrap_or_else(|| panic!("{name} is not installed")).into()
}

/// Returns the static library that was built last: tests have it in the folder of their programs.
fn static_library(folder: &Path) -> PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let built = files.filter(|file| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libiwarp_drop_in") && name.ends_with(".a")
    });
    built.max_by_key(|file| file.metadata().unwrap().modified().unwrap()).unwrap()
}

#[test]
fn every_symbol_of_the_installed_libraries_exists_with_its_version() {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap();
    let folder = built.join(format!("drop-in-{}", std::process::id()));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("link.sh");
    output(Command::new(script).arg(static_library(built)).arg(&folder));
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let (theirs, ours) = (exports(&installed(name)), exports(&folder.join(name)));
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(theirs.len() > 60, "{theirs:?}");
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
