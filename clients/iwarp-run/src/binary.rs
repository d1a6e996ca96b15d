//! A program or library, as the loader reads it.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use iwarp_control::Exit;
use iwarp_terminal::Failure;
use object::read::elf::{DynamicTable, ElfFile64};
use object::read::{NameOrOrdinal, ReadCache, ReadRef};
use object::{Endianness, Object as _, elf};

/// Libraries that Ironwarp replaces.
pub(crate) const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// A program or library of ELF.
#[derive(Debug, Default)]
pub(crate) struct Binary {
    /// Symbols that it imports, each with the library that it was linked with.
    pub(crate) imports: Vec<(String, String)>,
    /// Names of the libraries that it needs.
    needed: Vec<String>,
    /// Folders that it names for its libraries.
    folders: Vec<PathBuf>,
    /// True if the loader looks into these folders before those of `LD_LIBRARY_PATH` (`DT_RPATH`).
    come_first: bool,
}

/// A copy of a replaced library that a program comes with: `LD_LIBRARY_PATH` does not reach it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bundled {
    /// The program, or a library of its own, that needs the copy.
    pub(crate) by: PathBuf,
    /// Name of the copy.
    pub(crate) library: String,
    /// Symbols that are imported from it.
    pub(crate) symbols: Vec<String>,
}

impl Binary {
    /// Reads the file of a program or library.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let opened = File::open(file).map_err(|error| Failure::file(file, "read", &error))?;
        let cache = ReadCache::new(opened);
        Self::parse(&cache, file.parent().unwrap_or(Path::new("."))).map_err(|error| {
            Failure::new(Exit::Failed, "program", format!("{} is no program: {error}", file.display()))
        })
    }

    fn parse<'a, R: ReadRef<'a>>(data: R, origin: &Path) -> object::read::Result<Self> {
        let object = object::File::parse(data)?;
        let mut binary = Self::default();
        for import in object.imports()? {
            let import = import?;
            if let NameOrOrdinal::Name(name) = import.name() {
                binary.imports.push((text(name), text(import.library())));
            }
        }
        if let object::File::Elf64(object) = &object {
            binary.add_needs(object, origin)?;
        }
        Ok(binary)
    }

    /// Adds libraries and folders.
    fn add_needs<'a, R: ReadRef<'a>>(
        &mut self,
        object: &ElfFile64<'a, Endianness, R>,
        origin: &Path,
    ) -> object::read::Result<()> {
        let table: DynamicTable<'_, _, _> = object.elf_dynamic_table()?;
        let strings = |tag| {
            let entries = table.iter().filter(move |entry| entry.tag == tag);
            entries.map(|entry| table.string(entry).map(text)).collect::<object::read::Result<Vec<_>>>()
        };
        self.needed = strings(elf::DT_NEEDED)?;
        let mut folders = strings(elf::DT_RUNPATH)?;
        if folders.is_empty() {
            folders = strings(elf::DT_RPATH)?;
            self.come_first = !folders.is_empty();
        }
        let origin = origin.to_string_lossy();
        let expanded = |name: &str| name.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into();
        self.folders = folders.iter().flat_map(|list| list.split(':')).map(expanded).collect();
        Ok(())
    }

    /// Returns true if the binary has its own copy of a library: one that is named like no other, or one in a folder
    /// that comes before those of `LD_LIBRARY_PATH`.
    fn bundles(&self, library: &str) -> bool {
        let is_copied = ["libibverbs", "librdmacm"].iter().any(|name| {
            library
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['-', '.', '_']) && rest.contains(".so"))
        });
        match LIBRARIES.contains(&library) {
            true => self.come_first && self.folders.iter().any(|folder| folder.join(library).is_file()),
            false => is_copied,
        }
    }

    /// Returns the file of a library that lies in a folder of the binary, or of `others`.
    fn own(&self, library: &str, others: &[PathBuf]) -> Option<PathBuf> {
        let files = self.folders.iter().chain(others).map(|folder| folder.join(library));
        files.filter_map(|file| fs::canonicalize(file).ok()).find(|file| file.is_file())
    }
}

/// Returns the copies that a program and its own libraries need. Those of the system have none.
pub(crate) fn find_bundled(file: &Path, program: &Binary) -> Vec<Bundled> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut others: Vec<_> =
        std::env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty()).collect();
    let (mut found, mut seen, mut waiting) = (Vec::new(), BTreeSet::new(), VecDeque::new());
    let mut look = |file: &Path, binary: &Binary, waiting: &mut VecDeque<PathBuf>| {
        if binary.come_first {
            // The folders of a program are those of its libraries, too.
            others.extend_from_slice(&binary.folders);
        }
        for library in &binary.needed {
            if binary.bundles(library) {
                let of_copy = binary.imports.iter().filter(|(_, from)| from == library);
                let symbols = of_copy.map(|(symbol, _)| symbol.clone()).collect();
                found.push(Bundled { by: file.to_owned(), library: library.clone(), symbols });
            } else if !LIBRARIES.contains(&library.as_str()) {
                waiting.extend(binary.own(library, &others));
            }
        }
    };
    look(file, program, &mut waiting);
    while let Some(file) = waiting.pop_front() {
        if seen.insert(file.clone())
            && let Ok(binary) = Binary::read(&file)
        {
            look(&file, &binary, &mut waiting);
        }
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::process::Command;

    use super::*;

    /// Links a shared object in a folder, with these further arguments.
    fn link(folder: &Path, source: &str, arguments: &[&str]) {
        fs::write(folder.join("source.c"), source).unwrap();
        let mut command = Command::new("cc");
        command.current_dir(folder).args(["-shared", "-fPIC", "-Wl,--no-as-needed", "source.c", "-L."]);
        assert!(command.args(arguments).status().unwrap().success(), "{arguments:?}");
    }

    #[test]
    fn copies_of_the_libraries_are_found_through_own_libraries() {
        let folder = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap();
        let (copy, plain) = ("libibverbs-1f2e.so.1.14.0", "libibverbs.so.1");
        let calls = "int ibv_fork_init(void); int call(void) { return ibv_fork_init(); }";
        for name in [copy, plain] {
            let soname = format!("-Wl,-soname,{name}");
            fs::write(folder.join("versions"), "IBVERBS_1.1 { global: *; };").unwrap();
            let defines = "int ibv_fork_init(void) { return 1; }";
            link(&folder, defines, &[&soname, "-Wl,--version-script=versions", "-o", name]);
        }
        let (copied, listed) = (format!("-l:{copy}"), format!("-l:{plain}"));
        link(&folder, calls, &[&copied, "-o", "libown.so"]);
        let find = |name: &str| {
            let file = folder.join(name);
            find_bundled(&file, &Binary::read(&file).unwrap())
        };
        let bundled = |by: &str, library: &str| Bundled {
            by: folder.join(by),
            library: library.to_owned(),
            symbols: vec!["ibv_fork_init".to_owned()],
        };
        assert_eq!(find("libown.so"), [bundled("libown.so", copy)]);
        for flag in ["-Wl,--enable-new-dtags", "-Wl,--disable-new-dtags"] {
            link(&folder, "", &[flag, "-l:libown.so", "-Wl,-rpath,$ORIGIN", "-o", "plugin.so"]);
            assert_eq!(find("plugin.so"), [bundled("libown.so", copy)], "{flag}");
        }
        link(&folder, "", &["-l:libown.so", "-o", "plugin.so"]);
        assert_eq!(find("plugin.so"), [], "the loader does not find the library either");

        // LD_LIBRARY_PATH comes before one kind of folder, and after the other.
        link(&folder, calls, &["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN", &listed, "-o", "after.so"]);
        assert_eq!(find("after.so"), []);
        link(&folder, calls, &["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN", &listed, "-o", "first.so"]);
        assert_eq!(find("first.so"), [bundled("first.so", plain)]);
    }
}
