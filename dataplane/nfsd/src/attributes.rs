//! Attributes and errors of Linux as those of NFS.

use nfs3_types::nfs3::{fattr3, ftype3, nfsstat3, nfstime3, specdata3};
use rustix::fs::{FileType, Statx, StatxTimestamp};
use rustix::io::Errno;

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

/// Returns attributes as NFS has them. Times before 1970 or after 2106 become the nearest that can be stated.
pub(crate) fn fattr(found: &Statx) -> fattr3 {
    let mode = u32::from(found.stx_mode);
    let device = |major: u32, minor: u32| (u64::from(major) << 32) | u64::from(minor);
    fattr3 {
        type_: kind(FileType::from_raw_mode(mode)),
        mode: mode & 0o7777,
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        used: found.stx_blocks.saturating_mul(512),
        rdev: specdata3 { specdata1: found.stx_rdev_major, specdata2: found.stx_rdev_minor },
        fsid: device(found.stx_dev_major, found.stx_dev_minor),
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

fn time(found: &StatxTimestamp) -> nfstime3 {
    let seconds = u32::try_from(found.tv_sec.max(0)).unwrap_or(u32::MAX);
    nfstime3 { seconds, nseconds: found.tv_nsec }
}
