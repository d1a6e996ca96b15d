//! `--check`: the symbols that a program imports from the two libraries.

use std::path::{Path, PathBuf};

use iwarp_control::Exit;
use iwarp_terminal::{Failure, Output};
use object::Object as _;
use object::read::NameOrOrdinal;
use serde::Serialize;

/// Symbols of the libraries, as the linker reads them.
const SYMBOLS: &str = include_str!("../../drop-in/symbols.txt");
/// Libraries that Ironwarp replaces.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

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

fn imports(file: &Path) -> Result<Vec<Symbol>, Failure> {
    let bytes = std::fs::read(file).map_err(|error| Failure::file(file, "read", &error))?;
    let wrong = |error: object::read::Error| {
        Failure::new(Exit::Failed, "program", format!("{} is no program: {error}", file.display()))
    };
    let all = object::File::parse(bytes.as_slice()).and_then(|object| {
        let imports = object.imports()?.collect::<Result<Vec<_>, _>>()?;
        let named = imports.iter().filter_map(|import| match import.name() {
            NameOrOrdinal::Name(name) => Some((text(name), text(import.library()))),
            NameOrOrdinal::Ordinal(_) => None,
        });
        Ok(named.collect::<Vec<_>>())
    });
    let mut symbols: Vec<Symbol> = all
        .map_err(wrong)?
        .into_iter()
        .filter(|(_, library)| LIBRARIES.contains(&library.as_str()))
        .map(|(symbol, library)| Symbol { state: state(&symbol), symbol, library })
        .collect();
    symbols.sort_by(|a, b| (&a.library, &a.symbol).cmp(&(&b.library, &b.symbol)));
    Ok(symbols)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Lists the symbols. Fails if one is missing.
pub(crate) fn check(program: &Path, output: &Output) -> Result<Exit, Failure> {
    let file = locate(program);
    let symbols = imports(&file)?;
    output.result(&symbols, |symbols| {
        let name = |state| match state {
            State::Implemented => "implemented",
            State::Stub => "stub",
            State::Missing => "missing",
        };
        let lines = symbols
            .iter()
            .map(|symbol| format!("{:<11}  {:<15}  {}\n", name(symbol.state), symbol.library, symbol.symbol));
        let count = |state| symbols.iter().filter(|symbol| symbol.state == state).count();
        let counts = [State::Implemented, State::Stub, State::Missing].map(count);
        let [implemented, stubs, missing] = counts;
        lines.collect::<String>() + &format!("{implemented} implemented, {stubs} stubs, {missing} missing\n")
    })?;
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
