//! Regions of the daemon as the content of an export: files in one directory whose bytes are the regions' memory.

use std::collections::BTreeSet;
use std::hash::Hasher;
use std::sync::Arc;

use iwarp_server::{Region, RegionTable, User};
use iwarp_verbs::Access;
use nfs3_types::nfs3::{
    ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ, ftype3, nfsstat3, nfstime3,
};
use siphasher::sip::SipHasher24;

use crate::attributes::{Attributes, FOLDER_BYTES, NewAttributes, SetTime, Time, status};
use crate::backend::{Backend, Entry, New, Space};
use crate::file::File;

/// Handle of the directory; that of a region is its instance.
const ROOT: &[u8] = &[0];
/// Number of the directory. Those of regions are higher.
const ROOT_FILEID: u64 = 1;
/// Number that is added to an instance for the number and the cookie of its file: smaller ones are the directory's.
const INSTANCES: u64 = 16;
/// Seconds for which times of a region are stated again: for as long, Linux does not ask anew (`acregmin`).
const STATED_S: u64 = 3;
/// Longest name of a region, in bytes.
const NAME_MAX: u32 = 63;

/// Regions that an export has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those that any peer may use: without a token, from any address.
    Public,
    /// Those of these names, as soon as they exist.
    Named(BTreeSet<String>),
}

/// The regions of an export.
#[derive(Debug)]
pub struct Regions {
    table: Arc<RegionTable>,
    selection: Selection,
    /// Number of the file system.
    fsid: u64,
}

/// An object of the export.
enum Object {
    Root,
    Region(Arc<Region>),
}

impl Regions {
    /// Exports regions at `path`, which determines the number of the file system.
    #[must_use]
    pub fn new(path: &str, table: Arc<RegionTable>, selection: Selection) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(path.as_bytes());
        Self { table, selection, fsid: hasher.finish() }
    }

    /// Returns true if the region is a file of the export. Names that NFS cannot have are left out.
    fn has(&self, region: &Region) -> bool {
        let name = region.name();
        let selected = match &self.selection {
            Selection::Public => region.is_public(),
            Selection::Named(names) => names.contains(name),
        };
        selected && !name.contains('/') && name != "." && name != ".."
    }

    fn regions(&self) -> impl Iterator<Item = Arc<Region>> {
        self.table.all().into_iter().filter(|region| self.has(region))
    }

    fn object(&self, object: &[u8]) -> Result<Object, nfsstat3> {
        if object == ROOT {
            return Ok(Object::Root);
        }
        let instance = object.try_into().map(u64::from_be_bytes).ok();
        let found = instance.and_then(|instance| self.table.find(instance));
        found.filter(|region| self.has(region)).map(Object::Region).ok_or(nfsstat3::NFS3ERR_STALE)
    }

    fn file(&self, object: &[u8]) -> Result<Arc<Region>, nfsstat3> {
        match self.object(object)? {
            Object::Root => Err(nfsstat3::NFS3ERR_ISDIR),
            Object::Region(region) => Ok(region),
        }
    }

    /// Finds a region in the directory.
    fn named(&self, dir: &[u8], name: &[u8]) -> Result<Arc<Region>, nfsstat3> {
        let Object::Root = self.object(dir)? else { return Err(nfsstat3::NFS3ERR_NOTDIR) };
        let found = self.regions().find(|region| region.name().as_bytes() == name);
        found.ok_or(if name.len() > 255 { nfsstat3::NFS3ERR_NAMETOOLONG } else { nfsstat3::NFS3ERR_NOENT })
    }
}

fn handle(region: &Region) -> Vec<u8> {
    region.instance().to_be_bytes().to_vec()
}

/// Returns the number of the file, which is its cookie, too.
fn fileid(region: &Region) -> u64 {
    region.instance().saturating_add(INSTANCES)
}

/// Returns the permission bits: the rights of peers, for everybody.
fn mode(access: Access) -> u32 {
    let read = if access.contains(Access::REMOTE_READ) { 0o444 } else { 0 };
    let write = if access.contains(Access::REMOTE_WRITE) { 0o222 } else { 0 };
    read | write
}

/// Returns the attributes of a region in a file system of this number.
fn attributes(region: &Region, fsid: u64, modified: Time) -> Attributes {
    Attributes {
        kind: ftype3::NF3REG,
        mode: mode(region.access()),
        nlink: 1,
        uid: 0,
        gid: 0,
        size: region.bytes(),
        used: region.bytes(),
        device: (0, 0),
        fsid,
        fileid: fileid(region),
        atime: modified,
        mtime: modified,
        ctime: modified,
    }
}

/// Returns the attributes of a region for the reply to a READ or WRITE.
pub(crate) fn last_attributes(region: &Region, fsid: u64) -> Attributes {
    attributes(region, fsid, region.last_modified(STATED_S).into())
}

/// Checks new attributes of a region: only what it has can be set.
fn check(region: &Region, new: &NewAttributes) -> Result<(), nfsstat3> {
    if let Some(size) = new.size {
        match size.cmp(&region.bytes()) {
            std::cmp::Ordering::Less => return Err(nfsstat3::NFS3ERR_PERM),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => return Err(nfsstat3::NFS3ERR_NOSPC),
        }
    }
    let other = |option: Option<u32>, is: u32| option.is_some_and(|value| value != is);
    let owner = other(new.uid, 0) || other(new.gid, 0) || other(new.mode, mode(region.access()));
    let times = [new.atime, new.mtime].iter().any(|time| matches!(time, Some(SetTime::To(_))));
    if owner || times { Err(nfsstat3::NFS3ERR_PERM) } else { Ok(()) }
}

impl Backend for Regions {
    fn root(&self) -> Vec<u8> {
        ROOT.to_vec()
    }

    fn content(&self) -> String {
        let selected = match &self.selection {
            Selection::Public => "regions *".to_owned(),
            Selection::Named(names) => {
                format!("regions {}", names.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
            }
        };
        let count = self.regions().count();
        let error = self.table.error().map(|error| format!("; {error}"));
        format!("{selected} ({count} there{})", error.unwrap_or_default())
    }

    fn attributes(&self, object: &[u8]) -> Result<Attributes, nfsstat3> {
        match self.object(object)? {
            Object::Root => {
                Ok(Attributes::folder(self.fsid, ROOT_FILEID, FOLDER_BYTES, self.table.changed().into()))
            }
            Object::Region(region) => Ok(attributes(&region, self.fsid, region.modified().into())),
        }
    }

    fn set_attributes(
        &self,
        _: &User,
        object: &[u8],
        attributes: &NewAttributes,
        guard: Option<nfstime3>,
    ) -> Result<(), nfsstat3> {
        if guard.is_some_and(|guard| {
            self.attributes(object).is_ok_and(|found| nfstime3::from(found.ctime) != guard)
        }) {
            return Err(nfsstat3::NFS3ERR_NOT_SYNC);
        }
        match self.object(object)? {
            Object::Root => Err(nfsstat3::NFS3ERR_PERM),
            Object::Region(region) => check(&region, attributes),
        }
    }

    fn lookup(&self, _: &User, dir: &[u8], name: &[u8]) -> Result<Vec<u8>, nfsstat3> {
        match (name, self.object(dir)?) {
            (b"." | b"..", Object::Root) => Ok(ROOT.to_vec()),
            _ => self.named(dir, name).map(|region| handle(&region)),
        }
    }

    fn access(&self, _: &User, object: &[u8], wanted: u32) -> Result<u32, nfsstat3> {
        let rights = match self.object(object)? {
            Object::Root => ACCESS3_READ | ACCESS3_LOOKUP,
            Object::Region(region) => {
                let access = region.access();
                let read = if access.contains(Access::REMOTE_READ) { ACCESS3_READ } else { 0 };
                // Linux opens a file for writing only with both; at the end there is no space.
                let write = ACCESS3_MODIFY | ACCESS3_EXTEND;
                read | if access.contains(Access::REMOTE_WRITE) { write } else { 0 }
            }
        };
        Ok(wanted & rights)
    }

    fn read_link(&self, _: &User, object: &[u8]) -> Result<Vec<u8>, nfsstat3> {
        self.object(object)?;
        Err(nfsstat3::NFS3ERR_INVAL)
    }

    fn open(&self, _: &User, object: &[u8], write: bool) -> Result<File, nfsstat3> {
        let region = self.file(object)?;
        let right = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        if !region.access().contains(right) {
            return Err(nfsstat3::NFS3ERR_ACCES);
        }
        self.table.open(&region).map_err(status)?;
        Ok(File::Region(region, self.fsid))
    }

    fn has_links_and_times(&self) -> bool {
        false
    }

    fn region(&self, object: &[u8]) -> Option<Arc<Region>> {
        let region = self.file(object).ok()?;
        self.table.open(&region).ok()?;
        Some(region)
    }

    fn create(&self, _: &User, dir: &[u8], name: &[u8], new: &New<'_>) -> Result<Vec<u8>, nfsstat3> {
        match (self.named(dir, name), new) {
            (Ok(region), New::File { attributes, exclusive: false }) => {
                check(&region, &NewAttributes::only_size(attributes.size)).map(|()| handle(&region))
            }
            (Ok(_), _) => Err(nfsstat3::NFS3ERR_EXIST),
            // Only the daemon makes regions.
            (Err(nfsstat3::NFS3ERR_NOENT), _) => Err(nfsstat3::NFS3ERR_ACCES),
            (Err(error), _) => Err(error),
        }
    }

    fn remove(&self, _: &User, dir: &[u8], name: &[u8], directory: bool) -> Result<(), nfsstat3> {
        self.named(dir, name)?;
        Err(if directory { nfsstat3::NFS3ERR_NOTDIR } else { nfsstat3::NFS3ERR_ACCES })
    }

    fn rename(&self, _: &User, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> Result<(), nfsstat3> {
        self.named(from.0, from.1)?;
        let Object::Root = self.object(to.0)? else { return Err(nfsstat3::NFS3ERR_NOTDIR) };
        Err(nfsstat3::NFS3ERR_ACCES)
    }

    fn link(&self, _: &User, object: &[u8], dir: &[u8], _: &[u8]) -> Result<(), nfsstat3> {
        self.object(object)?;
        self.object(dir)?;
        Err(nfsstat3::NFS3ERR_ACCES)
    }

    fn read_dir(
        &self,
        _: &User,
        dir: &[u8],
        cookie: u64,
        take: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<bool, nfsstat3> {
        let Object::Root = self.object(dir)? else { return Err(nfsstat3::NFS3ERR_NOTDIR) };
        let own = [&b"."[..], b".."].into_iter().zip(1_u64..);
        for (name, at) in own.filter(|(_, at)| *at > cookie) {
            if !take(Entry { fileid: ROOT_FILEID, name, cookie: at }) {
                return Ok(false);
            }
        }
        // By instance, which stays as others come and go.
        for region in self.regions().filter(|region| fileid(region) > cookie) {
            let fileid = fileid(&region);
            if !take(Entry { fileid, name: region.name().as_bytes(), cookie: fileid }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn space(&self, object: &[u8]) -> Result<Space, nfsstat3> {
        self.object(object)?;
        let sizes = self.regions().map(|region| region.bytes());
        let (count, bytes) =
            sizes.fold((0_u64, 0_u64), |(n, sum), bytes| (n.saturating_add(1), sum.saturating_add(bytes)));
        Ok(Space { bytes: [bytes, 0, 0], files: [count, 0, 0], name_max: NAME_MAX })
    }
}
