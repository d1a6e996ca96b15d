//! A region of a peer, read and written by its name: [`connect_region`].
//!
//! Bytes pass through registered memory of [`WINDOW_BYTES`], cut into requests of [`CHUNK_BYTES`], of which several
//! are in flight. An RDMA Write completes when TCP has accepted it, so that RDMA Reads of no bytes follow, which the
//! peer may answer only after it has placed the bytes before them (RFC 5040 §5.5).

mod error;
mod target;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and read the time")]
mod tests;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use iwarp_shared_verbs::Event;
use rdma::service::{Grant, ServiceError, Token, decode_reply, encode_request};
use rdma::verbs::{
    Access, AsyncEvent, CmEventKind, ConnParam, Data, QpCap, SendFlags, SendOp, SendWr, WcStatus,
    WorkCompletion,
};

use crate::cm::Id;
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::mapping::OutOfBounds;
use crate::mr::{Mr, ProtectionDomain};
use crate::qp::{QpOptions, QueuePair};
pub use error::RemoteError;
use target::Target;

/// Bytes of one RDMA Write or Read, at most.
const CHUNK_BYTES: usize = 128 << 10;
/// Requests in flight, at most.
const CHUNKS: u16 = 8;
/// Bytes in flight, at most.
const WINDOW_BYTES: usize = CHUNK_BYTES * CHUNKS as usize;
/// Requests of the send queue: the chunks, and a proof behind the one before.
const SEND_QUEUE: u16 = CHUNKS + 2;
/// Bytes of memory for the rings of the few queues.
const QUEUE_BYTES: u64 = 1 << 20;

/// Conditions of a connection to a region.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// Rights that the program needs: `REMOTE_READ`, `REMOTE_WRITE`, or both. The region must grant all of them.
    pub access: Access,
    /// Token of the region, if it has one.
    pub token: Option<Token>,
    /// Longest time without progress: until the connection stands, and then until the next 128 KiB are read, or the
    /// next MiB written.
    pub timeout: Duration,
}

impl RegionOptions {
    /// Returns options that ask for these rights, without a token, and with a timeout of ten seconds.
    pub const fn new(access: Access) -> Self {
        Self { access, token: None, timeout: Duration::from_secs(10) }
    }

    /// Presents a token to the peer.
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Sets the longest time without progress.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

/// A region of a peer, over a connection of its own. The connection ends when the value is dropped, and with the first
/// error of the peer or the network: later calls return [`RemoteError::Closed`].
#[derive(Debug)]
pub struct RemoteRegion {
    target: Target,
    peer: SocketAddr,
    grant: Grant,
    access: Access,
    timeout: Duration,
    /// Reads that may be in flight.
    reads_max: usize,
    /// Requests in flight, the oldest first.
    posted: VecDeque<Posted>,
    /// Number of the next request.
    next: u64,
    /// The connection; `None` once it has ended. Dropped first: nothing is in flight then.
    id: Option<Id>,
    qp: QueuePair,
    cq: CompletionQueue,
    window: Mr,
    context: Context,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    /// Bytes of a chunk.
    Chunk,
    /// An RDMA Read of no bytes.
    Proof,
}

/// Connects to a region of a peer, with a device in this process: `target` is `HOST:PORT/NAME`, where an IPv6 address
/// stands in brackets and `:PORT` may be left out if it is [7400](crate::REGION_PORT). The peer may be `iwarpd`, a
/// program that offers regions ([`Context::serve_regions`]), or `iwarpctl serve`.
///
/// # Errors
/// The target is not written as above, the peer cannot be reached, has no such region, or refuses.
pub fn connect_region(target: &str, options: &RegionOptions) -> Result<RemoteRegion, RemoteError> {
    let target = Target::parse(target)?;
    let token = options.token.as_ref().map_or(&[][..], Token::as_bytes);
    let wanted = options.access;
    let allowed = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let request = encode_request(&target.name, wanted, token).filter(|_| allowed.contains(wanted));
    let request = request.ok_or_else(|| {
        let reason = "the rights to ask for are remote-read and remote-write";
        RemoteError::Target { target: target.to_string(), reason: reason.to_owned() }
    })?;
    let until = deadline(options.timeout);
    let unreachable = |cause| RemoteError::Unreachable { target: target.to_string(), cause };
    let mut last = unreachable(ErrorKind::AddrNotAvailable.into());
    let context = Context::embedded_sized(QUEUE_BYTES)?;
    for peer in target.addresses().map_err(unreachable)? {
        let attempt = Attempt::new(&context)?;
        match attempt.connect(&target, peer, &request, (until, options.timeout)) {
            Ok(connected) => return connected.checked(context, target, peer, options),
            // Another address of the host may answer.
            Err(error @ RemoteError::Unreachable { .. }) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// The objects of a connection.
#[derive(Debug)]
struct Attempt {
    id: Id,
    qp: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
}

/// A connection that stands, with the private data of the peer's answer and the reads that may be in flight.
#[derive(Debug)]
struct Connected {
    attempt: Attempt,
    answer: Box<[u8]>,
    reads_max: u16,
}

impl Attempt {
    fn new(context: &Context) -> Result<Self, RemoteError> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(u32::from(SEND_QUEUE))?);
        let mut options = QpOptions::new(&cq);
        options.cap = QpCap { max_send_wr: SEND_QUEUE, max_recv_wr: 1, ..QpCap::default() };
        let (qp, id) = (pd.create_qp(&options)?, context.create_id(None)?);
        // The peer is to access nothing here.
        qp.modify_access(Access::NONE)?;
        Ok(Self { id, qp, cq, pd })
    }

    /// Connects, and waits for the peer's answer.
    fn connect(
        self,
        target: &Target,
        peer: SocketAddr,
        request: &[u8],
        (until, timeout): (Option<Instant>, Duration),
    ) -> Result<Connected, RemoteError> {
        let param = ConnParam {
            private_data: request,
            responder_resources: 0,
            initiator_depth: CHUNKS,
            ..ConnParam::default()
        };
        self.id.connect(&self.qp, peer, &param)?;
        let unreachable =
            |kind: ErrorKind| RemoteError::Unreachable { target: target.to_string(), cause: kind.into() };
        let refused = |cause| RemoteError::Refused { target: target.to_string(), peer, cause };
        loop {
            let event = self.context().wait_event(left(until))?;
            let Some(event) = event else {
                return Err(RemoteError::TimedOut { target: target.to_string(), after: timeout });
            };
            // Other events are of the attempt before.
            let Event::Cm(event) = event else { continue };
            if event.id != self.id.handle() {
                continue;
            }
            return Err(match event.kind {
                CmEventKind::Established { private_data, initiator_depth, .. } => {
                    let (answer, reads_max) = (private_data, initiator_depth);
                    return Ok(Connected { attempt: self, answer, reads_max });
                }
                CmEventKind::Rejected { private_data } => match decode_reply(&private_data) {
                    // A rejection that carries a grant is not an answer of the region service.
                    Ok(_) => refused(ServiceError::NotAnAnswer),
                    Err(cause) => refused(cause),
                },
                CmEventKind::Refused => unreachable(ErrorKind::ConnectionRefused),
                CmEventKind::Unreachable => unreachable(ErrorKind::HostUnreachable),
                CmEventKind::AddressError => unreachable(ErrorKind::AddrNotAvailable),
                CmEventKind::ConnectRequest { .. }
                | CmEventKind::ConnectError
                | CmEventKind::Disconnected => refused(ServiceError::NotAnAnswer),
            });
        }
    }

    fn context(&self) -> Context {
        Context(std::sync::Arc::clone(&self.pd.0.context))
    }
}

impl Connected {
    /// Checks the peer's grant, and returns its region.
    fn checked(
        self,
        context: Context,
        target: Target,
        peer: SocketAddr,
        options: &RegionOptions,
    ) -> Result<RemoteRegion, RemoteError> {
        let Self { attempt: Attempt { id, qp, cq, pd }, answer, reads_max } = self;
        let refused = |cause| RemoteError::Refused { target: target.to_string(), peer, cause };
        let grant = decode_reply(&answer).map_err(refused)?;
        if !grant.access.contains(options.access) || grant.base_to.checked_add(grant.bytes).is_none() {
            return Err(refused(ServiceError::NotAnAnswer));
        }
        if reads_max == 0 {
            let reason = "it answers no RDMA Reads, which prove that Writes have arrived".to_owned();
            return Err(RemoteError::Closed { target: target.to_string(), reason });
        }
        let window = pd.alloc_mr(WINDOW_BYTES as u64, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let (posted, next) = (VecDeque::with_capacity(SEND_QUEUE.into()), 0);
        let (access, timeout) = (options.access, options.timeout);
        let (reads_max, id) = (usize::from(reads_max.min(CHUNKS)), Some(id));
        Ok(RemoteRegion {
            target,
            peer,
            grant,
            access,
            timeout,
            reads_max,
            posted,
            next,
            id,
            qp,
            cq,
            window,
            context,
        })
    }
}

impl RemoteRegion {
    /// Returns the name of the region.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// Returns the peer's address and port.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the length of the region, bytes.
    pub const fn bytes(&self) -> u64 {
        self.grant.bytes
    }

    /// Returns the rights that the program has asked for.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Returns true until the connection has ended, as far as the calls before have seen.
    pub const fn is_open(&self) -> bool {
        self.id.is_some()
    }

    /// Reads the bytes at an offset (RDMA Read). Bytes that others write meanwhile may be mixed with older ones.
    ///
    /// # Errors
    /// The bytes are not all inside the region, or the right to read was not asked for: nothing is sent. The connection
    /// has ended, or the peer was silent for the timeout: parts of `out` may have been read.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), RemoteError> {
        let from = self.check(Access::REMOTE_READ, offset, out.len())?;
        let (mut asked, mut taken) = (0_usize, 0_usize);
        while taken < out.len() {
            while asked < out.len() && self.posted.len() < self.reads_max {
                let len = out.len().saturating_sub(asked).min(CHUNK_BYTES);
                let op =
                    SendOp::RdmaRead { remote_addr: from.wrapping_add(asked as u64), rkey: self.grant.stag };
                self.post(op, asked, len, Posted::Chunk)?;
                asked = asked.saturating_add(len);
            }
            self.complete()?;
            let len = out.len().saturating_sub(taken).min(CHUNK_BYTES);
            let part = out.get_mut(taken..).and_then(|rest| rest.get_mut(..len)).unwrap_or_default();
            // Inside the window: `place` is.
            self.window.read(place(taken), part)?;
            taken = taken.saturating_add(len);
        }
        Ok(())
    }

    /// Writes bytes to an offset (RDMA Write), and returns when they are in the peer's memory.
    ///
    /// # Errors
    /// As for [`Self::read`]. After the connection has ended, any of the bytes may have been written.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        let to = self.check(Access::REMOTE_WRITE, offset, bytes.len())?;
        let mut sent = 0_usize;
        for (number, chunk) in (1_u64..).zip(bytes.chunks(CHUNK_BYTES)) {
            while self.in_flight(Posted::Chunk) >= usize::from(CHUNKS) {
                self.complete()?;
            }
            // Inside the window: `place` is.
            self.window.write(place(sent), chunk)?;
            let op = SendOp::RdmaWrite { remote_addr: to.wrapping_add(sent as u64), rkey: self.grant.stag };
            self.post(op, sent, chunk.len(), Posted::Chunk)?;
            sent = sent.saturating_add(chunk.len());
            if number % u64::from(CHUNKS) == 0 {
                self.prove(to)?;
            }
        }
        if !bytes.is_empty() {
            self.prove(to)?;
        }
        while !self.posted.is_empty() {
            self.complete()?;
        }
        Ok(())
    }

    /// Asks for the proof that all bytes so far are placed, once the one before has come: bytes without are bounded.
    fn prove(&mut self, at: u64) -> Result<(), RemoteError> {
        while self.in_flight(Posted::Proof) > 0 {
            self.complete()?;
        }
        self.post(SendOp::RdmaRead { remote_addr: at, rkey: self.grant.stag }, 0, 0, Posted::Proof)
    }

    fn in_flight(&self, kind: Posted) -> usize {
        self.posted.iter().filter(|posted| **posted == kind).count()
    }

    /// Checks an access, and returns the peer's address of its first byte.
    fn check(&self, right: Access, offset: u64, length: usize) -> Result<u64, RemoteError> {
        if !self.access.contains(right) {
            let right = right.names().next().unwrap_or_default();
            return Err(RemoteError::Right { target: self.target.to_string(), right });
        }
        let bytes = self.grant.bytes;
        if offset.checked_add(length as u64).is_none_or(|end| end > bytes) {
            return Err(OutOfBounds { offset, length, bytes }.into());
        }
        if self.id.is_none() {
            return Err(self.closed("it has ended before".to_owned()));
        }
        Ok(self.grant.base_to.wrapping_add(offset))
    }

    /// Posts a request for bytes of the window, of which the transfer's byte `at` is the first.
    fn post(&mut self, op: SendOp, at: usize, len: usize, kind: Posted) -> Result<(), RemoteError> {
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        let list = [self.window.sge(place(at), length)];
        let data = Data::List(if len == 0 { &[] } else { &list });
        let request = SendWr { wr_id: self.next, op, data, flags: SendFlags::SIGNALED };
        if let Err((_, error)) = self.qp.post_send(&[request]) {
            return Err(self.end(format!("no request can be posted: {error}")));
        }
        self.next = self.next.wrapping_add(1);
        self.posted.push_back(kind);
        Ok(())
    }

    /// Waits for the oldest request in flight.
    fn complete(&mut self) -> Result<(), RemoteError> {
        let until = deadline(self.timeout);
        let mut done = [WorkCompletion::default()];
        loop {
            for arms in [true, false] {
                let polled = self.cq.poll(&mut done);
                match polled {
                    Ok(0) => {}
                    Ok(_) => return self.completed(done),
                    Err(error) => return Err(self.end(error.to_string())),
                }
                if arms {
                    self.cq.req_notify(false);
                }
            }
            let left = left(until);
            if left.is_zero() {
                let after = self.timeout;
                self.id = None;
                return Err(RemoteError::TimedOut { target: self.target.to_string(), after });
            }
            self.context.wait_completion(left)?;
        }
    }

    fn completed(&mut self, [done]: [WorkCompletion; 1]) -> Result<(), RemoteError> {
        if done.status == WcStatus::Success {
            self.posted.pop_front();
            return Ok(());
        }
        let mut reason = done.status.to_string();
        // The event of the connection's end may say more than the flushed request.
        while let Some(event) = self.context.poll_event() {
            match event {
                Event::Async(AsyncEvent::QpTerminated(_, code)) => {
                    reason = format!("the peer has ended the connection: {code}");
                }
                Event::Async(AsyncEvent::QpRequestError(_, code) | AsyncEvent::QpFatal(_, code)) => {
                    reason = format!("the peer has broken the protocol: {code}");
                }
                _ => {}
            }
        }
        Err(self.end(reason))
    }

    /// Ends the connection, and returns the error for this reason.
    fn end(&mut self, reason: String) -> RemoteError {
        self.id = None;
        self.closed(reason)
    }

    fn closed(&self, reason: String) -> RemoteError {
        RemoteError::Closed { target: self.target.to_string(), reason }
    }
}

/// Returns the place in the window of a transfer's byte at the start of a chunk.
const fn place(at: usize) -> u64 {
    (at % WINDOW_BYTES) as u64
}

/// Returns the time at which a timeout ends; `None` for one beyond all times.
#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Returns the time until a deadline.
#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
fn left(until: Option<Instant>) -> Duration {
    until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
}
