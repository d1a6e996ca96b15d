//! Operations on handles and attributes: PUTFH, GETATTR, SETATTR, VERIFY, ACCESS, LOOKUP, READLINK, SECINFO.

use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::nfs3::{ACCESS3_LOOKUP, ACCESS3_READ, ftype3};

use super::attributes::{self, Facts, RDATTR_ERROR, READABLE, SIZE, SPACE};
use super::bitmap::Bitmap;
use super::{Compound, OPAQUE_MAX};
use crate::attributes::Attributes;
use crate::backend::Space;
use crate::reply::Payload;
use crate::server::Target;
use crate::state::Held;
use crate::status::Status;

/// Rights of ACCESS that a client without the right to write never has: MODIFY, EXTEND, DELETE.
const CHANGES: u32 =
    nfs3_types::nfs3::ACCESS3_MODIFY | nfs3_types::nfs3::ACCESS3_EXTEND | nfs3_types::nfs3::ACCESS3_DELETE;
/// Rights of ACCESS that exist.
const RIGHTS: u32 = 0x3f;
/// Number of the flavor AUTH_SYS (RFC 5531 §8.2).
const AUTH_SYS: u32 = 1;

/// Reads a name of one component.
pub(super) fn component<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Status> {
    match reader.opaque(OPAQUE_MAX)? {
        b"" => Err(Status::Inval),
        b"." | b".." => Err(Status::BadName),
        name if name.len() > 255 => Err(Status::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(Status::BadName),
        name => Ok(name),
    }
}

/// Attributes that set the time of access or modification cannot be read.
fn readable(wanted: Bitmap) -> Result<Bitmap, Status> {
    if attributes::WRITABLE.without(READABLE).and(wanted).is_empty() {
        Ok(wanted)
    } else {
        Err(Status::Inval)
    }
}

impl Compound<'_, '_> {
    fn facts<'h>(&self, found: Attributes, handle: &'h [u8], export: u32) -> Facts<'h> {
        Facts {
            found,
            handle,
            export,
            space: Space { name_max: 255, ..Space::default() },
            lease_s: u32::try_from(self.server.nfs4.state().limits().lease.as_secs()).unwrap_or(u32::MAX),
            transfer_max: self.server.transfer_max,
            full: true,
        }
    }

    /// Returns what the wanted attributes of an object describe.
    fn describe<'h>(&self, handle: &'h [u8], wanted: Bitmap) -> Result<Facts<'h>, Status> {
        if let Some(directory) = self.caller.exports.tree.directory(handle) {
            return Ok(self.facts(directory.attributes(), handle, 0));
        }
        let target = self.server.target(self.caller, handle)?;
        let (backend, object) = (&target.export.backend, target.object);
        let facts = self.facts(backend.attributes(object)?, handle, target.number);
        let space = if wanted.and(SPACE).is_empty() { facts.space } else { backend.space(object)? };
        Ok(Facts { space, full: backend.has_links_and_times(), ..facts })
    }

    /// Appends the wanted attributes of an object, which READDIR has found.
    pub(super) fn put_entry_attributes(
        &self,
        handle: Result<&[u8], Status>,
        wanted: Bitmap,
        out: &mut Writer,
    ) {
        match handle.and_then(|handle| self.describe(handle, wanted)) {
            Ok(facts) => facts.put(wanted, out),
            Err(status) => {
                let error = wanted.and(Bitmap::of(&[RDATTR_ERROR]));
                error.put(out);
                let mut values = Writer::new();
                if !error.is_empty() {
                    values.u32(status as u32);
                }
                out.opaque(&values.into_bytes());
            }
        }
    }

    /// Returns the handle of a name in a directory of an export.
    pub(super) fn found_in(&self, target: &Target<'_>, name: &[u8]) -> Result<Vec<u8>, Status> {
        let object = target.export.backend.lookup(&target.user, target.object, name)?;
        self.sealed(target, &object)
    }

    /// Returns the handle of an object in the export of `target`.
    pub(super) fn sealed(&self, target: &Target<'_>, object: &[u8]) -> Result<Vec<u8>, Status> {
        self.server.seals.seal(target.number, object).ok_or(Status::ServerFault)
    }

    /// PUTFH: the export must exist, and admit the client.
    pub(super) fn put_handle(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let handle = reader.opaque(128)?;
        if self.caller.exports.tree.directory(handle).is_none() {
            self.server.target(self.caller, handle)?;
        }
        self.go_to(handle.to_vec());
        Ok(())
    }

    pub(super) fn getattr(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let wanted = readable(Bitmap::read(reader)?)?;
        let handle = self.handle()?;
        self.describe(handle, wanted)?.put(wanted, out);
        Ok(())
    }

    pub(super) fn setattr(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let stateid = self.stateid(reader)?;
        let (new, given) = attributes::read(reader)?;
        let handle = self.handle()?;
        let target = self.writable(handle)?;
        if given.has(SIZE) {
            let _held: Held<_> = self.server.nfs4.state().held(self.client()?, stateid, handle, true)?;
        }
        target.export.backend.set_attributes(&target.user, target.object, &new, None)?;
        given.put(out);
        Ok(())
    }

    /// VERIFY, and NVERIFY: compares attributes with values.
    pub(super) fn verify(&self, reader: &mut Reader<'_>, same: bool) -> Result<(), Status> {
        let wanted = readable(Bitmap::read(reader)?)?;
        let values = reader.opaque(8192)?;
        if wanted.has(RDATTR_ERROR) {
            return Err(Status::Inval);
        }
        if !wanted.without(READABLE).is_empty() {
            return Err(Status::AttrNotSupp);
        }
        let mut found = Writer::new();
        self.describe(self.handle()?, wanted)?.put(wanted, &mut found);
        let found = found.into_bytes();
        let mut reader = Reader::new(&found);
        Bitmap::read(&mut reader)?;
        match (reader.opaque(usize::MAX)? == values, same) {
            (true, true) | (false, false) => Ok(()),
            (false, true) => Err(Status::NotSame),
            (true, false) => Err(Status::Same),
        }
    }

    pub(super) fn access(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let wanted = reader.u32()? & RIGHTS;
        let handle = self.handle()?;
        let granted = if self.caller.exports.tree.directory(handle).is_some() {
            wanted & (ACCESS3_READ | ACCESS3_LOOKUP)
        } else {
            let target = self.server.target(self.caller, handle)?;
            let wanted = if target.rule.write { wanted } else { wanted & !CHANGES };
            target.export.backend.access(&target.user, target.object, wanted)?
        };
        out.u32(wanted);
        out.u32(granted);
        Ok(())
    }

    /// Finds a name in the current directory.
    fn find(&self, name: &[u8]) -> Result<Vec<u8>, Status> {
        let handle = self.handle()?;
        if let Some(directory) = self.caller.exports.tree.directory(handle) {
            let mut names = directory.visible(self.caller.exports.list(), self.caller.peer);
            let found = names.find(|entry| entry.name.as_bytes() == name);
            return found.map(|entry| entry.handle.clone()).ok_or(Status::NoEnt);
        }
        let target = self.server.target(self.caller, handle)?;
        self.found_in(&target, name).map_err(|status| match status {
            Status::NotDir if self.is_link(&target) => Status::Symlink,
            other => other,
        })
    }

    fn is_link(&self, target: &Target<'_>) -> bool {
        target.export.backend.attributes(target.object).is_ok_and(|found| found.kind == ftype3::NF3LNK)
    }

    pub(super) fn lookup(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let found = self.find(component(reader)?)?;
        self.go_to(found);
        Ok(())
    }

    /// LOOKUPP: the directory above an export is one of the tree.
    pub(super) fn lookup_parent(&mut self) -> Result<(), Status> {
        let handle = self.handle()?;
        let tree = &self.caller.exports.tree;
        let above = match (tree.directory(handle), tree.above(handle)) {
            (Some(directory), _) => directory.parent.clone().ok_or(Status::NoEnt)?,
            (None, Some(above)) => above.handle.clone(),
            (None, None) if handle == tree.root() => return Err(Status::NoEnt),
            (None, None) => self.found_in(&self.server.target(self.caller, handle)?, b"..")?,
        };
        self.go_to(above);
        Ok(())
    }

    pub(super) fn readlink(&mut self, out: &mut Writer) -> Result<(), Status> {
        let handle = self.handle()?.to_vec();
        let target = self.target(&handle)?;
        if !self.is_link(&target) {
            return Err(Status::WrongType);
        }
        let link = target.export.backend.read_link(&target.user, target.object)?;
        self.payload(out, Payload::Bytes(link))
    }

    /// SECINFO: AUTH_SYS for every name.
    pub(super) fn secinfo(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        self.find(component(reader)?)?;
        self.put_flavors(out);
        Ok(())
    }

    /// SECINFO_NO_NAME: AUTH_SYS for the object, or for the directory above it.
    pub(super) fn secinfo_no_name(
        &mut self,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<(), Status> {
        match reader.u32()? {
            0 => {
                self.handle()?;
            }
            1 => self.lookup_parent()?,
            _ => return Err(Status::BadXdr),
        }
        self.put_flavors(out);
        Ok(())
    }

    /// Appends the flavors; the operation leaves no current object (RFC 8881 §2.6.3.1.1.8).
    fn put_flavors(&mut self, out: &mut Writer) {
        self.current = None;
        out.u32(1);
        out.u32(AUTH_SYS);
    }
}
