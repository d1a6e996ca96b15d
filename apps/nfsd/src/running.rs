//! A server that runs, as the control socket and signals see it: its state, and its exports that are reloaded.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use iwarp_server::DaemonRegions;
use iwarp_server::counters::value;
use iwarp_server::iwarp_config::{Machine, Nfsd, NfsdContent, NfsdExport, NfsdSquash};
use iwarp_server::iwarp_control::nfs::{Files, Nfs4Client, Status};

use crate::report::ms;
use crate::{Backend, Directory, Export, Regions, Rule, Selection, Server, Squash};

/// A server that runs, as the control socket and signals see it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) file: PathBuf,
    pub(crate) started: Instant,
    pub(crate) rdma: SocketAddr,
    pub(crate) tcp: Option<SocketAddr>,
    /// Reason why there is no io_uring.
    pub(crate) no_ring: Option<String>,
    pub(crate) transfers_max: u64,
    /// Mistake of the latest reload.
    pub(crate) reload_error: Mutex<Option<String>>,
    pub(crate) regions: DaemonRegions,
    pub(crate) server: Arc<Server>,
}

impl Running {
    /// Loads the exports of the configuration file again, all of them or none. Returns their number, and reports what
    /// it did.
    pub(crate) fn reload(&self) -> Result<usize> {
        let loaded = self.load();
        let error = loaded.as_ref().err().map(|error| format!("{error:#}"));
        match &error {
            None => eprintln!("iwarp-nfsd: the exports of {} are loaded", self.file.display()),
            Some(error) => eprintln!("iwarp-nfsd: the exports stay as they are: {error}"),
        }
        *self.reload_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        loaded
    }

    fn load(&self) -> Result<usize> {
        let config = Nfsd::load_on(&self.file, &Machine::this())
            .map_err(|errors| anyhow::anyhow!("{errors}\n{}", errors.short().trim_end()))?;
        let exports = open(&config, &self.regions)?;
        let count = exports.len();
        self.server.reload(exports)?;
        Ok(count)
    }

    fn files(&self) -> Files {
        let stats = &self.server.stats.transfers;
        Files {
            access: if self.no_ring.is_none() { "io_uring" } else { "threads" }.to_owned(),
            reason: self.no_ring.clone(),
            transfers_max: self.transfers_max,
            in_flight: value(&stats.in_flight),
            waiting: value(&stats.waiting),
            done: value(&stats.done),
            waited: value(&stats.waited),
            cached: value(&stats.cached),
        }
    }

    /// Returns the state on one screen.
    pub(crate) fn status(&self) -> Status {
        let peers = self.server.stats.connections.all();
        let over = |transport| peers.iter().filter(|peer| peer.transport() == transport).count() as u64;
        let clients = self.server.nfs4.clients();
        let sum = |count: fn(&Nfs4Client) -> u64| clients.iter().map(count).fold(0, u64::saturating_add);
        let (calls, errors) = self.server.calls();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: ms(self.started.elapsed()),
            config: self.file.clone(),
            rdma: self.rdma,
            tcp: self.tcp,
            in_grace: self.server.nfs4.in_grace(),
            exports: self.server.exports().list().len() as u64,
            connections_rdma: over("rdma"),
            connections_tcp: over("tcp"),
            clients: clients.len() as u64,
            sessions: sum(|client| client.sessions),
            opens: sum(|client| client.opens),
            locks: sum(|client| client.locks),
            calls,
            errors,
            files: self.files(),
            reload_error: self.reload_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Opens the exports of a configuration.
pub(crate) fn open(config: &Nfsd, regions: &DaemonRegions) -> Result<Vec<Export>> {
    config.exports.iter().map(|section| export(section, regions)).collect()
}

fn export(export: &NfsdExport, regions: &DaemonRegions) -> Result<Export> {
    let NfsdExport { path, content, insecure, clients, .. } = export;
    let selected = |selection| -> Result<Box<dyn Backend>> {
        let table = regions.table().with_context(|| format!("export {path}: the regions of iwarpd"))?;
        Ok(Box::new(Regions::new(path, table, selection)))
    };
    let backend = match content {
        NfsdContent::Directory(directory) => {
            let opened = Directory::open(directory).with_context(|| {
                format!("export {path}: cannot export the directory {}", directory.display())
            });
            Box::new(opened?)
        }
        NfsdContent::PublicRegions => selected(Selection::Public)?,
        NfsdContent::Regions(names) => {
            selected(Selection::Named(names.iter().map(ToString::to_string).collect()))?
        }
    };
    let rules = clients.iter().map(|clients| Rule {
        clients: clients.prefix,
        write: clients.write,
        squash: match clients.squash {
            NfsdSquash::None => Squash::None,
            NfsdSquash::Root => Squash::Root,
            NfsdSquash::All => Squash::All,
        },
        anonymous: (clients.anonuid, clients.anongid),
    });
    Ok(Export { path: path.clone(), backend, rules: rules.collect(), insecure: *insecure })
}
