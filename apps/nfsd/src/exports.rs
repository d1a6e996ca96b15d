//! The exports of a server, by number, and the tree above them.

use iwarp_server::Peer;

use crate::export::{Export, ExportError, Seals};
use crate::tree::Tree;

/// Longest path of an export, in bytes (RFC 1813 §5.1.1).
const PATH_MAX: usize = nfs3_types::mount::MNTPATHLEN;

/// All exports of a server, by the number that file handles have, and the tree that NFS version 4.1 shows them in.
#[derive(Debug)]
pub(crate) struct Exports {
    list: Vec<(u32, Export)>,
    pub(crate) tree: Tree,
}

impl Exports {
    /// Opens the exports and numbers them.
    pub(crate) fn new(exports: Vec<Export>, seals: &Seals) -> Result<Self, ExportError> {
        let mut list: Vec<(u32, Export)> = Vec::with_capacity(exports.len());
        for export in exports {
            let path = &export.path;
            if !path.starts_with('/') || path.len() > PATH_MAX {
                return Err(ExportError::Path(path.clone()));
            }
            let number = seals.number(path);
            if list.iter().any(|(other, _)| *other == number) {
                return Err(ExportError::Duplicate(path.clone()));
            }
            if seals.seal(number, &export.backend.root()).is_none() {
                return Err(ExportError::Handle(path.clone()));
            }
            list.push((number, export));
        }
        let tree = Tree::new(&list, seals);
        Ok(Self { list, tree })
    }

    /// Returns true if an export has a rule for the address of a client: others have nothing to say.
    pub(crate) fn admit(&self, peer: Peer) -> bool {
        self.list.iter().any(|(_, export)| export.rule_of_address(peer).is_some())
    }

    pub(crate) fn list(&self) -> &[(u32, Export)] {
        &self.list
    }

    pub(crate) fn find(&self, number: u32) -> Option<&Export> {
        self.list.iter().find(|(own, _)| *own == number).map(|(_, export)| export)
    }
}
