//! MOUNT version 3 (RFC 1813 §5): handles of exports by path.

use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

use iwarp_rpc::message::executed;
use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::mount::mountstat3;

use crate::codec::put;
use crate::export::Exports;
use crate::server::{Caller, Fault, Server};

/// Flavor numbers that clients may use: AUTH_SYS, and none at all.
const FLAVORS: [u32; 2] = [1, 0];
/// Mounts remembered, at most: they serve the list for operators, and nothing else.
const MOUNTS_MAX: usize = 1024;

/// Clients and the exports that they have mounted, oldest first.
pub(crate) type Mounts = Vec<(IpAddr, String)>;

impl Server {
    fn mounts(&self) -> MutexGuard<'_, Mounts> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the clients and the exports that they have mounted.
    pub(crate) fn mounted(&self) -> Mounts {
        self.mounts().clone()
    }

    /// Executes a procedure of MOUNT and returns the reply.
    pub(crate) fn mount(&self, caller: &Caller<'_>, mut reader: Reader<'_>) -> Result<Vec<u8>, Fault> {
        let mut writer = executed(caller.call.xid);
        let path = |reader: &mut Reader<'_>| {
            let path = reader.opaque(nfs3_types::mount::MNTPATHLEN)?;
            Ok::<_, Fault>(String::from_utf8_lossy(path).into_owned())
        };
        match caller.call.procedure {
            0 => {}
            1 => {
                let path = path(&mut reader)?;
                match self.handle_of(caller, &path) {
                    Ok(handle) => {
                        put(&mut writer, &mountstat3::MNT3_OK);
                        writer.opaque(&handle);
                        put(&mut writer, &FLAVORS.to_vec());
                        self.remember(caller.peer.address, path);
                    }
                    Err(status) => put(&mut writer, &status),
                }
            }
            2 => {
                for (client, path) in self.mounts().iter() {
                    writer.bool(true);
                    writer.opaque(client.to_string().as_bytes());
                    writer.opaque(path.as_bytes());
                }
                writer.bool(false);
            }
            3 => {
                let path = path(&mut reader)?;
                self.mounts().retain(|mount| *mount != (caller.peer.address, path.clone()));
            }
            4 => self.mounts().retain(|(client, _)| *client != caller.peer.address),
            5 => list(caller.exports, &mut writer),
            _ => return Err(Fault::Procedure),
        }
        Ok(writer.into_bytes())
    }

    /// Returns the handle of an export's topmost directory. A slash at the end of a path means nothing.
    fn handle_of(&self, caller: &Caller<'_>, path: &str) -> Result<Vec<u8>, mountstat3> {
        let wanted = path.trim_end_matches('/');
        let mut exports = caller.exports.list().iter();
        let found = exports.find(|(_, export)| export.path.trim_end_matches('/') == wanted);
        let (number, export) = found.ok_or(mountstat3::MNT3ERR_NOENT)?;
        self.rule(caller, export).ok_or(mountstat3::MNT3ERR_ACCES)?;
        self.seals.seal(*number, &export.backend.root()).ok_or(mountstat3::MNT3ERR_SERVERFAULT)
    }

    fn remember(&self, client: IpAddr, path: String) {
        let mut mounts = self.mounts();
        let mount = (client, path);
        if mounts.contains(&mount) {
            return;
        }
        if mounts.len() >= MOUNTS_MAX {
            mounts.remove(0);
        }
        mounts.push(mount);
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
