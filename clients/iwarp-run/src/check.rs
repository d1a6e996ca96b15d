//! `--check`: the symbols that a program imports from the two libraries, and copies of these that it comes with.

use std::path::{Path, PathBuf};

use iwarp_control::Exit;
use iwarp_terminal::{Failure, Output};
use serde::Serialize;

use crate::binary::{Binary, Bundled, LIBRARIES, find_bundled};

/// Symbols of the libraries, as the linker reads them.
const SYMBOLS: &str = include_str!("../../drop-in/symbols.txt");

/// State of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// The library has the function.
    Implemented,
    /// The function fails in its own convention.
    Stub,
    /// The program cannot start.
    Missing,
}

/// A symbol that a program imports.
#[derive(Debug, Serialize)]
struct Symbol {
    symbol: String,
    library: String,
    state: State,
    /// File that comes with the library, if that is not the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    bundled_by: Option<PathBuf>,
}

fn state(symbol: &str) -> State {
    // The version that is not the default is for programs that were linked with rdma-core before its first release.
    let mut lines = SYMBOLS.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace());
    let found = lines.find_map(|mut words| {
        (words.next() == Some(symbol) && !words.next()?.starts_with('@')).then(|| words.next())
    });
    match found {
        None => State::Missing,
        Some(Some("rust" | "poll" | "data")) => State::Implemented,
        Some(_) => State::Stub,
    }
}

/// Returns the file of a program: itself, or the first in the path.
fn locate(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found.find(|file| file.is_file()).unwrap_or_else(|| program.to_owned())
}

/// Returns the symbols that a program imports from the two libraries, and that the copies are imported for.
fn symbols(program: &Binary, copies: &[Bundled]) -> Vec<Symbol> {
    let of_copies = copies.iter().flat_map(|copy| {
        let symbols = copy.symbols.iter().map(|symbol| (symbol, &copy.library));
        symbols.map(|(symbol, library)| (symbol, library, Some(&copy.by)))
    });
    let listed = |library: &String| LIBRARIES.contains(&library.as_str());
    // A copy may have the name of the library.
    let is_new = |library: &String| !copies.iter().any(|copy| copy.library == *library);
    let imports = program.imports.iter().filter(|(_, library)| listed(library) && is_new(library));
    let all = imports.map(|(symbol, library)| (symbol, library, None)).chain(of_copies);
    let mut symbols: Vec<_> = all
        .map(|(symbol, library, bundled_by)| Symbol {
            state: state(symbol),
            symbol: symbol.clone(),
            library: library.clone(),
            bundled_by: bundled_by.cloned(),
        })
        .collect();
    symbols.sort_by(|a, b| (&a.library, &a.symbol).cmp(&(&b.library, &b.symbol)));
    symbols
}

/// Lists the symbols as lines, with their counts, and names the option that the copies need.
fn report(symbols: &[Symbol], copies: &[Bundled]) -> String {
    let name = |state| match state {
        State::Implemented => "implemented",
        State::Stub => "stub",
        State::Missing => "missing",
    };
    let lines = symbols
        .iter()
        .map(|symbol| format!("{:<11}  {:<15}  {}\n", name(symbol.state), symbol.library, symbol.symbol));
    let count = |state| symbols.iter().filter(|symbol| symbol.state == state).count();
    let [implemented, stubs, missing] = [State::Implemented, State::Stub, State::Missing].map(count);
    let counts = format!("{implemented} implemented, {stubs} stubs, {missing} missing\n");
    let advice = copies.iter().map(|copy| {
        format!(
            "{} comes with {}, a copy of its own: run the program with --bundled\n",
            copy.by.display(),
            copy.library
        )
    });
    lines.chain([counts]).chain(advice).collect()
}

/// Lists the symbols, and the copies of the libraries that the program comes with. Fails if a symbol is missing.
pub(crate) fn check(program: &Path, output: &Output) -> Result<Exit, Failure> {
    let file = locate(program);
    let binary = Binary::read(&file)?;
    let copies = find_bundled(&file, &binary);
    let symbols = symbols(&binary, &copies);
    output.result(&symbols, |symbols| report(symbols, &copies))?;
    let missing = symbols.iter().any(|symbol| symbol.state == State::Missing);
    Ok(if missing { Exit::Failed } else { Exit::Ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_functions_stubs_and_the_unknown() {
        let expected = [
            ("ibv_alloc_pd", State::Implemented),
            ("rdma_get_request", State::Implemented),
            ("rpoll", State::Implemented),
            ("ibv_attach_mcast", State::Stub),
            ("rsocket", State::Implemented),
            ("ibv_cmd_poll_cq", State::Stub),
            ("ibv_of_the_future", State::Missing),
            ("#", State::Missing),
        ];
        for (symbol, state_of_it) in expected {
            assert_eq!(state(symbol), state_of_it, "{symbol}");
        }
    }
}
