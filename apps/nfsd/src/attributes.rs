//! Attributes of files, for either version of NFS; attributes and errors of Linux as those of NFS.

use std::time::{SystemTime, UNIX_EPOCH};

use nfs3_types::nfs3::{
    Nfs3Option, fattr3, ftype3, nfsstat3, nfstime3, sattr3, set_atime, set_mtime, specdata3,
};
use nfs3_types::xdr_codec::{Pack, Unpack};
use rustix::fs::{FileType, Statx, StatxTimestamp};
use rustix::io::Errno;

/// Size of a directory that no file system has, in bytes.
pub(crate) const FOLDER_BYTES: u64 = 4096;

/// Point in time, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since the beginning of 1970 in UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds that are added to them, less than 10^9.
    pub nanoseconds: u32,
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
    }
}

/// NFS 3 has times from 1970 to 2106 (RFC 1813 §2.5): others become the nearest of these.
impl From<Time> for nfstime3 {
    fn from(Time { seconds, nanoseconds }: Time) -> Self {
        match u32::try_from(seconds) {
            Ok(seconds) => Self { seconds, nseconds: nanoseconds },
            Err(_) if seconds < 0 => Self { seconds: 0, nseconds: 0 },
            Err(_) => Self { seconds: u32::MAX, nseconds: 999_999_999 },
        }
    }
}

impl From<nfstime3> for Time {
    fn from(time: nfstime3) -> Self {
        Self { seconds: time.seconds.into(), nanoseconds: time.nseconds }
    }
}

/// Attributes of an object.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Type of the object.
    pub kind: ftype3,
    /// Permission bits, with those for set-user-ID, set-group-ID and sticky.
    pub mode: u32,
    /// Number of names in directories.
    pub nlink: u32,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of the file system that the object takes.
    pub used: u64,
    /// Number of a device, major and minor.
    pub device: (u32, u32),
    /// Number of the file system.
    pub fsid: u64,
    /// Number of the object in the file system.
    pub fileid: u64,
    /// Time of the latest access.
    pub atime: Time,
    /// Time of the latest modification of the content.
    pub mtime: Time,
    /// Time of the latest change of content or attributes.
    pub ctime: Time,
}

impl Attributes {
    /// Returns the attributes of a directory that no file system has: anybody may list it, nobody may change it. `used`
    /// is the space that it states, in bytes; all of its times are `time`.
    pub(crate) fn folder(fsid: u64, fileid: u64, used: u64, time: Time) -> Self {
        Self {
            kind: ftype3::NF3DIR,
            mode: 0o555,
            nlink: 2,
            uid: 0,
            gid: 0,
            size: FOLDER_BYTES,
            used,
            device: (0, 0),
            fsid,
            fileid,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }
}

impl From<Attributes> for fattr3 {
    fn from(found: Attributes) -> Self {
        Self {
            type_: found.kind,
            mode: found.mode,
            nlink: found.nlink,
            uid: found.uid,
            gid: found.gid,
            size: found.size,
            used: found.used,
            rdev: specdata3 { specdata1: found.device.0, specdata2: found.device.1 },
            fsid: found.fsid,
            fileid: found.fileid,
            atime: found.atime.into(),
            mtime: found.mtime.into(),
            ctime: found.ctime.into(),
        }
    }
}

/// Time that is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the server sets it.
    Now,
    /// The time that the client states.
    To(Time),
}

/// Attributes that are to be set; those without a value stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// Permission bits, as in `mode` of the attributes.
    pub mode: Option<u32>,
    /// Number of the owner.
    pub uid: Option<u32>,
    /// Number of the group.
    pub gid: Option<u32>,
    /// Size in bytes: the file is cut or extended.
    pub size: Option<u64>,
    /// Time of the latest access.
    pub atime: Option<SetTime>,
    /// Time of the latest modification of the content.
    pub mtime: Option<SetTime>,
}

impl NewAttributes {
    /// Returns a change of the size only.
    pub(crate) fn only_size(size: Option<u64>) -> Self {
        Self { size, ..Self::default() }
    }
}

impl From<sattr3> for NewAttributes {
    fn from(new: sattr3) -> Self {
        Self {
            mode: value(new.mode),
            uid: value(new.uid),
            gid: value(new.gid),
            size: value(new.size),
            atime: match new.atime {
                set_atime::DONT_CHANGE => None,
                set_atime::SET_TO_SERVER_TIME => Some(SetTime::Now),
                set_atime::SET_TO_CLIENT_TIME(time) => Some(SetTime::To(time.into())),
            },
            mtime: match new.mtime {
                set_mtime::DONT_CHANGE => None,
                set_mtime::SET_TO_SERVER_TIME => Some(SetTime::Now),
                set_mtime::SET_TO_CLIENT_TIME(time) => Some(SetTime::To(time.into())),
            },
        }
    }
}

/// Returns the value of an optional item.
pub(crate) fn value<T: Pack + Unpack>(option: Nfs3Option<T>) -> Option<T> {
    match option {
        Nfs3Option::Some(value) => Some(value),
        Nfs3Option::None => None,
    }
}

/// Returns the status of a system call's error.
pub(crate) fn status(error: Errno) -> nfsstat3 {
    match error {
        Errno::PERM => nfsstat3::NFS3ERR_PERM,
        Errno::NOENT => nfsstat3::NFS3ERR_NOENT,
        Errno::NXIO => nfsstat3::NFS3ERR_NXIO,
        Errno::ACCESS => nfsstat3::NFS3ERR_ACCES,
        Errno::EXIST => nfsstat3::NFS3ERR_EXIST,
        Errno::XDEV => nfsstat3::NFS3ERR_XDEV,
        Errno::NODEV => nfsstat3::NFS3ERR_NODEV,
        Errno::NOTDIR => nfsstat3::NFS3ERR_NOTDIR,
        Errno::ISDIR => nfsstat3::NFS3ERR_ISDIR,
        Errno::INVAL | Errno::LOOP => nfsstat3::NFS3ERR_INVAL,
        Errno::FBIG => nfsstat3::NFS3ERR_FBIG,
        Errno::NOSPC => nfsstat3::NFS3ERR_NOSPC,
        Errno::ROFS => nfsstat3::NFS3ERR_ROFS,
        Errno::MLINK => nfsstat3::NFS3ERR_MLINK,
        Errno::NAMETOOLONG => nfsstat3::NFS3ERR_NAMETOOLONG,
        Errno::NOTEMPTY => nfsstat3::NFS3ERR_NOTEMPTY,
        Errno::DQUOT => nfsstat3::NFS3ERR_DQUOT,
        Errno::STALE => nfsstat3::NFS3ERR_STALE,
        Errno::OPNOTSUPP | Errno::NOSYS => nfsstat3::NFS3ERR_NOTSUPP,
        // The client repeats the call later.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::TXTBSY => {
            nfsstat3::NFS3ERR_JUKEBOX
        }
        _ => nfsstat3::NFS3ERR_IO,
    }
}

/// Returns the attributes that Linux has found.
pub(crate) fn attributes_of(found: &Statx) -> Attributes {
    let mode = u32::from(found.stx_mode);
    Attributes {
        kind: kind(FileType::from_raw_mode(mode)),
        mode: mode & 0o7777,
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        used: found.stx_blocks.saturating_mul(512),
        device: (found.stx_rdev_major, found.stx_rdev_minor),
        fsid: (u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor),
        fileid: found.stx_ino,
        atime: time(&found.stx_atime),
        mtime: time(&found.stx_mtime),
        ctime: time(&found.stx_ctime),
    }
}

fn kind(found: FileType) -> ftype3 {
    match found {
        FileType::Directory => ftype3::NF3DIR,
        FileType::BlockDevice => ftype3::NF3BLK,
        FileType::CharacterDevice => ftype3::NF3CHR,
        FileType::Symlink => ftype3::NF3LNK,
        FileType::Socket => ftype3::NF3SOCK,
        FileType::Fifo => ftype3::NF3FIFO,
        FileType::RegularFile | FileType::Unknown => ftype3::NF3REG,
    }
}

fn time(found: &StatxTimestamp) -> Time {
    Time { seconds: found.tv_sec, nanoseconds: found.tv_nsec }
}
