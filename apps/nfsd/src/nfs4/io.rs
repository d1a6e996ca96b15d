//! READ, WRITE and COMMIT (RFC 8881 §18.22, §18.32, §18.3).

use iwarp_rpc::xdr::{Data, Reader, Writer};
use nfs3_types::nfs3::stable_how;
use rustix::io::Errno;

use super::Compound;
use crate::attributes::status;
use crate::file::File;
use crate::server::Target;
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
        let end = |read: u32| offset.saturating_add(read.into());
        if let Some(span) = file.readable(offset, length).map_err(failed)? {
            out.bool(end(span.length()) >= file.size().map_err(failed)?);
            return self.payload_in(out, span);
        }
        let content = self.caller.io.read(&file, offset, length).await.map_err(failed)?;
        out.bool(offset.saturating_add(content.len() as u64) >= file.size().map_err(failed)?);
        self.payload(out, &content)
    }

    pub(super) async fn write(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (stateid, offset, stable) = (self.stateid(reader)?, reader.u64()?, reader.u32()?);
        let stable = match stable {
            0 => stable_how::UNSTABLE,
            1 => stable_how::DATA_SYNC,
            2 => stable_how::FILE_SYNC,
            _ => return Err(Status::BadXdr),
        };
        let data = reader.reducible(self.server.transfer_max as usize)?;
        let handle = self.handle()?;
        let target = self.writable(handle)?;
        let file = self.file(&target, handle, stateid, true)?;
        let is_placed = self.caller.placed(&data, &file, offset).map_err(failed)?;
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let (written, stable) = if is_placed {
            (length, file.sync(stable).map_err(failed)?)
        } else {
            let bytes = || match data {
                Data::Inline(bytes) => bytes.to_vec(),
                Data::Fetched { offset, length } => {
                    (self.caller.copy_out)(offset..offset.saturating_add(length))
                }
            };
            // With the rights of the user, the kernel takes away the bits that lend the rights of the file's owner.
            let written = self.caller.io.write(&file, Some(&target.user), (offset, length), bytes, stable);
            written.await.map_err(failed)?
        };
        self.server.stats.payload.wrote(is_placed, written.into());
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
        self.caller.io.sync(&file, stable_how::DATA_SYNC).await.map_err(failed)?;
        out.u64(self.server.verifier);
        Ok(())
    }
}
