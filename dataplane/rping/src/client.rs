//! The client: connects, advertises texts and checks what the server writes back.

use std::net::SocketAddr;
use std::time::Duration;

use rdma::verbs::{AsyncEvent, CmEventKind, ConnParam, WcOpcode, WcStatus};
use tcp_stack::Instant;

use crate::conn_objects::{ConnObjects, Text};
use crate::error::Error;
use crate::protocol::{INFO_LEN, visible, write_text};
use crate::stats::Stats;
use crate::verbosity::Verbosity;
use crate::verbs::{TextMemory, Verbs};

/// Settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// Source address, if it matters.
    pub local: Option<SocketAddr>,
    /// Address of the server.
    pub peer: SocketAddr,
    /// Number of rounds; 0: until [`Client::stop`].
    pub count: u64,
    /// Bytes of a text, at most the size of the memory.
    pub size: u32,
    /// Compare the returned data.
    pub validate: bool,
    /// Longest silence of the peer; zero: unlimited.
    pub timeout: Duration,
}

/// Event that the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Connection,
    /// Go-ahead after the server has read the text.
    Read,
    /// Go-ahead after the server has written the text back.
    Written,
    /// Close of the connection.
    End,
    Nothing,
}

/// A client on one connection.
#[derive(Debug)]
pub struct Client {
    plan: ClientPlan,
    objects: ConnObjects,
    wait: Wait,
    /// First error of the connection.
    error: Option<Error>,
    round_began: Instant,
    last_received: Instant,
    sent: Vec<u8>,
    received: Vec<u8>,
    stopping: bool,
    /// Statistics of the finished rounds.
    pub stats: Stats,
    verbosity: Verbosity,
}

impl Client {
    /// Starts to connect.
    ///
    /// # Errors
    /// An object cannot be created.
    pub fn new<V: Verbs>(
        verbs: &mut V,
        plan: ClientPlan,
        param: &ConnParam<'_>,
        memory: TextMemory,
        now: Instant,
        verbosity: Verbosity,
    ) -> Result<Self, Error> {
        let size = plan.size.min(memory.size);
        let id = verbs.create_id(plan.local)?;
        let objects = ConnObjects::new(verbs, id, memory, true)?;
        verbs.connect(id, objects.qp, plan.peer, param)?;
        Ok(Self {
            plan: ClientPlan { size, ..plan },
            objects,
            wait: Wait::Connection,
            error: None,
            round_began: now,
            last_received: now,
            sent: vec![0; size as usize],
            received: vec![0; size as usize],
            stopping: false,
            stats: Stats::default(),
            verbosity,
        })
    }

    /// Processes events and completions. Returns `Some` when the client has ended.
    pub fn poll<V: Verbs>(&mut self, verbs: &mut V, now: Instant) -> Option<Result<(), Error>> {
        let advanced = self.events(verbs, now).and_then(|()| self.completions(verbs, now));
        let silent =
            now.saturating_since(self.last_received) >= self.plan.timeout && !self.plan.timeout.is_zero();
        let advanced = match advanced {
            Ok(()) if silent && self.wait != Wait::Nothing => Err(Error::Silent(self.plan.timeout)),
            other => other,
        };
        if let Err(error) = advanced {
            self.error.get_or_insert(error);
            self.wait = Wait::Nothing;
        }
        (self.wait == Wait::Nothing).then(|| self.error.clone().map_or(Ok(()), Err))
    }

    /// Ends the client after the current round.
    pub fn stop<V: Verbs>(&mut self, verbs: &mut V, now: Instant) {
        self.stopping = true;
        if self.wait == Wait::Connection {
            self.disconnect(verbs, now);
        }
    }

    /// Destroys the client's objects and returns its memory for reuse.
    ///
    /// # Errors
    /// An object does not exist any more.
    pub fn destroy<V: Verbs>(self, verbs: &mut V) -> Result<TextMemory, Error> {
        self.objects.destroy(verbs)
    }

    fn events<V: Verbs>(&mut self, verbs: &mut V, now: Instant) -> Result<(), Error> {
        while let Some(event) = verbs.poll_async_event() {
            self.verbosity.debug(format_args!("{event:?}"));
            if let Some(code) = terminate_of(event) {
                self.error.get_or_insert(Error::Terminated(code));
            }
        }
        while let Some(event) = verbs.poll_cm_event() {
            self.verbosity.debug(format_args!("{event:?}"));
            self.last_received = now;
            match event.kind {
                CmEventKind::Established { .. } => {
                    self.stats.connections = self.stats.connections.saturating_add(1);
                    self.verbosity.progress(format_args!("connected to {}", self.plan.peer));
                    self.begin(verbs, now)?;
                }
                CmEventKind::Rejected { private_data } => return Err(Error::Rejected { private_data }),
                CmEventKind::Refused => return Err(Error::Refused),
                CmEventKind::Unreachable => return Err(Error::Unreachable),
                CmEventKind::ConnectError if self.stopping => self.wait = Wait::Nothing,
                CmEventKind::ConnectError => return Err(Error::NoAgreement),
                CmEventKind::Disconnected if self.wait == Wait::End => self.wait = Wait::Nothing,
                CmEventKind::Disconnected => return Err(Error::Ended),
                CmEventKind::AddressError | CmEventKind::ConnectRequest { .. } => {}
            }
        }
        Ok(())
    }

    fn completions<V: Verbs>(&mut self, verbs: &mut V, now: Instant) -> Result<(), Error> {
        while let Some(wc) = self.objects.completion(verbs) {
            match (wc.status, wc.opcode) {
                // An event reports why the stream has ended.
                (WcStatus::WrFlushError, _) => {}
                (WcStatus::Success, WcOpcode::Recv) => {
                    self.last_received = now;
                    if wc.byte_len as usize != INFO_LEN {
                        return Err(Error::Message(wc.byte_len));
                    }
                    self.objects.expect(verbs)?;
                    self.advance(verbs, now)?;
                }
                (WcStatus::Success, _) => {}
                (status, opcode) => return Err(Error::Work { opcode, status }),
            }
        }
        Ok(())
    }

    /// Starts the next round, or disconnects after the last one.
    fn begin<V: Verbs>(&mut self, verbs: &mut V, now: Instant) -> Result<(), Error> {
        if self.stopping || (self.plan.count > 0 && self.stats.rounds >= self.plan.count) {
            self.disconnect(verbs, now);
            return Ok(());
        }
        write_text(self.stats.rounds, &mut self.sent);
        self.objects.store(verbs, Text::Source, &self.sent)?;
        let info = self.objects.advertise(verbs, Text::Source, self.plan.size)?;
        self.verbosity.debug(format_args!("source {info:x?}"));
        (self.wait, self.round_began) = (Wait::Read, now);
        Ok(())
    }

    /// Handles a go-ahead of the server.
    fn advance<V: Verbs>(&mut self, verbs: &mut V, now: Instant) -> Result<(), Error> {
        match self.wait {
            Wait::Read => {
                let info = self.objects.advertise(verbs, Text::Sink, self.plan.size)?;
                self.verbosity.debug(format_args!("sink {info:x?}"));
                self.wait = Wait::Written;
                Ok(())
            }
            Wait::Written => {
                self.objects.load(verbs, Text::Sink, &mut self.received)?;
                self.verbosity.text("ping data", visible(&self.received));
                if self.plan.validate && self.received != self.sent {
                    return Err(Error::Mismatch(self.stats.rounds));
                }
                let bytes = u64::from(self.plan.size).saturating_mul(2);
                self.stats.round(bytes, now.saturating_since(self.round_began));
                self.begin(verbs, now)
            }
            Wait::Connection | Wait::End | Wait::Nothing => Ok(()),
        }
    }

    fn disconnect<V: Verbs>(&mut self, verbs: &mut V, now: Instant) {
        self.wait = Wait::End;
        verbs.disconnect(self.objects.id, now);
    }
}

/// Returns the code of a sent or received Terminate.
pub(crate) fn terminate_of(event: AsyncEvent) -> Option<rdma::ErrorCode> {
    match event {
        AsyncEvent::QpFatal(_, code)
        | AsyncEvent::QpRequestError(_, code)
        | AsyncEvent::QpAccessError(_, code)
        | AsyncEvent::QpTerminated(_, code) => Some(code),
        AsyncEvent::CqError(_) | AsyncEvent::QpLastWqeReached(_) | AsyncEvent::SrqLimitReached(_) => None,
    }
}
