//! The files of the devices ([`Tree`]) at their places, in a mount namespace of the program's own.
//!
//! In the namespace, `/sys/class` and `/dev` are folders in memory, whose entries are bind mounts of what was there
//! when the program began. Nothing changes for other programs.
#![allow(unsafe_code, reason = "leaves the mount namespace; listed in UNSAFE.md")]

use std::ffi::OsStr;
use std::fs::{self, File, FileType};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::mount::{mount, mount_bind, mount_bind_recursive, mount_change, mount_remount, unmount};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::tree::{DEVICES, Tree};

const CLASSES: &str = "/sys/class";
const NODES: &str = "/dev";

/// Cause for which there are no such files.
#[derive(Debug)]
pub(crate) enum Error {
    /// This user may have no namespace. All is as it was.
    Forbidden(io::Error),
    /// The user has no identity in the new namespace, in which the process is.
    Lost(io::Error),
}

/// Shows the files to this process, and to the program that it becomes.
pub(crate) fn show(tree: &Tree<'_>) -> io::Result<()> {
    cover(Path::new(CLASSES), |folder| {
        tree.write_classes(folder)?;
        Ok(mount_remount(folder, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC, c"")?)
    })?;
    let node = |node: &Path| {
        File::create(node)?;
        Ok(mount_bind("/dev/null", node)?)
    };
    cover(Path::new(NODES), |folder| tree.write_nodes(folder, node)).inspect_err(|_| {
        let _ = unmount(CLASSES, UnmountFlags::DETACH);
    })
}

/// Enters a mount namespace of this process's own, with the rights of the user if they suffice: a user namespace would
/// take capabilities. The process must have one thread.
pub(crate) fn enter_namespace() -> Result<(), Error> {
    // SAFETY: the table of descriptors stays as it is.
    if unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_err() {
        try_in_child().map_err(Error::Forbidden)?;
        return enter_user_namespace().map_err(Error::Lost);
    }
    leave_mounts_of_others().map_err(Error::Forbidden)
}

/// Tries in a child whether this user may have a user namespace. Some kernels let a user enter one, and forbid what
/// follows; nobody can leave it then.
fn try_in_child() -> io::Result<()> {
    let mut child = Command::new("/proc/self/exe");
    child.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: this process has one thread, so that its child may allocate.
    unsafe { child.pre_exec(enter_user_namespace) };
    child.status().map(|_| ())
}

/// Enters a user namespace, in which this user has the same identity, and a mount namespace.
fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: the table of descriptors stays as it is.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    let write = |file: &str, text: String| fs::write(Path::new("/proc/self").join(file), text);
    // A user without privileges may keep its group only by giving up to change groups: user_namespaces(7).
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{uid} {uid} 1"))?;
    write("gid_map", format!("{gid} {gid} 1"))?;
    leave_mounts_of_others()
}

/// Has mounts of this process stay its own.
fn leave_mounts_of_others() -> io::Result<()> {
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// Mounts a new folder over one, with bind mounts of its entries except [`DEVICES`], and has `fill` add that.
fn cover(folder: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    // Names below this descriptor stay those of the old folder.
    let old = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
    let entries = fs::read_dir(folder)?
        .map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))));
    let entries: Vec<_> = entries.collect::<io::Result<_>>()?;
    mount("iwarp", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=0755")?;
    let kept = entries.iter().filter(|(name, _)| name != DEVICES);
    let filled = kept
        .map(|(name, kind)| keep(&below, folder, name, *kind))
        .try_for_each(|kept| kept.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) }))
        .and_then(|()| fill(folder));
    filled.inspect_err(|_| {
        let _ = unmount(folder, UnmountFlags::DETACH);
    })
}

/// Returns true if an entry has gone since the folder was read.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Makes an entry of the old folder one of the new folder.
fn keep(old: &Path, new: &Path, name: &OsStr, kind: FileType) -> io::Result<()> {
    let (old, new) = (old.join(name), new.join(name));
    if kind.is_symlink() {
        return symlink(fs::read_link(old)?, new);
    }
    if kind.is_dir() {
        fs::create_dir(&new)?;
        return Ok(mount_bind_recursive(&old, &new)?);
    }
    File::create(&new)?;
    Ok(mount_bind(&old, &new)?)
}
