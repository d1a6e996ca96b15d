//! Both programs over the kernel's TCP, with record marking (RFC 5531 §11).
//!
//! A client over RDMA needs MOUNT over TCP (RFC 8267 §5.1): `mountproto=tcp,mountport=…`. NFS itself is served, too,
//! for clients without RDMA.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use iwarp_rpc::xdr::{Data, Reader};
use rustix::io::Errno;

use crate::server::{Reply, Server, Step};

/// Flag of the last fragment of a record.
const LAST: u32 = 1 << 31;
/// Bytes of a call besides its payload, at most.
pub(crate) const CALL_BYTES: usize = 8 << 10;

/// Empty fragments of a record, at most: libtirpc ends a record with one if the fragment before was full.
const EMPTY_FRAGMENTS_MAX: u32 = 16;

/// Limits of the TCP side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLimits {
    /// Connections at a time. Another one is closed at once.
    pub connections_max: usize,
    /// Time after which a connection without a call, or whose client does not read its replies, is closed.
    pub idle_timeout: Duration,
}

/// Counters of the TCP side.
#[derive(Debug, Default)]
pub struct TcpStats {
    /// Connections accepted, those closed at once included.
    pub connections: AtomicU64,
    /// Calls answered, those with an error included.
    pub calls: AtomicU64,
    /// Connections closed because there were too many.
    pub closed_limit: AtomicU64,
    /// Connections closed because a record was too long, or empty.
    pub closed_record: AtomicU64,
    /// Connections closed because a record held no RPC call.
    pub closed_no_call: AtomicU64,
    /// Connections closed because the client was silent, or did not read its replies, for too long.
    pub closed_idle: AtomicU64,
}

/// Reason why a connection ends.
enum End {
    /// The client has closed it, or the network has.
    Closed,
    /// A limit or a rule was broken: counted.
    Counted(fn(&TcpStats) -> &AtomicU64),
}

impl TcpStats {
    /// Calls `f(name, help, value)` once per counter.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, u64)) {
        let rows = [
            ("connections", "Connections accepted, those closed at once included.", &self.connections),
            ("calls", "Calls answered, those with an error included.", &self.calls),
            ("closed_limit", "Connections closed: too many.", &self.closed_limit),
            ("closed_record", "Connections closed: a record was too long, or empty.", &self.closed_record),
            ("closed_no_call", "Connections closed: a record held no RPC call.", &self.closed_no_call),
            (
                "closed_idle",
                "Connections closed: silent, or not reading replies, for too long.",
                &self.closed_idle,
            ),
        ];
        rows.into_iter().for_each(|(name, help, counter)| f(name, help, counter.load(Ordering::Relaxed)));
    }
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
    open: AtomicUsize,
    /// The connections, to end them.
    streams: Mutex<Vec<Option<TcpStream>>>,
    ends: std::sync::atomic::AtomicBool,
}

impl TcpServer {
    /// Listens, and serves each connection on a thread of its own.
    ///
    /// # Errors
    /// The address is not available.
    pub fn start(server: Arc<Server>, address: SocketAddr, limits: TcpLimits) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let streams = (0..limits.connections_max).map(|_| None).collect();
        let shared = Arc::new(Shared {
            server,
            limits,
            open: AtomicUsize::new(0),
            streams: Mutex::new(streams),
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
        self.shared.open.load(Ordering::Acquire)
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        for stream in self.shared.streams().iter().flatten() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
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

    fn streams(&self) -> std::sync::MutexGuard<'_, Vec<Option<TcpStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a handle of a connection. Returns its place, unless there are too many.
    fn enter(&self, stream: &TcpStream) -> Option<usize> {
        let handle = stream.try_clone().ok()?;
        let mut streams = self.streams();
        let (place, slot) = streams.iter_mut().enumerate().find(|(_, slot)| slot.is_none())?;
        *slot = Some(handle);
        self.open.fetch_add(1, Ordering::AcqRel);
        Some(place)
    }

    fn leave(&self, place: usize) {
        if let Some(slot) = self.streams().get_mut(place) {
            *slot = None;
        }
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    while let Ok((stream, peer)) = listener.accept() {
        if shared.ends.load(Ordering::Acquire) {
            return;
        }
        shared.stats().connections.fetch_add(1, Ordering::Relaxed);
        let Some(place) = shared.enter(&stream) else {
            shared.stats().closed_limit.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let serving = Arc::clone(shared);
        let serve = move || {
            if let Err(End::Counted(counter)) = serve(&serving, stream, peer) {
                counter(serving.stats()).fetch_add(1, Ordering::Relaxed);
            }
            serving.leave(place);
        };
        if std::thread::Builder::new().name("nfsd-tcp".to_owned()).spawn(serve).is_err() {
            shared.leave(place);
            shared.stats().closed_limit.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Serves one connection until it ends.
fn serve(shared: &Shared, mut stream: TcpStream, peer: SocketAddr) -> Result<(), End> {
    stream.set_read_timeout(Some(shared.limits.idle_timeout))?;
    stream.set_write_timeout(Some(shared.limits.idle_timeout))?;
    stream.set_nodelay(true)?;
    let max = CALL_BYTES.saturating_add(shared.server.transfer_max as usize);
    let mut record = Vec::new();
    let connected = shared.server.connected(peer.ip(), "tcp");
    loop {
        receive(&mut stream, &mut record, max)?;
        // No chunk: everything is in the record.
        let step = shared.server.call(peer.ip(), Reader::new(&record), &|_| Vec::new());
        let step = step.ok_or(End::Counted(|stats| &stats.closed_no_call))?;
        let reply = execute(step);
        shared.server.stats.payload.read(0, reply.content.len() as u64);
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

/// Moves the payload between the file and memory.
fn execute(step: Step<'_>) -> Reply {
    match step {
        Step::Done(reply) => reply.into_content(),
        Step::Read(call) => {
            let mut content = vec![0; call.length as usize];
            let read = call.file.read_at(&mut content, call.offset);
            let mut reply = call.reply(read);
            content.truncate(reply.payloads.first().map_or(0, |payload| payload.length as usize));
            reply.content = content;
            reply
        }
        Step::Write(call) => {
            let written = match call.data {
                Data::Inline(data) => call.file.write_at(data, call.offset),
                Data::Fetched { .. } => Err(Errno::INVAL),
            };
            call.reply(written)
        }
    }
}

/// Sends a reply as one record: its mark, and the stream with each payload and its padding in place.
fn send(stream: &mut TcpStream, reply: &Reply) -> Result<(), End> {
    let total = reply.bytes().map(<[u8]>::len).fold(0, usize::saturating_add);
    let mark = u32::try_from(total).map_err(|_| End::Closed)? | LAST;
    let first = reply.bytes().next().unwrap_or_default();
    stream.write_all(&[&mark.to_be_bytes(), first].concat())?;
    for part in reply.bytes().skip(1) {
        stream.write_all(part)?;
    }
    Ok(())
}
