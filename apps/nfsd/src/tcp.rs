//! Both programs over the kernel's TCP, with record marking (RFC 5531 §11).
//!
//! A client over RDMA needs MOUNT over TCP (RFC 8267 §5.1): `mountproto=tcp,mountport=…`. NFS itself is served, too,
//! for clients without RDMA.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iwarp_rpc::xdr::Reader;
use iwarp_server::{Entry, Peer, keep_latest, makes_room};

use crate::reply::{Reply, detach};
use crate::server::{CALL_BYTES, Server};
use crate::stats::{TcpStats, Way};

/// Flag of the last fragment of a record.
const LAST: u32 = 1 << 31;
/// Empty fragments of a record, at most: libtirpc ends a record with one if the fragment before was full.
const EMPTY_FRAGMENTS_MAX: u32 = 16;
/// Threads of connections that were closed for others, at most: they end soon, but not at once.
const ENDING_MAX: usize = 256;
/// Time after which the system is asked again that has refused to accept a connection, for want of files or memory.
const RETRY: Duration = Duration::from_millis(100);

/// Limits of the TCP side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLimits {
    /// Connections at a time. For another one, an idle one is closed.
    pub connections_max: usize,
    /// Time after which a connection without a call, or whose client does not read its replies, is closed.
    pub idle_timeout: Duration,
}

/// Reason why a connection ends.
enum End {
    /// The client has closed it, or the network has.
    Closed,
    /// A limit or a rule was broken: counted.
    Counted(fn(&TcpStats) -> &AtomicU64),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Counted(|stats| &stats.closed_idle),
            _ => Self::Closed,
        }
    }
}

/// A TCP side that serves until it is dropped.
#[derive(Debug)]
pub struct TcpServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    limits: TcpLimits,
    started: Instant,
    /// Connections, each by its number.
    open: Mutex<HashMap<u64, Open>>,
    /// Threads of connections, those of connections included that were closed for others and are about to end.
    threads: AtomicUsize,
    ends: AtomicBool,
}

/// A connection, as all threads see it.
#[derive(Debug)]
struct Open {
    /// Handle to end the connection.
    stream: TcpStream,
    peer: Peer,
    activity: Arc<Activity>,
}

/// Latest use of a connection.
#[derive(Debug)]
struct Activity {
    /// Time at which the latest call was executed, or the connection accepted: milliseconds since the start.
    used_ms: AtomicU64,
    /// True once a call was executed.
    was_used: AtomicBool,
    /// True while a call is executed.
    is_busy: AtomicBool,
}

impl TcpServer {
    /// Listens, and serves each connection on a thread of its own.
    ///
    /// # Errors
    /// The address is not available.
    pub fn start(server: Arc<Server>, address: SocketAddr, limits: TcpLimits) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            limits,
            started: now(),
            open: Mutex::default(),
            threads: AtomicUsize::new(0),
            ends: false.into(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("nfsd-tcp".to_owned())
            .spawn(move || accept(&accepting, &listener))?;
        Ok(Self { shared, address, acceptor: Some(acceptor) })
    }

    /// Returns the address that it listens at.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counters of all connections.
    #[must_use]
    pub fn stats(&self) -> &TcpStats {
        &self.shared.server.stats.tcp
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open().len()
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        for open in self.shared.open().values() {
            let _ = open.stream.shutdown(Shutdown::Both);
        }
        // Wakes the acceptor, which waits for a connection.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let (Ok(_), Some(acceptor)) = (woken, self.acceptor.take()) {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn stats(&self) -> &TcpStats {
        &self.server.stats.tcp
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Keeps a handle of a connection; closes an idle one if there are too many. `None` if there is no room.
    fn enter(&self, number: u64, stream: &TcpStream, peer: Peer) -> Option<Arc<Activity>> {
        let stream = stream.try_clone().ok()?;
        let mut open = self.open();
        if open.len() >= self.limits.connections_max {
            let goes = self.idlest(&open, peer)?;
            let gone = open.remove(&goes)?;
            let _ = gone.stream.shutdown(Shutdown::Both);
            self.stats().closed_idlest.fetch_add(1, Ordering::Relaxed);
        }
        let activity = Arc::new(Activity {
            used_ms: self.now_ms().into(),
            was_used: false.into(),
            is_busy: false.into(),
        });
        open.insert(number, Open { stream, peer, activity: Arc::clone(&activity) });
        Some(activity)
    }

    /// Returns the connection that makes room for a newcomer.
    fn idlest(&self, open: &HashMap<u64, Open>, newcomer: Peer) -> Option<u64> {
        let exports = self.server.exports();
        let entries = open.iter().map(|(number, open)| {
            let is_busy = open.activity.is_busy.load(Ordering::Acquire);
            let rank = if is_busy { None } else { Some(exports.admit(open.peer).into()) };
            // Of the same millisecond, the one accepted first is idle for longest.
            let used = (open.activity.used_ms.load(Ordering::Relaxed), *number);
            let was_used = open.activity.was_used.load(Ordering::Relaxed);
            Entry { key: *number, address: open.peer.address, rank, used, was_used }
        });
        let mut entries: Vec<_> = entries.collect();
        keep_latest(&mut entries, self.server.nfs4.holders());
        makes_room(newcomer.address, entries.into_iter())
    }
}

#[allow(clippy::disallowed_methods, reason = "the silence of clients is measured from here")]
fn now() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "the thread waits before it asks the system again")]
fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for number in 0.. {
        let accepted = listener.accept();
        if shared.ends.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((stream, peer)) => admit(shared, number, stream, Peer::tcp(peer)),
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Begins to serve a connection, or closes it.
fn admit(shared: &Arc<Shared>, number: u64, stream: TcpStream, peer: Peer) {
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    count(&shared.stats().connections);
    if !shared.server.exports().admit(peer) {
        count(&shared.stats().closed_address);
        return;
    }
    let threads_max = shared.limits.connections_max.saturating_add(ENDING_MAX);
    let entered = if shared.threads.load(Ordering::Acquire) < threads_max {
        shared.enter(number, &stream, peer)
    } else {
        None
    };
    let Some(activity) = entered else {
        count(&shared.stats().closed_limit);
        return;
    };
    shared.threads.fetch_add(1, Ordering::AcqRel);
    let serving = Arc::clone(shared);
    let serve = move || {
        let ended = serve(&serving, stream, peer, &activity);
        // One that was closed for another connection has been counted.
        let is_open = serving.open().remove(&number).is_some();
        if let (Err(End::Counted(counter)), true) = (ended, is_open) {
            counter(serving.stats()).fetch_add(1, Ordering::Relaxed);
        }
        serving.threads.fetch_sub(1, Ordering::AcqRel);
    };
    if std::thread::Builder::new().name("nfsd-tcp".to_owned()).spawn(serve).is_err() {
        shared.open().remove(&number);
        shared.threads.fetch_sub(1, Ordering::AcqRel);
        count(&shared.stats().closed_limit);
    }
}

/// Serves one connection until it ends.
fn serve(shared: &Shared, mut stream: TcpStream, peer: Peer, activity: &Activity) -> Result<(), End> {
    stream.set_read_timeout(Some(shared.limits.idle_timeout))?;
    stream.set_write_timeout(Some(shared.limits.idle_timeout))?;
    stream.set_nodelay(true)?;
    let max = CALL_BYTES.saturating_add(shared.server.transfer_max as usize);
    let mut record = Vec::new();
    let connected = shared.server.connected(peer, "tcp");
    loop {
        receive(&mut stream, &mut record, max)?;
        // No chunk: everything is in the record.
        activity.is_busy.store(true, Ordering::Release);
        let reply = shared.server.call(peer, Reader::new(&record), &|_| Vec::new());
        let mut reply = reply.ok_or(End::Counted(|stats| &stats.closed_no_call))?;
        // The client may take the reply slowly: no memory of a region waits for it.
        detach(&mut reply.payloads);
        activity.used_ms.store(shared.now_ms(), Ordering::Relaxed);
        activity.was_used.store(true, Ordering::Relaxed);
        activity.is_busy.store(false, Ordering::Release);
        shared.server.stats.payload.read(Way::Copied, reply.payload_bytes());
        send(&mut stream, &reply)?;
        shared.stats().calls.fetch_add(1, Ordering::Relaxed);
        connected.answered();
    }
}

/// Receives a record of at most `max` bytes.
///
/// RFC 5531 §11: a header encodes "the number of bytes in the fragment (which may be from 0 to (2**31)-1 bytes)".
fn receive(stream: &mut impl Read, record: &mut Vec<u8>, max: usize) -> Result<(), End> {
    const BAD: End = End::Counted(|stats| &stats.closed_record);
    record.clear();
    let mut empty = 0_u32;
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let (start, length) = (record.len(), (mark & !LAST) as usize);
        let end = start.saturating_add(length);
        empty = empty.saturating_add((length == 0).into());
        if end > max || empty > EMPTY_FRAGMENTS_MAX {
            return Err(BAD);
        }
        let received = Read::by_ref(stream).take(length as u64).read_to_end(record)?;
        if received < length {
            return Err(End::Closed);
        }
        if mark & LAST != 0 {
            return if record.is_empty() { Err(BAD) } else { Ok(()) };
        }
    }
}

/// Sends a reply as one record: its mark, and the stream with each payload and its padding in place.
fn send(stream: &mut TcpStream, reply: &Reply) -> Result<(), End> {
    let mark = u32::try_from(reply.length()).map_err(|_| End::Closed)? | LAST;
    let mut parts = reply.bytes();
    let first = parts.next().unwrap_or_default();
    stream.write_all(&[&mark.to_be_bytes(), &first[..]].concat())?;
    for part in parts {
        stream.write_all(&part)?;
    }
    Ok(())
}
