//! The two programs: from a call to its reply.

use std::sync::atomic::{AtomicU64, Ordering};

use iwarp_rpc::message::{self, AuthStatus, Call, CallError, Credential, NotExecuted};
use iwarp_rpc::xdr::{Data, Reader};
use iwarp_server::{Io, Peer, Span, at_once};
use nfs3_types::nfs3::stable_how;

use crate::codec::{fixed, handle};
use crate::nfs4::placeable;
use crate::procedure::{MountProc, Nfs3Proc, Nfs4Proc, Procedure, Program};
use crate::reply::Reply;
use crate::server::{Caller, CopyOut, Fault, Server, Ways};
use crate::stats::Measured;

/// Program numbers, and the lowest version that is served of both.
const NFS: u32 = nfs3_types::nfs3::PROGRAM;
const MOUNT: u32 = nfs3_types::mount::PROGRAM;
const VERSION: u32 = 3;
/// Highest version of NFS that is served.
const NFS_VERSION_MAX: u32 = 4;

/// Offset of the result in the reply to a call that was executed (RFC 5531 §9).
const RESULT_AT: usize = 24;

impl Measured {
    /// Counts a call that is executed.
    pub(crate) fn replied(self, reply: &Reply) {
        let word = reply.stream.get(RESULT_AT..).and_then(|result| result.first_chunk());
        let status = word.map_or(0, |word| u32::from_be_bytes(*word));
        let failed = (self.procedure.has_status() && status != 0)
            .then(|| (status, self.procedure.program().status_name(status)));
        self.end(reply.payload_bytes(), failed);
    }
}

impl Server {
    /// Executes a call of a peer. `None`: the stream holds no call, and gets no answer. `copy_out`
    /// returns data of the call's chunks, for a procedure that needs it at once.
    ///
    /// A call may wait for the disk. It runs on the caller's thread, with the rights of the user until it returns.
    pub fn call(&self, peer: Peer, reader: Reader<'_>, copy_out: CopyOut<'_>) -> Option<Reply> {
        self.call_placed(peer, reader, copy_out, None)
    }

    /// Returns the part of a region to which a call of WRITE moves the data of its chunk, if nothing keeps it from
    /// doing that. The transport may place the data there, and then calls [`Self::call_placed`].
    pub fn place(&self, peer: Peer, mut reader: Reader<'_>) -> Option<Span> {
        let call = Call::read(&mut reader).ok()?;
        if call.program != NFS || matches!(call.credential, Credential::Other(_)) {
            return None;
        }
        let exports = self.exports();
        let ways = Ways { copy_out: &|_| Vec::new(), room: None, placed: None, io: &Io::default() };
        let caller = Caller { peer, call: &call, exports: &exports, ways, written: AtomicU64::default() };
        match call.version {
            VERSION if Nfs3Proc::new(call.procedure) == Some(Nfs3Proc::WRITE) => {
                let handle = handle(&mut reader).ok()?;
                let (offset, count) = (reader.u64().ok()?, reader.u32().ok()?);
                fixed::<stable_how>(&mut reader).ok()?;
                let data = reader.reducible(self.transfer_max as usize).ok()?;
                reader.finish().ok()?;
                if data.len() != count as usize {
                    return None;
                }
                self.place_of(&caller, handle, offset, &data)
            }
            NFS_VERSION_MAX if Nfs4Proc::new(call.procedure) == Some(Nfs4Proc::COMPOUND) => {
                let write = placeable(self, &mut reader)?;
                let span = self.place_of(&caller, write.handle, write.offset, &write.data)?;
                // Last, because it must be true when the data is placed.
                write.is_allowed(self).then_some(span)
            }
            _ => None,
        }
    }

    /// Returns the part of a region to which a WRITE moves all of the data in its chunk, if the caller may write there.
    fn place_of(&self, caller: &Caller<'_>, handle: &[u8], offset: u64, data: &Data<'_>) -> Option<Span> {
        let Data::Fetched { length, .. } = data else { return None };
        let target = self.target(caller, handle).ok()?;
        if !target.rule.write {
            return None;
        }
        let span = target.export.backend.region(target.object)?.writable(offset, *length).ok()?;
        (span.length() == *length).then_some(span)
    }

    /// As [`Self::call`]. `placed` is the result of [`Self::place`], if the transport has placed the data there.
    pub fn call_placed(
        &self,
        peer: Peer,
        reader: Reader<'_>,
        copy_out: CopyOut<'_>,
        placed: Option<&Span>,
    ) -> Option<Reply> {
        let ways = Ways { copy_out, room: None, placed, io: &Io::default() };
        at_once(self.call_waiting(peer, reader, ways))
    }

    /// As [`Self::call_placed`], for a thread that executes other calls while this one waits for a file.
    pub(crate) async fn call_waiting(
        &self,
        peer: Peer,
        mut reader: Reader<'_>,
        ways: Ways<'_>,
    ) -> Option<Reply> {
        let call = match Call::read(&mut reader) {
            Ok(call) => call,
            Err(CallError::NotACall) => return None,
            Err(CallError::Refused(reply)) => {
                self.stats.error(Program::Rpc, None, "Refused".to_owned());
                return Some(reply.into());
            }
        };
        let not_executed = |status| {
            self.stats.error(Program::Rpc, None, format!("{status:?}"));
            Some(message::not_executed(call.xid, status).into())
        };
        if call.program != NFS && call.program != MOUNT {
            return not_executed(NotExecuted::ProgramUnavailable);
        }
        let high = if call.program == NFS { NFS_VERSION_MAX } else { VERSION };
        if !(VERSION..=high).contains(&call.version) {
            return not_executed(NotExecuted::VersionMismatch { low: VERSION, high });
        }
        if matches!(call.credential, Credential::Other(_)) {
            self.stats.error(Program::Rpc, None, format!("{:?}", AuthStatus::TooWeak));
            return Some(message::auth_error(call.xid, AuthStatus::TooWeak).into());
        }
        let exports = self.exports();
        let caller = Caller { peer, call: &call, exports: &exports, ways, written: AtomicU64::default() };
        match self.execute(&caller, reader).await {
            Ok(reply) => Some(reply),
            Err(Fault::Arguments) => not_executed(NotExecuted::GarbageArguments),
            Err(Fault::Procedure) => not_executed(NotExecuted::ProcedureUnavailable),
        }
    }

    async fn execute(&self, caller: &Caller<'_>, reader: Reader<'_>) -> Result<Reply, Fault> {
        let number = caller.call.procedure;
        let begin = |procedure| self.stats.begin(procedure);
        let (mut measured, reply) = match (caller.call.program, caller.call.version) {
            (NFS, VERSION) => {
                let procedure = Nfs3Proc::new(number).ok_or(Fault::Procedure)?;
                (begin(Procedure::Nfs3(procedure)), self.nfs(procedure, caller, reader).await?)
            }
            (NFS, _) => {
                let procedure = Nfs4Proc::new(number).ok_or(Fault::Procedure)?;
                (begin(Procedure::Nfs4(procedure)), self.nfs4(procedure, caller, reader).await?)
            }
            _ => {
                let procedure = MountProc::new(number).ok_or(Fault::Procedure)?;
                (begin(Procedure::Mount(procedure)), self.mount(procedure, caller, reader)?.into())
            }
        };
        measured.written = caller.written.swap(0, Ordering::Relaxed);
        measured.replied(&reply);
        Ok(reply)
    }
}
