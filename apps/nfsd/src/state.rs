//! State of NFS version 4.1 without I/O: clients, sessions, opens, byte-range locks and leases (RFC 8881 §2.10, §8,
//! §9).
//!
//! Time is an argument: the duration since the server has started. `F` is the file that an open holds; the state keeps
//! it and never looks into it. No delegation is ever granted.
//!
//! After a restart, the clients of [`State::record`] may reclaim their opens and locks until all of them have said
//! RECLAIM_COMPLETE, or the grace period has passed. Nobody else gets an open or a lock until then.

mod client;
mod lock;
mod open;
mod session;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use iwarp_rpc::xdr::{Reader, Writer, XdrError};

use crate::status::Status;

use client::Client;
pub(crate) use client::{ExchangeId, NewSession};
pub(crate) use lock::{Lock, LockError, Span};
use lock::{Locker, Range};
use open::Open;
pub(crate) use open::{Held, NewOpen, READ, WRITE};
use session::Session;
pub(crate) use session::{Channel, Sequence, SessionId, Turn};

/// Time between two searches for expired leases.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of the state of NFS version 4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLimits {
    /// Clients at a time, 1 or more. For another one, a client without opens goes; if all have some, it waits
    /// (NFS4ERR_DELAY).
    pub clients_max: usize,
    /// Sessions of a client, 1 or more. Another one is refused (NFS4ERR_NOSPC).
    pub sessions_max: usize,
    /// Slots of a session, 1 or more: calls of a client in flight.
    pub slots_max: u32,
    /// Opens of a client, 1 or more; each holds at most two file descriptors. Another one waits (NFS4ERR_DELAY).
    pub opens_max: usize,
    /// Byte ranges that a client has locked, 2 or more, and its lock owners. Another one waits (NFS4ERR_DELAY), unless
    /// owners without a range can be forgotten.
    pub locks_max: usize,
    /// Bytes of a reply that is kept for a repeated call, 1024 or more.
    pub cached_bytes_max: u32,
    /// Time after which a silent client loses its state.
    pub lease: Duration,
    /// Time in which clients reclaim their state after a restart, at least `lease`.
    pub grace: Duration,
}

impl Default for StateLimits {
    fn default() -> Self {
        Self {
            clients_max: 256,
            sessions_max: 8,
            slots_max: 64,
            opens_max: 1024,
            locks_max: 4096,
            cached_bytes_max: 4096,
            lease: Duration::from_secs(90),
            grace: Duration::from_secs(90),
        }
    }
}

/// Identifier of an open, or of the locks of an owner in a file (RFC 8881 §8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stateid {
    pub(crate) seqid: u32,
    pub(crate) other: [u8; 12],
}

impl Stateid {
    /// Stands for no open: I/O outside of any share reservation (RFC 8881 §8.2.3).
    pub(crate) const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// As [`Self::ANONYMOUS`]; READ ignores share reservations.
    pub(crate) const BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// Stands for the stateid of the operation before.
    pub(crate) const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// Names nothing: the result of CLOSE.
    pub(crate) const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(Self { seqid: reader.u32()?, other: reader.array()? })
    }

    /// Returns true for the stateid of a new open, which no other operation has changed.
    pub(crate) fn is_first(self) -> bool {
        self.seqid == 1
    }

    pub(crate) fn put(self, out: &mut Writer) {
        out.u32(self.seqid);
        out.fixed(&self.other);
    }
}

/// Opens and locked ranges of a file.
#[derive(Debug, Default)]
struct File {
    opens: Vec<u64>,
    ranges: Vec<Range>,
}

/// Clients that may reclaim their state.
#[derive(Debug)]
struct Grace {
    until: Duration,
    /// Owners that have not said RECLAIM_COMPLETE; the grace period ends when there are none.
    waiting: BTreeSet<Vec<u8>>,
}

/// All state of a server.
#[derive(Debug)]
pub(crate) struct State<F> {
    limits: StateLimits,
    /// Differs from start to start: it is a part of all identifiers.
    epoch: u32,
    /// Number of the youngest client, session, open or lock.
    last: u64,
    clients: HashMap<u64, Client>,
    sessions: HashMap<SessionId, Session>,
    opens: HashMap<u64, Open<F>>,
    lockers: HashMap<u64, Locker>,
    files: HashMap<Vec<u8>, File>,
    grace: Grace,
    swept: Duration,
    record_changed: bool,
    /// Clients removed to make room for others.
    evicted: u64,
}

/// Kind of the object that a stateid names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Open(u64),
    Locker(u64),
}

impl<F> State<F> {
    /// Begins with the record of the clients that had state before the start.
    pub(crate) fn new(limits: StateLimits, epoch: u32, record: BTreeSet<Vec<u8>>) -> Self {
        Self {
            limits,
            epoch,
            last: 0,
            clients: HashMap::new(),
            sessions: HashMap::new(),
            opens: HashMap::new(),
            lockers: HashMap::new(),
            files: HashMap::new(),
            grace: Grace { until: limits.grace, waiting: record },
            swept: Duration::ZERO,
            record_changed: false,
            evicted: 0,
        }
    }

    pub(crate) fn limits(&self) -> &StateLimits {
        &self.limits
    }

    fn number(&mut self) -> u64 {
        self.last = self.last.saturating_add(1);
        self.last
    }

    /// Returns the owners that may reclaim state after a restart, if they have changed since the last call. They must
    /// be stored before a call is answered.
    pub(crate) fn record(&mut self) -> Option<BTreeSet<Vec<u8>>> {
        if !std::mem::take(&mut self.record_changed) {
            return None;
        }
        let complete = self.clients.values().filter(|client| client.complete);
        let owners = complete.map(|client| client.owner.clone());
        Some(owners.chain(self.grace.waiting.iter().cloned()).collect())
    }

    /// Returns true while clients reclaim their state.
    pub(crate) fn in_grace(&self) -> bool {
        !self.grace.waiting.is_empty()
    }

    /// Ends leases, and the grace period, whose time has passed.
    pub(crate) fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept) < SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        if self.in_grace() && now >= self.grace.until {
            self.grace.waiting.clear();
            self.record_changed = true;
        }
        let ids = self.clients.iter().filter(|(_, client)| self.is_expired(client, now)).map(|(id, _)| *id);
        for id in ids.collect::<Vec<_>>() {
            self.remove_client(id);
        }
    }

    fn is_expired(&self, client: &Client, now: Duration) -> bool {
        now.saturating_sub(client.renewed) > self.limits.lease
    }

    /// Returns the number of clients that were removed to make room for others.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Checks that a client may get an open or a lock now (RFC 8881 §8.4.2.1 and §18.51.3).
    pub(crate) fn may_claim(&self, client: u64, reclaim: bool) -> Result<(), Status> {
        let client = self.clients.get(&client).ok_or(Status::StaleClientId)?;
        match (reclaim, self.in_grace()) {
            (true, true) if client.complete => Err(Status::NoGrace),
            (true, true) if self.grace.waiting.contains(&client.owner) => Ok(()),
            (true, true) => Err(Status::ReclaimBad),
            (true, false) => Err(Status::NoGrace),
            (false, true) => Err(Status::Grace),
            (false, false) if !client.complete => Err(Status::Grace),
            (false, false) => Ok(()),
        }
    }

    fn stateid(&self, number: u64, seqid: u32) -> Stateid {
        let ([a, b, c, d], [e, f, g, h, i, j, k, l]) = (self.epoch.to_be_bytes(), number.to_be_bytes());
        Stateid { seqid, other: [a, b, c, d, e, f, g, h, i, j, k, l] }
    }

    /// Finds the object of a stateid, which must be the client's and as new as the latest one (RFC 8881 §8.2.4).
    fn named(&self, client: u64, stateid: Stateid) -> Result<Named, Status> {
        let [a, b, c, d, number @ ..] = stateid.other;
        if u32::from_be_bytes([a, b, c, d]) != self.epoch {
            let special = [[0; 12], [0xff; 12]].contains(&stateid.other);
            return Err(if special { Status::BadStateId } else { Status::StaleStateId });
        }
        let number = u64::from_be_bytes(number);
        let open = self.opens.get(&number).map(|open| (open.client, open.seqid, Named::Open(number)));
        let locker =
            || self.lockers.get(&number).map(|locker| (locker.client, locker.seqid, Named::Locker(number)));
        let (owner, seqid, named) = open.or_else(locker).ok_or(Status::BadStateId)?;
        if owner != client {
            return Err(Status::BadStateId);
        }
        match stateid.seqid {
            0 => Ok(named),
            given if given < seqid => Err(Status::OldStateId),
            given if given > seqid => Err(Status::BadStateId),
            _ => Ok(named),
        }
    }

    /// TEST_STATEID: returns the status of a stateid.
    pub(crate) fn test_stateid(&self, client: u64, stateid: Stateid) -> Status {
        self.named(client, stateid).map_or_else(|status| status, |_| Status::Ok)
    }

    /// FREE_STATEID: only an owner without locked ranges has a stateid that can be freed.
    pub(crate) fn free_stateid(&mut self, client: u64, stateid: Stateid) -> Result<(), Status> {
        match self.named(client, stateid)? {
            Named::Open(_) => Err(Status::LocksHeld),
            Named::Locker(number) if self.has_ranges(number) => Err(Status::LocksHeld),
            Named::Locker(number) => {
                self.remove_locker(number);
                Ok(())
            }
        }
    }

    /// Removes a client with all its state.
    fn remove_client(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.record_changed |= client.complete;
        self.sessions.retain(|_, session| session.client != id);
        let opens = self.opens.iter().filter(|(_, open)| open.client == id).map(|(number, _)| *number);
        for number in opens.collect::<Vec<_>>() {
            self.remove_open(number);
        }
    }

    /// Forgets a file that has neither opens nor locks.
    fn trim(&mut self, file: &[u8]) {
        if self.files.get(file).is_some_and(|file| file.opens.is_empty() && file.ranges.is_empty()) {
            self.files.remove(file);
        }
    }
}
