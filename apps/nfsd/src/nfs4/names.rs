//! Operations on names: CREATE, REMOVE, RENAME, LINK and READDIR.

use std::borrow::Cow;

use iwarp_rpc::xdr::{Reader, Writer, padding};
use nfs3_types::nfs3::ftype3;

use super::Compound;
use super::attributes::{self, change};
use super::bitmap::Bitmap;
use super::objects::component;
use crate::backend::New;
use crate::codec::PATH_MAX;
use crate::server::Target;
use crate::status::Status;

/// Cookies that a server must not use (RFC 8881 §18.23.3): those of the backend are moved behind them.
const COOKIES_RESERVED: u64 = 2;
/// Bytes of a list besides its entries: verifier and two flags.
const LIST_BYTES: usize = 16;

/// Returns the value that tells changes of an object; 0 if the object is gone.
pub(super) fn change_of(target: &Target<'_>) -> u64 {
    target.export.backend.attributes(target.object).map_or(0, |found| change(&found))
}

/// Appends the change of a directory by an operation. It is not atomic: other programs may have changed it, too.
pub(super) fn put_change(out: &mut Writer, before: u64, target: &Target<'_>) {
    out.bool(false);
    out.u64(before);
    out.u64(change_of(target));
}

impl Compound<'_, '_> {
    /// CREATE: an object that is no regular file.
    pub(super) fn create(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let kind = reader.u32()?;
        let mut link = Cow::default();
        let mut device = (0, 0);
        match kind {
            3 | 4 => device = (reader.u32()?, reader.u32()?),
            5 => link = self.caller.data(reader.reducible(PATH_MAX)?),
            _ => {}
        }
        let name = component(reader)?;
        let (attributes, given) = attributes::read(reader)?;
        let special = |kind| New::Special { kind, attributes, device };
        let new = match kind {
            2 => New::Directory(attributes),
            3 => special(ftype3::NF3BLK),
            4 => special(ftype3::NF3CHR),
            5 if link.is_empty() => return Err(Status::Inval),
            5 => New::Symlink(attributes, &link),
            6 => special(ftype3::NF3SOCK),
            7 => special(ftype3::NF3FIFO),
            _ => return Err(Status::BadType),
        };
        let handle = self.handle()?.to_vec();
        let dir = self.writable(&handle)?;
        let before = change_of(&dir);
        let object = dir.export.backend.create(&dir.user, dir.object, name, &new)?;
        put_change(out, before, &dir);
        given.put(out);
        let made = self.sealed(&dir, &object)?;
        self.go_to(made);
        Ok(())
    }

    pub(super) fn remove(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let name = component(reader)?;
        self.may_change_names()?;
        let dir = self.writable(self.handle()?)?;
        let before = change_of(&dir);
        let remove = |directory| dir.export.backend.remove(&dir.user, dir.object, name, directory);
        match remove(false).map_err(Status::from) {
            Err(Status::IsDir) => remove(true)?,
            other => other?,
        }
        put_change(out, before, &dir);
        Ok(())
    }

    /// Names stay while clients reclaim their opens (RFC 8881 §8.4.2.1).
    fn may_change_names(&self) -> Result<(), Status> {
        if self.server.nfs4.state().in_grace() { Err(Status::Grace) } else { Ok(()) }
    }

    pub(super) fn rename(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (old, new) = (component(reader)?, component(reader)?);
        self.may_change_names()?;
        let (from, to) = (self.writable(self.saved_handle()?)?, self.writable(self.handle()?)?);
        if from.number != to.number {
            return Err(Status::XDev);
        }
        let before = (change_of(&from), change_of(&to));
        from.export.backend.rename(&from.user, (from.object, old), (to.object, new))?;
        put_change(out, before.0, &from);
        put_change(out, before.1, &to);
        Ok(())
    }

    pub(super) fn link(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let name = component(reader)?;
        let (object, dir) = (self.writable(self.saved_handle()?)?, self.writable(self.handle()?)?);
        if object.number != dir.number {
            return Err(Status::XDev);
        }
        let before = change_of(&dir);
        dir.export.backend.link(&dir.user, object.object, dir.object, name)?;
        put_change(out, before, &dir);
        Ok(())
    }

    pub(super) fn readdir(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (cookie, _) = (reader.u64()?, reader.u64()?);
        let (_, max, wanted) = (reader.u32()?, reader.u32()?, Bitmap::read(reader)?);
        if (1..=COOKIES_RESERVED).contains(&cookie) {
            return Err(Status::BadCookie);
        }
        let max =
            self.session.map_or(max, |session| max.min(session.channel.response_bytes.saturating_sub(1024)));
        let mut list = List { entries: Writer::new(), room: (max as usize).saturating_sub(LIST_BYTES) };
        let handle = self.handle()?;
        let at_end = match self.caller.exports.tree.directory(handle) {
            Some(directory) => {
                let names = directory.visible(self.caller.exports.list(), self.caller.peer);
                let numbered = (COOKIES_RESERVED.saturating_add(1)..).zip(names);
                let mut left = numbered.filter(|(at, _)| *at > cookie);
                left.all(|(at, name)| {
                    list.take(at, name.name.as_bytes(), |out| {
                        self.put_entry_attributes(Ok(&name.handle), wanted, out);
                    })
                })
            }
            None => self.read_export(handle, cookie.saturating_sub(COOKIES_RESERVED), wanted, &mut list)?,
        };
        if !at_end && list.entries.position() == 0 {
            return Err(Status::TooSmall);
        }
        // Cookies are positions that the file system keeps valid: the verifier says nothing.
        out.u64(0);
        out.fixed(&list.entries.into_bytes());
        out.bool(false);
        out.bool(at_end);
        Ok(())
    }

    /// Lists a directory of an export. Returns true if the last entry was taken.
    fn read_export(
        &self,
        handle: &[u8],
        cookie: u64,
        wanted: Bitmap,
        list: &mut List,
    ) -> Result<bool, Status> {
        let dir = self.server.target(self.caller, handle)?;
        let listed = dir.export.backend.read_dir(&dir.user, dir.object, cookie, &mut |entry| {
            if entry.name == b"." || entry.name == b".." {
                return true;
            }
            let found = self.found_in(&dir, entry.name);
            if found == Err(Status::NoEnt) {
                return true;
            }
            let cookie = entry.cookie.saturating_add(COOKIES_RESERVED);
            let handle = found.as_deref().map_err(|status| *status);
            list.take(cookie, entry.name, |out| self.put_entry_attributes(handle, wanted, out))
        });
        Ok(listed?)
    }
}

/// Entries of a directory, as long as there is room for them.
struct List {
    entries: Writer,
    room: usize,
}

impl List {
    /// Appends an entry. Returns false if there is no room for it.
    fn take(&mut self, cookie: u64, name: &[u8], attributes: impl FnOnce(&mut Writer)) -> bool {
        let start = self.entries.position().saturating_add(name.len()).saturating_add(padding(name.len()));
        if start > self.room {
            return false;
        }
        let mut entry = Writer::new();
        entry.bool(true);
        entry.u64(cookie);
        entry.opaque(name);
        attributes(&mut entry);
        let fits = self.entries.position().saturating_add(entry.position()) <= self.room;
        if fits {
            self.entries.fixed(&entry.into_bytes());
        }
        fits
    }
}
