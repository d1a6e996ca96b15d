//! READLINK, READ, WRITE and COMMIT: results and arguments that the transport moves (RFC 8267 §4.1).

use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::nfs3::{Nfs3Option, WRITE3resok, nfsstat3, stable_how, wcc_data, writeverf3};

use super::{after, changed, copied, failed, result};
use crate::attributes::status;
use crate::codec::{fixed, handle, put};
use crate::reply::Payload;
use crate::server::{Caller, Fault, Server, Write};

impl Server {
    pub(super) fn readlink(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<Option<Payload>, Fault> {
        let target = self.target(caller, handle(reader)?);
        reader.finish()?;
        let found =
            copied(&target).and_then(|target| target.export.backend.read_link(&target.user, target.object));
        let attributes = after(&target);
        let link = match found {
            Ok(link) => Payload::Bytes(link),
            Err(status) => {
                failed(out, status, &attributes);
                return Ok(None);
            }
        };
        put(out, &nfsstat3::NFS3_OK);
        put(out, &attributes);
        out.u32(link.length());
        Ok(Some(link))
    }

    pub(super) async fn read(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<Option<Payload>, Fault> {
        let target = self.target(caller, handle(reader)?);
        let (offset, length) = (reader.u64()?, reader.u32()?.min(self.transfer_max));
        reader.finish()?;
        let opened =
            copied(&target).and_then(|target| target.export.backend.open(&target.user, target.object, false));
        let file = match opened {
            Ok(file) => file,
            Err(status) => {
                failed(out, status, &after(&target));
                return Ok(None);
            }
        };
        let read = caller.read(&file, offset, length).await;
        let found = file.attributes();
        let payload = match read {
            Ok(payload) => payload,
            Err(error) => {
                failed(out, status(error), &found);
                return Ok(None);
            }
        };
        let read = payload.length();
        let end = offset.saturating_add(read.into());
        let at_end = match &found {
            Nfs3Option::Some(found) => end >= found.size,
            Nfs3Option::None => file.size().map_or(read < length, |size| end >= size),
        };
        put(out, &nfsstat3::NFS3_OK);
        put(out, &found);
        out.u32(read);
        out.bool(at_end);
        out.u32(read);
        Ok(Some(payload))
    }

    pub(super) async fn write(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        let (offset, count, stable) = (reader.u64()?, reader.u32()?, fixed::<stable_how>(reader)?);
        let data = reader.reducible(self.transfer_max as usize)?;
        reader.finish()?;
        if data.len() != count as usize {
            return Err(Fault::Arguments);
        }
        let opened = copied(&target).and_then(|target| {
            target.writable()?;
            let file = target.export.backend.open(&target.user, target.object, true)?;
            Ok((caller.placed(&data, &file, offset).map_err(status)?, file))
        });
        let (is_placed, file) = match opened {
            Ok(opened) => opened,
            Err(status) => {
                failed(out, status, &changed(&target));
                return Ok(());
            }
        };
        let write = Write { offset, data, is_placed, stable };
        let written = self.write_file(caller, &file, None, write).await;
        let found = file.attributes();
        let data = || wcc_data { before: Nfs3Option::None, after: found.clone() };
        let done = written.map_err(status).map(|(count, committed)| WRITE3resok {
            file_wcc: data(),
            count,
            committed,
            verf: writeverf3(self.verifier.to_be_bytes()),
        });
        result(out, done, &data());
        Ok(())
    }

    pub(super) async fn commit(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        out: &mut Writer,
    ) -> Result<(), Fault> {
        let target = self.target(caller, handle(reader)?);
        // The server commits the whole file: the kernel has no cheaper way for a part.
        let (_, _) = (reader.u64()?, reader.u32()?);
        let opened = copied(&target).and_then(|target| {
            // COMMIT is allowed to a user who may write the file, or else to one who may read it.
            let open = |write| target.export.backend.open(&target.user, target.object, write);
            open(true).or_else(|_| open(false))
        });
        let done = match opened {
            Ok(file) => file.commit(caller.ways.io, stable_how::DATA_SYNC).await.map_err(status),
            Err(status) => Err(status),
        };
        let data = changed(&target);
        let done = done.map(|_| writeverf3(self.verifier.to_be_bytes()));
        put(out, &done.as_ref().err().copied().unwrap_or(nfsstat3::NFS3_OK));
        put(out, &data);
        if let Ok(verifier) = done {
            put(out, &verifier);
        }
        Ok(())
    }
}
