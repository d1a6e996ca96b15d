//! The clients of NFS version 4.1: their state, which a file keeps over a restart as far as they may reclaim it.

mod record;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use iwarp_server::iwarp_control::nfs::Nfs4Client;

use crate::export::Seals;
use crate::file::File;
use crate::state::{State, StateLimits};
use crate::status::Status;
use record::Record;

/// Clients of NFS version 4.1 with their state.
#[derive(Debug)]
pub(crate) struct Nfs4 {
    state: Mutex<State<File>>,
    record: Option<Record>,
    /// Identity of the server, the same after a restart: a client compares it over several addresses.
    pub(crate) name: Vec<u8>,
    epoch: u32,
    started: Instant,
}

impl Nfs4 {
    #[allow(clippy::disallowed_methods, reason = "leases run from the start of the server")]
    pub(crate) fn new(seals: &Seals, verifier: u64) -> Self {
        let epoch = u32::try_from(verifier >> 32 ^ verifier & u64::from(u32::MAX)).unwrap_or(0).max(1);
        Self {
            state: Mutex::new(State::new(StateLimits::default(), epoch, Default::default())),
            record: None,
            name: format!("iwarp-nfsd {:08x}", seals.number("server")).into_bytes(),
            epoch,
            started: Instant::now(),
        }
    }

    /// Begins again, with the clients that the file names.
    pub(crate) fn restore(&mut self, limits: StateLimits, record: &std::path::Path) -> std::io::Result<()> {
        let (record, owners) = Record::open(record)?;
        self.state = Mutex::new(State::new(limits, self.epoch, owners));
        self.record = Some(record);
        Ok(())
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<File>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> std::time::Duration {
        self.started.elapsed()
    }

    /// Returns true while clients reclaim their state.
    pub(crate) fn in_grace(&self) -> bool {
        self.state().in_grace()
    }

    /// Returns the number of clients that have opens, by the address that they have named themselves from.
    pub(crate) fn holders(&self) -> HashMap<IpAddr, usize> {
        self.state().holders()
    }

    /// Returns the number of clients that were removed to make room for others.
    pub(crate) fn evicted(&self) -> u64 {
        self.state().evicted()
    }

    /// Returns the clients with their state.
    pub(crate) fn clients(&self) -> Vec<Nfs4Client> {
        self.state().list(self.now())
    }

    /// Stores the record of clients, if it has changed.
    pub(crate) fn save(&self, state: &mut State<File>) -> Result<(), Status> {
        match (state.record(), &self.record) {
            (Some(owners), Some(record)) => record.store(&owners).map_err(|_| Status::ServerFault),
            _ => Ok(()),
        }
    }
}
