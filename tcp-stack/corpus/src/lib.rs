//! Runs a crate's fuzz targets on the stable toolchain: on every input of their committed corpora, and on a bounded
//! number of mutations, the same in each run. `make fuzz` searches further, by the programs in `fuzz`. The test `fuzz`
//! of each crate with fuzz targets calls it.
//!
//! `UPDATE_CORPUS=1` in the environment of the test writes the seed inputs.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests call it, and a test may panic")]

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

/// Limit of all corpora of a crate together, bytes.
const CORPORA_MAX: u64 = 200 << 10;

/// The inputs of a target, with their paths.
pub type Corpus = Vec<(PathBuf, Vec<u8>)>;

/// The corpora of one crate: a folder per fuzz target in `fuzz/corpus`.
#[derive(Clone, Copy, Debug)]
pub struct Corpora(&'static str);

impl Corpora {
    /// Names the corpora of the targets whose names begin with `prefix` and `_`.
    #[must_use]
    pub const fn of(prefix: &'static str) -> Self {
        Self(prefix)
    }

    fn folder(self, target: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fuzz/corpus/{}_{target}", self.0))
    }

    /// Reads the corpus of a target, which begins with `seeds`. Panics if it has fewer inputs than these.
    #[must_use]
    pub fn read(self, target: &str, seeds: &[Vec<u8>]) -> Corpus {
        let folder = self.folder(target);
        if env::var_os("UPDATE_CORPUS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            for (index, seed) in seeds.iter().enumerate() {
                fs::write(folder.join(format!("seed-{index:02}")), seed).unwrap();
            }
        }
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(paths.len() >= seeds.len(), "{target} has no corpus: UPDATE_CORPUS=1 writes its seeds");
        paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// Panics unless the corpora stay small enough for a repository.
    pub fn assert_small(self, targets: impl IntoIterator<Item = &'static str>) {
        let files = targets.into_iter().flat_map(|name| fs::read_dir(self.folder(name)).unwrap());
        let bytes: u64 = files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes <= CORPORA_MAX, "{bytes} bytes of corpora");
    }
}

/// An input, displayed as hexadecimal digits.
#[derive(Clone)]
struct Hex(Vec<u8>);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A mutation of an input: bytes overwritten, a piece of another input inserted, the rest cut off.
type Mutation = (Vec<(Index, u8)>, (Index, Index, Index), Option<Index>);

fn mutate(corpus: &Corpus, at: &Index, mutation: &Mutation) -> Vec<u8> {
    let (writes, (from, begin, to), cut) = mutation;
    let mut input = at.get(corpus).1.clone();
    let piece = &from.get(corpus).1;
    if !piece.is_empty() && !input.is_empty() {
        let to = to.index(input.len());
        input.splice(to..to, piece[begin.index(piece.len())..].iter().copied());
    }
    for (at, value) in writes {
        let len = input.len().max(1);
        if let Some(byte) = input.get_mut(at.index(len)) {
            *byte = *value;
        }
    }
    if let Some(cut) = cut {
        input.truncate(cut.index(input.len().max(1)));
    }
    input
}

/// Runs a target on its corpus, and on `cases` mutations.
pub fn run(target: fn(&[u8]), corpus: &Corpus, cases: u32) {
    // Miri needs a part of a minute per input.
    let (cases, stride) = if cfg!(miri) { (1, 8) } else { (cases, 1) };
    for (path, input) in corpus.iter().step_by(stride) {
        println!("{}", path.display());
        target(input);
    }
    let index = any::<Index>;
    let writes = proptest::collection::vec((index(), any::<u8>()), 0..8);
    let mutation = (writes, (index(), index(), index()), proptest::option::of(index()));
    let mutated = (index(), mutation).prop_map(|(at, mutation)| mutate(corpus, &at, &mutation));
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..1000);
    run_chosen(target, prop_oneof![3 => mutated, 1 => any_bytes], cases);
}

/// Runs a target on `cases` of these inputs.
pub fn run_chosen(target: fn(&[u8]), inputs: impl Strategy<Value = Vec<u8>>, cases: u32) {
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new_with_rng(config, random).run(&inputs.prop_map(Hex), |input| {
        target(&input.0);
        Ok(())
    });
    if let Err(error) = tested {
        panic!("{error}");
    }
}
