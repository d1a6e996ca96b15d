//! Clients: EXCHANGE_ID, CREATE_SESSION, DESTROY_CLIENTID and RECLAIM_COMPLETE (RFC 8881 §18.35, §18.36, §18.50,
//! §18.51).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use iwarp_server::iwarp_control::nfs::Nfs4Client;
use iwarp_server::{Entry, makes_room};

use super::State;
use super::session::{Channel, Session, SessionId};
use crate::status::Status;

/// Smallest message that a session is useful with, in bytes.
const MESSAGE_BYTES_MIN: u32 = 1024;

/// A client, confirmed by CREATE_SESSION or not yet.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) owner: Vec<u8>,
    verifier: [u8; 8],
    /// User that has sent EXCHANGE_ID.
    user: u32,
    /// Address that has sent EXCHANGE_ID.
    address: IpAddr,
    confirmed: bool,
    /// Sequence of the latest CREATE_SESSION, and its result.
    sequence: u32,
    made: Option<Result<SessionMade, Status>>,
    /// Time of the latest renewal of the lease.
    pub(super) renewed: Duration,
    /// True if the client has sent RECLAIM_COMPLETE.
    pub(super) complete: bool,
    pub(super) opens: usize,
    pub(super) ranges: usize,
    /// Lock owners, those without a locked range included.
    pub(super) lockers: usize,
}

impl Client {
    /// Returns true if the client has state that it would miss: locks belong to opens.
    fn has_state(&self) -> bool {
        self.opens > 0
    }
}

/// Arguments of EXCHANGE_ID that the state depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeId<'a> {
    pub(crate) owner: &'a [u8],
    pub(crate) verifier: [u8; 8],
    pub(crate) user: u32,
    pub(crate) address: IpAddr,
    /// True to change the properties of a confirmed client only.
    pub(crate) update: bool,
}

/// Arguments of CREATE_SESSION that the state depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSession {
    pub(crate) client: u64,
    pub(crate) sequence: u32,
    pub(crate) user: u32,
    /// Attributes that the client asks for.
    pub(crate) asked: Channel,
    /// Attributes that the server supports, at most.
    pub(crate) offered: Channel,
}

/// Session that CREATE_SESSION has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionMade {
    pub(crate) id: SessionId,
    pub(crate) sequence: u32,
    pub(crate) channel: Channel,
}

/// Describes a client for a full table: an unconfirmed one goes first, one with state never.
fn entry((id, client): (&u64, &Client)) -> Entry<u64, Duration> {
    let rank = if client.has_state() { None } else { Some(client.confirmed.into()) };
    Entry { key: *id, address: client.address, rank, used: client.renewed, was_used: client.confirmed }
}

impl<F> State<F> {
    fn owned_by(&self, owner: &[u8], confirmed: bool) -> Option<(u64, &Client)> {
        let mut clients = self.clients.iter().map(|(id, client)| (*id, client));
        clients.find(|(_, client)| client.owner == owner && client.confirmed == confirmed)
    }

    /// Lists the clients with their state.
    pub(crate) fn list(&mut self, now: Duration) -> Vec<Nfs4Client> {
        self.sweep(now);
        let sessions = |id| self.sessions.values().filter(|session| session.client == id).count();
        let row = |(id, client): (&u64, &Client)| Nfs4Client {
            id: *id,
            owner: String::from_utf8_lossy(&client.owner).into_owned(),
            confirmed: client.confirmed,
            reclaimed: client.complete,
            silent_ms: u64::try_from(now.saturating_sub(client.renewed).as_millis()).unwrap_or(u64::MAX),
            sessions: sessions(*id) as u64,
            opens: client.opens as u64,
            locks: client.ranges as u64,
        };
        self.clients.iter().map(row).collect()
    }

    /// Returns the number of clients with state, by address.
    pub(crate) fn holders(&self) -> HashMap<IpAddr, usize> {
        let mut holders = HashMap::new();
        for client in self.clients.values().filter(|client| client.has_state()) {
            let count: &mut usize = holders.entry(client.address).or_default();
            *count = count.saturating_add(1);
        }
        holders
    }

    /// Returns the ID of the client, the next sequence of CREATE_SESSION, and whether the client is confirmed.
    pub(crate) fn exchange_id(
        &mut self,
        now: Duration,
        asked: &ExchangeId<'_>,
    ) -> Result<(u64, u32, bool), Status> {
        self.sweep(now);
        let found = self.owned_by(asked.owner, true);
        if asked.update {
            let (id, client) = found.ok_or(Status::NoEnt)?;
            return match client {
                _ if client.verifier != asked.verifier => Err(Status::NotSame),
                _ if client.user != asked.user => Err(Status::Perm),
                _ => Ok((id, client.sequence.wrapping_add(1), true)),
            };
        }
        if let Some((id, client)) = found {
            match client {
                _ if client.user == asked.user && client.verifier == asked.verifier => {
                    return Ok((id, client.sequence.wrapping_add(1), true));
                }
                // The confirmed client remains until the new one is confirmed: this call may be an old one.
                _ if client.user == asked.user => {}
                _ if client.has_state() && !self.is_expired(client, now) => return Err(Status::ClidInUse),
                // RFC 8881 §18.35.4, case 3: "If there is currently no state associated with old_clientid_ret, or if
                // there is state but the lease has expired, [...] The confirmed record is deleted". Sessions without
                // opens are no such state here (docs/deviations.md).
                _ => self.remove_client(id),
            }
        }
        if let Some((id, _)) = self.owned_by(asked.owner, false) {
            self.remove_client(id);
        }
        if self.clients.len() >= self.limits.clients_max {
            let goes = makes_room(asked.address, self.clients.iter().map(entry)).ok_or(Status::Delay)?;
            self.remove_client(goes);
            self.evicted = self.evicted.saturating_add(1);
        }
        let id = (u64::from(self.epoch) << 32) | (self.number() & u64::from(u32::MAX));
        let client = Client {
            owner: asked.owner.to_vec(),
            verifier: asked.verifier,
            user: asked.user,
            address: asked.address,
            confirmed: false,
            sequence: 0,
            made: None,
            renewed: now,
            complete: false,
            opens: 0,
            ranges: 0,
            lockers: 0,
        };
        self.clients.insert(id, client);
        Ok((id, 1, false))
    }

    /// Creates a session, and confirms the client. A repeated call gets the result of the first.
    pub(crate) fn create_session(
        &mut self,
        now: Duration,
        asked: &NewSession,
    ) -> Result<SessionMade, Status> {
        self.sweep(now);
        let client = self.clients.get(&asked.client).ok_or(Status::StaleClientId)?;
        if asked.sequence == client.sequence && client.made.is_some() {
            return client.made.unwrap_or(Err(Status::SeqMisordered));
        }
        if asked.sequence != client.sequence.wrapping_add(1) {
            return Err(Status::SeqMisordered);
        }
        if client.user != asked.user && !client.confirmed {
            return Err(Status::ClidInUse);
        }
        let made = self.new_session(now, asked);
        if let Some(client) = self.clients.get_mut(&asked.client) {
            client.sequence = asked.sequence;
            client.made = Some(made);
        }
        made
    }

    fn new_session(&mut self, now: Duration, asked: &NewSession) -> Result<SessionMade, Status> {
        let channel = asked.asked.min(asked.offered);
        let small = channel.request_bytes.min(channel.response_bytes) < MESSAGE_BYTES_MIN;
        if small || channel.operations < 2 {
            return Err(Status::TooSmall);
        }
        if channel.slots == 0 {
            return Err(Status::Inval);
        }
        let sessions = self.sessions.values().filter(|session| session.client == asked.client).count();
        if sessions >= self.limits.sessions_max {
            return Err(Status::NoSpc);
        }
        self.confirm(asked.client, now);
        let id = SessionId::new(self.epoch, self.number());
        self.sessions.insert(id, Session::new(asked.client, channel));
        Ok(SessionMade { id, sequence: asked.sequence, channel })
    }

    /// Confirms a client, which replaces the one that its owner was before it restarted.
    fn confirm(&mut self, id: u64, now: Duration) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.renewed = now;
        if client.confirmed {
            return;
        }
        let owner = client.owner.clone();
        if let Some((older, _)) = self.owned_by(&owner, true) {
            self.remove_client(older);
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.confirmed = true;
        }
    }

    /// DESTROY_CLIENTID: a client with sessions or state stays.
    pub(crate) fn destroy_client(&mut self, id: u64) -> Result<(), Status> {
        let client = self.clients.get(&id).ok_or(Status::StaleClientId)?;
        if client.has_state() || self.sessions.values().any(|session| session.client == id) {
            return Err(Status::ClientIdBusy);
        }
        self.remove_client(id);
        Ok(())
    }

    /// RECLAIM_COMPLETE: from now on the client is in the record, and may open and lock.
    pub(crate) fn reclaim_complete(&mut self, id: u64) -> Result<(), Status> {
        let client = self.clients.get_mut(&id).ok_or(Status::StaleClientId)?;
        if client.complete {
            return Err(Status::CompleteAlready);
        }
        client.complete = true;
        self.grace.waiting.remove(&client.owner);
        self.record_changed = true;
        Ok(())
    }
}
