//! Admits a group to a socket file whose group cannot be changed. The daemon drops CAP_CHOWN when it starts, but the
//! owner of a file may set its access control list (acl(5)).

use std::path::Path;

use rustix::fs::{XattrFlags, removexattr, setxattr};
use rustix::io::{Errno, Result};

/// Extended attribute with the list, in the kernel's format (linux/posix_acl_xattr.h).
const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
/// Number of an entry that names nobody.
const UNDEFINED: u32 = u32::MAX;

/// Tags of entries (linux/posix_acl.h), in the order that the kernel requires.
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Gives a group the rights of the group in `mode`, in place of the file's own group, and the owner and all others
/// theirs.
///
/// # Errors
/// The system refuses, or the file system has no access control lists.
pub(super) fn admit(path: &Path, mode: u32, gid: u32) -> Result<()> {
    setxattr(path, ATTRIBUTE, &list(mode, gid), XattrFlags::empty())
}

/// Removes the list of a file, if it has one.
///
/// # Errors
/// The system refuses.
pub(super) fn remove(path: &Path) -> Result<()> {
    match removexattr(path, ATTRIBUTE) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        removed => removed,
    }
}

fn list(mode: u32, gid: u32) -> Vec<u8> {
    let bits = |shift: u32| u16::try_from(mode >> shift & 0o7).unwrap_or(0);
    let entries = [
        (USER_OBJ, bits(6), UNDEFINED),
        (GROUP_OBJ, 0, UNDEFINED),
        (GROUP, bits(3), gid),
        (MASK, bits(3), UNDEFINED),
        (OTHER, bits(0), UNDEFINED),
    ];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_list_is_set_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        admit(&path, 0o660, 12345).unwrap();
        // With a list, the group's bits of the mode are the list's mask.
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        let mut stored = [0; 64];
        let bytes = rustix::fs::getxattr(&path, ATTRIBUTE, &mut stored).unwrap();
        assert_eq!(stored[..bytes], list(0o660, 12345));
        remove(&path).unwrap();
        assert_eq!(rustix::fs::getxattr(&path, ATTRIBUTE, &mut stored), Err(Errno::NODATA));
        remove(&path).unwrap();
    }
}
