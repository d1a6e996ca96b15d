//! Creates the socket file of a server. The file of a dead one is replaced; that of a living one is not.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::acl;

/// Error of the creation of the control socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A server holds the socket's lock file, or answers on the socket.
    #[error("another program serves {}: stop it, or give this one another {key}", path.display())]
    Taken {
        /// Path of the socket file.
        path: PathBuf,
        /// Key of the configuration that names it.
        key: &'static str,
    },
    /// The path exists and is not a socket.
    #[error("{} is there and is not a socket: remove it, or choose another {key}", path.display())]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
        /// Key of the configuration that names it.
        key: &'static str,
    },
    /// The group of the configuration does not exist.
    #[error("{table}.group: {cause}")]
    Group {
        /// Table of the configuration that names it.
        table: &'static str,
        /// Error of the search.
        cause: io::Error,
    },
    /// A system call failed.
    #[error("cannot set up the socket {}: {what}: {cause}", path.display())]
    System {
        /// Path of the socket file.
        path: PathBuf,
        /// Name of the failed operation.
        what: &'static str,
        /// Error of the system call.
        cause: io::Error,
    },
}

/// The socket file, removed when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the created file: a later file at the same path is not removed.
    identity: (u64, u64),
    /// Lock held while the daemon lives; the kernel releases it even if the daemon is killed.
    _lock: File,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // A failure has no consequence: the next start removes the file as stale.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// Creates the socket file and listens on it, without blocking. `key` of the configuration names it, for messages.
///
/// # Errors
/// Another server listens there, the path is taken, or the system refuses.
pub fn listen(
    path: &Path,
    mode: u32,
    gid: Option<u32>,
    key: &'static str,
) -> Result<(UnixListener, SocketFile), BindError> {
    let failed = |what| move |source| BindError::System { path: path.to_path_buf(), what, cause: source };
    make_folder(path).map_err(failed("its folder"))?;
    let lock = lock(path, key)?;
    remove_stale(path, key)?;
    let listener = UnixListener::bind(path).map_err(failed("bind"))?;
    let file = SocketFile {
        path: path.to_path_buf(),
        identity: identity(path).map_err(failed("stat"))?,
        _lock: lock,
    };
    chown(path, None, gid).map_err(failed("its group"))?;
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("its mode"))?;
    listener.set_nonblocking(true).map_err(failed("non-blocking mode"))?;
    Ok((listener, file))
}

/// Returns the number of a group, given by number or by its name in `/etc/group`.
///
/// # Errors
/// The file cannot be read, or has no group of this name.
pub fn group_id(name: &str) -> io::Result<u32> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    find_group(&std::fs::read_to_string("/etc/group")?, name).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no group `{name}` in /etc/group"))
    })
}

fn find_group(file: &str, name: &str) -> Option<u32> {
    let mut entries = file.lines().map(|line| line.split(':'));
    entries
        .find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten())
}

/// Changes the mode of a socket file, and the group that it admits.
///
/// # Errors
/// [`BindError::System`]: the file is gone, or the system refuses.
pub fn admit(path: &Path, mode: u32, gid: u32) -> Result<(), BindError> {
    let failed = |what| move |source| BindError::System { path: path.to_path_buf(), what, cause: source };
    match chown(path, None, Some(gid)) {
        Ok(()) => {
            acl::remove(path).map_err(|error| failed("its access control list")(error.into()))?;
            std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("its mode"))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            acl::admit(path, mode, gid).map_err(|error| failed("its access control list")(error.into()))
        }
        Err(error) => Err(failed("its group")(error)),
    }
}

/// Creates the folder of the socket if it is missing; its parent must exist.
fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    match std::fs::DirBuilder::new().mode(0o755).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Takes the lock file. Without it, two daemons that start at once would both find the socket stale.
fn lock(path: &Path, key: &'static str) -> Result<File, BindError> {
    let failed =
        |source| BindError::System { path: path.to_path_buf(), what: "its lock file", cause: source };
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    let file =
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(no_follow).open(&name);
    let file = file.map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(BindError::Taken { path: path.to_path_buf(), key }),
        Err(e) => Err(failed(e.into())),
    }
}

/// Removes a socket file without a listener.
fn remove_stale(path: &Path, key: &'static str) -> Result<(), BindError> {
    let failed = |what| move |source| BindError::System { path: path.to_path_buf(), what, cause: source };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("stat")(e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_path_buf(), key });
        }
        Ok(_) => {}
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed("removing the stale one")),
        // EAGAIN: a daemon listens, and its queue is full.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::Taken { path: path.to_path_buf(), key }),
        Err(e) => Err(failed("asking who listens")(e.into())),
    }
}

/// Tries to connect without blocking.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn mode_group_and_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/control.sock");
        let gid = rustix::process::getgid().as_raw();
        let (_listener, file) = listen(&path, 0o660, Some(gid), "control.socket").unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, gid));
        drop(file);
        assert!(!path.exists(), "the file goes with the daemon");
    }

    #[test]
    fn a_stale_socket_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (_listener, _file) = listen(&path, 0o600, None, "control.socket").unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn the_socket_of_a_living_daemon_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (_listener, _file) = listen(&path, 0o600, None, "control.socket").unwrap();
        assert!(
            matches!(listen(&path, 0o600, None, "control.socket"), Err(BindError::Taken { .. })),
            "by its lock"
        );
        UnixStream::connect(&path).unwrap();

        let other = folder.path().join("other");
        let listener = UnixListener::bind(&other).unwrap();
        assert!(
            matches!(listen(&other, 0o600, None, "control.socket"), Err(BindError::Taken { .. })),
            "by its answer"
        );
        // Even if its queue is full.
        rustix::net::listen(&listener, 0).unwrap();
        while probe(&other).is_ok() {}
        assert!(
            matches!(listen(&other, 0o600, None, "control.socket"), Err(BindError::Taken { .. })),
            "by its full queue"
        );
        drop(listener);
        assert!(listen(&other, 0o600, None, "control.socket").is_ok());
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(listen(&path, 0o600, None, "control.socket"), Err(BindError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let deep = folder.path().join("no/such/folder");
        assert!(matches!(listen(&deep, 0o600, None, "control.socket"), Err(BindError::System { .. })));
    }

    #[test]
    fn an_error_message_names_its_cause_once() {
        let folder = tempfile::tempdir().unwrap();
        let refused =
            listen(&folder.path().join("no/such/folder"), 0o600, None, "control.socket").unwrap_err();
        let message = refused.to_string();
        assert_eq!(message.matches("No such file").count(), 1, "{message}");
        assert!(std::error::Error::source(&refused).is_none(), "a chain would name it again");
    }

    #[test]
    fn group_names() {
        let file = "root:x:0:\nbad\niwarp:x:77:alice,bob\nempty:x::\n";
        assert_eq!(find_group(file, "iwarp"), Some(77));
        assert_eq!(find_group(file, "bad"), None);
        assert_eq!(find_group(file, "empty"), None);
        assert_eq!(find_group(file, "alice"), None);
        assert_eq!(group_id("42").unwrap(), 42);
        assert_eq!(group_id("root").unwrap(), 0);
        assert!(group_id("no such group").is_err());
    }

    #[test]
    fn a_later_socket_at_the_same_path_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (_listener, file) = listen(&path, 0o600, None, "control.socket").unwrap();
        std::fs::remove_file(&path).unwrap();
        let _later = UnixListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
    }
}
