//! The server as a program: it starts with a configuration, reloads its exports, and ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use iwarp_config::{Machine, Nfs, Nfsd, NfsdContent, NfsdExport, NfsdRdma, NfsdSquash, NfsdTcp};
use iwarp_control::nfs::{Files, Nfs4Client, Status};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::ControlSocket;
use crate::report::ms;
use crate::stats::value;
use crate::{
    Backend, DaemonRegions, Directory, Export, RdmaDevice, RdmaLimits, RdmaServer, Regions, Rule, Selection,
    Server, Squash, StateLimits, TcpLimits, TcpServer,
};

/// Serves until SIGTERM or SIGINT. SIGHUP reloads the exports of the file.
///
/// # Errors
/// An export cannot be opened, an address is not available, or `iwarpd` has ended.
pub fn run(file: &Path, config: &Nfsd) -> Result<()> {
    // From here on a signal ends the server in order.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot catch signals")?;
    // No other server has the socket, and thus the folder of this configuration.
    let control = ControlSocket::bind(&config.control)?;
    let folder = &config.state.directory;
    let key_file = folder.join("key");
    let key = key(&key_file).with_context(|| format!("{}", key_file.display()))?;
    let verifier = getrandom::u64().context("no random bytes")?;
    let (socket, listen) = (&config.rdma.socket, config.rdma.listen);
    let device = RdmaDevice::open(socket, rdma_limits(&config.rdma))
        .with_context(|| format!("rdma.socket {}", socket.display()))?;
    let regions = DaemonRegions::new(&config.rdma.control, device.domain().clone());
    let server = Server::new(open(config, &regions)?, key, verifier, config.nfs.transfer_bytes)?;
    let record = folder.join("clients");
    let server = server.with_state(state_limits(&config.nfs), &record);
    let server = Arc::new(server.with_context(|| format!("{}", record.display()))?);
    allow_files()?;
    let tcp = config.tcp.as_ref().map(|tcp| {
        let started = TcpServer::start(Arc::clone(&server), tcp.listen, tcp_limits(tcp));
        started.with_context(|| format!("tcp.listen {}: cannot listen", tcp.listen))
    });
    let tcp = tcp.transpose()?;
    let mut rdma = RdmaServer::start(Arc::clone(&server), device, listen)
        .with_context(|| format!("rdma.listen {listen} at {}", socket.display()))?;
    if let Some(reason) = rdma.no_ring() {
        eprintln!("iwarp-nfsd: no io_uring ({reason}): threads read and commit files for clients over RDMA");
    }
    let ends = Arc::new(AtomicBool::new(false));
    let program = Arc::new(Program {
        file: file.to_owned(),
        started: started(),
        rdma: listen,
        tcp: tcp.as_ref().map(TcpServer::address),
        no_ring: rdma.no_ring().map(str::to_owned),
        transfers_max: config.rdma.transfers_max.into(),
        reload_error: Mutex::new(None),
        regions,
        server,
    });
    control.serve(Arc::clone(&program)).context("cannot serve the control socket")?;
    let handle = signals.handle();
    let handler = {
        let ends = Arc::clone(&ends);
        std::thread::Builder::new()
            .name("nfsd-signals".to_owned())
            .spawn(move || obey(signals, &program, &ends))
            .context("cannot start a thread")?
    };
    let over_tcp = tcp.as_ref().map(|tcp| format!(" and {} (TCP)", tcp.address()));
    eprintln!("iwarp-nfsd: serving at {listen} (RDMA){}", over_tcp.unwrap_or_default());
    tell(NotifyState::Ready);
    let served = rdma.run(&|| ends.load(Ordering::Acquire));
    tell(NotifyState::Stopping);
    handle.close();
    let _ = handler.join();
    served
}

/// Tells the service manager, if there is one. Without one that listens, the server goes on.
fn tell(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

/// Handles signals until one ends the server.
fn obey(mut signals: Signals, program: &Program, ends: &AtomicBool) {
    for signal in &mut signals {
        if signal != SIGHUP {
            ends.store(true, Ordering::Release);
            continue;
        }
        // It has reported what it did.
        let _ = program.reload();
    }
}

#[allow(clippy::disallowed_methods, reason = "the age of the program is measured here")]
fn started() -> Instant {
    Instant::now()
}

/// A server that runs, as the control socket and signals see it.
#[derive(Debug)]
pub(crate) struct Program {
    file: PathBuf,
    started: Instant,
    rdma: SocketAddr,
    tcp: Option<SocketAddr>,
    /// Reason why there is no io_uring.
    no_ring: Option<String>,
    transfers_max: u64,
    /// Mistake of the latest reload.
    reload_error: Mutex<Option<String>>,
    regions: DaemonRegions,
    pub(crate) server: Arc<Server>,
}

impl Program {
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
        let peers = self.server.stats.connections();
        let over = |transport| peers.iter().filter(|peer| peer.transport == transport).count() as u64;
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
fn open(config: &Nfsd, regions: &DaemonRegions) -> Result<Vec<Export>> {
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

fn state_limits(nfs: &Nfs) -> StateLimits {
    StateLimits {
        clients_max: nfs.clients_max as usize,
        sessions_max: nfs.sessions_max as usize,
        slots_max: nfs.slots_max,
        opens_max: nfs.opens_max as usize,
        locks_max: nfs.locks_max as usize,
        cached_bytes_max: nfs.cached_reply_bytes,
        lease: Duration::from_secs(nfs.lease_s.into()),
        grace: Duration::from_secs(nfs.grace_s.into()),
    }
}

fn tcp_limits(tcp: &NfsdTcp) -> TcpLimits {
    TcpLimits {
        connections_max: tcp.connections_max.into(),
        idle_timeout: Duration::from_secs(tcp.idle_timeout_s.into()),
    }
}

fn rdma_limits(rdma: &NfsdRdma) -> RdmaLimits {
    let NfsdRdma { connections_max, credits, inline_bytes, segments_max, transfers_max, .. } = *rdma;
    RdmaLimits { connections_max, credits, inline_bytes, segments_max, transfers_max }
}

/// Returns the key of file handles, which is made with the first start.
fn key(path: &Path) -> Result<[u8; 16]> {
    let mut key = [0; 16];
    match File::open(path) {
        Ok(mut file) => file.read_exact(&mut key)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            getrandom::fill(&mut key).context("no random bytes")?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(&key)?;
            file.sync_all()?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(key)
}

/// Raises the limit of open files to the largest that is allowed: opens of NFS version 4.1 hold files.
fn allow_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("the limit of open files")
}
