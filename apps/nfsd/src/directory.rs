//! A directory as the content of an export.

mod change;
mod handle;

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use iwarp_server::{User, with_rights};
use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ, ftype3,
    nfsstat3, nfstime3,
};
use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Statx, StatxFlags, accessat,
    fstatvfs, open, openat, openat2, readlinkat, seek, statx,
};
use rustix::io::Errno;

use crate::attributes::{Attributes, NewAttributes, attributes_of, status};
use crate::backend::{Backend, Entry, New, Space};
use crate::file::File;

/// Bytes of directory entries that one system call returns.
const ENTRIES_BYTES: usize = 32 << 10;
/// Directories between an object and the topmost one, at most.
const DEPTH_MAX: usize = 1024;

/// A directory whose clients cannot leave it. Its file system must have handles (ext4, XFS, Btrfs, tmpfs and others),
/// and the program CAP_DAC_READ_SEARCH.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
    /// The same, opened for open_by_handle_at(2), which needs more than a path.
    mount: OwnedFd,
    handle: Vec<u8>,
    fileid: (u64, u64),
    path: PathBuf,
}

impl Directory {
    /// Opens a directory. Sets the process' file mode mask to zero: clients state modes in full.
    ///
    /// # Errors
    /// It does not exist, or its file system has no handles.
    pub fn open(path: &Path) -> io::Result<Self> {
        rustix::process::umask(Mode::empty());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = open(path, flags | OFlags::RDONLY, Mode::empty())?;
        let root = openat(&mount, ".", flags | OFlags::PATH, Mode::empty())?;
        let handle = handle::of(root.as_fd())?;
        // This fails at once if the program may not open files by handle.
        handle::open(mount.as_fd(), &handle)?;
        let found = attributes_of(&stat(root.as_fd())?);
        let fileid = (found.fsid, found.fileid);
        Ok(Self { root, mount, handle, fileid, path: path.to_owned() })
    }

    fn object(&self, handle: &[u8]) -> Result<OwnedFd, nfsstat3> {
        handle::open(self.mount.as_fd(), handle).map_err(status)
    }

    fn is_root(&self, object: BorrowedFd<'_>) -> Result<bool, Errno> {
        let found = attributes_of(&stat(object)?);
        Ok((found.fsid, found.fileid) == self.fileid)
    }

    /// Opens the directory above one, which must be in the export: somebody may have moved it out of there.
    fn parent(&self, user: &User, dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if self.is_root(dir)? {
            return openat(&self.root, ".", flags, Mode::empty());
        }
        let parent = with_rights(user, || openat(dir, "..", flags, Mode::empty()))?;
        let mut above = openat(&parent, ".", flags, Mode::empty())?;
        for _ in 0..DEPTH_MAX {
            if self.is_root(above.as_fd())? {
                return Ok(parent);
            }
            above = openat(&above, "..", flags, Mode::empty())?;
        }
        Err(Errno::STALE)
    }

    fn find(&self, user: &User, dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, nfsstat3> {
        match name {
            b".." => self.parent(user, dir).map_err(status),
            b"." => openat(dir, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(status),
            _ => {
                let name = component(name)?;
                with_rights(user, || open_beneath(dir, name, OFlags::PATH, Mode::empty())).map_err(status)
            }
        }
    }
}

/// Returns a name that is one component of a path, and neither `.` nor `..`.
fn component(name: &[u8]) -> Result<&OsStr, nfsstat3> {
    match name {
        b"" => Err(nfsstat3::NFS3ERR_INVAL),
        b"." | b".." => Err(nfsstat3::NFS3ERR_EXIST),
        _ if name.len() > 255 => Err(nfsstat3::NFS3ERR_NAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(nfsstat3::NFS3ERR_INVAL),
        _ => Ok(OsStr::from_bytes(name)),
    }
}

/// Opens a name in a directory, and nothing elsewhere: no link is followed, no other file system entered.
fn open_beneath(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode, resolve)
}

/// Returns a path to the object of a descriptor that was opened without access to its content.
fn path_of(object: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

fn stat(object: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(object, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

impl Backend for Directory {
    fn root(&self) -> Vec<u8> {
        self.handle.clone()
    }

    fn content(&self) -> String {
        self.path.display().to_string()
    }

    fn attributes(&self, object: &[u8]) -> Result<Attributes, nfsstat3> {
        let object = self.object(object)?;
        stat(object.as_fd()).map(|found| attributes_of(&found)).map_err(status)
    }

    fn set_attributes(
        &self,
        user: &User,
        object: &[u8],
        new: &NewAttributes,
        guard: Option<nfstime3>,
    ) -> Result<(), nfsstat3> {
        let object = self.object(object)?;
        if let Some(guard) = guard {
            let found = attributes_of(&stat(object.as_fd()).map_err(status)?);
            if nfstime3::from(found.ctime) != guard {
                return Err(nfsstat3::NFS3ERR_NOT_SYNC);
            }
        }
        change::attributes(user, object.as_fd(), new)
    }

    fn lookup(&self, user: &User, dir: &[u8], name: &[u8]) -> Result<Vec<u8>, nfsstat3> {
        let dir = self.object(dir)?;
        let found = self.find(user, dir.as_fd(), name)?;
        handle::of(found.as_fd()).map_err(status)
    }

    fn access(&self, user: &User, object: &[u8], wanted: u32) -> Result<u32, nfsstat3> {
        let object = self.object(object)?;
        let kind = attributes_of(&stat(object.as_fd()).map_err(status)?).kind;
        let path = path_of(object.as_fd());
        let may = |access| with_rights(user, || accessat(CWD, &path, access, AtFlags::EACCESS)).is_ok();
        let write = ACCESS3_MODIFY | ACCESS3_EXTEND;
        let rights = if kind == ftype3::NF3DIR {
            [
                (Access::READ_OK, ACCESS3_READ),
                (Access::WRITE_OK, write | ACCESS3_DELETE),
                (Access::EXEC_OK, ACCESS3_LOOKUP),
            ]
        } else {
            [(Access::READ_OK, ACCESS3_READ), (Access::WRITE_OK, write), (Access::EXEC_OK, ACCESS3_EXECUTE)]
        };
        let asked = rights.into_iter().filter(|(_, bits)| wanted & bits != 0);
        Ok(asked.filter(|(access, _)| may(*access)).fold(0, |all, (_, bits)| all | (bits & wanted)))
    }

    fn read_link(&self, _: &User, object: &[u8]) -> Result<Vec<u8>, nfsstat3> {
        let object = self.object(object)?;
        match readlinkat(&object, "", Vec::new()) {
            Ok(target) => Ok(target.into_bytes()),
            Err(Errno::NOENT | Errno::INVAL) => Err(nfsstat3::NFS3ERR_INVAL),
            Err(error) => Err(status(error)),
        }
    }

    fn open(&self, user: &User, object: &[u8], write: bool) -> Result<File, nfsstat3> {
        let object = self.object(object)?;
        change::open(user, object.as_fd(), if write { OFlags::WRONLY } else { OFlags::RDONLY })
            .map(File::from)
    }

    fn create(&self, user: &User, dir: &[u8], name: &[u8], new: &New<'_>) -> Result<Vec<u8>, nfsstat3> {
        let dir = self.object(dir)?;
        let name = component(name)?;
        change::create(user, dir.as_fd(), name, new)?;
        let made = open_beneath(dir.as_fd(), name, OFlags::PATH, Mode::empty()).map_err(status)?;
        handle::of(made.as_fd()).map_err(status)
    }

    fn remove(&self, user: &User, dir: &[u8], name: &[u8], directory: bool) -> Result<(), nfsstat3> {
        let dir = self.object(dir)?;
        change::remove(user, dir.as_fd(), name, directory)
    }

    fn rename(&self, user: &User, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> Result<(), nfsstat3> {
        let (from_dir, to_dir) = (self.object(from.0)?, self.object(to.0)?);
        let (from, to) = (component(from.1)?, component(to.1)?);
        with_rights(user, || rustix::fs::renameat(&from_dir, from, &to_dir, to)).map_err(status)
    }

    fn link(&self, user: &User, object: &[u8], dir: &[u8], name: &[u8]) -> Result<(), nfsstat3> {
        let (object, dir) = (self.object(object)?, self.object(dir)?);
        let (path, name) = (path_of(object.as_fd()), component(name)?);
        with_rights(user, || rustix::fs::linkat(CWD, &path, &dir, name, AtFlags::SYMLINK_FOLLOW))
            .map_err(status)
    }

    fn read_dir(
        &self,
        user: &User,
        dir: &[u8],
        cookie: u64,
        take: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<bool, nfsstat3> {
        let dir = self.object(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = with_rights(user, || openat(&dir, ".", flags, Mode::empty())).map_err(status)?;
        if cookie != 0 {
            seek(&opened, SeekFrom::Start(cookie)).map_err(|_| nfsstat3::NFS3ERR_BAD_COOKIE)?;
        }
        let is_root = self.is_root(dir.as_fd()).map_err(status)?;
        let mut buffer = vec![MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut entries = RawDir::new(&opened, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(status)?;
            let name = entry.file_name().to_bytes();
            // Clients do not learn the number of the directory above the export.
            let fileid = if is_root && name == b".." { self.fileid.1 } else { entry.ino() };
            if !take(Entry { fileid, name, cookie: entry.next_entry_cookie() }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn space(&self, object: &[u8]) -> Result<Space, nfsstat3> {
        let object = self.object(object)?;
        let found = fstatvfs(&object).map_err(status)?;
        Ok(Space {
            bytes: [found.f_blocks, found.f_bfree, found.f_bavail]
                .map(|blocks| blocks.saturating_mul(found.f_frsize)),
            files: [found.f_files, found.f_ffree, found.f_favail],
            name_max: u32::try_from(found.f_namemax).unwrap_or(255),
        })
    }
}
