//! NFS version 3: the 22 procedures (RFC 1813 §3.3).
//!
//! Attributes before an operation are left out: other programs may change an object at the same time, so that they
//! would not be those that the operation found (RFC 1813 §2.6).

mod list;
mod transfer;

use iwarp_rpc::message::executed;
use iwarp_rpc::xdr::{Reader, Writer, XdrError};
use nfs3_types::nfs3::{
    ACCESS3resok, FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FSINFO3resok, FSSTAT3resok,
    Nfs3Option, PATHCONF3resok, createverf3, devicedata3, fattr3, ftype3, mknoddata3, nfs_fh3, nfsstat3,
    nfstime3, post_op_attr, sattr3, sattrguard3, wcc_data,
};
use nfs3_types::xdr_codec::{Opaque, Pack};

use crate::attributes::{NewAttributes, value};
use crate::backend::New;
use crate::codec::{PATH_MAX, fixed, handle, place, put};
use crate::export::Rule;
use crate::procedure::Nfs3Proc;
use crate::reply::Reply;
use crate::server::{Caller, Fault, Server, Target};

/// Attributes and the handle of a created object, and those of its directory.
type Created = (Nfs3Option<nfs_fh3>, post_op_attr);

/// Appends a status and the result, or what a failure returns.
fn result<T: Pack>(writer: &mut Writer, result: Result<T, nfsstat3>, failed: &impl Pack) {
    match result {
        Ok(result) => {
            put(writer, &nfsstat3::NFS3_OK);
            put(writer, &result);
        }
        Err(status) => {
            put(writer, &status);
            put(writer, failed);
        }
    }
}

/// Appends the status of a procedure that has failed, and the attributes that a failure returns.
fn failed(writer: &mut Writer, status: nfsstat3, attributes: &impl Pack) {
    put(writer, &status);
    put(writer, attributes);
}

impl Target<'_> {
    /// Returns the attributes of the object, if they can be had.
    fn attributes(&self) -> post_op_attr {
        self.attributes_of(self.object)
    }

    fn attributes_of(&self, object: &[u8]) -> post_op_attr {
        self.export
            .backend
            .attributes(object)
            .map_or(Nfs3Option::None, |attributes| Nfs3Option::Some(attributes.into()))
    }

    /// Returns the rule, if it lets the client change something.
    fn writable(&self) -> Result<&Rule, nfsstat3> {
        if self.rule.write { Ok(&self.rule) } else { Err(nfsstat3::NFS3ERR_ROFS) }
    }
}

/// Returns the attributes of an object for a result, before any check of the operation.
fn after(target: &Result<Target<'_>, nfsstat3>) -> post_op_attr {
    target.as_ref().map_or(Nfs3Option::None, Target::attributes)
}

fn changed(target: &Result<Target<'_>, nfsstat3>) -> wcc_data {
    wcc_data { before: Nfs3Option::None, after: after(target) }
}

fn copied<T>(target: &Result<T, nfsstat3>) -> Result<&T, nfsstat3> {
    target.as_ref().map_err(|status| *status)
}

impl Server {
    /// Executes a procedure of NFS.
    pub(crate) async fn nfs(
        &self,
        procedure: Nfs3Proc,
        caller: &Caller<'_>,
        mut reader: Reader<'_>,
    ) -> Result<Reply, Fault> {
        let reader = &mut reader;
        let mut writer = executed(caller.call.xid);
        let (out, mut payload) = (&mut writer, None);
        match procedure {
            Nfs3Proc::NULL => {}
            Nfs3Proc::GETATTR => self.getattr(caller, reader, out)?,
            Nfs3Proc::SETATTR => self.setattr(caller, reader, out)?,
            Nfs3Proc::LOOKUP => self.lookup(caller, reader, out)?,
            Nfs3Proc::ACCESS => self.access(caller, reader, out)?,
            Nfs3Proc::READLINK => payload = self.readlink(caller, reader, out)?,
            Nfs3Proc::READ => payload = self.read(caller, reader, out).await?,
            Nfs3Proc::WRITE => self.write(caller, reader, out).await?,
            Nfs3Proc::CREATE | Nfs3Proc::MKDIR | Nfs3Proc::SYMLINK | Nfs3Proc::MKNOD => {
                self.create(procedure, caller, reader, out)?;
            }
            Nfs3Proc::REMOVE => self.remove(caller, reader, out, false)?,
            Nfs3Proc::RMDIR => self.remove(caller, reader, out, true)?,
            Nfs3Proc::RENAME => self.rename(caller, reader, out)?,
            Nfs3Proc::LINK => self.link(caller, reader, out)?,
            Nfs3Proc::READDIR => self.readdir(caller, reader, out)?,
            Nfs3Proc::READDIRPLUS => self.readdirplus(caller, reader, out)?,
            Nfs3Proc::FSSTAT => self.fsstat(caller, reader, out)?,
            Nfs3Proc::FSINFO => self.fsinfo(caller, reader, out)?,
            Nfs3Proc::PATHCONF => self.pathconf(caller, reader, out)?,
            Nfs3Proc::COMMIT => self.commit(caller, reader, out).await?,
        }
        reader.finish()?;
        let payloads = payload.map(|payload| (writer.position(), payload)).into_iter().collect();
        Ok(Reply { stream: writer.into_bytes(), payloads })
    }

    /// Returns the handle of an object for clients.
    fn seal(&self, target: &Target<'_>, object: &[u8]) -> Result<nfs_fh3, nfsstat3> {
        let sealed = self.seals.seal(target.number, object).ok_or(nfsstat3::NFS3ERR_SERVERFAULT)?;
        Ok(nfs_fh3 { data: Opaque::owned(sealed) })
    }

    fn getattr(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let found = target.and_then(|target| target.export.backend.attributes(target.object));
        match found {
            Ok(attributes) => result(out, Ok(fattr3::from(attributes)), &nfs3_types::xdr_codec::Void),
            Err(status) => put(out, &status),
        }
        Ok(())
    }

    fn setattr(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let (new, guard): (sattr3, sattrguard3) = (fixed(reader)?, fixed(reader)?);
        let new = new.into();
        let done = copied(&target).and_then(|target| {
            target.writable()?;
            target.export.backend.set_attributes(&target.user, target.object, &new, value(guard))
        });
        let data = changed(&target);
        put(out, &done.err().unwrap_or(nfsstat3::NFS3_OK));
        put(out, &data);
        Ok(())
    }

    fn lookup(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let (dir, name) = place(reader)?;
        let target = self.target(caller, dir);
        let found = copied(&target).and_then(|target| {
            let object = target.export.backend.lookup(&target.user, target.object, name)?;
            Ok((self.seal(target, &object)?, target.attributes_of(&object)))
        });
        let dir = after(&target);
        match found {
            Ok((object, attributes)) => {
                put(out, &nfsstat3::NFS3_OK);
                put(out, &object);
                put(out, &attributes);
            }
            Err(status) => put(out, &status),
        }
        put(out, &dir);
        Ok(())
    }

    fn access(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        const CHANGES: u32 = nfs3_types::nfs3::ACCESS3_MODIFY
            | nfs3_types::nfs3::ACCESS3_EXTEND
            | nfs3_types::nfs3::ACCESS3_DELETE;
        let target = self.target(caller, handle(reader)?);
        let wanted = reader.u32()?;
        let granted = copied(&target).and_then(|target| {
            let wanted = if target.rule.write { wanted } else { wanted & !CHANGES };
            target.export.backend.access(&target.user, target.object, wanted)
        });
        let obj_attributes = after(&target);
        let granted = granted.map(|access| ACCESS3resok { obj_attributes: obj_attributes.clone(), access });
        result(out, granted, &obj_attributes);
        Ok(())
    }

    /// CREATE, MKDIR, SYMLINK and MKNOD.
    fn create(
        &self,
        procedure: Nfs3Proc,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<(), Fault> {
        let (dir, name) = place(reader)?;
        let link;
        let new = match procedure {
            Nfs3Proc::CREATE => match reader.u32()? {
                how @ (0 | 1) => New::File { attributes: new_attributes(reader)?, exclusive: how == 1 },
                2 => New::FileOnce(fixed::<createverf3>(reader)?),
                _ => return Err(Fault::Arguments),
            },
            Nfs3Proc::MKDIR => New::Directory(new_attributes(reader)?),
            Nfs3Proc::SYMLINK => {
                let attributes = new_attributes(reader)?;
                link = caller.data(reader.reducible(PATH_MAX)?);
                New::Symlink(attributes, &link)
            }
            _ => special(fixed(reader)?),
        };
        let target = self.target(caller, dir);
        let made = copied(&target).and_then(|target| {
            target.writable()?;
            if matches!(new, New::Special { kind: ftype3::NF3REG, .. }) {
                return Err(nfsstat3::NFS3ERR_BADTYPE);
            }
            let object = target.export.backend.create(&target.user, target.object, name, &new)?;
            Ok::<Created, _>((Nfs3Option::Some(self.seal(target, &object)?), target.attributes_of(&object)))
        });
        let data = changed(&target);
        put(out, &made.as_ref().err().copied().unwrap_or(nfsstat3::NFS3_OK));
        if let Ok((object, attributes)) = made {
            put(out, &object);
            put(out, &attributes);
        }
        put(out, &data);
        Ok(())
    }

    fn remove(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
        directory: bool,
    ) -> Result<(), Fault> {
        let (dir, name) = place(reader)?;
        let target = self.target(caller, dir);
        let done = copied(&target).and_then(|target| {
            target.writable()?;
            target.export.backend.remove(&target.user, target.object, name, directory)
        });
        put(out, &done.err().unwrap_or(nfsstat3::NFS3_OK));
        put(out, &changed(&target));
        Ok(())
    }

    fn rename(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let (from_dir, from) = place(reader)?;
        let (to_dir, to) = place(reader)?;
        let (from_target, to_target) = (self.target(caller, from_dir), self.target(caller, to_dir));
        let done = copied(&from_target).and_then(|source| {
            let other = copied(&to_target)?;
            source.writable()?;
            if source.number != other.number {
                return Err(nfsstat3::NFS3ERR_XDEV);
            }
            source.export.backend.rename(&source.user, (source.object, from), (other.object, to))
        });
        put(out, &done.err().unwrap_or(nfsstat3::NFS3_OK));
        put(out, &changed(&from_target));
        put(out, &changed(&to_target));
        Ok(())
    }

    fn link(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let object = handle(reader)?;
        let (dir, name) = place(reader)?;
        let (target, dir) = (self.target(caller, object), self.target(caller, dir));
        let done = copied(&target).and_then(|source| {
            let dir = copied(&dir)?;
            source.writable()?;
            if source.number != dir.number {
                return Err(nfsstat3::NFS3ERR_XDEV);
            }
            source.export.backend.link(&source.user, source.object, dir.object, name)
        });
        put(out, &done.err().unwrap_or(nfsstat3::NFS3_OK));
        put(out, &after(&target));
        put(out, &changed(&dir));
        Ok(())
    }

    fn fsstat(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let space = copied(&target).and_then(|target| target.export.backend.space(target.object));
        let obj_attributes = after(&target);
        let found = space.map(|space| FSSTAT3resok {
            obj_attributes: obj_attributes.clone(),
            tbytes: space.bytes[0],
            fbytes: space.bytes[1],
            abytes: space.bytes[2],
            tfiles: space.files[0],
            ffiles: space.files[1],
            afiles: space.files[2],
            invarsec: 0,
        });
        result(out, found, &obj_attributes);
        Ok(())
    }

    fn fsinfo(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let max = self.transfer_max;
        let obj_attributes = after(&target);
        let properties = |target: &Target<'_>| {
            let full = FSF3_LINK | FSF3_SYMLINK | FSF3_CANSETTIME;
            FSF3_HOMOGENEOUS | if target.export.backend.has_links_and_times() { full } else { 0 }
        };
        let info = copied(&target).map(|target| FSINFO3resok {
            obj_attributes: obj_attributes.clone(),
            rtmax: max,
            rtpref: max,
            rtmult: 4096,
            wtmax: max,
            wtpref: max,
            wtmult: 4096,
            dtpref: max.min(64 << 10),
            maxfilesize: i64::MAX.unsigned_abs(),
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: properties(target),
        });
        result(out, info, &obj_attributes);
        Ok(())
    }

    fn pathconf(&self, caller: &Caller<'_>, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let space = copied(&target).and_then(|target| target.export.backend.space(target.object));
        let obj_attributes = after(&target);
        let found = space.map(|space| PATHCONF3resok {
            obj_attributes: obj_attributes.clone(),
            linkmax: 32_000,
            name_max: space.name_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        });
        result(out, found, &obj_attributes);
        Ok(())
    }
}

fn new_attributes(reader: &mut Reader<'_>) -> Result<NewAttributes, XdrError> {
    fixed::<sattr3>(reader).map(NewAttributes::from)
}

/// Returns the object of MKNOD's arguments; a type that MKNOD does not make is NF3REG.
fn special(data: mknoddata3) -> New<'static> {
    let device = |kind, devicedata3 { dev_attributes, spec }| New::Special {
        kind,
        attributes: dev_attributes.into(),
        device: (spec.specdata1, spec.specdata2),
    };
    let other =
        |kind, attributes: sattr3| New::Special { kind, attributes: attributes.into(), device: (0, 0) };
    match data {
        mknoddata3::NF3CHR(data) => device(ftype3::NF3CHR, data),
        mknoddata3::NF3BLK(data) => device(ftype3::NF3BLK, data),
        mknoddata3::NF3SOCK(attributes) => other(ftype3::NF3SOCK, attributes),
        mknoddata3::NF3FIFO(attributes) => other(ftype3::NF3FIFO, attributes),
        mknoddata3::default => other(ftype3::NF3REG, sattr3::default()),
    }
}
