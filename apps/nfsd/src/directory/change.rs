//! Operations of a directory export that change something, or open a file.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use iwarp_server::kernel::check_end;
use iwarp_server::{User, with_rights};
use nfs3_types::nfs3::{createverf3, ftype3, nfsstat3};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    accessat, chmodat, chownat, ftruncate, makedev, mkdirat, mknodat, open as open_path, symlinkat, unlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::{component, open_beneath, path_of, stat};
use crate::attributes::{NewAttributes, SetTime, Time, attributes_of, status};
use crate::backend::New;

/// The set-user-ID and set-group-ID bits of a mode.
const PRIVILEGES: u32 = 0o6000;

/// Opens a regular file. Its owner may read and write it whatever its mode says, because a client checks the mode when
/// a program opens the file, not for each READ and WRITE; so may everybody read who may execute.
pub(super) fn open(user: &User, object: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, nfsstat3> {
    let found = attributes_of(&stat(object).map_err(status)?);
    match found.kind {
        ftype3::NF3REG => {}
        ftype3::NF3DIR => return Err(nfsstat3::NFS3ERR_ISDIR),
        _ => return Err(nfsstat3::NFS3ERR_INVAL),
    }
    let path = path_of(object);
    let writes = flags.intersection(OFlags::RWMODE) != OFlags::RDONLY;
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let may_execute =
        || !writes && with_rights(user, || accessat(CWD, &path, Access::EXEC_OK, AtFlags::EACCESS)).is_ok();
    let opened = match with_rights(user, || open_path(&path, flags, Mode::empty())) {
        Err(Errno::ACCESS) if found.uid == user.uid || may_execute() => {
            open_path(&path, flags, Mode::empty())
        }
        other => other,
    };
    let opened = opened.map_err(status)?;
    // Only opening must not wait: io_uring would not wait for the data either.
    rustix::fs::fcntl_setfl(&opened, OFlags::empty()).map_err(status)?;
    // The kernel does it for a write with the rights of the user; the transport writes with its own.
    if writes && found.mode & PRIVILEGES != 0 && user.uid != 0 {
        chmodat(CWD, &path, Mode::from_raw_mode(found.mode & !PRIVILEGES), AtFlags::empty())
            .map_err(status)?;
    }
    Ok(opened)
}

/// Changes attributes: the owner before the mode, because it resets the set-user-ID bit; the times last.
pub(super) fn attributes(user: &User, object: BorrowedFd<'_>, new: &NewAttributes) -> Result<(), nfsstat3> {
    let path = path_of(object);
    if let Some(size) = new.size {
        check_end(size, 0).map_err(status)?;
        let file = open(user, object, OFlags::WRONLY)?;
        ftruncate(&file, size).map_err(status)?;
    }
    with_rights(user, || {
        if new.uid.is_some() || new.gid.is_some() {
            let (uid, gid) = (new.uid.map(Uid::from_raw), new.gid.map(Gid::from_raw));
            chownat(object, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = new.mode {
            chmodat(CWD, &path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        }
        set_times(&path, new)
    })
    .map_err(status)
}

fn set_times(path: &str, new: &NewAttributes) -> Result<(), Errno> {
    let at = |time: Option<SetTime>| match time {
        None => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        Some(SetTime::Now) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        // The kernel takes some of them for flags.
        Some(SetTime::To(time)) if time.nanoseconds >= 1_000_000_000 => Err(Errno::INVAL),
        Some(SetTime::To(time)) => Ok(Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }),
    };
    if new.atime.is_none() && new.mtime.is_none() {
        return Ok(());
    }
    let times = Timestamps { last_access: at(new.atime)?, last_modification: at(new.mtime)? };
    utimensat(CWD, path, &times, AtFlags::empty())
}

/// Creates an object in a directory.
pub(super) fn create(user: &User, dir: BorrowedFd<'_>, name: &OsStr, new: &New<'_>) -> Result<(), nfsstat3> {
    let mode = |attributes: &NewAttributes, default| {
        Mode::from_raw_mode(attributes.mode.unwrap_or(default) & 0o7777)
    };
    let made = with_rights(user, || match new {
        New::File { attributes, .. } => new_file(dir, name, mode(attributes, 0o644)),
        New::FileOnce(_) => new_file(dir, name, Mode::from_raw_mode(0)),
        New::Directory(attributes) => mkdirat(dir, name, mode(attributes, 0o755)),
        New::Symlink(_, target) => symlinkat(OsStr::from_bytes(target), dir, name),
        New::Special { kind, attributes, device } => {
            let kind = match kind {
                ftype3::NF3CHR => FileType::CharacterDevice,
                ftype3::NF3BLK => FileType::BlockDevice,
                ftype3::NF3SOCK => FileType::Socket,
                _ => FileType::Fifo,
            };
            mknodat(dir, name, kind, mode(attributes, 0o644), makedev(device.0, device.1))
        }
    });
    let object = || open_beneath(dir, name, OFlags::PATH, Mode::empty()).map_err(status);
    match (new, made) {
        (New::File { attributes, exclusive: false }, Err(Errno::EXIST)) => {
            self::attributes(user, object()?.as_fd(), &NewAttributes::only_size(attributes.size))
        }
        (New::FileOnce(verifier), Err(Errno::EXIST)) => is_of(object()?.as_fd(), *verifier),
        (_, Err(error)) => Err(status(error)),
        (New::FileOnce(verifier), Ok(())) => mark(object()?.as_fd(), *verifier),
        (
            New::File { attributes, .. } | New::Directory(attributes) | New::Special { attributes, .. },
            Ok(()),
        ) => {
            let rest = NewAttributes { mode: None, ..*attributes };
            self::attributes(user, object()?.as_fd(), &rest)
        }
        (New::Symlink(..), Ok(())) => Ok(()),
    }
}

fn new_file(dir: BorrowedFd<'_>, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    open_beneath(dir, name, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode).map(|_| ())
}

/// Times that hold a verifier until the client sets others (RFC 1813 §3.3.8).
fn verifier_times(verifier: createverf3) -> (Time, Time) {
    let [a, b, c, d, e, f, g, h] = verifier.0;
    // 31 bits each: every file system can keep them.
    let seconds = |bytes| u32::from_be_bytes(bytes) & 0x7fff_ffff;
    let time = |bytes| Time { seconds: seconds(bytes).into(), nanoseconds: 0 };
    (time([a, b, c, d]), time([e, f, g, h]))
}

fn mark(object: BorrowedFd<'_>, verifier: createverf3) -> Result<(), nfsstat3> {
    let (atime, mtime) = verifier_times(verifier);
    let [atime, mtime] = [atime, mtime].map(|time| Some(SetTime::To(time)));
    let times = NewAttributes { atime, mtime, ..NewAttributes::default() };
    set_times(&path_of(object), &times).map_err(status)
}

fn is_of(object: BorrowedFd<'_>, verifier: createverf3) -> Result<(), nfsstat3> {
    let found = attributes_of(&stat(object).map_err(status)?);
    let same = (found.atime, found.mtime) == verifier_times(verifier) && found.kind == ftype3::NF3REG;
    if same { Ok(()) } else { Err(nfsstat3::NFS3ERR_EXIST) }
}

/// Removes a directory, or an object that is none.
pub(super) fn remove(user: &User, dir: BorrowedFd<'_>, name: &[u8], directory: bool) -> Result<(), nfsstat3> {
    let name = match name {
        b"." => return Err(nfsstat3::NFS3ERR_INVAL),
        name => component(name)?,
    };
    let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    with_rights(user, || unlinkat(dir, name, flags)).map_err(status)
}
