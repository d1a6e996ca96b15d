//! A connection over which a peer has granted a region. Its user posts requests of any number, each for bytes of
//! registered memory, the window.
//!
//! JUSTIFICATION: files are read into the window and written from there without a copy, as slices. The connection knows
//! which bytes its requests in flight use, and peers may access none.
#![allow(unsafe_code, reason = "sees its window as slices; listed in UNSAFE.md")]

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
use rdma::wire::mpa::RtrOptions;
use rdma::{CrcPolicy, ErrorCode};

use super::error::{Ending, RemoteError};
use super::target::RegionTarget;
use crate::cm::Id;
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::embedded::EmbeddedOptions;
use crate::mapping::OutOfBounds;
use crate::mr::Mr;
use crate::qp::{QpOptions, QueuePair};

/// Bytes of memory for the rings of the few queues.
const QUEUE_BYTES: u64 = 1 << 20;
/// Longest sleep of a call that may be interrupted.
const SLICE: Duration = Duration::from_millis(100);
/// Completions that are polled together, at most.
const POLLED_MAX: usize = 16;
/// Longest wait for the event of a connection that has ended: the device reports that in one go.
const REASON_MAX: Duration = Duration::from_secs(1);

/// Conditions of a connection to a region.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// Rights that the program needs: `REMOTE_READ`, `REMOTE_WRITE`, or both. The region must grant all of them.
    pub access: Access,
    /// Token of the region, if it has one.
    pub token: Option<Token>,
    /// Longest time without progress: until TCP is connected, until the peer has answered, and then until bytes of the
    /// next request come or go.
    pub timeout: Duration,
    /// Use of CRCs. Without them, bits that change under way stay unnoticed.
    pub crc: CrcPolicy,
    /// MPA revision: 2, or 1 for peers that support no other.
    pub revision: u8,
    /// Ready-to-receive messages to offer (RFC 6581 §9.2); `None` for the client-server model, which all peers support.
    pub rtr: Option<RtrOptions>,
    /// Function that a waiting call asks ten times a second: if it returns true, the call ends with
    /// [`RemoteError::Interrupted`]. For programs whose signal handlers only leave a note.
    pub interrupted: Option<fn() -> bool>,
}

impl RegionOptions {
    /// Returns options that ask for these rights, without a token, and with a timeout of ten seconds.
    pub const fn new(access: Access) -> Self {
        let timeout = Duration::from_secs(10);
        let crc = CrcPolicy::Required;
        Self { access, token: None, timeout, crc, revision: 2, rtr: None, interrupted: None }
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

    /// Sets the function that ends a waiting call.
    #[must_use]
    pub fn with_interrupted(self, interrupted: fn() -> bool) -> Self {
        Self { interrupted: Some(interrupted), ..self }
    }
}

/// Memory and queues of a connection to a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionShape {
    /// Bytes of the window, at least 1.
    pub window_bytes: u64,
    /// Requests in flight, at most.
    pub requests: u16,
    /// RDMA Reads in flight to ask the peer for. It may grant fewer.
    pub reads: u16,
}

/// A request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRequest {
    /// Number that it was posted with.
    pub wr_id: u64,
    /// Offset of its bytes in the window.
    pub offset: u64,
    /// Length of its bytes.
    pub length: u32,
}

/// A connection over which a peer has granted a region. Requests are posted, and complete in their order. The
/// connection ends when the value is dropped, and with the first error of the peer or the network.
#[derive(Debug)]
pub struct RegionConnection {
    target: RegionTarget,
    peer: SocketAddr,
    grant: Grant,
    access: Access,
    timeout: Duration,
    interrupted: Option<fn() -> bool>,
    /// Time at which `interrupted` is to be asked.
    asks_at: Option<Instant>,
    connect_time: Duration,
    terms: Terms,
    /// Requests in flight, the oldest first.
    posted: VecDeque<RegionRequest>,
    /// Completions that were polled together, so that the posts behind them leave together, too.
    polled: VecDeque<WorkCompletion>,
    /// The connection; `None` once it has ended. Dropped first: nothing is in flight then.
    id: Option<Id>,
    qp: QueuePair,
    cq: CompletionQueue,
    window: Mr,
    context: Context,
}

/// Terms that MPA has negotiated.
#[derive(Clone, Copy, Debug)]
struct Terms {
    revision: u8,
    crc: bool,
    reads_max: u16,
}

/// An attempt to connect to one address.
struct Attempt<'a> {
    target: &'a RegionTarget,
    options: &'a RegionOptions,
    peer: SocketAddr,
    id: &'a Id,
    context: &'a Context,
}

impl RegionConnection {
    /// Connects to a region of a peer, with a device in this process. The peer may be `iwarpd`, a program that offers
    /// regions ([`Context::serve_regions`]), or `iwarpctl serve`.
    ///
    /// # Errors
    /// The rights make no sense, the peer cannot be reached, has no such region, or refuses.
    pub fn open(
        target: &RegionTarget,
        options: &RegionOptions,
        shape: &RegionShape,
    ) -> Result<Self, RemoteError> {
        let token = options.token.as_ref().map_or(&[][..], Token::as_bytes);
        let wanted = options.access;
        let allowed = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let request = encode_request(&target.name, wanted, token).filter(|_| allowed.contains(wanted));
        let request = request.ok_or_else(|| {
            let reason = "the rights to ask for are remote-read and remote-write";
            RemoteError::Target { target: target.to_string(), reason: reason.to_owned() }
        })?;
        let unreachable = |cause| RemoteError::Unreachable { target: target.to_string(), cause };
        let addresses = target.addresses().map_err(unreachable)?;
        let context = Context::embedded_with(&EmbeddedOptions {
            queue_bytes: QUEUE_BYTES,
            crc: options.crc,
            answer_timeout: Some(options.timeout),
        })?;
        let mut last = unreachable(ErrorKind::AddrNotAvailable.into());
        for peer in addresses {
            match Self::open_at(&context, (target, peer), options, (shape, &request)) {
                // Another address of the host may answer.
                Err(error @ RemoteError::Unreachable { .. }) => last = error,
                connected => return connected,
            }
        }
        Err(last)
    }

    /// Connects to one address of the peer.
    pub(super) fn open_at(
        context: &Context,
        (target, peer): (&RegionTarget, SocketAddr),
        options: &RegionOptions,
        (shape, request): (&RegionShape, &[u8]),
    ) -> Result<Self, RemoteError> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(shape.requests.into())?);
        let mut queues = QpOptions::new(&cq);
        queues.cap = QpCap { max_send_wr: shape.requests, max_recv_wr: 1, ..QpCap::default() };
        let (qp, id) = (pd.create_qp(&queues)?, context.create_id(None)?);
        // The peer is to access nothing here.
        qp.modify_access(Access::NONE)?;
        let param = ConnParam {
            private_data: request,
            responder_resources: 0,
            initiator_depth: shape.reads,
            revision: options.revision,
            rtr: options.rtr,
        };
        let began = now();
        id.connect(&qp, peer, &param)?;
        let attempt = Attempt { target, options, peer, id: &id, context };
        let (answer, terms) = attempt.answer()?;
        let connect_time = now().saturating_duration_since(began);
        let grant = decode_reply(&answer).map_err(|cause| attempt.refused(cause))?;
        if !grant.access.contains(options.access) || grant.base_to.checked_add(grant.bytes).is_none() {
            return Err(attempt.refused(ServiceError::NotAnAnswer));
        }
        if terms.reads_max == 0 {
            return Err(attempt.closed(Ending::NoReads));
        }
        let window = pd.alloc_mr(shape.window_bytes.max(1), Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        Ok(Self {
            target: target.clone(),
            peer,
            grant,
            access: options.access,
            timeout: options.timeout,
            interrupted: options.interrupted,
            asks_at: None,
            connect_time,
            terms: Terms { reads_max: terms.reads_max.min(shape.reads), ..terms },
            posted: VecDeque::with_capacity(shape.requests.into()),
            polled: VecDeque::with_capacity(POLLED_MAX),
            id: Some(id),
            qp,
            cq,
            window,
            context: context.clone(),
        })
    }

    /// Returns the region that was asked for.
    pub const fn target(&self) -> &RegionTarget {
        &self.target
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

    /// Returns the time that TCP, MPA and the grant took.
    pub const fn connect_time(&self) -> Duration {
        self.connect_time
    }

    /// Returns the MPA revision of the connection: 1 or 2.
    pub const fn revision(&self) -> u8 {
        self.terms.revision
    }

    /// Returns true if FPDUs carry a CRC.
    pub const fn crc(&self) -> bool {
        self.terms.crc
    }

    /// Returns the number of RDMA Reads that may be in flight, at least 1.
    pub const fn reads_max(&self) -> u16 {
        self.terms.reads_max
    }

    /// Returns true until the connection has ended, as far as the calls before have seen.
    pub const fn is_open(&self) -> bool {
        self.id.is_some()
    }

    /// Returns the requests in flight, the oldest first.
    pub fn in_flight(&self) -> impl ExactSizeIterator<Item = &RegionRequest> {
        self.posted.iter()
    }

    /// Returns bytes of the window; `None` if they are not all inside it, a request in flight uses some, or this is a
    /// child of the process that has connected.
    pub fn window_mut(&mut self, offset: u64, length: u32) -> Option<&mut [u8]> {
        if !self.is_free(offset, length) {
            return None;
        }
        // SAFETY: the window belongs to this value, which is borrowed, and to this process. The device accesses its
        // bytes for the requests in flight alone: peers have no right to, and its keys are not given away.
        unsafe { self.window.mapping.slice_mut(offset, length as usize) }
    }

    /// As [`Self::window_mut`], for a part that its user knows to be free.
    pub(super) fn window_bytes(&mut self, offset: u64, length: u32) -> Result<&mut [u8], RemoteError> {
        if !self.is_free(offset, length) {
            return Err(
                self.closed(Ending::Local(format!("{length} bytes at {offset} of its window are in use")))
            );
        }
        Ok(self.window_mut(offset, length).unwrap_or_default())
    }

    /// Returns true if bytes are inside the window, and no request in flight uses them.
    fn is_free(&self, offset: u64, length: u32) -> bool {
        let end = offset.saturating_add(length.into());
        let is_used = |used: &RegionRequest| {
            used.offset < end && offset < used.offset.saturating_add(used.length.into())
        };
        end <= self.window.mapping.len() && !self.context.0.is_child() && !self.posted.iter().any(is_used)
    }

    /// Posts an RDMA Write of bytes of the window to the region at offset `to`.
    ///
    /// # Errors
    /// The bytes are not all inside the region, the right was not asked for, more requests are in flight than the shape
    /// says, or the connection has ended.
    pub fn post_write(
        &mut self,
        wr_id: u64,
        (offset, length): (u64, u32),
        to: u64,
    ) -> Result<(), RemoteError> {
        let remote_addr = self.check(Access::REMOTE_WRITE, to, length as usize)?;
        let op = SendOp::RdmaWrite { remote_addr, rkey: self.grant.stag };
        self.post(op, RegionRequest { wr_id, offset, length })
    }

    /// Posts an RDMA Read of the region at offset `from` into bytes of the window. Reads of no bytes need no right: the
    /// peer answers them once it has placed all bytes that were written before (RFC 5040 §5.5).
    ///
    /// # Errors
    /// As for [`Self::post_write`].
    pub fn post_read(
        &mut self,
        wr_id: u64,
        (offset, length): (u64, u32),
        from: u64,
    ) -> Result<(), RemoteError> {
        let right = if length == 0 { Access::NONE } else { Access::REMOTE_READ };
        let remote_addr = self.check(right, from, length as usize)?;
        let op = SendOp::RdmaRead { remote_addr, rkey: self.grant.stag };
        self.post(op, RegionRequest { wr_id, offset, length })
    }

    /// Posts Immediate Data (RFC 7306 §6), for a program that watches the region.
    ///
    /// # Errors
    /// Too many requests are in flight, or the connection has ended.
    pub fn post_immediate(&mut self, wr_id: u64, data: [u8; 8]) -> Result<(), RemoteError> {
        self.check(Access::NONE, 0, 0)?;
        self.post(SendOp::Immediate { imm_data: data }, RegionRequest { wr_id, offset: 0, length: 0 })
    }

    /// Waits for the oldest request in flight. An RDMA Write completes when TCP has accepted its bytes.
    ///
    /// # Errors
    /// No byte has moved for the timeout, or the connection has ended: no later request completes then. Nothing is in
    /// flight: nothing has changed.
    pub fn complete(&mut self) -> Result<RegionRequest, RemoteError> {
        if self.id.is_none() {
            return Err(self.closed(Ending::Before));
        }
        if self.posted.is_empty() {
            return Err(self.closed(Ending::Local("no request is in flight".to_owned())));
        }
        if let Some(done) = self.polled.pop_front() {
            return self.completed(done);
        }
        // From the first sleep on: the time at which the peer is given up, and the events of its socket until then.
        let mut silence = None;
        let mut done = [WorkCompletion::default(); POLLED_MAX];
        loop {
            for arms in [true, false] {
                let count = match self.cq.poll(&mut done) {
                    Ok(count) => count,
                    Err(error) => return Err(self.end(Ending::Local(error.to_string()))),
                };
                self.polled.extend(done.iter().take(count));
                if let Some(done) = self.polled.pop_front() {
                    return self.completed(done);
                }
                if arms {
                    self.cq.req_notify(false);
                }
            }
            let begin = || (deadline(self.timeout), self.context.socket_events());
            let (until, events) = *silence.get_or_insert_with(begin);
            let left = left(until);
            if left.is_zero() {
                let next = begin();
                if next.1 != events {
                    // A slow network: bytes of a long request came, or went.
                    silence = Some(next);
                    continue;
                }
                let after = self.timeout;
                self.id = None;
                return Err(RemoteError::TimedOut { target: self.target.to_string(), after });
            }
            if let Err(error) = self.context.wait_completion(slice(left, self.interrupted)) {
                self.id = None;
                return Err(error.into());
            }
            self.ask()?;
        }
    }

    /// Ends the connection if the program has interrupted the call.
    fn ask(&mut self) -> Result<(), RemoteError> {
        let Some(interrupted) = self.interrupted else { return Ok(()) };
        if self.asks_at.is_some_and(|at| !left(Some(at)).is_zero()) {
            return Ok(());
        }
        self.asks_at = deadline(SLICE);
        if interrupted() {
            self.id = None;
            return Err(RemoteError::Interrupted { target: self.target.to_string() });
        }
        Ok(())
    }

    fn completed(&mut self, done: WorkCompletion) -> Result<RegionRequest, RemoteError> {
        match (done.status, self.posted.front().copied()) {
            (WcStatus::Success, Some(request)) => {
                self.posted.pop_front();
                Ok(request)
            }
            (WcStatus::WrFlushError | WcStatus::Success, _) => Err(self.broken(Ending::Lost)),
            (status, _) => Err(self.broken(Ending::Local(status.to_string()))),
        }
    }

    /// Checks an access, and returns the peer's address of its first byte.
    pub(super) fn check(&self, right: Access, offset: u64, length: usize) -> Result<u64, RemoteError> {
        if !self.access.contains(right) {
            let right = right.names().next().unwrap_or_default();
            return Err(RemoteError::Right { target: self.target.to_string(), right });
        }
        let bytes = self.grant.bytes;
        if offset.checked_add(length as u64).is_none_or(|end| end > bytes) {
            return Err(OutOfBounds { offset, length, bytes }.into());
        }
        if self.id.is_none() {
            return Err(self.closed(Ending::Before));
        }
        Ok(self.grant.base_to.wrapping_add(offset))
    }

    fn post(&mut self, op: SendOp, request: RegionRequest) -> Result<(), RemoteError> {
        let RegionRequest { wr_id, offset, length } = request;
        let list = [self.window.sge(offset, length)];
        let data = Data::List(if length == 0 { &[] } else { &list });
        if let Err((_, error)) = self.qp.post_send(&[SendWr { wr_id, op, data, flags: SendFlags::SIGNALED }])
        {
            return Err(self.broken(Ending::Local(format!("no request can be posted: {error}"))));
        }
        self.posted.push_back(request);
        Ok(())
    }

    /// Ends the connection, and returns the error for the reason that the device tells, or else this one.
    fn broken(&mut self, otherwise: Ending) -> RemoteError {
        let until = deadline(REASON_MAX);
        let mut cause = otherwise;
        let id = self.id.as_ref().map(Id::handle);
        let mut has_ended = id.is_none();
        loop {
            let event = match has_ended {
                // Those of the queue pair come with the end, or behind it.
                true => self.context.poll_event(),
                false => self.context.wait_event(left(until)).unwrap_or(None),
            };
            let Some(event) = event else { break };
            match event {
                Event::Async(AsyncEvent::QpTerminated(_, code)) => cause = Ending::Terminated(code),
                Event::Async(
                    AsyncEvent::QpRequestError(_, code)
                    | AsyncEvent::QpAccessError(_, code)
                    | AsyncEvent::QpFatal(_, code),
                ) => cause = Ending::Protocol(code),
                Event::Cm(event) if Some(event.id) == id => has_ended = true,
                _ => {}
            }
        }
        self.end(cause)
    }

    /// Ends the connection, and returns the error for this reason.
    fn end(&mut self, cause: Ending) -> RemoteError {
        self.id = None;
        self.closed(cause)
    }

    fn closed(&self, cause: Ending) -> RemoteError {
        RemoteError::Closed { target: self.target.to_string(), peer: self.peer, cause }
    }
}

impl Attempt<'_> {
    /// Waits for the peer's answer. Returns its private data.
    fn answer(&self) -> Result<(Box<[u8]>, Terms), RemoteError> {
        let timeout = self.options.timeout;
        let answer_due = deadline(timeout);
        // The device has a limit for each of TCP and MPA.
        let until = deadline(timeout.saturating_mul(3));
        loop {
            let Some(event) = self.context.wait_event(slice(left(until), self.options.interrupted))? else {
                if self.options.interrupted.is_some_and(|interrupted| interrupted()) {
                    return Err(RemoteError::Interrupted { target: self.target.to_string() });
                }
                if left(until).is_zero() {
                    return Err(self.timed_out());
                }
                continue;
            };
            // Other events are of the attempt before.
            let Event::Cm(event) = event else { continue };
            if event.id != self.id.handle() {
                continue;
            }
            return match event.kind {
                CmEventKind::Established { private_data, initiator_depth, revision, crc, .. } => {
                    Ok((private_data, Terms { revision, crc, reads_max: initiator_depth }))
                }
                CmEventKind::Rejected { private_data } => Err(match decode_reply(&private_data) {
                    // A rejection that carries a grant is not an answer of the region service.
                    Ok(_) => self.refused(ServiceError::NotAnAnswer),
                    Err(cause) => self.refused(cause),
                }),
                CmEventKind::Unreachable if left(answer_due).is_zero() => {
                    Err(self.unreachable(ErrorKind::TimedOut))
                }
                CmEventKind::Refused => Err(self.unreachable(ErrorKind::ConnectionRefused)),
                CmEventKind::Unreachable => Err(self.unreachable(ErrorKind::HostUnreachable)),
                CmEventKind::AddressError => Err(self.unreachable(ErrorKind::AddrNotAvailable)),
                CmEventKind::ConnectError { code: ErrorCode::NO_ANSWER } => Err(self.timed_out()),
                CmEventKind::ConnectError { code: ErrorCode::TCP_LOST } | CmEventKind::Disconnected => {
                    Err(self.closed(Ending::Lost))
                }
                CmEventKind::ConnectError { .. } | CmEventKind::ConnectRequest { .. } => {
                    Err(self.closed(Ending::NotIwarp))
                }
            };
        }
    }

    fn timed_out(&self) -> RemoteError {
        RemoteError::TimedOut { target: self.target.to_string(), after: self.options.timeout }
    }

    fn unreachable(&self, kind: ErrorKind) -> RemoteError {
        RemoteError::Unreachable { target: self.target.to_string(), cause: kind.into() }
    }

    fn refused(&self, cause: ServiceError) -> RemoteError {
        RemoteError::Refused { target: self.target.to_string(), peer: self.peer, cause }
    }

    fn closed(&self, cause: Ending) -> RemoteError {
        RemoteError::Closed { target: self.target.to_string(), peer: self.peer, cause }
    }
}

#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the time at which a timeout ends; `None` for one beyond all times.
fn deadline(timeout: Duration) -> Option<Instant> {
    now().checked_add(timeout)
}

/// Returns the time of a sleep that ends early enough to ask for an interruption.
fn slice(left: Duration, interrupted: Option<fn() -> bool>) -> Duration {
    if interrupted.is_some() { left.min(SLICE) } else { left }
}

/// Returns the time until a deadline.
fn left(until: Option<Instant>) -> Duration {
    until.map_or(Duration::MAX, |until| until.saturating_duration_since(now()))
}
