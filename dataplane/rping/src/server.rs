//! The server: listens, reads the clients' texts and writes them back.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use rdma::ErrorCode;
use rdma::verbs::{AsyncEvent, CmEventKind, CmId, ConnParam, SendOp, WcOpcode, WcStatus};
use tcp_stack::Instant;

use crate::client::terminate_of;
use crate::conn_objects::{ConnObjects, Text};
use crate::error::Error;
use crate::protocol::{INFO_LEN, Info, round_of, visible};
use crate::stats::Stats;
use crate::verbosity::Verbosity;
use crate::verbs::{TextMemory, Verbs};

/// Backlog of connection requests.
const BACKLOG: NonZeroU16 = NonZeroU16::new(64).unwrap();
/// Shortest text with room for every head, bytes: shorter ones are not checked.
const CHECKED_MIN: usize = 32;

/// Settings of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerPlan {
    /// Address to listen on.
    pub local: SocketAddr,
    /// Serve until [`Server::stop`], instead of a single connection.
    pub persistent: bool,
    /// Check that the data read is a text of rping.
    pub validate: bool,
    /// Longest silence of a client; zero: unlimited.
    pub timeout: Duration,
}

/// Event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Advertisement of the client's source.
    Source,
    /// Completion of the RDMA Read.
    Read,
    /// Advertisement of the client's sink.
    Sink,
    /// Completion of the RDMA Write.
    Written,
    Nothing,
}

/// A connection that the server serves.
#[derive(Debug)]
struct Session {
    objects: ConnObjects,
    peer: Option<SocketAddr>,
    wait: Wait,
    established: bool,
    /// Bytes of the current text read from the client, and of those to write back.
    read: u32,
    back: u32,
    round_began: Instant,
    last_received: Instant,
    terminated: Option<ErrorCode>,
    text: Vec<u8>,
}

/// A server and its connections.
#[derive(Debug)]
pub struct Server {
    plan: ServerPlan,
    /// At an unspecified address one for each family.
    listeners: Vec<CmId>,
    /// Free memory for further connections.
    memories: Vec<TextMemory>,
    sessions: Vec<Session>,
    over: Option<Result<(), Error>>,
    stopping: bool,
    /// Statistics of the finished rounds.
    pub stats: Stats,
    /// Number of failed connections.
    pub failed: u64,
    verbosity: Verbosity,
}

/// Returns the addresses to listen at: the unspecified one stands for those of both families.
fn locals(local: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let ipv6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, local.port()));
    let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, local.port()));
    let both = local.ip().is_unspecified();
    [if both { ipv4 } else { local }].into_iter().chain(both.then_some(ipv6))
}

impl Server {
    /// Starts to listen. The number of `memories` limits the connections served at the same time.
    ///
    /// # Errors
    /// An object cannot be created.
    pub fn new<V: Verbs>(
        verbs: &mut V,
        plan: ServerPlan,
        param: &ConnParam<'_>,
        memories: Vec<TextMemory>,
        verbosity: Verbosity,
    ) -> Result<Self, Error> {
        let mut listeners = Vec::new();
        for local in locals(plan.local) {
            let listener = verbs.create_id(Some(local))?;
            verbs.listen(listener, BACKLOG, param)?;
            listeners.push(listener);
        }
        let sessions = Vec::with_capacity(memories.len());
        Ok(Self {
            plan,
            listeners,
            memories,
            sessions,
            over: None,
            stopping: false,
            stats: Stats::default(),
            failed: 0,
            verbosity,
        })
    }

    /// Processes events and completions. Returns `Some` when the server has ended.
    pub fn poll<V: Verbs>(&mut self, verbs: &mut V, now: Instant) -> Option<Result<(), Error>> {
        self.async_events(verbs);
        let mut at = 0;
        while let Some(session) = self.sessions.get_mut(at) {
            let timeout = self.plan.timeout;
            let silent = !timeout.is_zero() && now.saturating_since(session.last_received) >= timeout;
            let advanced = session.advance(verbs, now, &self.plan, &mut self.stats, self.verbosity);
            match advanced {
                Ok(()) if silent => self.end(verbs, at, Err(Error::Silent(timeout))),
                Ok(()) => at = at.saturating_add(1),
                Err(error) => self.end(verbs, at, Err(error)),
            }
        }
        self.connection_events(verbs, now);
        if self.stopping && self.sessions.is_empty() {
            self.over.get_or_insert(Ok(()));
        }
        self.over.clone()
    }

    /// Rejects further connections and disconnects the established ones.
    pub fn stop<V: Verbs>(&mut self, verbs: &mut V, now: Instant) {
        if !std::mem::replace(&mut self.stopping, true) {
            for session in &self.sessions {
                verbs.disconnect(session.objects.id, now);
            }
        }
    }

    /// Returns the number of connections.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Destroys all objects; open connections are reset.
    ///
    /// # Errors
    /// An object does not exist any more.
    pub fn destroy<V: Verbs>(self, verbs: &mut V) -> Result<(), Error> {
        for session in self.sessions {
            session.objects.destroy(verbs)?;
        }
        self.listeners.into_iter().try_for_each(|listener| verbs.destroy_id(listener))
    }

    fn async_events<V: Verbs>(&mut self, verbs: &mut V) {
        while let Some(event) = verbs.poll_async_event() {
            self.verbosity.debug(format_args!("{event:?}"));
            let (AsyncEvent::QpFatal(qp, _)
            | AsyncEvent::QpRequestError(qp, _)
            | AsyncEvent::QpAccessError(qp, _)
            | AsyncEvent::QpTerminated(qp, _)) = event
            else {
                continue;
            };
            if let Some(session) = self.sessions.iter_mut().find(|session| session.objects.qp == qp) {
                session.terminated = terminate_of(event);
            }
        }
    }

    fn connection_events<V: Verbs>(&mut self, verbs: &mut V, now: Instant) {
        while let Some(event) = verbs.poll_cm_event() {
            self.verbosity.debug(format_args!("{event:?}"));
            match event.kind {
                CmEventKind::AddressError => self.over = Some(Err(Error::Address)),
                CmEventKind::ConnectRequest { .. } => self.requested(verbs, event.id, now),
                CmEventKind::Established { .. } => {
                    self.stats.connections = self.stats.connections.saturating_add(1);
                    if let Some(session) = self.find(event.id).and_then(|at| self.sessions.get_mut(at)) {
                        (session.established, session.last_received) = (true, now);
                    }
                }
                CmEventKind::Disconnected
                | CmEventKind::ConnectError
                | CmEventKind::Rejected { .. }
                | CmEventKind::Refused
                | CmEventKind::Unreachable => self.disconnected(verbs, event.id),
            }
        }
    }

    fn find(&self, id: CmId) -> Option<usize> {
        self.sessions.iter().position(|session| session.objects.id == id)
    }

    /// Handles a connection request.
    fn requested<V: Verbs>(&mut self, verbs: &mut V, id: CmId, now: Instant) {
        let refuses = self.stopping || (!self.plan.persistent && !self.sessions.is_empty());
        let accepted = match self.memories.pop() {
            Some(memory) if refuses => {
                self.memories.push(memory);
                None
            }
            None => None,
            Some(memory) => self.accept(verbs, id, memory, now).ok(),
        };
        if accepted.is_none() {
            self.verbosity.progress(format_args!("no place for another connection"));
            // Both fail only if the connection has ended meanwhile.
            let _ = verbs.reject(id, b"no place");
            let _ = verbs.destroy_id(id);
        }
    }

    fn accept<V: Verbs>(
        &mut self,
        verbs: &mut V,
        id: CmId,
        memory: TextMemory,
        now: Instant,
    ) -> Result<(), Error> {
        let objects = ConnObjects::new(verbs, id, memory, false)?;
        verbs.accept(id, objects.qp)?;
        let peer = verbs.peer(id);
        self.verbosity.debug(format_args!("accepted {peer:?}"));
        self.sessions.push(Session {
            objects,
            peer,
            wait: Wait::Source,
            established: false,
            read: 0,
            back: 0,
            round_began: now,
            last_received: now,
            terminated: None,
            text: vec![0; memory.size as usize],
        });
        Ok(())
    }

    /// Handles a disconnect, which is orderly if no round is in progress.
    fn disconnected<V: Verbs>(&mut self, verbs: &mut V, id: CmId) {
        let Some(at) = self.find(id) else { return };
        let outcome = self.sessions.get(at).map_or(Ok(()), |session| match session.terminated {
            Some(code) => Err(Error::Terminated(code)),
            None if self.stopping => Ok(()),
            None if !session.established => Err(Error::NoAgreement),
            None if session.wait == Wait::Source => Ok(()),
            None => Err(Error::Ended),
        });
        self.end(verbs, at, outcome);
    }

    fn end<V: Verbs>(&mut self, verbs: &mut V, at: usize, outcome: Result<(), Error>) {
        let session = self.sessions.swap_remove(at);
        let peer = session.peer.map_or_else(|| "a peer".to_owned(), |peer| peer.to_string());
        match &outcome {
            Ok(()) => self.verbosity.progress(format_args!("{peer} has disconnected")),
            Err(error) => {
                self.failed = self.failed.saturating_add(1);
                self.verbosity.print(format_args!("{peer}: {error}"));
            }
        }
        match session.objects.destroy(verbs) {
            Ok(memory) => self.memories.push(memory),
            Err(error) => self.verbosity.print(format_args!("{error}")),
        }
        if !self.plan.persistent {
            self.over = Some(outcome);
        }
    }
}

impl Session {
    fn advance<V: Verbs>(
        &mut self,
        verbs: &mut V,
        now: Instant,
        plan: &ServerPlan,
        stats: &mut Stats,
        verbosity: Verbosity,
    ) -> Result<(), Error> {
        while let Some(wc) = self.objects.completion(verbs) {
            match (wc.status, wc.opcode) {
                // An event reports why the stream has ended.
                (WcStatus::WrFlushError, _) => self.wait = self.ended(),
                (WcStatus::Success, WcOpcode::Recv) => {
                    self.last_received = now;
                    if wc.byte_len as usize != INFO_LEN {
                        return Err(Error::Message(wc.byte_len));
                    }
                    let info = self.objects.received(verbs)?;
                    self.objects.expect(verbs)?;
                    verbosity.debug(format_args!("{info:x?}"));
                    self.advertised(verbs, info, now)?;
                }
                (WcStatus::Success, WcOpcode::RdmaRead) if self.wait == Wait::Read => {
                    self.last_received = now;
                    self.has_read(verbs, plan, verbosity)?;
                }
                (WcStatus::Success, WcOpcode::RdmaWrite) if self.wait == Wait::Written => {
                    let bytes = u64::from(self.read).saturating_add(self.back.into());
                    stats.round(bytes, now.saturating_since(self.round_began));
                    self.wait = Wait::Source;
                    self.objects.send_go_ahead(verbs)?;
                }
                (WcStatus::Success, _) => {}
                (status, opcode) => return Err(Error::Work { opcode, status }),
            }
        }
        Ok(())
    }

    /// Returns the state after a flushed work request: between two rounds it was the receive buffer for the next Send.
    fn ended(&self) -> Wait {
        if self.wait == Wait::Source { Wait::Source } else { Wait::Nothing }
    }

    /// Handles an advertisement of the client.
    fn advertised<V: Verbs>(&mut self, verbs: &mut V, info: Info, now: Instant) -> Result<(), Error> {
        let Info { addr: remote_addr, rkey, size } = info;
        match self.wait {
            Wait::Source => {
                let room = self.objects.memory.size;
                if size > room {
                    return Err(Error::TooLong { asked: size, room });
                }
                (self.wait, self.read, self.round_began) = (Wait::Read, size, now);
                self.objects.transfer(verbs, SendOp::RdmaRead { remote_addr, rkey }, size)
            }
            Wait::Sink if self.back > size => Err(Error::TooLong { asked: self.back, room: size }),
            Wait::Sink => {
                self.wait = Wait::Written;
                self.objects.transfer(verbs, SendOp::RdmaWrite { remote_addr, rkey }, self.back)
            }
            Wait::Read | Wait::Written | Wait::Nothing => Err(Error::UnexpectedSend),
        }
    }

    /// Handles the completed RDMA Read of the client's text.
    fn has_read<V: Verbs>(
        &mut self,
        verbs: &mut V,
        plan: &ServerPlan,
        verbosity: Verbosity,
    ) -> Result<(), Error> {
        let text = self.text.get_mut(..self.read as usize).ok_or(Error::Memory)?;
        self.objects.load(verbs, Text::Sink, text)?;
        if plan.validate && text.len() >= CHECKED_MIN && round_of(text).is_none() {
            return Err(Error::NotAText);
        }
        let visible = visible(text);
        verbosity.text("server ping data", visible);
        // Includes the terminating zero.
        let back = visible.len().saturating_add(1).min(text.len());
        self.back = u32::try_from(back).unwrap_or(u32::MAX);
        self.wait = Wait::Sink;
        self.objects.send_go_ahead(verbs)
    }
}
