//! The server as a program: it starts with a configuration, reloads its exports, and ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use iwarp_config::{Nfs, Nfsd, NfsdRdma, NfsdTcp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::ControlSocket;
use crate::running::{Running, open};
use crate::{DaemonRegions, RdmaDevice, RdmaLimits, RdmaServer, Server, StateLimits, TcpLimits, TcpServer};

/// Serves until SIGTERM or SIGINT. SIGHUP reloads the exports of the file.
///
/// # Errors
/// An export cannot be opened, an address is not available, or `iwarpd` has ended.
pub fn run(file: &Path, config: &Nfsd) -> Result<()> {
    // From here on a signal ends the server in order.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot catch signals")?;
    // No other server has the socket, and thus the folder of this configuration.
    let control =
        ControlSocket::bind(&config.control.socket, config.control.mode, config.control.group.as_deref())?;
    let folder = &config.state.directory;
    let key_file = folder.join("key");
    let key = key(&key_file).with_context(|| format!("{}", key_file.display()))?;
    let verifier = getrandom::u64().context("no random bytes")?;
    let (socket, listen) = (&config.rdma.socket, config.rdma.listen);
    let device = RdmaDevice::open(socket, rdma_limits(&config.rdma))
        .with_context(|| format!("rdma.socket {}", socket.display()))?;
    let regions = DaemonRegions::new(&config.rdma.control, device.domain().clone(), "nfsd-regions");
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
    let running = Arc::new(Running {
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
    control.serve("nfsd-control", Arc::clone(&running)).context("cannot serve the control socket")?;
    let handle = signals.handle();
    let handler = {
        let ends = Arc::clone(&ends);
        std::thread::Builder::new()
            .name("nfsd-signals".to_owned())
            .spawn(move || obey(signals, &running, &ends))
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
fn obey(mut signals: Signals, running: &Running, ends: &AtomicBool) {
    for signal in &mut signals {
        if signal != SIGHUP {
            ends.store(true, Ordering::Release);
            continue;
        }
        // It has reported what it did.
        let _ = running.reload();
    }
}

#[allow(clippy::disallowed_methods, reason = "the age of the program is measured here")]
fn started() -> Instant {
    Instant::now()
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
