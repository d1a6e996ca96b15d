//! MOUNT version 3 (RFC 1813 §5): handles of directories by path.

use std::fmt;
use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

use iwarp_rpc::message::executed;
use iwarp_rpc::xdr::{Reader, Writer};
use iwarp_server::{Entry, makes_room};
use nfs3_types::mount::{MNTPATHLEN, mountstat3};
use nfs3_types::nfs3::{ftype3, nfsstat3};

use crate::codec::put;
use crate::export::Export;
use crate::exports::Exports;
use crate::procedure::MountProc;
use crate::server::{Caller, Fault, Mounts, Server};

/// Flavor numbers that clients may use: AUTH_SYS, and none at all.
const FLAVORS: [u32; 2] = [1, 0];
/// Mounts remembered, at most: they serve the list for operators, and nothing else.
const MOUNTS_MAX: usize = 1024;

impl Server {
    fn mounts(&self) -> MutexGuard<'_, Mounts> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the clients and the paths that they have mounted.
    pub(crate) fn mounted(&self) -> Mounts {
        self.mounts().clone()
    }

    /// Executes a procedure of MOUNT and returns the reply.
    pub(crate) fn mount(
        &self,
        procedure: MountProc,
        caller: &Caller<'_>,
        mut reader: Reader<'_>,
    ) -> Result<Vec<u8>, Fault> {
        let mut writer = executed(caller.call.xid);
        match procedure {
            MountProc::NULL => {}
            MountProc::MNT => {
                let path = Path::new(reader.opaque(MNTPATHLEN)?);
                let path = path.ok_or(mountstat3::MNT3ERR_NOENT);
                match path.and_then(|path| Ok((self.handle_of(caller, &path)?, path))) {
                    Ok((handle, path)) => {
                        put(&mut writer, &mountstat3::MNT3_OK);
                        writer.opaque(&handle);
                        put(&mut writer, &FLAVORS.to_vec());
                        self.remember(caller.peer.address, path.to_string());
                    }
                    Err(status) => put(&mut writer, &status),
                }
            }
            MountProc::DUMP => {
                for (client, path) in self.mounts().iter() {
                    writer.bool(true);
                    writer.opaque(client.to_string().as_bytes());
                    writer.opaque(path.as_bytes());
                }
                writer.bool(false);
            }
            MountProc::UMNT => {
                if let Some(path) = Path::new(reader.opaque(MNTPATHLEN)?) {
                    let mount = (caller.peer.address, path.to_string());
                    self.mounts().retain(|known| *known != mount);
                }
            }
            MountProc::UMNTALL => self.mounts().retain(|(client, _)| *client != caller.peer.address),
            MountProc::EXPORT => list(caller.exports, &mut writer),
        }
        Ok(writer.into_bytes())
    }

    /// Returns the handle of a directory: the topmost one of an export, or one below it. The longest path of an export
    /// counts. The rest of the path is looked up name by name with the rights of the user, as LOOKUP does it: no link
    /// is followed, and nothing outside the export is found.
    fn handle_of(&self, caller: &Caller<'_>, path: &Path<'_>) -> Result<Vec<u8>, mountstat3> {
        let (number, export, below) = path.find(caller.exports).ok_or(mountstat3::MNT3ERR_NOENT)?;
        let rule = self.rule(caller, export).ok_or(mountstat3::MNT3ERR_ACCES)?;
        let user = rule.user(&caller.call.credential);
        let failed = |status: nfsstat3| match status {
            nfsstat3::NFS3ERR_PERM | nfsstat3::NFS3ERR_ACCES => mountstat3::MNT3ERR_ACCES,
            nfsstat3::NFS3ERR_NOENT | nfsstat3::NFS3ERR_STALE => mountstat3::MNT3ERR_NOENT,
            nfsstat3::NFS3ERR_NOTDIR => mountstat3::MNT3ERR_NOTDIR,
            nfsstat3::NFS3ERR_NAMETOOLONG => mountstat3::MNT3ERR_NAMETOOLONG,
            nfsstat3::NFS3ERR_INVAL => mountstat3::MNT3ERR_INVAL,
            nfsstat3::NFS3ERR_IO => mountstat3::MNT3ERR_IO,
            _ => mountstat3::MNT3ERR_SERVERFAULT,
        };
        let mut object = export.backend.root();
        for name in below {
            object = export.backend.lookup(&user, &object, name).map_err(failed)?;
        }
        // RFC 1813 §5.2.1: the path is that of a directory.
        if export.backend.attributes(&object).map_err(failed)?.kind != ftype3::NF3DIR {
            return Err(mountstat3::MNT3ERR_NOTDIR);
        }
        self.seals.seal(number, &object).ok_or(mountstat3::MNT3ERR_SERVERFAULT)
    }

    /// Enters a mount in the list. A client that has many loses its oldest when the list is full.
    fn remember(&self, client: IpAddr, path: String) {
        let mut mounts = self.mounts();
        let mount = (client, path);
        if mounts.contains(&mount) {
            return;
        }
        if mounts.len() >= MOUNTS_MAX {
            let entries = mounts.iter().enumerate();
            let entries = entries.map(|(at, (address, _))| Entry {
                key: at,
                address: *address,
                rank: Some(0),
                used: at,
                was_used: true,
            });
            let Some(goes) = makes_room(client, entries) else { return };
            mounts.remove(goes);
        }
        mounts.push(mount);
    }
}

/// A path as clients state it: its names, without empty ones and `.`.
pub(crate) struct Path<'a>(Vec<&'a [u8]>);

impl<'a> Path<'a> {
    /// Reads a path. `None`: it is not absolute, or has `..`, which would not be below the export that it begins with.
    pub(crate) fn new(path: &'a [u8]) -> Option<Self> {
        let names = path.strip_prefix(b"/")?.split(|byte| *byte == b'/');
        let names: Vec<_> = names.filter(|name| ![&b""[..], b"."].contains(name)).collect();
        if names.contains(&&b".."[..]) { None } else { Some(Self(names)) }
    }

    /// Finds the export with the longest path that this one begins with. Returns its number, and the names below it.
    pub(crate) fn find<'e>(&self, exports: &'e Exports) -> Option<(u32, &'e Export, &[&'a [u8]])> {
        let below = |export: &Export| {
            let own = Path::new(export.path.as_bytes())?;
            let (begin, below) = self.0.split_at_checked(own.0.len())?;
            (begin == own.0).then_some(below)
        };
        let found =
            exports.list().iter().filter_map(|(number, export)| Some((*number, export, below(export)?)));
        found.min_by_key(|(_, _, below)| below.len())
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|name| write!(f, "/{}", String::from_utf8_lossy(name)))
    }
}

/// Lists all exports with the prefixes of their clients.
fn list(exports: &Exports, writer: &mut Writer) {
    for (_, export) in exports.list() {
        writer.bool(true);
        writer.opaque(export.path.as_bytes());
        for rule in &export.rules {
            writer.bool(true);
            writer.opaque(rule.clients.to_string().as_bytes());
        }
        writer.bool(false);
    }
    writer.bool(false);
}
