//! LOCK, LOCKT and LOCKU (RFC 8881 §18.10 to §18.12).

use iwarp_rpc::xdr::{Reader, Writer};

use super::{Compound, Failure, OPAQUE_MAX};
use crate::state::{Lock, LockError, Span};
use crate::status::Status;

/// Reads a lock type. Returns true for one that excludes all others. A client that would wait asks again.
fn writes(reader: &mut Reader<'_>) -> Result<bool, Status> {
    match reader.u32()? {
        1 | 3 => Ok(false),
        2 | 4 => Ok(true),
        _ => Err(Status::BadXdr),
    }
}

/// Reads a lock owner: its client is that of the session.
fn owner<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Status> {
    reader.u64()?;
    Ok(reader.opaque(OPAQUE_MAX)?)
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let denied = match error {
            LockError::Status(status) => return status.into(),
            LockError::Denied(denied) => denied,
        };
        let mut body = Writer::new();
        let (offset, length) = denied.span.offset_and_length();
        body.u64(offset);
        body.u64(length);
        body.u32(if denied.write { 2 } else { 1 });
        body.u64(denied.client);
        body.opaque(&denied.owner);
        Self { status: Status::Denied, body: body.into_bytes() }
    }
}

impl Compound<'_, '_> {
    pub(super) fn lock(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Failure> {
        let (write, reclaim) = (writes(reader)?, reader.bool()?);
        let span = (reader.u64()?, reader.u64()?);
        let (stateid, owner) = if reader.bool()? {
            reader.u32()?;
            let stateid = self.stateid(reader)?;
            reader.u32()?;
            (stateid, Some(owner(reader)?))
        } else {
            let stateid = self.stateid(reader)?;
            reader.u32()?;
            (stateid, None)
        };
        let span = Span::new(span.0, span.1)?;
        let (client, handle) = (self.client()?, self.handle()?);
        self.target(handle)?;
        let asked = Lock { client, file: handle, stateid, owner, span, write, reclaim };
        let stateid = self.server.nfs4.state().lock(&asked)?;
        self.put_stateid(stateid, out);
        Ok(())
    }

    pub(super) fn test_lock(&self, reader: &mut Reader<'_>) -> Result<(), Failure> {
        let (write, span) = (writes(reader)?, (reader.u64()?, reader.u64()?));
        let (owner, span) = (owner(reader)?, Span::new(span.0, span.1)?);
        let (client, handle) = (self.client()?, self.handle()?);
        self.target(handle)?;
        Ok(self.server.nfs4.state().test_lock(client, (owner, handle), span, write)?)
    }

    pub(super) fn unlock(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Failure> {
        writes(reader)?;
        reader.u32()?;
        let stateid = self.stateid(reader)?;
        let span = Span::new(reader.u64()?, reader.u64()?)?;
        let (client, handle) = (self.client()?, self.handle()?);
        let stateid = self.server.nfs4.state().unlock(client, stateid, handle, span)?;
        self.put_stateid(stateid, out);
        Ok(())
    }
}
