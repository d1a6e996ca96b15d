//! Paths that lead to a folder of files: `iwarp-run --roce` writes one where mount namespaces are forbidden.
//!
//! Nothing here allocates, locks or makes a system call: programs call `open` and `stat` in signal handlers, and
//! allocators call them before they have memory.

use std::ffi::CStr;

/// Longest name of the folder.
const FOLDER_MAX: usize = 512;
/// Longest path that leads there, with its zero; longer ones stay as they are.
const PATH_MAX: usize = 1024;

/// Name of the folder, which has the files at their paths.
#[derive(Debug)]
pub(crate) struct Folder {
    bytes: [u8; FOLDER_MAX],
    length: usize,
}

/// Room for a path.
pub(crate) type Room = [u8; PATH_MAX];

impl Folder {
    /// Takes an absolute name; `None` for another one, or one that is too long.
    pub(crate) fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; FOLDER_MAX];
        bytes.get_mut(..name.len()).filter(|_| name.starts_with(b"/"))?.copy_from_slice(name);
        Some(Self { bytes, length: name.len() })
    }

    /// Writes the path that a program's path leads to; `None` if it stays as it is.
    pub(crate) fn lead<'a>(&self, path: &CStr, room: &'a mut Room) -> Option<&'a CStr> {
        let folder = self.bytes.get(..self.length)?;
        let path = path.to_bytes_with_nul();
        let end = folder.len().checked_add(path.len())?;
        room.get_mut(..folder.len())?.copy_from_slice(folder);
        room.get_mut(folder.len()..end)?.copy_from_slice(path);
        CStr::from_bytes_with_nul(room.get(..end)?).ok()
    }
}

/// Returns true for a path that is led to the folder.
///
/// These are `/sys/class/infiniband`, the folders beside it to which its links lead, `/dev/infiniband`, and all below
/// them. A path with `..` before these names is not recognized.
pub(crate) fn is_led(path: &CStr) -> bool {
    let Some(path) = path.to_bytes().strip_prefix(b"/") else { return false };
    // Two slashes are one, and a dot is the folder itself.
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(part, [] | [b'.']));
    match parts.next() {
        Some(b"dev") => parts.next() == Some(b"infiniband"),
        Some(b"sys") if parts.next() == Some(b"class") => {
            parts.next().is_some_and(|name| name == b"infiniband" || is_parent(name))
        }
        _ => false,
    }
}

/// Returns true for the name of a folder with a device: `iwarp0dev`.
fn is_parent(name: &[u8]) -> bool {
    let number = name.strip_prefix(b"iwarp").and_then(|rest| rest.strip_suffix(b"dev"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}
