//! The listings of directories: READDIR and READDIRPLUS.

use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::nfs3::{Nfs3Option, cookieverf3, nfsstat3};

use super::{after, copied};
use crate::backend::Entry;
use crate::codec::{fixed, handle, put};
use crate::server::{Caller, Fault, Server, Target};

/// Bytes of a result besides its entries, at most: status, attributes, verifier, two flags.
const FRAME_BYTES: usize = 4 + 88 + 8 + 8;

/// Bytes that a name takes: its length, itself and its padding.
fn name_bytes(name: &[u8]) -> usize {
    name.len().saturating_add(iwarp_rpc::xdr::padding(name.len())).saturating_add(4)
}

impl Server {
    pub(super) fn readdir(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let (cookie, _, count) = (reader.u64()?, fixed::<cookieverf3>(reader)?, reader.u32()?);
        let room = (count.min(self.transfer_max) as usize).saturating_sub(FRAME_BYTES);
        let mut entries = Writer::new();
        let end = copied(&target).and_then(|target| {
            target.export.backend.read_dir(&target.user, target.object, cookie, &mut |entry| {
                let bytes = name_bytes(entry.name).saturating_add(4 + 8 + 8);
                let fits = entries.position().saturating_add(bytes) <= room;
                if fits {
                    put_entry(&mut entries, &entry);
                }
                fits
            })
        });
        finish(out, &target, end, entries);
        Ok(())
    }

    pub(super) fn readdirplus(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let (cookie, _) = (reader.u64()?, fixed::<cookieverf3>(reader)?);
        let (names_max, max) = (reader.u32()? as usize, reader.u32()?.min(self.transfer_max) as usize);
        let room = max.saturating_sub(FRAME_BYTES);
        let (mut entries, mut names) = (Writer::new(), 0_usize);
        let end = copied(&target).and_then(|target| {
            target.export.backend.read_dir(&target.user, target.object, cookie, &mut |entry| {
                let bytes = name_bytes(entry.name).saturating_add(8 + 8);
                names = names.saturating_add(bytes);
                let mut whole = Writer::new();
                put_entry(&mut whole, &entry);
                self.put_object(target, entry.name, &mut whole);
                let fits = entries.position().saturating_add(whole.position()) <= room
                    && (names <= names_max || entries.position() == 0);
                if fits {
                    entries.fixed(&whole.into_bytes());
                }
                fits
            })
        });
        finish(out, &target, end, entries);
        Ok(())
    }

    /// Appends attributes and handle of an entry, or that there are none: it may have gone meanwhile, or belong to
    /// another file system.
    fn put_object(&self, target: &Target<'_>, name: &[u8], out: &mut Writer) {
        let found = target.export.backend.lookup(&target.user, target.object, name);
        let sealed = found.as_ref().ok().and_then(|object| self.seal(target, object).ok());
        match (found, sealed) {
            (Ok(object), Some(sealed)) => {
                put(out, &target.attributes_of(&object));
                put(out, &Nfs3Option::Some(sealed));
            }
            _ => {
                out.bool(false);
                out.bool(false);
            }
        }
    }
}

fn put_entry(out: &mut Writer, entry: &Entry<'_>) {
    out.bool(true);
    out.u64(entry.fileid);
    out.opaque(entry.name);
    out.u64(entry.cookie);
}

/// Appends the result: an empty list that is not at its end means that the client has no room for one entry.
fn finish(
    out: &mut Writer,
    target: &Result<Target<'_>, nfsstat3>,
    end: Result<bool, nfsstat3>,
    entries: Writer,
) {
    let end = match end {
        Ok(false) if entries.position() == 0 => Err(nfsstat3::NFS3ERR_TOOSMALL),
        other => other,
    };
    put(out, &end.err().unwrap_or(nfsstat3::NFS3_OK));
    put(out, &after(target));
    if let Ok(end) = end {
        // Cookies are positions that the file system keeps valid: the verifier says nothing.
        put(out, &cookieverf3::default());
        out.fixed(&entries.into_bytes());
        out.bool(false);
        out.bool(end);
    }
}
