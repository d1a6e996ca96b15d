//! NFS version 4.1: COMPOUND and its operations (RFC 8881 §16, §18).
//!
//! A COMPOUND is executed operation by operation until one fails. Files are named by the handles of version 3; the
//! exports hang in a tree of directories that this module invents from their paths.

mod attributes;
mod bitmap;
mod files;
mod io;
mod locks;
mod names;
mod objects;
mod place;
mod sessions;

use std::sync::atomic::Ordering;

use iwarp_rpc::message::executed;
use iwarp_rpc::xdr::{Reader, Writer, XdrError};

use crate::procedure::{Nfs4Op, Nfs4Proc, Procedure, Program};
use crate::reply::{Payload, Reply, detach};
use crate::server::{Caller, Fault, PAYLOADS_MAX, Server, Target};
use crate::state::{Channel, Sequence, Stateid};
use crate::status::Status;
pub(crate) use place::placeable;

/// Longest tag, owner or name, in bytes (NFS4_OPAQUE_LIMIT).
const OPAQUE_MAX: usize = 1024;
/// Operations of a COMPOUND, at most.
const OPERATIONS_MAX: u32 = 16;
/// Bytes of a reply besides its payload, at most.
const RESPONSE_BYTES: u32 = 32 << 10;
const MINOR_VERSION: u32 = 1;

/// An object by its handle, and the stateid that the latest operation on it has returned.
#[derive(Clone, Debug)]
struct Current {
    handle: Vec<u8>,
    stateid: Option<Stateid>,
}

/// The session of a COMPOUND that is executed.
#[derive(Clone, Copy, Debug)]
struct InSession {
    client: u64,
    channel: Channel,
    sequence: Sequence,
    /// True if the reply must be kept.
    cache: bool,
}

/// Reason why an operation ends its COMPOUND.
struct Failure {
    status: Status,
    /// Content of the result behind the status.
    body: Vec<u8>,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, body: Vec::new() }
    }
}

impl From<XdrError> for Failure {
    fn from(error: XdrError) -> Self {
        Status::from(error).into()
    }
}

/// A COMPOUND that is executed.
struct Compound<'a, 'c> {
    server: &'a Server,
    caller: &'a Caller<'c>,
    current: Option<Current>,
    saved: Option<Current>,
    session: Option<InSession>,
    /// Body of the reply that SEQUENCE has found for a repeated call.
    repeated: Option<Vec<u8>>,
    /// Results of the operations that were executed.
    out: Writer,
    /// Payloads with their positions in the results.
    payloads: Vec<(usize, Payload)>,
}

impl Server {
    /// Executes a procedure of NFS version 4.
    pub(crate) async fn nfs4(
        &self,
        procedure: Nfs4Proc,
        caller: &Caller<'_>,
        mut reader: Reader<'_>,
    ) -> Result<Reply, Fault> {
        match procedure {
            Nfs4Proc::NULL => Ok(executed(caller.call.xid).into_bytes().into()),
            Nfs4Proc::COMPOUND => self.compound(caller, &mut reader).await,
        }
    }

    async fn compound(&self, caller: &Caller<'_>, reader: &mut Reader<'_>) -> Result<Reply, Fault> {
        let tag = reader.opaque(OPAQUE_MAX)?.to_vec();
        let (minor, count) = (reader.u32()?, reader.u32()?);
        let mut compound = Compound {
            server: self,
            caller,
            current: None,
            saved: None,
            session: None,
            repeated: None,
            out: Writer::new(),
            payloads: Vec::new(),
        };
        let (mut status, mut done) = (Status::Ok, 0_u32);
        if minor != MINOR_VERSION {
            status = Status::MinorVersMismatch;
            let reason = Program::Nfs4.status_name(status as u32);
            self.stats.error(Program::Nfs4, Some(status as u32), reason);
        } else {
            while done < count && status == Status::Ok {
                done = done.saturating_add(1);
                status = compound.operation(reader, done, count).await;
                if let Some(body) = compound.repeated.take() {
                    let mut writer = executed(caller.call.xid);
                    writer.fixed(&body);
                    return Ok(writer.into_bytes().into());
                }
            }
        }
        if status == Status::Ok && reader.finish().is_err() {
            compound.free_slot(None);
            return Err(Fault::Arguments);
        }
        Ok(compound.finish(&tag, status, done))
    }
}

impl Compound<'_, '_> {
    /// Executes an operation, the `number`-th of `count`, and appends its result.
    async fn operation(&mut self, reader: &mut Reader<'_>, number: u32, count: u32) -> Status {
        let Ok(code) = reader.u32() else {
            return self.result(Nfs4Op::ILLEGAL, Err(Status::BadXdr.into()));
        };
        let (payloads, before) = (self.payloads.len(), self.payload_bytes());
        let code = Nfs4Op::new(code).unwrap_or(Nfs4Op::ILLEGAL);
        let mut measured = self.server.stats.begin(Procedure::Operation(code));
        let result = self.in_order(code, number, count).map_err(Failure::from);
        let result = match result {
            Ok(()) => self.execute(code, reader).await,
            Err(failure) => Err(failure),
        };
        let result = result.and_then(|out| {
            self.fits(out.position())?;
            Ok(out)
        });
        if result.is_err() {
            self.payloads.truncate(payloads);
        }
        measured.written = self.caller.written.swap(0, Ordering::Relaxed);
        let read = self.payload_bytes().saturating_sub(before) as u64;
        let status = self.result(code, result);
        let failed = status != Status::Ok;
        measured.end(read, failed.then(|| (status as u32, Program::Nfs4.status_name(status as u32))));
        status
    }

    /// Appends the result of an operation: its number, its status, and what follows that.
    fn result(&mut self, code: Nfs4Op, result: Result<Writer, Failure>) -> Status {
        let (status, body) = match result {
            Ok(body) => (Status::Ok, body.into_bytes()),
            // SETATTR returns the attributes that it has set, even if it fails.
            Err(Failure { status, .. }) if code == Nfs4Op::SETATTR => (status, vec![0; 4]),
            Err(Failure { status, body }) => (status, body),
        };
        self.out.u32(code.into());
        self.out.u32(status as u32);
        self.out.fixed(&body);
        status
    }

    /// Checks the place of an operation in the COMPOUND (RFC 8881 §2.10.6.4, §18.46.3).
    fn in_order(&self, code: Nfs4Op, number: u32, count: u32) -> Result<(), Status> {
        let alone = matches!(
            code,
            Nfs4Op::EXCHANGE_ID
                | Nfs4Op::CREATE_SESSION
                | Nfs4Op::DESTROY_SESSION
                | Nfs4Op::BIND_CONN_TO_SESSION
                | Nfs4Op::DESTROY_CLIENTID
        );
        match &self.session {
            _ if code == Nfs4Op::SEQUENCE => {
                if number == 1 {
                    Ok(())
                } else {
                    Err(Status::SequencePos)
                }
            }
            None if alone => {
                if count == 1 {
                    Ok(())
                } else {
                    Err(Status::NotOnlyOp)
                }
            }
            None => Err(if code == Nfs4Op::ILLEGAL { Status::OpIllegal } else { Status::OpNotInSession }),
            Some(_) if code == Nfs4Op::BIND_CONN_TO_SESSION => Err(Status::NotOnlyOp),
            Some(session) if count > session.channel.operations => Err(Status::TooManyOps),
            Some(_) => Ok(()),
        }
    }

    /// Checks that the reply has room for another result of `bytes` bytes.
    fn fits(&self, bytes: usize) -> Result<(), Status> {
        let Some(session) = &self.session else { return Ok(()) };
        let total = [self.out.position(), self.payload_bytes(), bytes, 128].into_iter().sum::<usize>();
        if total > session.channel.response_bytes as usize {
            Err(Status::RepTooBig)
        } else if session.cache && total > session.channel.cached_bytes as usize {
            Err(Status::RepTooBigToCache)
        } else {
            Ok(())
        }
    }

    fn free_slot(&self, reply: Option<Vec<u8>>) {
        if let Some(session) = &self.session {
            self.server.nfs4.state().finish(&session.sequence, reply);
        }
    }

    /// Makes the reply, and keeps it in its slot.
    fn finish(mut self, tag: &[u8], status: Status, done: u32) -> Reply {
        let mut writer = executed(self.caller.call.xid);
        let head = writer.position();
        writer.u32(status as u32);
        writer.opaque(tag);
        writer.u32(done);
        let offset = writer.position();
        let keeps = self.session.is_some_and(|session| session.cache || done == 1);
        for (position, _) in &mut self.payloads {
            *position = position.saturating_add(offset);
        }
        if keeps {
            detach(&mut self.payloads);
        }
        writer.fixed(&std::mem::take(&mut self.out).into_bytes());
        let reply = Reply { stream: writer.into_bytes(), payloads: std::mem::take(&mut self.payloads) };
        let kept = keeps.then(|| {
            let whole = reply.bytes().collect::<Vec<_>>().concat();
            whole.get(head..).unwrap_or_default().to_vec()
        });
        self.free_slot(kept);
        reply
    }

    /// Returns the bytes of all payloads.
    fn payload_bytes(&self) -> usize {
        self.payloads.iter().map(|(_, payload)| payload.length() as usize).fold(0, usize::saturating_add)
    }

    /// Appends a payload, which follows `out` and this operation's number and status.
    fn payload(&mut self, out: &mut Writer, payload: Payload) -> Result<(), Status> {
        let room = (self.server.transfer_max as usize).saturating_sub(self.payload_bytes());
        if payload.length() as usize > room || self.payloads.len() >= usize::from(PAYLOADS_MAX) {
            return Err(Status::RepTooBig);
        }
        out.u32(payload.length());
        let position = self.out.position().saturating_add(8).saturating_add(out.position());
        self.payloads.push((position, payload));
        Ok(())
    }

    /// Returns the client of the session.
    fn client(&self) -> Result<u64, Status> {
        self.session.map(|session| session.client).ok_or(Status::OpNotInSession)
    }

    fn handle(&self) -> Result<&[u8], Status> {
        self.current.as_ref().map(|current| &current.handle[..]).ok_or(Status::NoFileHandle)
    }

    fn saved_handle(&self) -> Result<&[u8], Status> {
        self.saved.as_ref().map(|saved| &saved.handle[..]).ok_or(Status::NoFileHandle)
    }

    fn go_to(&mut self, handle: Vec<u8>) {
        self.current = Some(Current { handle, stateid: None });
    }

    /// Finds the object of a handle, which must be in an export.
    fn target<'h>(&'h self, handle: &'h [u8]) -> Result<Target<'h>, Status> {
        if self.caller.exports.tree.directory(handle).is_some() {
            return Err(Status::RoFs);
        }
        self.server.target(self.caller, handle).map_err(Status::from)
    }

    /// Finds the current object, which must be in an export that the client may change.
    fn writable<'h>(&'h self, handle: &'h [u8]) -> Result<Target<'h>, Status> {
        let target = self.target(handle)?;
        if target.rule.write { Ok(target) } else { Err(Status::RoFs) }
    }

    /// Returns a stateid of the arguments, or the current one that it stands for.
    fn stateid(&self, reader: &mut Reader<'_>) -> Result<Stateid, Status> {
        match Stateid::read(reader)? {
            Stateid::CURRENT => {
                self.current.as_ref().and_then(|current| current.stateid).ok_or(Status::BadStateId)
            }
            Stateid::INVALID => Err(Status::BadStateId),
            stateid => Ok(stateid),
        }
    }

    /// Makes a stateid the current one, and appends it to the result.
    fn put_stateid(&mut self, stateid: Stateid, out: &mut Writer) {
        if let Some(current) = &mut self.current {
            current.stateid = Some(stateid);
        }
        stateid.put(out);
    }

    /// Executes an operation. Returns what follows its status.
    async fn execute(&mut self, code: Nfs4Op, reader: &mut Reader<'_>) -> Result<Writer, Failure> {
        let mut writer = Writer::new();
        let out = &mut writer;
        match code {
            Nfs4Op::ACCESS => self.access(reader, out)?,
            Nfs4Op::CLOSE => self.close(reader, out)?,
            Nfs4Op::COMMIT => self.commit(reader, out).await?,
            Nfs4Op::CREATE => self.create(reader, out)?,
            Nfs4Op::GETATTR => self.getattr(reader, out)?,
            Nfs4Op::GETFH => out.opaque(self.handle()?),
            Nfs4Op::LINK => self.link(reader, out)?,
            Nfs4Op::LOCK => self.lock(reader, out)?,
            Nfs4Op::LOCKT => self.test_lock(reader)?,
            Nfs4Op::LOCKU => self.unlock(reader, out)?,
            Nfs4Op::LOOKUP => self.lookup(reader)?,
            Nfs4Op::LOOKUPP => self.lookup_parent()?,
            Nfs4Op::NVERIFY => self.verify(reader, false)?,
            Nfs4Op::OPEN => self.open(reader, out)?,
            Nfs4Op::OPEN_DOWNGRADE => self.downgrade(reader, out)?,
            Nfs4Op::PUTFH => self.put_handle(reader)?,
            Nfs4Op::PUTPUBFH | Nfs4Op::PUTROOTFH => self.go_to(self.caller.exports.tree.root().to_vec()),
            Nfs4Op::READ => self.read(reader, out).await?,
            Nfs4Op::READDIR => self.readdir(reader, out)?,
            Nfs4Op::READLINK => self.readlink(out)?,
            Nfs4Op::REMOVE => self.remove(reader, out)?,
            Nfs4Op::RENAME => self.rename(reader, out)?,
            Nfs4Op::RESTOREFH => self.current = Some(self.saved.clone().ok_or(Status::RestoreFh)?),
            Nfs4Op::SAVEFH => self.saved = Some(self.current.clone().ok_or(Status::NoFileHandle)?),
            Nfs4Op::SECINFO => self.secinfo(reader, out)?,
            Nfs4Op::SETATTR => self.setattr(reader, out)?,
            Nfs4Op::VERIFY => self.verify(reader, true)?,
            Nfs4Op::WRITE => self.write(reader, out).await?,
            Nfs4Op::BIND_CONN_TO_SESSION => self.bind(reader, out)?,
            Nfs4Op::EXCHANGE_ID => self.exchange_id(reader, out)?,
            Nfs4Op::CREATE_SESSION => self.create_session(reader, out)?,
            Nfs4Op::DESTROY_SESSION => self.destroy_session(reader)?,
            Nfs4Op::FREE_STATEID => self.free_stateid(reader)?,
            Nfs4Op::SECINFO_NO_NAME => self.secinfo_no_name(reader, out)?,
            Nfs4Op::SEQUENCE => self.sequence(reader, out)?,
            Nfs4Op::TEST_STATEID => self.test_stateid(reader, out)?,
            Nfs4Op::DESTROY_CLIENTID => self.destroy_client(reader)?,
            Nfs4Op::RECLAIM_COMPLETE => self.reclaim_complete(reader)?,
            Nfs4Op::ILLEGAL => return Err(Status::OpIllegal.into()),
            _ => return Err(Status::NotSupp.into()),
        }
        Ok(writer)
    }
}
