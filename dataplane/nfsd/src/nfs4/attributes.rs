//! Attributes of files (RFC 8881 §5): those of version 3 and of the file system, in the encoding of version 4.

use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::nfs3::{Nfs3Option, fattr3, ftype3, nfstime3, sattr3, set_atime, set_mtime};

use super::bitmap::Bitmap;
use crate::backend::Space;
use crate::status::Status;

pub(super) const SIZE: u32 = 4;
pub(super) const RDATTR_ERROR: u32 = 11;
const MODE: u32 = 33;
const OWNER: u32 = 36;
const OWNER_GROUP: u32 = 37;
const TIME_ACCESS_SET: u32 = 48;
const TIME_MODIFY_SET: u32 = 54;
/// Longest name of a user or group, in bytes.
const OWNER_MAX: usize = 1024;
/// Longest list of values that a client sends, in bytes.
const VALUES_MAX: usize = 8192;

/// Attributes that can be read.
pub(super) const READABLE: Bitmap = Bitmap::of(&[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 17, 18, 19, 20, 21, 22, 23, 26, 27, 28, 29, 30, 31, 33, 34,
    35, 36, 37, 41, 42, 43, 44, 45, 47, 51, 52, 53, 55, 75,
]);
/// Attributes that can be set.
pub(super) const WRITABLE: Bitmap =
    Bitmap::of(&[SIZE, MODE, OWNER, OWNER_GROUP, TIME_ACCESS_SET, TIME_MODIFY_SET]);
/// The times hold the verifier of an exclusive create.
pub(super) const VERIFIER: Bitmap = Bitmap::of(&[TIME_ACCESS_SET, TIME_MODIFY_SET]);
/// Attributes whose values come from the file system, and not from the object.
pub(super) const SPACE: Bitmap = Bitmap::of(&[21, 22, 23, 29, 42, 43, 44]);

/// An object, as its attributes describe it.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) found: fattr3,
    /// Handle by which clients name the object.
    pub(super) handle: &'a [u8],
    /// Number of the export, 0 for a directory above the exports.
    pub(super) export: u32,
    pub(super) space: Space,
    pub(super) lease_s: u32,
    pub(super) transfer_max: u32,
    /// True if objects have links, and times that can be set.
    pub(super) full: bool,
}

/// Returns the value that differs after each change of an object. The clock of the file system decides how soon.
pub(super) fn change(found: &fattr3) -> u64 {
    (u64::from(found.ctime.seconds) << 32) | u64::from(found.ctime.nseconds)
}

fn put_time(out: &mut Writer, time: nfstime3) {
    out.u64(time.seconds.into());
    out.u32(time.nseconds);
}

impl Facts<'_> {
    /// Appends the values of those of the wanted attributes that exist, with their numbers.
    pub(super) fn put(&self, wanted: Bitmap, out: &mut Writer) {
        let wanted = wanted.and(READABLE);
        let mut values = Writer::new();
        for number in wanted.numbers() {
            match number {
                0..=31 => self.put_first_word(number, &mut values),
                _ => self.put_second_word(number, &mut values),
            }
        }
        wanted.put(out);
        out.opaque(&values.into_bytes());
    }

    fn put_first_word(&self, number: u32, out: &mut Writer) {
        let found = &self.found;
        match number {
            0 => Bitmap(READABLE.0 | WRITABLE.0).put(out),
            1 => out.u32(kind(found.type_)),
            // Handles live as long as their objects, and nothing but the status of READDIR is an error.
            2 | RDATTR_ERROR => out.u32(0),
            3 => out.u64(change(found)),
            4 => out.u64(found.size),
            // Links, symbolic links, times to set.
            5 | 6 | 15 => out.bool(self.full),
            // Unique handles, case preserved, chown restricted, one kind of file.
            9 | 17 | 18 | 26 => out.bool(true),
            7 | 16 => out.bool(false),
            8 => {
                out.u64(self.export.into());
                out.u64(found.fsid);
            }
            10 => out.u32(self.lease_s),
            19 => out.opaque(self.handle),
            20 => out.u64(found.fileid),
            21 => out.u64(self.space.files[2]),
            22 => out.u64(self.space.files[1]),
            23 => out.u64(self.space.files[0]),
            27 => out.u64(i64::MAX.unsigned_abs()),
            28 => out.u32(32_000),
            29 => out.u32(self.space.name_max),
            _ => out.u64(self.transfer_max.into()),
        }
    }

    fn put_second_word(&self, number: u32, out: &mut Writer) {
        let found = &self.found;
        match number {
            MODE => out.u32(found.mode),
            34 => out.bool(true),
            35 => out.u32(found.nlink),
            OWNER => out.opaque(found.uid.to_string().as_bytes()),
            OWNER_GROUP => out.opaque(found.gid.to_string().as_bytes()),
            41 => {
                out.u32(found.rdev.specdata1);
                out.u32(found.rdev.specdata2);
            }
            42 => out.u64(self.space.bytes[2]),
            43 => out.u64(self.space.bytes[1]),
            44 => out.u64(self.space.bytes[0]),
            45 => out.u64(found.used),
            47 => put_time(out, found.atime),
            51 => put_time(out, nfstime3 { seconds: 0, nseconds: 1 }),
            52 => put_time(out, found.ctime),
            53 => put_time(out, found.mtime),
            55 => out.u64(found.fileid),
            _ => WRITABLE.without(VERIFIER).put(out),
        }
    }
}

/// Returns the number of a type (RFC 8881 §3.2): that of version 3.
fn kind(found: ftype3) -> u32 {
    found as u32
}

/// Reads attributes to set, and their numbers.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(sattr3, Bitmap), Status> {
    let given = Bitmap::read(reader)?;
    let values = reader.opaque(VALUES_MAX)?;
    if !given.without(WRITABLE).is_empty() {
        let known = given.without(Bitmap(READABLE.0 | WRITABLE.0)).is_empty();
        return Err(if known { Status::Inval } else { Status::AttrNotSupp });
    }
    let mut reader = Reader::new(values);
    let mut new = sattr3::default();
    for number in given.numbers() {
        match number {
            SIZE => new.size = Nfs3Option::Some(reader.u64()?),
            MODE => new.mode = Nfs3Option::Some(reader.u32()?),
            OWNER => new.uid = Nfs3Option::Some(owner(&mut reader)?),
            OWNER_GROUP => new.gid = Nfs3Option::Some(owner(&mut reader)?),
            TIME_ACCESS_SET => {
                new.atime =
                    time(&mut reader)?.map_or(set_atime::SET_TO_SERVER_TIME, set_atime::SET_TO_CLIENT_TIME);
            }
            _ => {
                new.mtime =
                    time(&mut reader)?.map_or(set_mtime::SET_TO_SERVER_TIME, set_mtime::SET_TO_CLIENT_TIME);
            }
        }
    }
    if reader.rest().is_empty() { Ok((new, given)) } else { Err(Status::BadXdr) }
}

/// Reads a user or group, which must be a number in digits (RFC 8881 §5.9).
fn owner(reader: &mut Reader<'_>) -> Result<u32, Status> {
    let name = reader.opaque(OWNER_MAX)?;
    std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()).ok_or(Status::BadOwner)
}

/// Reads a time to set; `None` is the time of the server. Times outside of 1970 to 2106 become the nearest in it.
fn time(reader: &mut Reader<'_>) -> Result<Option<nfstime3>, Status> {
    match reader.u32()? {
        0 => Ok(None),
        1 => {
            let (seconds, nseconds) = (reader.u64()?.cast_signed().max(0), reader.u32()?);
            if nseconds >= 1_000_000_000 {
                return Err(Status::Inval);
            }
            Ok(Some(nfstime3 { seconds: u32::try_from(seconds).unwrap_or(u32::MAX), nseconds }))
        }
        _ => Err(Status::BadXdr),
    }
}
