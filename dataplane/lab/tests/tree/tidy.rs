//! Checks the whole tree: short files and functions, nothing left for later, and documents with valid links and
//! configurations.

use std::fs;
use std::path::Path;

use super::{BUILT, assert_none, files, root};

/// Most lines of a source file.
const FILE_LINES_MAX: usize = 600;
/// Most lines of a function, from `fn` to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Files that may be longer. This list only shrinks.
const LONG_FILES: &[&str] = &[];
/// Functions that may be longer, as `path:name`. This list only shrinks.
const LONG_FUNCTIONS: &[&str] = &[];

/// Marks of unfinished work, spelt so that this file does not match.
const LEFT_FOR_LATER: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
];
/// Attribute of a test that is not run, spelt in the same way.
const NOT_RUN: &str = concat!("#[ig", "nore");

/// Returns the length of the literal or comment at the start of `text`, if there is one.
fn opaque_len(text: &[u8]) -> Option<usize> {
    let until = |from: usize, end: &[u8]| {
        let rest = text.get(from..).unwrap_or_default();
        rest.windows(end.len()).position(|at| at == end).map_or(text.len(), |at| from + at + end.len())
    };
    match text {
        [b'/', b'/', ..] => Some(text.iter().position(|letter| *letter == b'\n').unwrap_or(text.len())),
        [b'/', b'*', ..] => Some(until(2, b"*/")),
        [b'r', b'"' | b'#', ..] => {
            let hashes = text[1..].iter().take_while(|letter| **letter == b'#').count();
            let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
            (text.get(1 + hashes) == Some(&b'"')).then(|| until(2 + hashes, &end))
        }
        [b'"', rest @ ..] => {
            let mut escaped = false;
            let end = rest.iter().position(|letter| {
                let ends = *letter == b'"' && !escaped;
                escaped = *letter == b'\\' && !escaped;
                ends
            });
            Some(end.map_or(text.len(), |at| at + 2))
        }
        // A character literal, not a lifetime.
        [b'\'', b'\\', _, ..] => Some(until(3, b"'")),
        [b'\'', _, b'\'', ..] => Some(3),
        _ => None,
    }
}

/// Returns the source with literals and comments blanked out, line by line.
fn code_of(source: &str) -> String {
    let (mut code, mut rest) = (String::with_capacity(source.len()), source.as_bytes());
    while !rest.is_empty() {
        let opaque = opaque_len(rest);
        let len = opaque.unwrap_or(1).min(rest.len());
        for byte in &rest[..len] {
            let kept = if *byte == b'\n' || opaque.is_none() { char::from(*byte) } else { ' ' };
            code.push(kept);
        }
        rest = &rest[len..];
    }
    code
}

/// Returns name, first line and number of lines of every function with a body.
fn functions(source: &str) -> Vec<(String, usize, usize)> {
    let code = code_of(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word =
            code[..at].chars().next_back().is_none_or(|letter| !(letter.is_alphanumeric() || letter == '_'));
        let name: String =
            code[at + 3..].chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        if !starts_word || name.is_empty() {
            continue;
        }
        let (mut nested, mut braces, mut end) = (0_i32, 0_i32, None);
        for (offset, letter) in code[at..].char_indices() {
            match letter {
                '(' | '[' => nested += 1,
                ')' | ']' => nested -= 1,
                '{' => braces += 1,
                '}' => braces -= 1,
                // A function without a body, or of a trait.
                ';' if nested == 0 && braces == 0 => break,
                _ => continue,
            }
            if letter == '}' && braces == 0 && nested == 0 {
                end = Some(at + offset);
                break;
            }
        }
        if let Some(end) = end {
            let line = |at: usize| code[..at].matches('\n').count() + 1;
            found.push((name, line(at), line(end) - line(at) + 1));
        }
    }
    found
}

#[test]
fn the_scanner_sees_functions_and_nothing_else() {
    let source = r##"
        fn one() { let _ = "} fn no() {"; let _ = '}'; let _: &'static str = r#"" } "#; }
        // fn comment() {}
        trait T { fn bodiless(&self) -> [u8; 4]; fn two<const N: usize>(x: [u8; 2])
            where T: Sized
        { /* } */ let _ = b'{'; let _ = '\''; } }
        const F: fn(u8) = no; fn r#three() {}
    "##;
    let names = functions(source);
    let expected = [("one", 2, 1), ("two", 4, 3)];
    for (name, line, lines) in expected {
        assert!(names.contains(&(name.to_owned(), line, lines)), "{name} is not in {names:?}");
    }
    assert!(
        !names.iter().any(|(name, ..)| ["no", "comment", "bodiless"].contains(&name.as_str())),
        "{names:?}"
    );
}

#[test]
fn files_are_short() {
    let mut offences = Vec::new();
    for (path, text) in files(&["rs", "sh", "py", "c", "h"]) {
        let lines = text.lines().count();
        let excepted = LONG_FILES.contains(&path.as_str());
        if lines > FILE_LINES_MAX && !excepted {
            offences.push(format!("{path}: {lines} lines, {FILE_LINES_MAX} at most"));
        } else if lines <= FILE_LINES_MAX && excepted {
            offences.push(format!("{path} is short now: take it from the list of exceptions"));
        }
    }
    assert_none(&offences);
}

#[test]
fn functions_are_short() {
    let (mut offences, mut long) = (Vec::new(), Vec::new());
    let mut count = 0;
    for (path, text) in files(&["rs"]) {
        for (name, line, lines) in functions(&text) {
            count += 1;
            if lines > FUNCTION_LINES_MAX {
                let name = format!("{path}:{name}");
                if !LONG_FUNCTIONS.contains(&name.as_str()) {
                    offences
                        .push(format!("{name}, line {line}: {lines} lines, {FUNCTION_LINES_MAX} at most"));
                }
                long.push(name);
            }
        }
    }
    let gone = LONG_FUNCTIONS.iter().filter(|known| !long.iter().any(|name| name == *known));
    offences.extend(gone.map(|name| format!("{name} is short now: take it from the list of exceptions")));
    assert!(count > 1000, "only {count} functions seen: the scanner is blind");
    assert_none(&offences);
}

/// Returns the folder of the crate that a file belongs to: the nearest with a manifest.
fn crate_of(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|folder| folder.join("Cargo.toml").exists())
}

/// A module that another crate needs belongs to a crate, behind the feature `testutil` if only tests need it.
#[test]
fn modules_lie_in_their_own_crate() {
    let (root, mut offences, mut seen) = (root(), Vec::new(), 0);
    // Spelt so that this file does not match.
    let attribute = concat!("#[pa", "th = \"");
    for (path, text) in files(&["rs"]) {
        let file = root.join(&path);
        for (number, line) in (1..).zip(text.lines()) {
            let Some(named) = line.trim().strip_prefix(attribute).and_then(|rest| rest.split('"').next())
            else {
                continue;
            };
            seen += 1;
            let module = file.parent().unwrap().join(named).canonicalize();
            if module.as_deref().ok().and_then(crate_of) != crate_of(&file) {
                offences.push(format!("{path}:{number}: {named} belongs to another crate"));
            }
        }
    }
    assert!(seen > 0, "no module names its file: the scanner is blind");
    assert_none(&offences);
}

#[test]
fn no_variable_is_a_pronoun() {
    let mut offences = Vec::new();
    for (path, text) in files(&["rs"]) {
        for (number, line) in (1..).zip(code_of(&text).lines()) {
            let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            if words.any(|word| word == "it") {
                offences.push(format!("{path}:{number}: a variable has the name of what it holds, not `it`"));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn nothing_is_left_for_later() {
    let mut offences = Vec::new();
    for (path, text) in files(&["rs", "sh", "py", "c", "h", "toml", "md"]) {
        for (number, line) in (1..).zip(text.lines()) {
            let word = |word: &str| {
                line.match_indices(word).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    let after = line[at + word.len()..].chars().next();
                    let joined = |letter: Option<char>| {
                        letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
                    };
                    !joined(before) && !joined(after)
                })
            };
            offences.extend(
                LEFT_FOR_LATER
                    .iter()
                    .filter(|mark| word(mark))
                    .map(|mark| format!("{path}:{number}: {mark}")),
            );
            if path.ends_with(".rs") && line.contains(NOT_RUN) {
                offences.push(format!("{path}:{number}: a test that is not run"));
            }
        }
    }
    assert_none(&offences);
}

/// Returns the fenced blocks of a Markdown text: first line, language, content.
fn fenced_blocks(text: &str) -> Vec<(usize, String, String)> {
    let (mut blocks, mut open): (Vec<_>, Option<(usize, String, String)>) = (Vec::new(), None);
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => open = Some((number, info.trim().to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, _, body)), None) => {
                body.push_str(line);
                body.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the Markdown text without its fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let kept = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Returns the texts between `open` and `close`.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inner, _)| inner)
}

#[test]
fn configurations_in_documents_are_configurations() {
    let (mut offences, mut seen) = (Vec::new(), 0);
    for (path, text) in files(&["md"]) {
        for (line, info, body) in fenced_blocks(&text) {
            if info != "toml" {
                continue;
            }
            seen += 1;
            let name = format!("{path}:{line}");
            if body.contains("[[export]]") {
                // A fragment must be valid in a configuration with an address.
                let listen = "\n[rdma]\nlisten = \"10.0.0.2:20049\"\n";
                let whole = if body.contains("[rdma]") { body } else { body + listen };
                if let Err(errors) = iwarp_config::Nfsd::parse(&name, &whole) {
                    offences.push(format!("{name}: {}", errors.short()));
                }
                continue;
            }
            // A fragment must be valid in a configuration with a port.
            let port = "\n[[port]]\ndriver = \"tap\"\ninterface = \"iw0\"\naddresses = [\"10.77.0.2/24\"]\n";
            let whole = if body.contains("[[port]]") { body } else { body + port };
            if let Err(errors) = iwarp_config::Config::parse(&name, &whole) {
                offences.push(format!("{name}: {}", errors.short()));
            }
        }
    }
    assert!(seen > 0, "no document shows a configuration");
    assert_none(&offences);
}

#[test]
fn links_and_paths_in_documents_lead_somewhere() {
    let (root, mut offences, mut seen) = (root(), Vec::new(), 0);
    for (path, text) in files(&["md"]) {
        let folder = root.join(&path).parent().unwrap().to_path_buf();
        let text = prose(&text);
        for link in between(&text, "](", ')') {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            seen += 1;
            if !folder.join(target).exists() {
                offences.push(format!("{path}: the link {link}"));
            }
        }
        // `dataplane/src/main.rs` and the like: a name that begins with a folder of ours and has an extension.
        for name in text.split('`').skip(1).step_by(2) {
            let top = name.split('/').next().unwrap_or_default();
            let ours = name.contains('/') && !top.is_empty() && top != BUILT && root.join(top).is_dir();
            if ours && Path::new(name).extension().is_some() && !name.contains([' ', '*', '{', '<']) {
                seen += 1;
                if !root.join(name).exists() {
                    offences.push(format!("{path}: the file `{name}`"));
                }
            }
        }
    }
    assert!(seen > 0, "no document names a file");
    assert_none(&offences);
}

/// A script with a trap of its own loses the exit status of its checks: `lab_open` sets the trap, and `AT_END` adds to
/// it.
#[test]
fn scripts_of_the_lab_leave_its_trap_alone() {
    let own_traps = |(path, text): &(String, String)| {
        let of_lab = text.contains("lab_open ") && !path.ends_with("/lib.sh");
        let traps = text.lines().any(|line| line.trim_start().starts_with("trap ") && line.contains("EXIT"));
        (of_lab && traps).then(|| path.clone())
    };
    assert_none(&files(&["sh"]).iter().filter_map(own_traps).collect::<Vec<_>>());
}

/// Returns the commands that a Markdown text shows for root's shell, in their order.
fn root_commands(text: &str) -> Vec<String> {
    let blocks = fenced_blocks(text).into_iter().map(|(_, _, body)| body).collect::<String>();
    blocks.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect()
}

/// The steps to install by hand activate what they install, and name the packages that the Debian package depends on.
#[test]
fn the_steps_to_install_by_hand_are_complete() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (document, control) = (read("docs/installing.md"), read("configs/debian/control"));
    let section = document.split_once("\n## By hand\n").and_then(|(_, rest)| rest.split("\n## ").next());
    let commands = root_commands(section.expect("a section says how to install by hand"));
    let (folder, command) = ("/etc/systemd/system/", "systemctl daemon-reload");
    let installed = commands.iter().rposition(|line| line.starts_with("install ") && line.ends_with(folder));
    let installed = installed.unwrap_or_else(|| panic!("nothing is installed in {folder}"));
    assert!(commands[installed..].iter().any(|line| line == command), "{command} behind {folder}");
    for file in commands.iter().flat_map(|line| line.split(' ')).filter(|word| word.starts_with("configs/")) {
        assert!(root().join(file).is_file(), "{file}");
    }
    let depends = control.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap();
    // Not `iwarpctl`, which is built here.
    let packages: Vec<&str> = depends.split([',', ' ']).filter(|name| name.starts_with("librte-")).collect();
    let install =
        commands.iter().find(|line| line.starts_with("apt-get install ")).expect("runtime packages");
    assert!(
        !packages.is_empty() && packages.iter().all(|name| install.contains(name)),
        "{install}: {packages:?}"
    );
}

/// Panics unwind: a program asks for its end.
#[test]
fn programs_abort_on_a_panic() {
    let starts = ["dataplane/src/main.rs", "apps/nfsd/src/main.rs"];
    let starts = starts.iter().chain(&["clients/iwarp-run/src/main.rs", "mgmt-cli/src/lib.rs"]);
    let starts = starts.chain(&["benches/src/main.rs", "dataplane/lab/src/main.rs"]);
    let unwinds = |path: &&&str| {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let body = text.split_once("fn main() -> ExitCode {\n").expect("a program starts in main").1;
        body.lines().next().map(str::trim) != Some("iwarp_terminal::abort_on_panic();")
    };
    assert_none(&starts.filter(unwinds).map(|path| (*path).to_owned()).collect::<Vec<_>>());
}
