//! Sessions: slots execute each call once (RFC 8881 §2.10.6).

use std::time::Duration;

use super::State;
use crate::status::Status;

/// Attributes of a channel (RFC 8881 §18.36.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel {
    pub(crate) request_bytes: u32,
    pub(crate) response_bytes: u32,
    pub(crate) cached_bytes: u32,
    pub(crate) operations: u32,
    pub(crate) slots: u32,
}

impl Channel {
    pub(super) fn min(self, other: Self) -> Self {
        Self {
            request_bytes: self.request_bytes.min(other.request_bytes),
            response_bytes: self.response_bytes.min(other.response_bytes),
            cached_bytes: self.cached_bytes.min(other.cached_bytes),
            operations: self.operations.min(other.operations),
            slots: self.slots.min(other.slots),
        }
    }
}

/// Identifier of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub(crate) [u8; 16]);

impl SessionId {
    pub(super) fn new(epoch: u32, number: u64) -> Self {
        let mut id = [0; 16];
        for (byte, value) in id.iter_mut().zip(epoch.to_be_bytes().into_iter().chain(number.to_be_bytes())) {
            *byte = value;
        }
        Self(id)
    }
}

/// A session of a client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: u64,
    channel: Channel,
    slots: Vec<Slot>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// Sequence of the latest call.
    sequence: u32,
    busy: bool,
    /// Reply to the latest call, if it is kept.
    reply: Option<Vec<u8>>,
}

/// Arguments of SEQUENCE that name a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub(crate) session: SessionId,
    pub(crate) sequence: u32,
    pub(crate) slot: u32,
    pub(crate) highest_slot: u32,
}

/// Reaction to a call, as its SEQUENCE decides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The call is new: execute it, then [`State::finish`].
    New {
        /// Client of the session.
        client: u64,
        /// Attributes of the session.
        channel: Channel,
    },
    /// The call is a repetition: this is its reply.
    Repeated(Vec<u8>),
}

impl Session {
    pub(super) fn new(client: u64, channel: Channel) -> Self {
        let slots = (0..channel.slots).map(|_| Slot::default()).collect();
        Self { client, channel, slots }
    }

    fn slot(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)
    }
}

impl<F> State<F> {
    /// Renews the lease, and takes a slot for a call.
    pub(crate) fn sequence(&mut self, now: Duration, asked: &Sequence) -> Result<Turn, Status> {
        self.sweep(now);
        let session = self.sessions.get_mut(&asked.session).ok_or(Status::BadSession)?;
        let (client, channel) = (session.client, session.channel);
        let slot = session.slot(asked.slot).ok_or(Status::BadSlot)?;
        if asked.highest_slot < asked.slot || asked.highest_slot >= channel.slots {
            return Err(Status::BadHighSlot);
        }
        let repeated = asked.sequence == slot.sequence && asked.sequence != 0;
        if !repeated && (slot.busy || asked.sequence != slot.sequence.wrapping_add(1)) {
            return Err(Status::SeqMisordered);
        }
        if let Some(client) = self.clients.get_mut(&client) {
            client.renewed = now;
        }
        if repeated {
            return match &slot.reply {
                _ if slot.busy => Err(Status::Delay),
                Some(reply) => Ok(Turn::Repeated(reply.clone())),
                None => Err(Status::RetryUncachedRep),
            };
        }
        *slot = Slot { sequence: asked.sequence, busy: true, reply: None };
        Ok(Turn::New { client, channel })
    }

    /// Returns the client of a call that [`Self::sequence`] would take for a new one.
    pub(crate) fn would_be_new(&self, asked: &Sequence) -> Option<u64> {
        let session = self.sessions.get(&asked.session)?;
        let slot = session.slots.get(asked.slot as usize)?;
        let is_new = !slot.busy && asked.sequence == slot.sequence.wrapping_add(1);
        is_new.then_some(session.client)
    }

    /// Frees the slot of a call that was executed, with its reply if that is to be kept.
    pub(crate) fn finish(&mut self, asked: &Sequence, reply: Option<Vec<u8>>) {
        let slot = self.sessions.get_mut(&asked.session).and_then(|session| session.slot(asked.slot));
        if let Some(slot) = slot.filter(|slot| slot.sequence == asked.sequence) {
            slot.busy = false;
            slot.reply = reply;
        }
    }

    /// BIND_CONN_TO_SESSION: any connection may use a session, because nothing protects its state.
    pub(crate) fn bind(&self, session: SessionId) -> Result<(), Status> {
        self.sessions.get(&session).map(|_| ()).ok_or(Status::BadSession)
    }

    /// DESTROY_SESSION: the state of the client remains.
    pub(crate) fn destroy_session(&mut self, session: SessionId) -> Result<(), Status> {
        self.sessions.remove(&session).map(|_| ()).ok_or(Status::BadSession)
    }
}
