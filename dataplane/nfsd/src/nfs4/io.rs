//! READ, WRITE and COMMIT (RFC 8881 §18.22, §18.32, §18.3).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use iwarp_rpc::xdr::{Data, Reader, Writer};
use rustix::fs::{fdatasync, fstat, fsync};
use rustix::io::Errno;

use super::Compound;
use crate::attributes::status;
use crate::file::{read_all, write_all};
use crate::identity::with_rights;
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
    ) -> Result<Arc<OwnedFd>, Status> {
        match self.server.nfs4.state().held(self.client()?, stateid, handle, write)? {
            Held::Open(file) => Ok(file),
            Held::Special => Ok(Arc::new(target.export.backend.open(&target.user, target.object, write)?)),
        }
    }

    pub(super) fn read(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (stateid, offset, length) = (self.stateid(reader)?, reader.u64()?, reader.u32()?);
        let handle = self.handle()?.to_vec();
        let file = self.file(&self.target(&handle)?, &handle, stateid, false)?;
        let room = (self.server.transfer_max as usize).saturating_sub(self.content.len());
        let mut content = vec![0; room.min(length as usize)];
        let read = read_all(&file, &mut content, offset).map_err(failed)?;
        content.truncate(read as usize);
        let size = fstat(&file).map_err(failed)?.st_size.unsigned_abs();
        out.bool(offset.saturating_add(read.into()) >= size);
        self.payload(out, &content)
    }

    pub(super) fn write(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (stateid, offset, stable) = (self.stateid(reader)?, reader.u64()?, reader.u32()?);
        let data = reader.reducible(self.server.transfer_max as usize)?;
        let handle = self.handle()?;
        let target = self.writable(handle)?;
        let file = self.file(&target, handle, stateid, true)?;
        let fetched;
        let bytes = match data {
            Data::Inline(bytes) => bytes,
            Data::Fetched { offset, length } => {
                fetched = (self.caller.copy_out)(offset..offset.saturating_add(length));
                &fetched
            }
        };
        if bytes.len() != data.len() {
            return Err(Status::ServerFault);
        }
        // With the rights of the user, the kernel takes away the bits that lend the rights of the file's owner.
        let written = with_rights(&target.user, || write_all(&file, bytes, offset)).map_err(failed)?;
        match stable {
            0 => {}
            1 => fdatasync(&file).map_err(failed)?,
            2 => fsync(&file).map_err(failed)?,
            _ => return Err(Status::BadXdr),
        }
        out.u32(written);
        out.u32(stable);
        out.u64(self.server.verifier);
        Ok(())
    }

    /// COMMIT: the whole file, because the kernel has no cheaper way for a part.
    pub(super) fn commit(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (_, _) = (reader.u64()?, reader.u32()?);
        let target = self.target(self.handle()?)?;
        let open = |write| target.export.backend.open(&target.user, target.object, write);
        let file = open(true).or_else(|_| open(false))?;
        fdatasync(file.as_fd()).map_err(failed)?;
        out.u64(self.server.verifier);
        Ok(())
    }
}
