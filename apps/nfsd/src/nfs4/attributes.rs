//! Attributes of files and of their file system (RFC 8881 §5) in the encoding of version 4.

use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::nfs3::ftype3;

use super::bitmap::Bitmap;
use crate::attributes::{Attributes, NewAttributes, SetTime, Time};
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
    pub(super) found: Attributes,
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
pub(super) fn change(found: &Attributes) -> u64 {
    (found.ctime.seconds.cast_unsigned() << 32) | u64::from(found.ctime.nanoseconds)
}

fn put_time(out: &mut Writer, time: Time) {
    out.u64(time.seconds.cast_unsigned());
    out.u32(time.nanoseconds);
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
            1 => out.u32(kind(found.kind)),
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
                out.u32(found.device.0);
                out.u32(found.device.1);
            }
            42 => out.u64(self.space.bytes[2]),
            43 => out.u64(self.space.bytes[1]),
            44 => out.u64(self.space.bytes[0]),
            45 => out.u64(found.used),
            47 => put_time(out, found.atime),
            51 => put_time(out, Time { seconds: 0, nanoseconds: 1 }),
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
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(NewAttributes, Bitmap), Status> {
    let given = Bitmap::read(reader)?;
    let values = reader.opaque(VALUES_MAX)?;
    if !given.without(WRITABLE).is_empty() {
        let known = given.without(Bitmap(READABLE.0 | WRITABLE.0)).is_empty();
        return Err(if known { Status::Inval } else { Status::AttrNotSupp });
    }
    let mut reader = Reader::new(values);
    let mut new = NewAttributes::default();
    for number in given.numbers() {
        match number {
            SIZE => new.size = Some(reader.u64()?),
            MODE => new.mode = Some(reader.u32()?),
            OWNER => new.uid = Some(owner(&mut reader)?),
            OWNER_GROUP => new.gid = Some(owner(&mut reader)?),
            TIME_ACCESS_SET => new.atime = Some(time(&mut reader)?),
            _ => new.mtime = Some(time(&mut reader)?),
        }
    }
    if reader.rest().is_empty() { Ok((new, given)) } else { Err(Status::BadXdr) }
}

/// Reads a user or group, which must be a number in digits (RFC 8881 §5.9).
fn owner(reader: &mut Reader<'_>) -> Result<u32, Status> {
    let name = reader.opaque(OWNER_MAX)?;
    std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()).ok_or(Status::BadOwner)
}

/// Reads a time to set.
fn time(reader: &mut Reader<'_>) -> Result<SetTime, Status> {
    match reader.u32()? {
        0 => Ok(SetTime::Now),
        1 => {
            let (seconds, nanoseconds) = (reader.u64()?.cast_signed(), reader.u32()?);
            if nanoseconds >= 1_000_000_000 {
                return Err(Status::Inval);
            }
            Ok(SetTime::To(Time { seconds, nanoseconds }))
        }
        _ => Err(Status::BadXdr),
    }
}
