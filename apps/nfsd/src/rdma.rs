//! Both programs over queue pairs of `iwarpd`: RPC-over-RDMA version 1.
//!
//! Each connection has one memory region, with a slot per credit. A slot holds a received message, the reply's bytes,
//! and the data of a call: what RDMA Reads fetch, or what RDMA Writes return. It is free again when the Send of its
//! reply has completed; then its receive buffer is posted.
//!
//! The kernel copies between files and the data of a slot, without a buffer. A call that waits for a file leaves its
//! thread to others. When its connection ends, it goes on, and its reply is kept by NFS 4.1 only; until then, later
//! calls from the same address wait: a client repeats a WRITE of NFS 3 over its next connection, and the one that is in
//! flight must not overtake those that follow.

mod connection;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use iwarp_rpc::{Limits, PrivateData, Stats};
use iwarp_server::counters::add;
use iwarp_server::{Crew, Disks, Entry, Peer, Service, Tasks, Wait, keep_latest, makes_room};
use iwarp_verbs::{
    AsyncEvent, CmEventKind, CmId, CompletionQueue, ConnParam, Context, Event, Id, ProtectionDomain, QpNum,
    WorkCompletion,
};

use crate::server::Server;
use connection::{Connection, Executed, Key, Resources};

/// Completions that one poll returns, at most.
const BATCH: usize = 64;
/// Connect requests that wait, at most.
const BACKLOG: u16 = 64;

/// Limits of the RDMA side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaLimits {
    /// Connections at a time. For another one, an idle one is closed.
    pub connections_max: u16,
    /// Calls of a connection in flight, 1 to 256.
    pub credits: u16,
    /// Bytes of a message sent or received inline: a multiple of 1024, at most 262144.
    pub inline_bytes: u32,
    /// Segments of all chunk lists of a call.
    pub segments_max: u16,
    /// Transfers of files in flight, of all connections: 1 to 4096.
    pub transfers_max: u16,
    /// Threads that execute calls, 1 to 256.
    pub threads_max: u16,
}

/// The RDMA side: one context, which the threads of a [`Crew`] serve.
#[derive(Debug)]
pub struct RdmaServer {
    server: Arc<Server>,
    limits: RdmaLimits,
    stats: Stats,
    /// Addresses of the daemon: a client with one of them is a program of this machine.
    own: HashSet<IpAddr>,
    connections: HashMap<QpNum, Connection>,
    by_id: HashMap<CmId, QpNum>,
    /// Connections accepted so far.
    accepted: u64,
    calls: Tasks<Key, Executed>,
    /// Calls that wait for those of a former connection, in order.
    held: Vec<Key>,
    no_ring: Option<String>,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    _listener: Id,
    context: Context,
}

/// The daemon as an RDMA NIC, and the memory that is registered with it.
#[derive(Debug)]
pub struct RdmaDevice {
    context: Context,
    pd: ProtectionDomain,
    limits: RdmaLimits,
    own: HashSet<IpAddr>,
    /// Entries of the completion queue of all connections.
    entries: u32,
}

impl RdmaDevice {
    /// Opens the daemon with this verbs socket, with queues for connections within these limits.
    ///
    /// # Errors
    /// The daemon cannot be reached, or refuses.
    pub fn open(socket: &Path, limits: RdmaLimits) -> Result<Self> {
        let per_connection = connection::queue_entries(&limits);
        let entries = per_connection.saturating_mul(limits.connections_max.into());
        let queue_bytes = u64::from(entries).saturating_mul(512).saturating_add(1 << 20);
        let context = Context::open_sized(socket, None, Some(queue_bytes))?;
        let pd = context.alloc_pd()?;
        let devices = Context::devices(socket)?;
        let own = devices.iter().flat_map(|device| &device.addresses).map(|net| net.addr().to_canonical());
        Ok(Self { context, pd, limits, own: own.collect(), entries })
    }

    /// Uses a device that is open: one in this process, whose clients need no daemon.
    ///
    /// # Errors
    /// The device refuses.
    pub fn on(context: Context, limits: RdmaLimits) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let entries = connection::queue_entries(&limits).saturating_mul(limits.connections_max.into());
        Ok(Self { context, pd, limits, own: HashSet::new(), entries })
    }

    /// Returns the domain of memory that connections use.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.pd
    }
}

impl RdmaServer {
    /// Listens at an address of the daemon.
    ///
    /// # Errors
    /// The daemon refuses.
    pub fn start(server: Arc<Server>, device: RdmaDevice, address: SocketAddr) -> Result<Self> {
        let RdmaDevice { context, pd, limits, own, entries } = device;
        let cq = context.create_cq(entries)?;
        let listener = context.create_id(Some(address))?;
        let backlog = NonZeroU16::new(BACKLOG).context("a backlog")?;
        listener.listen(backlog, &ConnParam::default())?;
        // The end of a transfer ends a sleep of the context, as one of the queue does.
        let (max, wakes) = (limits.transfers_max, context.wake_fd());
        let disks = Disks::new(max, wakes, "nfsd-files")?;
        let no_ring = disks.no_ring().map(str::to_owned);
        let calls = Tasks::new(disks, Arc::clone(&server.stats.transfers));
        Ok(Self {
            server,
            limits,
            stats: Stats::default(),
            own,
            connections: HashMap::new(),
            by_id: HashMap::new(),
            accepted: 0,
            calls,
            held: Vec::new(),
            no_ring,
            cq,
            pd,
            _listener: listener,
            context,
        })
    }

    /// Returns the counters of all connections.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the reason why there is no io_uring, so that threads carry out all transfers; `None` if there is.
    #[must_use]
    pub fn no_ring(&self) -> Option<&str> {
        self.no_ring.as_deref()
    }

    /// Serves until `ends` returns true, which is asked at least once a second.
    ///
    /// # Errors
    /// The daemon has ended, or a queue overran; the system has no thread.
    pub fn run(self, ends: &dyn Fn() -> bool) -> Result<()> {
        Crew::new("nfsd-calls", self.limits.threads_max).run(Served(self), ends)
    }

    fn events(&mut self) -> Result<bool> {
        let mut busy = false;
        while let Some(event) = self.context.poll_event() {
            busy = true;
            match event {
                Event::Cm(event) => match event.kind {
                    CmEventKind::ConnectRequest { peer, private_data, .. } => {
                        self.connect(event.id, peer.ip(), &private_data);
                    }
                    CmEventKind::Established { .. } => {}
                    CmEventKind::AddressError => bail!("the address to listen at is not available"),
                    _ => self.close(event.id),
                },
                Event::Async(AsyncEvent::CqError(_)) => bail!("the completion queue overran"),
                Event::DeviceFatal => bail!("iwarpd has ended, and all connections with it"),
                Event::Async(_) | Event::PortActive | Event::PortDown => {}
            }
        }
        Ok(busy)
    }

    /// Accepts a connection, or rejects it. A client that has gone meanwhile is no error: the end of the daemon, which
    /// would be one, is an event.
    fn connect(&mut self, id: CmId, peer: IpAddr, private_data: &[u8]) {
        let id = self.context.id(id);
        let address = peer.to_canonical();
        let peer = if self.own.contains(&address) { Peer::rdma_local(address) } else { Peer::rdma(address) };
        if !self.server.exports().admit(peer) {
            add(&self.server.stats.connects.rejected_address, 1);
            let _ = id.reject(&[]);
            return;
        }
        let Some(resources) = self.resources(peer) else {
            add(&self.server.stats.connects.rejected_limit, 1);
            let _ = id.reject(&[]);
            return;
        };
        let parsed = PrivateData::parse(private_data);
        let inline = self.limits.inline_bytes;
        let own = PrivateData { remote_invalidation: true, send_bytes: inline, receive_bytes: inline };
        let handle = id.handle();
        self.accepted = self.accepted.wrapping_add(1);
        let client = (self.accepted, peer);
        let made = Connection::new(id, client, resources, &self.limits, &self.server, (&own, &parsed));
        let Ok(connection) = made else { return };
        add(&self.server.stats.connects.accepted, 1);
        let qp = connection.qp_num();
        self.by_id.insert(handle, qp);
        self.connections.insert(qp, connection);
    }

    /// Returns queue pair and memory of a connection, in the place of an idle one if there are too many, or if the
    /// daemon gives no more. `None`: none is idle.
    fn resources(&mut self, newcomer: Peer) -> Option<Resources> {
        // Calls of former connections keep the memory of these.
        let former: HashSet<u64> =
            self.calls.keys().filter(|key| self.is_left(key)).map(|key| key.connection).collect();
        let count = self.connections.len().saturating_add(former.len());
        if count >= usize::from(self.limits.connections_max) {
            self.close_idlest(newcomer)?;
        }
        let make = |server: &Self| {
            Resources::new(&server.pd, &server.cq, &server.limits, server.server.transfer_max)
        };
        if let Ok(resources) = make(self) {
            return Some(resources);
        }
        self.close_idlest(newcomer)?;
        make(self).ok()
    }

    /// Closes the idle connection that makes room for a newcomer. `None`: there is none.
    fn close_idlest(&mut self, newcomer: Peer) -> Option<()> {
        let busy = self.calls.keys().chain(&self.held);
        let busy: HashSet<u64> = busy.map(|key| key.connection).collect();
        let exports = self.server.exports();
        let entries = self.connections.iter().map(|(qp, connection)| {
            let peer = connection.peer();
            let is_busy = busy.contains(&connection.number());
            let rank = if is_busy { None } else { Some(exports.admit(peer).into()) };
            let (used, was_used) = connection.used();
            Entry { key: *qp, address: peer.address, rank, used, was_used }
        });
        let mut entries: Vec<_> = entries.collect();
        keep_latest(&mut entries, self.server.nfs4.holders());
        let goes = makes_room(newcomer.address, entries.into_iter())?;
        self.end(goes);
        add(&self.server.stats.connects.closed_idlest, 1);
        Some(())
    }

    fn close(&mut self, id: CmId) {
        if let Some(qp) = self.by_id.remove(&id) {
            self.connections.remove(&qp);
            self.held.retain(|key| key.qp != qp);
        }
    }

    fn completions(&mut self) -> Result<bool> {
        let mut out = [WorkCompletion::default(); BATCH];
        let polled = self.cq.poll(&mut out).map_err(|error| anyhow!("poll: {error:?}"))?;
        for wc in out.iter().take(polled) {
            let Some(connection) = self.connections.get_mut(&wc.qp_num) else { continue };
            match connection.completion(&self.server, wc, &mut self.stats) {
                Ok(None) => {}
                Ok(Some(slot)) => {
                    let key = connection.key(slot);
                    self.execute(key);
                }
                Err(_) => self.end(wc.qp_num),
            }
        }
        if polled > 0 {
            self.server.stats.publish(&self.stats);
        }
        Ok(polled > 0)
    }

    /// Ends a connection that breaks a rule, and nothing else.
    fn end(&mut self, qp: QpNum) {
        if let Some(handle) = self.connections.get(&qp).map(Connection::handle) {
            self.close(handle);
        }
    }

    fn connection(&mut self, key: &Key) -> Option<&mut Connection> {
        self.connections.get_mut(&key.qp).filter(|connection| connection.number() == key.connection)
    }

    /// Returns true if the connection of a call has ended.
    fn is_left(&self, key: &Key) -> bool {
        self.connections.get(&key.qp).is_none_or(|connection| connection.number() != key.connection)
    }

    /// Executes a call whose data is complete; later, if calls of the client's former connections are not done.
    fn execute(&mut self, key: Key) {
        if self.calls.keys().any(|other| other.address == key.address && self.is_left(other)) {
            self.held.push(key);
            return;
        }
        let server = Arc::clone(&self.server);
        let Some(connection) = self.connection(&key) else { return };
        let Ok(execution) = connection.execution(&server, key.slot) else { return self.end(key.qp) };
        self.calls.begin(key, execution);
    }

    /// Answers a call that was executed, if its connection is still there.
    fn answer(&mut self, key: &Key, executed: Executed) {
        let found = self.connections.get_mut(&key.qp);
        if let Some(connection) = found.filter(|connection| connection.number() == key.connection)
            && connection.answer(key.slot, executed, &mut self.stats).is_err()
        {
            self.end(key.qp);
        }
        for key in std::mem::take(&mut self.held) {
            self.execute(key);
        }
        self.server.stats.publish(&self.stats);
    }
}

/// The RDMA side as its crew serves it.
struct Served(RdmaServer);

impl Service for Served {
    type Key = Key;
    type Result = Executed;
    type Wait = Sleep;

    fn turn(&mut self) -> Result<bool> {
        let mut busy = self.0.events()?;
        busy |= self.0.completions()?;
        busy |= self.0.calls.ended();
        Ok(busy)
    }

    fn arm(&mut self) {
        self.0.cq.req_notify(false);
    }

    fn waiting(&self) -> Sleep {
        Sleep(self.0.context.clone())
    }

    fn calls(&mut self) -> &mut Tasks<Key, Executed> {
        &mut self.0.calls
    }

    fn answer(&mut self, key: Key, executed: Executed) {
        self.0.answer(&key, executed);
    }
}

/// Sleep of the context: events, completions, and the ends of transfers end it.
struct Sleep(Context);

impl Wait for Sleep {
    fn wait(&self, most: Duration) -> Result<()> {
        Ok(self.0.wait(most).map(|_| ())?)
    }

    fn wake(&self) {
        // It fails only if the counter is full, which wakes as well.
        let _ = rustix::io::write(self.0.wake_fd(), &1_u64.to_ne_bytes());
    }
}

impl RdmaLimits {
    fn rpc(&self, fetch_bytes_max: u32) -> Limits {
        Limits { credits: self.credits.into(), segments_max: self.segments_max.into(), fetch_bytes_max }
    }
}
