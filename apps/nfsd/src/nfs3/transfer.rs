//! READLINK, READ, WRITE and COMMIT: results and arguments that the transport moves (RFC 8267 §4.1).

use iwarp_rpc::Item;
use iwarp_rpc::xdr::{Data, Reader, Writer};
use nfs3_types::nfs3::{Nfs3Option, WRITE3resok, nfsstat3, stable_how, wcc_data, writeverf3};
use rustix::io::Errno;

use super::{after, changed, copied, failed, result};
use crate::attributes::status;
use crate::codec::{fixed, handle, put};
use crate::file::File;
use crate::regions::Span;
use crate::server::{Caller, Fault, Reply, Server, Step};
use crate::stats::Measured;

/// READ: the caller reads up to `length` bytes from the file at `offset` into its buffer.
#[derive(Debug)]
pub struct ReadCall {
    /// File to read from.
    pub file: File,
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Bytes to read, at most.
    pub length: u32,
    writer: Writer,
    measured: Option<Measured>,
}

/// WRITE: the caller writes the data to the file at `offset`, without making it durable.
#[derive(Debug)]
pub struct WriteCall<'a> {
    /// File to write to.
    pub file: File,
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Data of the call: in the message, or in the buffer that the transport has filled.
    pub data: Data<'a>,
    /// True if the transport has placed the data in the file.
    pub is_placed: bool,
    pub(crate) stable: stable_how,
    verifier: u64,
    writer: Writer,
    measured: Option<Measured>,
}

impl ReadCall {
    /// Returns the part of a region that the call reads; `None` if the data must be copied from the file.
    ///
    /// # Errors
    /// The region is gone, or may not be read any more.
    pub fn span(&self) -> Result<Option<Span>, Errno> {
        self.file.readable(self.offset, self.length)
    }

    /// Returns the reply. `read` is the number of bytes that the caller has read: fewer than asked for mean the end of
    /// the file.
    #[must_use]
    pub fn reply(mut self, read: Result<u32, Errno>) -> Reply {
        let measured = self.measured.take();
        let reply = self.finish(read);
        if let Some(measured) = measured {
            measured.replied(&reply);
        }
        reply
    }

    /// Returns the reply whose payload is this part of a region.
    #[must_use]
    pub fn reply_from(self, span: Span) -> Reply {
        let mut reply = self.reply(Ok(span.length()));
        if !reply.payloads.is_empty() {
            reply.memory.push((0, span));
        }
        reply
    }

    pub(crate) fn measured(self, measured: Measured) -> Self {
        Self { measured: Some(measured), ..self }
    }

    fn finish(self, read: Result<u32, Errno>) -> Reply {
        let mut writer = self.writer;
        let found = self.file.attributes();
        let read = match read {
            Ok(read) => read.min(self.length),
            Err(error) => return failed(writer, status(error), &found),
        };
        let end = self.offset.saturating_add(read.into());
        let at_end = match &found {
            Nfs3Option::Some(found) => end >= found.size,
            Nfs3Option::None => self.file.size().map_or(read < self.length, |size| end >= size),
        };
        put(&mut writer, &nfsstat3::NFS3_OK);
        put(&mut writer, &found);
        writer.u32(read);
        writer.bool(at_end);
        writer.u32(read);
        let payloads = vec![Item { position: writer.position(), length: read }];
        Reply { stream: writer.into_bytes(), payloads, ..Reply::default() }
    }
}

impl<'a> WriteCall<'a> {
    pub(crate) fn measured(self, measured: Measured) -> Self {
        Self { measured: Some(measured), ..self }
    }

    /// Makes the data durable if the client asks for that, and returns the reply. `written` is the number of bytes that
    /// the caller has written.
    #[must_use]
    pub fn reply(self, written: Result<u32, Errno>) -> Reply {
        let synced = written.and_then(|written| Ok((written, self.file.sync(self.stable)?)));
        self.reply_durable(synced)
    }

    /// Returns the reply. `written` is the number of bytes that the caller has written, and how durable they are.
    pub(crate) fn reply_durable(mut self, written: Result<(u32, stable_how), Errno>) -> Reply {
        let is_placed = self.is_placed;
        let measured = self.measured.take();
        let reply = self.finish(written);
        if let Some(mut measured) = measured {
            measured.written = written.map_or(0, |(bytes, _)| bytes).into();
            measured.stats.payload.wrote(is_placed, measured.written);
            measured.replied(&reply);
        }
        reply
    }

    fn finish(self, written: Result<(u32, stable_how), Errno>) -> Reply {
        let mut writer = self.writer;
        let data = || wcc_data { before: Nfs3Option::None, after: self.file.attributes() };
        let verifier = self.verifier;
        let done = written.map_err(status).map(|(count, committed)| WRITE3resok {
            file_wcc: data(),
            count,
            committed,
            verf: writeverf3(verifier.to_be_bytes()),
        });
        result(&mut writer, done, &data());
        writer.into_bytes().into()
    }
}

impl Server {
    pub(super) fn readlink(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        mut writer: Writer,
    ) -> Result<Step<'static>, Fault> {
        let target = self.target(caller, handle(reader)?);
        reader.finish()?;
        let found =
            copied(&target).and_then(|target| target.export.backend.read_link(&target.user, target.object));
        let attributes = after(&target);
        let link = match found {
            Ok(link) => link,
            Err(status) => return Ok(Step::Done(failed(writer, status, &attributes))),
        };
        put(&mut writer, &nfsstat3::NFS3_OK);
        put(&mut writer, &attributes);
        let length = u32::try_from(link.len()).unwrap_or(u32::MAX);
        writer.u32(length);
        let payloads = vec![Item { position: writer.position(), length }];
        Ok(Step::Done(Reply { stream: writer.into_bytes(), payloads, content: link, ..Reply::default() }))
    }

    pub(super) fn read(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'_>,
        writer: Writer,
    ) -> Result<Step<'static>, Fault> {
        let target = self.target(caller, handle(reader)?);
        let (offset, length) = (reader.u64()?, reader.u32()?.min(self.transfer_max));
        reader.finish()?;
        match copied(&target)
            .and_then(|target| target.export.backend.open(&target.user, target.object, false))
        {
            Ok(file) => Ok(Step::Read(ReadCall { file, offset, length, writer, measured: None })),
            Err(status) => Ok(Step::Done(failed(writer, status, &after(&target)))),
        }
    }

    pub(super) fn write<'a>(
        &self,
        caller: &Caller<'_>,
        reader: &mut Reader<'a>,
        writer: Writer,
    ) -> Result<Step<'a>, Fault> {
        let target = self.target(caller, handle(reader)?);
        let (offset, count, stable) = (reader.u64()?, reader.u32()?, fixed::<stable_how>(reader)?);
        let data = reader.reducible(self.transfer_max as usize)?;
        reader.finish()?;
        if data.len() != count as usize {
            return Err(Fault::Arguments);
        }
        let opened = copied(&target).and_then(|target| {
            target.writable()?;
            target.export.backend.open(&target.user, target.object, true)
        });
        match opened {
            Ok(file) => {
                let (verifier, measured) = (self.verifier, None);
                let is_placed = match caller.placed(&data, &file, offset) {
                    Ok(is_placed) => is_placed,
                    Err(error) => {
                        return Ok(Step::Done(failed(writer, status(error), &changed(&target))));
                    }
                };
                let write = WriteCall { file, offset, data, is_placed, stable, verifier, writer, measured };
                Ok(Step::Write(write))
            }
            Err(status) => Ok(Step::Done(failed(writer, status, &changed(&target)))),
        }
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
            Ok(file) => caller.io.sync(&file, stable_how::DATA_SYNC).await.map_err(status),
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
