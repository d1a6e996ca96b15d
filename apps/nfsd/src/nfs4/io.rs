//! READ, WRITE and COMMIT (RFC 8881 §18.22, §18.32, §18.3).

use iwarp_rpc::xdr::{Reader, Writer};
use nfs3_types::nfs3::stable_how;
use rustix::io::Errno;

use super::Compound;
use crate::attributes::status;
use crate::file::File;
use crate::reply::detach;
use crate::server::{Target, Write};
use crate::state::{Held, Stateid};
use crate::status::Status;

fn failed(error: Errno) -> Status {
    status(error).into()
}

impl Compound<'_, '_> {
    /// Returns the file of an open, or opens it with the rights of the user.
    fn file(
        &self,
        target: &Target<'_>,
        handle: &[u8],
        stateid: Stateid,
        write: bool,
    ) -> Result<File, Status> {
        match self.server.nfs4.state().held(self.client()?, stateid, handle, write)? {
            Held::Open(file) => Ok(file),
            Held::Special => Ok(target.export.backend.open(&target.user, target.object, write)?),
        }
    }

    pub(super) async fn read(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (stateid, offset, length) = (self.stateid(reader)?, reader.u64()?, reader.u32()?);
        let handle = self.handle()?.to_vec();
        let file = self.file(&self.target(&handle)?, &handle, stateid, false)?;
        let room = (self.server.transfer_max as usize).saturating_sub(self.payload_bytes());
        let length = u32::try_from(room).unwrap_or(u32::MAX).min(length);
        let payload = self.caller.read(&file, offset, length).await.map_err(failed)?;
        out.bool(offset.saturating_add(payload.length().into()) >= file.size().map_err(failed)?);
        self.payload(out, payload)
    }

    pub(super) async fn write(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (stateid, offset, stable) = (self.stateid(reader)?, reader.u64()?, reader.u32()?);
        let stable = match stable {
            0 => stable_how::UNSTABLE,
            1 => stable_how::DATA_SYNC,
            2 => stable_how::FILE_SYNC,
            _ => return Err(Status::BadXdr),
        };
        let data = reader.reducible(self.server.transfer_max as usize)?;
        // Operations take effect in their order: a READ before this one keeps its bytes.
        detach(&mut self.payloads);
        let handle = self.handle()?;
        let target = self.writable(handle)?;
        let file = self.file(&target, handle, stateid, true)?;
        let is_placed = self.caller.placed(&data, &file, offset).map_err(failed)?;
        // With the rights of the user, the kernel takes away the bits that lend the rights of the file's owner.
        let write = Write { offset, data, is_placed, stable };
        let written = self.server.write_file(self.caller, &file, Some(&target.user), write);
        let (written, stable) = written.await.map_err(failed)?;
        out.u32(written);
        out.u32(stable as u32);
        out.u64(self.server.verifier);
        Ok(())
    }

    /// COMMIT: the whole file, because the kernel has no cheaper way for a part.
    pub(super) async fn commit(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (_, _) = (reader.u64()?, reader.u32()?);
        let target = self.target(self.handle()?)?;
        let open = |write| target.export.backend.open(&target.user, target.object, write);
        let file = open(true).or_else(|_| open(false))?;
        file.commit(self.caller.ways.io, stable_how::DATA_SYNC).await.map_err(failed)?;
        out.u64(self.server.verifier);
        Ok(())
    }
}
