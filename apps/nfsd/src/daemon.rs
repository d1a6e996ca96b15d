//! The server as a program: it starts with a configuration, reloads its exports, and ends.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use iwarp_server::DaemonRegions;
use iwarp_server::control::ControlSocket;
use iwarp_server::iwarp_config::{Nfs, Nfsd, NfsdRdma, NfsdTcp};
use iwarp_server::service::{Caught, allow_files, key};

use crate::running::{Running, open};
use crate::{RdmaDevice, RdmaLimits, RdmaServer, Server, StateLimits, TcpLimits, TcpServer};

/// Serves until SIGTERM or SIGINT. SIGHUP reloads the exports of the file.
///
/// # Errors
/// An export cannot be opened, an address is not available, or `iwarpd` has ended.
pub fn run(file: &Path, config: &Nfsd) -> Result<()> {
    // From here on a signal ends the server in order.
    let signals = Caught::new()?;
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
    // Opens of NFS version 4.1 hold files.
    allow_files()?;
    let tcp = config.tcp.as_ref().map(|tcp| {
        let started = TcpServer::start(Arc::clone(&server), tcp.listen, tcp_limits(tcp));
        started.with_context(|| format!("tcp.listen {}: cannot listen", tcp.listen))
    });
    let tcp = tcp.transpose()?;
    let rdma = RdmaServer::start(Arc::clone(&server), device, listen)
        .with_context(|| format!("rdma.listen {listen} at {}", socket.display()))?;
    if let Some(reason) = rdma.no_ring() {
        eprintln!("iwarp-nfsd: no io_uring ({reason}): threads read and commit files for clients over RDMA");
    }
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
    // A reload has reported what it did.
    let service = signals.obey("nfsd-signals", move || drop(running.reload()))?;
    let over_tcp = tcp.as_ref().map(|tcp| format!(" and {} (TCP)", tcp.address()));
    eprintln!("iwarp-nfsd: serving at {listen} (RDMA){}", over_tcp.unwrap_or_default());
    service.run(|ends| rdma.run(ends))
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
    let NfsdRdma { connections_max, credits, inline_bytes, segments_max, transfers_max, threads_max, .. } =
        *rdma;
    RdmaLimits { connections_max, credits, inline_bytes, segments_max, transfers_max, threads_max }
}
