//! A WRITE whose data can be placed before its COMPOUND is executed.

use iwarp_rpc::xdr::{Data, Reader};

use super::sessions::sequence_arguments;
use super::{MINOR_VERSION, OPAQUE_MAX};
use crate::codec::handle;
use crate::procedure::Nfs4Op;
use crate::server::Server;
use crate::state::{Sequence, Stateid};

/// The WRITE of a COMPOUND that begins with SEQUENCE, PUTFH and WRITE, as clients write files.
pub(crate) struct Placeable<'a> {
    sequence: Sequence,
    stateid: Stateid,
    pub(crate) handle: &'a [u8],
    pub(crate) offset: u64,
    pub(crate) data: Data<'a>,
}

/// Reads the arguments of a COMPOUND up to those of its WRITE.
pub(crate) fn placeable<'a>(server: &Server, reader: &mut Reader<'a>) -> Option<Placeable<'a>> {
    reader.opaque(OPAQUE_MAX).ok()?;
    let (minor, count) = (reader.u32().ok()?, reader.u32().ok()?);
    let next = |reader: &mut Reader<'a>, operation: Nfs4Op| {
        (Nfs4Op::new(reader.u32().ok()?)? == operation).then_some(())
    };
    if minor != MINOR_VERSION || count < 3 {
        return None;
    }
    next(reader, Nfs4Op::SEQUENCE)?;
    let (sequence, _) = sequence_arguments(reader).ok()?;
    next(reader, Nfs4Op::PUTFH)?;
    let handle = handle(reader).ok()?;
    next(reader, Nfs4Op::WRITE)?;
    let stateid = Stateid::read(reader).ok()?;
    let (offset, stable) = (reader.u64().ok()?, reader.u32().ok()?);
    let data = reader.reducible(server.transfer_max as usize).ok()?;
    (stable <= 2).then_some(Placeable { sequence, stateid, handle, offset, data })
}

impl Placeable<'_> {
    /// Returns true if the call is new, and its open lets it write. A repeated call must not write again: others may
    /// have written since.
    pub(crate) fn is_allowed(&self, server: &Server) -> bool {
        let state = server.nfs4.state();
        let client = state.would_be_new(&self.sequence);
        client.is_some_and(|client| state.held(client, self.stateid, self.handle, true).is_ok())
    }
}
