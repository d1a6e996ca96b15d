//! A private folder with the files of the devices, for users who may have no mount namespace: the preload library
//! (`clients/preload`) leads paths of the program there.
//!
//! The program replaces this process, so nobody is left to remove the folder. The program inherits a descriptor with a
//! shared lock on it, and so do its children. Later starts remove each folder of this user that nobody has locked.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::tree::Tree;

/// First part of a folder's name; the rest is random.
const NAME: &str = "iwarp-run-";
/// Longest name of a base, in bytes: the preload library has room for 512 in all.
const BASE_MAX: usize = 256;
/// Number from which on the program inherits the descriptor: shells use small ones.
const NUMBER_MIN: i32 = 200;
/// Folders that are created before it counts as a failure that others remove them.
const ATTEMPTS: usize = 8;

/// A folder with the files.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Holds the lock, in this process and in the program.
    lock: OwnedFd,
}

impl Folder {
    /// Writes the files to a new folder of this user: in `$XDG_RUNTIME_DIR`, or else in `/tmp`.
    pub(crate) fn write(tree: &Tree<'_>) -> io::Result<Self> {
        let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for base in named.filter(|base| is_own(base)).into_iter().chain([PathBuf::from("/tmp")]) {
            match Self::write_in(&base, tree) {
                Ok(folder) => return Ok(folder),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn write_in(base: &Path, tree: &Tree<'_>) -> io::Result<Self> {
        sweep(base);
        let folder = Self::create(base)?;
        let (classes, nodes) = (folder.path.join("sys/class"), folder.path.join("dev"));
        fs::create_dir_all(&classes)?;
        fs::create_dir(&nodes)?;
        tree.write_classes(&classes)?;
        // A link leads to a device that is there, readable and writable.
        tree.write_nodes(&nodes, |node| symlink("/dev/null", node))?;
        Ok(folder)
    }

    /// Creates an empty folder, and locks it.
    fn create(base: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let mut random = [0; 8];
            getrandom(&mut random, GetRandomFlags::empty())?;
            let path = base.join(format!("{NAME}{:016x}", u64::from_ne_bytes(random)));
            DirBuilder::new().mode(0o700).create(&path)?;
            let folder = Self { lock: lock_for_children(&path)?, path };
            // Another start may have removed the folder before it was locked.
            if folder.path.exists() {
                return Ok(folder);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Returns the name of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folder: the program was not started.
    pub(crate) fn remove(self) {
        let _ = fs::remove_dir_all(&self.path);
        drop(self.lock);
    }
}

/// Returns true if a folder belongs to this user, and its name is short enough: another user could replace what is in
/// it.
fn is_own(base: &Path) -> bool {
    let is_short = base.is_absolute() && base.as_os_str().len() <= BASE_MAX;
    is_short && fs::metadata(base).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Locks a folder for this process, the program that it becomes, and the children of that.
fn lock_for_children(path: &Path) -> io::Result<OwnedFd> {
    let opened = open_folder(path)?;
    flock(&opened, FlockOperation::LockShared)?;
    // Where the limit of descriptors is lower, the program has a small number.
    let lock = fcntl_dupfd_cloexec(&opened, NUMBER_MIN).unwrap_or(opened);
    fcntl_setfd(&lock, FdFlags::empty())?;
    Ok(lock)
}

/// Removes the folders of this user that no program has locked. Another start may do so at the same time.
fn sweep(base: &Path) {
    let own = geteuid().as_raw();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_named = entry.file_name().as_encoded_bytes().starts_with(NAME.as_bytes());
        if is_named && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own) {
            let _ = remove_unused(&entry.path());
        }
    }
}

fn remove_unused(path: &Path) -> io::Result<()> {
    let folder = File::from(open_folder(path)?);
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    fs::remove_dir_all(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    use std::process::{Command, Stdio};

    use iwarp_verbs::DeviceInfo;

    use super::*;
    use crate::tree::Shown;

    #[test]
    fn a_folder_lasts_as_long_as_a_program_has_its_lock() {
        let base = tempfile::tempdir().unwrap();
        let info = DeviceInfo {
            name: "p0".to_owned(),
            addresses: vec!["10.78.0.10/24".parse().unwrap()],
            mtu: 1500,
        };
        let devices = [Shown { info: &info, is_up: true }];
        let tree = Tree { devices: &devices, interfaces: &[] };
        let folder = Folder::write_in(base.path(), &tree).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777, 0o700);
        let state = folder.path().join("sys/class/infiniband/iwarp0/ports/1/state");
        assert_eq!(fs::read_to_string(&state).unwrap(), "4: ACTIVE\n");
        let node = fs::metadata(folder.path().join("dev/infiniband/uverbs0")).unwrap();
        assert!(node.file_type().is_char_device());

        // A program inherits the lock, and this process replaces itself by it.
        let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let Folder { path, lock } = folder;
        drop(lock);
        sweep(base.path());
        assert!(path.exists(), "a program has the lock");
        program.kill().unwrap();
        program.wait().unwrap();
        fs::create_dir(base.path().join("of-others")).unwrap();
        sweep(base.path());
        assert!(!path.exists() && base.path().join("of-others").exists(), "nobody has the lock");
    }
}
