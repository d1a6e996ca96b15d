//! The tree of directories above the exports (RFC 8881 §7.3).
//!
//! Clients see the directories, and those exports that have a rule for them. An export at `/` is the whole tree, and
//! one below another export is reached by MOUNT only.

use iwarp_server::Peer;

use crate::attributes::{Attributes, Time};
use crate::export::{Export, Seals};

/// A name in a directory of the tree.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) name: String,
    /// Handle of what has the name.
    pub(crate) handle: Vec<u8>,
    /// Number of the export; `None` for a directory of the tree.
    pub(crate) export: Option<u32>,
}

/// A directory of the tree.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) handle: Vec<u8>,
    pub(crate) fileid: u64,
    /// Handle of the directory above.
    pub(crate) parent: Option<Vec<u8>>,
    pub(crate) names: Vec<Name>,
}

/// All directories of the tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Vec<u8>,
    directories: Vec<Directory>,
}

impl Tree {
    pub(crate) fn new(exports: &[(u32, Export)], seals: &Seals) -> Self {
        let top = directory(seals, "", None);
        let mut tree = Self { root: top.handle.clone(), directories: vec![top] };
        let mut exports: Vec<_> = exports.iter().collect();
        exports.sort_by_key(|(_, export)| export.path.matches('/').count());
        for (number, export) in exports {
            if let Some(handle) = seals.seal(*number, &export.backend.root()) {
                tree.insert(seals, &export.path, handle, *number);
            }
        }
        tree
    }

    fn insert(&mut self, seals: &Seals, path: &str, handle: Vec<u8>, number: u32) {
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        if parts.peek().is_none() {
            self.root = handle;
            return;
        }
        let (mut at, mut so_far) = (0, String::new());
        while let Some(part) = parts.next() {
            so_far = format!("{so_far}/{part}");
            let next = self.directories.len();
            let Some(here) = self.directories.get_mut(at) else { return };
            let above = here.handle.clone();
            let found = here.names.iter().find(|name| name.name == part);
            let name = part.to_owned();
            match (parts.peek(), found) {
                (None, None) => here.names.push(Name { name, handle, export: Some(number) }),
                (Some(_), None) => {
                    let made = directory(seals, &so_far, Some(above));
                    here.names.push(Name { name, handle: made.handle.clone(), export: None });
                    self.directories.push(made);
                    at = next;
                    continue;
                }
                (Some(_), Some(Name { handle: found, export: None, .. })) => {
                    let found = found.clone();
                    at = self
                        .directories
                        .iter()
                        .position(|directory| directory.handle == found)
                        .unwrap_or(next);
                    continue;
                }
                _ => {}
            }
            return;
        }
    }

    pub(crate) fn root(&self) -> &[u8] {
        &self.root
    }

    /// Finds the directory of a handle; `None` if the handle is one of an export.
    pub(crate) fn directory(&self, handle: &[u8]) -> Option<&Directory> {
        self.directories.iter().find(|directory| directory.handle == handle)
    }

    /// Finds the directory that holds an export's topmost directory.
    pub(crate) fn above(&self, handle: &[u8]) -> Option<&Directory> {
        self.directories.iter().find(|directory| directory.names.iter().any(|name| name.handle == handle))
    }
}

fn directory(seals: &Seals, path: &str, parent: Option<Vec<u8>>) -> Directory {
    let number = seals.number(path);
    let handle = seals.seal(0, &number.to_be_bytes()).unwrap_or_default();
    Directory { handle, fileid: u64::from(number).saturating_add(1), parent, names: Vec::new() }
}

impl Directory {
    /// Returns the attributes, which never change.
    pub(crate) fn attributes(&self) -> Attributes {
        Attributes::folder(0, self.fileid, 0, Time { seconds: 1, nanoseconds: 0 })
    }

    /// Returns the names that a client may see.
    pub(crate) fn visible<'a>(
        &'a self,
        exports: &'a [(u32, Export)],
        peer: Peer,
    ) -> impl Iterator<Item = &'a Name> {
        let admits = move |number: u32| {
            exports.iter().any(|(exported, export)| *exported == number && export.rule(peer).is_some())
        };
        self.names.iter().filter(move |name| name.export.is_none_or(admits))
    }
}
