//! The server, the caller and the object of a handle, which the procedures of all programs use.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use iwarp_rpc::message::Call;
use iwarp_rpc::xdr::{Data, XdrError};
use iwarp_server::counters::add;
use iwarp_server::{Connected, Io, Peer, Room, Span, User, Written};
use nfs3_types::nfs3::{nfsstat3, stable_how};
use rustix::io::Errno;

use crate::clients::Nfs4;
use crate::export::{Export, ExportError, Rule, Seals};
use crate::exports::Exports;
use crate::file::File;
use crate::reply::Payload;
use crate::state::StateLimits;
use crate::stats::{Stats, Way};

/// Bytes of a call besides its payload, at most.
pub(crate) const CALL_BYTES: usize = 8 << 10;
/// Payloads of a reply, at most.
pub(crate) const PAYLOADS_MAX: u16 = 4;

/// Copies a range of the data out that the transport has fetched for a call.
pub type CopyOut<'a> = &'a (dyn Fn(Range<u32>) -> Vec<u8> + Sync);

/// Ways of a transport to move the data of a call.
#[derive(Clone, Copy)]
pub(crate) struct Ways<'a> {
    /// Copies data of the call's chunks.
    pub(crate) copy_out: CopyOut<'a>,
    /// Registered memory of the call, with the data of its chunks; `None`: the transport has none.
    pub(crate) room: Option<&'a Room>,
    /// Part of a region in which the transport has placed the data of the call's only chunk.
    pub(crate) placed: Option<&'a Span>,
    pub(crate) io: &'a Io,
}

/// Reason why a procedure has no result.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The arguments cannot be decoded.
    Arguments,
    /// The program has no such procedure.
    Procedure,
}

impl From<XdrError> for Fault {
    fn from(_: XdrError) -> Self {
        Self::Arguments
    }
}

/// Clients and the paths that they have mounted, oldest first.
pub(crate) type Mounts = Vec<(IpAddr, String)>;

/// NFS versions 3 and 4.1, and MOUNT version 3, over a set of exports.
#[derive(Debug)]
pub struct Server {
    exports: RwLock<Arc<Exports>>,
    pub(crate) seals: Seals,
    /// Changes with each start: a client repeats unstable writes that are not committed (RFC 1813 §3.3.7).
    pub(crate) verifier: u64,
    /// Most bytes of a READ, a WRITE or a directory listing.
    pub(crate) transfer_max: u32,
    pub(crate) mounts: Mutex<Mounts>,
    pub(crate) nfs4: Nfs4,
    pub(crate) stats: Arc<Stats>,
}

/// Caller of a procedure.
pub(crate) struct Caller<'a> {
    pub(crate) peer: Peer,
    pub(crate) call: &'a Call,
    /// The exports when the call began: a reload replaces them for later calls.
    pub(crate) exports: &'a Exports,
    pub(crate) ways: Ways<'a>,
    /// Payload bytes that the procedure or operation has written.
    pub(crate) written: AtomicU64,
}

impl Caller<'_> {
    /// Returns true if the transport has placed the data of a WRITE in the file.
    ///
    /// # Errors
    /// It has placed the data, and this is no place for it any more.
    pub(crate) fn placed(&self, data: &Data<'_>, file: &File, offset: u64) -> Result<bool, Errno> {
        let (Some(placed), Data::Fetched { length, .. }) = (self.ways.placed, data) else { return Ok(false) };
        let File::Region(region, _) = file else { return Err(Errno::IO) };
        if region.writable(offset, *length)?.is(placed) { Ok(true) } else { Err(Errno::IO) }
    }

    /// Returns data of the arguments.
    pub(crate) fn data<'d>(&self, data: Data<'d>) -> Cow<'d, [u8]> {
        match data {
            Data::Inline(bytes) => bytes.into(),
            Data::Fetched { offset, length } => {
                (self.ways.copy_out)(offset..offset.saturating_add(length)).into()
            }
        }
    }

    /// Returns data of the arguments for a WRITE: where the transport has fetched it, if that is registered memory.
    fn written<'d>(&self, data: Data<'d>) -> Written<'d> {
        if let (Data::Fetched { offset, length }, Some(room)) = (&data, self.ways.room)
            && let Some(span) = room.fetched(*offset..offset.saturating_add(*length))
        {
            return Written::Placed(span);
        }
        Written::Own(self.data(data))
    }

    /// Reads up to `length` bytes of a file; fewer mean its end.
    pub(crate) async fn read(&self, file: &File, offset: u64, length: u32) -> Result<Payload, Errno> {
        match file.readable(offset, length)? {
            Some(span) => Ok(Payload::Span(span)),
            None => file.read(self.ways.io, offset, length, self.ways.room).await.map(Payload::from),
        }
    }
}

/// Arguments of a WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'a> {
    /// Position in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) data: Data<'a>,
    /// True if the transport has placed the data in the file.
    pub(crate) is_placed: bool,
    /// Least durability that the client asks for.
    pub(crate) stable: stable_how,
}

/// An object of an export, and the user that the caller is there.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) number: u32,
    pub(crate) export: &'a Export,
    pub(crate) rule: Rule,
    pub(crate) user: User,
    pub(crate) object: &'a [u8],
}

impl Server {
    /// Serves these exports. File handles are sealed with `key`, which must be the same after a restart and secret;
    /// `verifier` must not be.
    ///
    /// # Errors
    /// An export has an impossible path, or that of another one.
    pub fn new(
        exports: Vec<Export>,
        key: [u8; 16],
        verifier: u64,
        transfer_max: u32,
    ) -> Result<Self, ExportError> {
        let seals = Seals::new(key);
        let nfs4 = Nfs4::new(&seals, verifier);
        let exports = RwLock::new(Arc::new(Exports::new(exports, &seals)?));
        let (mounts, stats) = Default::default();
        Ok(Self { exports, seals, verifier, transfer_max, mounts, nfs4, stats })
    }

    /// Replaces all exports. Calls that have begun use the former ones; file handles and opens of an export whose path
    /// is no more become stale.
    ///
    /// # Errors
    /// As [`Self::new`]; then the exports are the former ones.
    pub fn reload(&self, exports: Vec<Export>) -> Result<(), ExportError> {
        let exports = Arc::new(Exports::new(exports, &self.seals)?);
        *self.exports.write().unwrap_or_else(PoisonError::into_inner) = exports;
        Ok(())
    }

    /// Returns the exports of a call that begins now.
    pub(crate) fn exports(&self) -> Arc<Exports> {
        Arc::clone(&self.exports.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the limits of NFS version 4.1, and the file that keeps the clients with state over a restart. Without this
    /// call the limits are the default, and no client can reclaim its state.
    ///
    /// # Errors
    /// The file can neither be read nor made.
    pub fn with_state(mut self, limits: StateLimits, record: &Path) -> io::Result<Self> {
        self.nfs4.restore(limits, record)?;
        Ok(self)
    }

    /// Executes a WRITE with the rights of a user or those of the server, and makes the data durable. Returns the bytes
    /// written, and how durable they are.
    pub(crate) async fn write_file(
        &self,
        caller: &Caller<'_>,
        file: &File,
        user: Option<&User>,
        Write { offset, data, is_placed, stable }: Write<'_>,
    ) -> Result<(u32, stable_how), Errno> {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let (way, written) = if is_placed {
            (Way::Direct, (length, file.sync(stable)?))
        } else {
            let way = AtomicBool::new(false);
            let data = || {
                let data = caller.written(data);
                let is_of_kernel = matches!(file, File::Kernel(_));
                way.store(is_of_kernel && matches!(data, Written::Placed(_)), Ordering::Relaxed);
                data
            };
            let written = file.write(caller.ways.io, user, (offset, length), data, stable).await?;
            (if way.into_inner() { Way::Placed } else { Way::Copied }, written)
        };
        add(&caller.written, written.0.into());
        self.stats.payload.wrote(way, written.0.into());
        Ok(written)
    }

    /// Enters a connection in the list of clients, until the result is dropped.
    pub(crate) fn connected(&self, peer: Peer, transport: &'static str) -> Connected {
        self.stats.connections.enter(peer.address, transport)
    }

    /// Returns the rights of the caller in an export, and counts a refusal because of its port.
    pub(crate) fn rule<'a>(&self, caller: &Caller<'_>, export: &'a Export) -> Option<&'a Rule> {
        let rule = export.rule(caller.peer);
        if rule.is_none() && export.rule_of_address(caller.peer).is_some() {
            add(&self.stats.tcp.refused_port, 1);
        }
        rule
    }

    /// Finds the object of a handle, and the rights of the caller.
    pub(crate) fn target<'a>(&self, caller: &Caller<'a>, handle: &'a [u8]) -> Result<Target<'a>, nfsstat3> {
        let (number, object) = self.seals.open(handle).ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        let export = caller.exports.find(number).ok_or(nfsstat3::NFS3ERR_STALE)?;
        let rule = *self.rule(caller, export).ok_or(nfsstat3::NFS3ERR_ACCES)?;
        let user = rule.user(&caller.call.credential);
        Ok(Target { number, export, rule, user, object })
    }
}
