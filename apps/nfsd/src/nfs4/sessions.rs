//! Operations on clients, sessions and stateids (RFC 8881 §18.33 to §18.51).

use iwarp_rpc::message::Credential;
use iwarp_rpc::xdr::{Reader, Writer, XdrError};

use super::{Compound, InSession, OPAQUE_MAX, OPERATIONS_MAX, RESPONSE_BYTES};
use crate::server::CALL_BYTES;
use crate::state::{Channel, ExchangeId, NewSession, Sequence, SessionId, Stateid, Turn};
use crate::status::Status;

/// Flags of EXCHANGE_ID: those that a client may set, and those of an answer.
const CLIENT_FLAGS: u32 = UPDATE | 0x0007_0107;
const UPDATE: u32 = 0x4000_0000;
const CONFIRMED: u32 = 0x8000_0000;
/// Flags of CREATE_SESSION that a client may set: a persistent reply cache, a back channel, RDMA (RFC 8881 §18.36.1).
const SESSION_FLAGS: u32 = 0x7;
const NO_PNFS: u32 = 0x0001_0000;
/// Stateids of TEST_STATEID, and elements of other arrays, at most.
const ARRAY_MAX: u32 = 256;

fn session_id(reader: &mut Reader<'_>) -> Result<SessionId, XdrError> {
    reader.array().map(SessionId)
}

/// Reads the count of an array.
fn count(reader: &mut Reader<'_>, max: u32) -> Result<u32, Status> {
    reader
        .u32()
        .map_err(Status::from)
        .and_then(|count| if count > max { Err(Status::BadXdr) } else { Ok(count) })
}

impl Channel {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Status> {
        // No padding is put before data, as the answer says.
        reader.u32()?;
        let channel = Self {
            request_bytes: reader.u32()?,
            response_bytes: reader.u32()?,
            cached_bytes: reader.u32()?,
            operations: reader.u32()?,
            slots: reader.u32()?,
        };
        for _ in 0..count(reader, 1)? {
            reader.u32()?;
        }
        Ok(channel)
    }

    fn put(&self, out: &mut Writer) {
        let Self { request_bytes, response_bytes, cached_bytes, operations, slots } = *self;
        [0, request_bytes, response_bytes, cached_bytes, operations, slots, 0]
            .into_iter()
            .for_each(|word| out.u32(word));
    }
}

impl Compound<'_, '_> {
    /// Returns the user that is bound to a client.
    fn principal(&self) -> u32 {
        match &self.caller.call.credential {
            Credential::Sys(sys) => sys.uid,
            Credential::None | Credential::Other(_) => u32::MAX,
        }
    }

    pub(super) fn exchange_id(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let verifier = reader.array()?;
        let owner = reader.opaque(OPAQUE_MAX)?;
        let (flags, protection) = (reader.u32()?, reader.u32()?);
        // State protection needs RPCSEC_GSS.
        if flags & !CLIENT_FLAGS != 0 || protection != 0 {
            return Err(Status::Inval);
        }
        for _ in 0..count(reader, 1)? {
            reader.opaque(OPAQUE_MAX)?;
            reader.opaque(OPAQUE_MAX)?;
            reader.fixed(12)?;
        }
        let nfs4 = &self.server.nfs4;
        let update = flags & UPDATE != 0;
        let asked =
            ExchangeId { owner, verifier, user: self.principal(), address: self.caller.peer.address, update };
        let mut state = nfs4.state();
        let (client, sequence, confirmed) = state.exchange_id(nfs4.now(), &asked)?;
        nfs4.save(&mut state)?;
        out.u64(client);
        out.u32(sequence);
        out.u32(if confirmed { NO_PNFS | CONFIRMED } else { NO_PNFS });
        out.u32(0);
        // The server's owner (minor and major), its scope, and no implementation ID.
        out.u64(0);
        out.opaque(&nfs4.name);
        out.opaque(&nfs4.name);
        out.u32(0);
        Ok(())
    }

    pub(super) fn create_session(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (client, sequence, flags) = (reader.u64()?, reader.u32()?, reader.u32()?);
        if flags & !SESSION_FLAGS != 0 {
            return Err(Status::Inval);
        }
        let (asked, back) = (Channel::read(reader)?, Channel::read(reader)?);
        reader.u32()?;
        for _ in 0..count(reader, 4)? {
            callback_security(reader)?;
        }
        let nfs4 = &self.server.nfs4;
        let max = self.server.transfer_max;
        let mut state = nfs4.state();
        let offered = Channel {
            request_bytes: max.saturating_add(u32::try_from(CALL_BYTES).unwrap_or(0)),
            response_bytes: max.saturating_add(RESPONSE_BYTES),
            cached_bytes: state.limits().cached_bytes_max,
            operations: OPERATIONS_MAX,
            slots: state.limits().slots_max,
        };
        let asked = NewSession { client, sequence, user: self.principal(), asked, offered };
        let made = state.create_session(nfs4.now(), &asked)?;
        nfs4.save(&mut state)?;
        out.fixed(&made.id.0);
        out.u32(made.sequence);
        // The replies do not survive a restart, and there is no back channel.
        out.u32(0);
        made.channel.put(out);
        back.put(out);
        Ok(())
    }

    pub(super) fn sequence(&mut self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (sequence, cache) = sequence_arguments(reader)?;
        let nfs4 = &self.server.nfs4;
        let mut state = nfs4.state();
        let turn = state.sequence(nfs4.now(), &sequence)?;
        // A lease that has expired leaves the record; the reply does not depend on it.
        let _ = nfs4.save(&mut state);
        drop(state);
        match turn {
            Turn::Repeated(reply) => self.repeated = Some(reply),
            Turn::New { client, channel } => {
                self.session = Some(InSession { client, channel, sequence, cache });
                out.fixed(&sequence.session.0);
                out.u32(sequence.sequence);
                out.u32(sequence.slot);
                let highest = channel.slots.saturating_sub(1);
                out.u32(highest);
                out.u32(highest);
                out.u32(0);
            }
        }
        Ok(())
    }

    pub(super) fn bind(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        const FORE: u32 = 1;
        const FORE_OR_BOTH: u32 = 3;
        const BACK_OR_BOTH: u32 = 7;
        let (session, direction, _) = (session_id(reader)?, reader.u32()?, reader.bool()?);
        self.server.nfs4.state().bind(session)?;
        // There is no back channel; other values have no meaning.
        if ![FORE, FORE_OR_BOTH, BACK_OR_BOTH].contains(&direction) {
            return Err(Status::Inval);
        }
        out.fixed(&session.0);
        out.u32(FORE);
        out.bool(false);
        Ok(())
    }

    pub(super) fn destroy_session(&self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let session = session_id(reader)?;
        self.server.nfs4.state().destroy_session(session)
    }

    pub(super) fn destroy_client(&self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let client = reader.u64()?;
        let mut state = self.server.nfs4.state();
        state.destroy_client(client)?;
        self.server.nfs4.save(&mut state)
    }

    pub(super) fn reclaim_complete(&self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let (one_file_system, client) = (reader.bool()?, self.client()?);
        if one_file_system {
            return Ok(());
        }
        let mut state = self.server.nfs4.state();
        state.reclaim_complete(client)?;
        self.server.nfs4.save(&mut state)
    }

    pub(super) fn test_stateid(&self, reader: &mut Reader<'_>, out: &mut Writer) -> Result<(), Status> {
        let (client, stateids) = (self.client()?, count(reader, ARRAY_MAX)?);
        let state = self.server.nfs4.state();
        out.u32(stateids);
        for _ in 0..stateids {
            out.u32(state.test_stateid(client, Stateid::read(reader)?) as u32);
        }
        Ok(())
    }

    pub(super) fn free_stateid(&self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let (client, stateid) = (self.client()?, self.stateid(reader)?);
        self.server.nfs4.state().free_stateid(client, stateid)
    }
}

/// Reads the arguments of SEQUENCE: the call, and true if its reply must be kept.
pub(super) fn sequence_arguments(reader: &mut Reader<'_>) -> Result<(Sequence, bool), Status> {
    let sequence = Sequence {
        session: session_id(reader)?,
        sequence: reader.u32()?,
        slot: reader.u32()?,
        highest_slot: reader.u32()?,
    };
    Ok((sequence, reader.bool()?))
}

/// Reads how the server should prove itself in calls to the client, which it never makes.
fn callback_security(reader: &mut Reader<'_>) -> Result<(), Status> {
    match reader.u32()? {
        0 => {}
        1 => {
            reader.u32()?;
            reader.opaque(OPAQUE_MAX)?;
            reader.fixed(8)?;
            for _ in 0..count(reader, 16)? {
                reader.u32()?;
            }
        }
        6 => {
            reader.u32()?;
            reader.opaque(OPAQUE_MAX)?;
            reader.opaque(OPAQUE_MAX)?;
        }
        _ => return Err(Status::BadXdr),
    }
    Ok(())
}
