//! The side that connects and has its texts echoed.

use std::net::SocketAddr;
use std::time::Duration;

use rdma::verbs::{AsyncEvent, CmEventKind, ConnParam, WcOpcode, WcStatus};
use tcp_stack::{BufPool, Instant};

use dataplane::verbs::Verbs;

use crate::fault::Fault;
use crate::parts::{Bytes, Parts, Place, Text};
use crate::protocol::{INFO_LEN, visible, write_text};
use crate::tally::Tally;
use crate::voice::Voice;

/// What a client is to do.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// From which address of this side, if that matters.
    pub local: Option<SocketAddr>,
    /// The server.
    pub peer: SocketAddr,
    /// Rounds; 0: until it is told to stop.
    pub count: u64,
    /// Bytes of a text, at most those of the place.
    pub size: u32,
    /// Compare what comes back.
    pub validate: bool,
    /// How long the peer may be silent; zero: for ever.
    pub patience: Duration,
}

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Connection,
    /// The server has read the text.
    Read,
    /// The server has written it back.
    Written,
    /// The connection has closed.
    End,
    Nothing,
}

/// The side that connects.
#[derive(Debug)]
pub struct Client {
    plan: ClientPlan,
    parts: Parts,
    wait: Wait,
    /// What failed, when nothing did before.
    fault: Option<Fault>,
    began: Instant,
    heard: Instant,
    sent: Vec<u8>,
    came: Vec<u8>,
    stopping: bool,
    /// What was done.
    pub tally: Tally,
    voice: Voice,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// An object cannot be had.
    pub fn new<P: BufPool, M: Bytes>(
        verbs: &mut Verbs<P, M>,
        plan: ClientPlan,
        param: &ConnParam<'_>,
        place: Place,
        now: Instant,
        voice: Voice,
    ) -> Result<Self, Fault> {
        let size = plan.size.min(place.size);
        let id = verbs.device_mut().create_id(plan.local)?;
        let parts = Parts::new(verbs, id, place, true)?;
        verbs.device_mut().connect(id, parts.qp, plan.peer, param)?;
        Ok(Self {
            plan: ClientPlan { size, ..plan },
            parts,
            wait: Wait::Connection,
            fault: None,
            began: now,
            heard: now,
            sent: vec![0; size as usize],
            came: vec![0; size as usize],
            stopping: false,
            tally: Tally::default(),
            voice,
        })
    }

    /// Goes on with what has come. `Some`: it is over.
    pub fn poll<P: BufPool, M: Bytes>(
        &mut self,
        verbs: &mut Verbs<P, M>,
        now: Instant,
    ) -> Option<Result<(), Fault>> {
        let gone_on = self.events(verbs, now).and_then(|()| self.completions(verbs, now));
        let silent = now.saturating_since(self.heard) >= self.plan.patience && !self.plan.patience.is_zero();
        let gone_on = match gone_on {
            Ok(()) if silent && self.wait != Wait::Nothing => Err(Fault::Silent(self.plan.patience)),
            other => other,
        };
        if let Err(fault) = gone_on {
            self.fault.get_or_insert(fault);
            self.wait = Wait::Nothing;
        }
        (self.wait == Wait::Nothing).then(|| self.fault.clone().map_or(Ok(()), Err))
    }

    /// Ends after the present round.
    pub fn stop<P: BufPool, M: Bytes>(&mut self, verbs: &mut Verbs<P, M>, now: Instant) {
        self.stopping = true;
        if self.wait == Wait::Connection {
            self.hang_up(verbs, now);
        }
    }

    /// Takes its objects away. The place is free again.
    ///
    /// # Errors
    /// An object is gone already.
    pub fn destroy<P: BufPool, M: Bytes>(self, verbs: &mut Verbs<P, M>) -> Result<Place, Fault> {
        self.parts.destroy(verbs)
    }

    fn events<P: BufPool, M: Bytes>(&mut self, verbs: &mut Verbs<P, M>, now: Instant) -> Result<(), Fault> {
        while let Some(event) = verbs.device_mut().poll_async_event() {
            self.voice.debug(format_args!("{event:?}"));
            if let Some(code) = terminate_of(event) {
                self.fault.get_or_insert(Fault::Terminated(code));
            }
        }
        while let Some(event) = verbs.device_mut().poll_cm_event() {
            self.voice.debug(format_args!("{event:?}"));
            self.heard = now;
            match event.kind {
                CmEventKind::Established { .. } => {
                    self.tally.connections = self.tally.connections.saturating_add(1);
                    self.voice.say(format_args!("connected to {}", self.plan.peer));
                    self.begin(verbs, now)?;
                }
                CmEventKind::Rejected { private_data } => return Err(Fault::Rejected { private_data }),
                CmEventKind::Unreachable => return Err(Fault::Unreachable),
                CmEventKind::ConnectError if self.stopping => self.wait = Wait::Nothing,
                CmEventKind::ConnectError => return Err(Fault::NoAgreement),
                CmEventKind::Disconnected if self.wait == Wait::End => self.wait = Wait::Nothing,
                CmEventKind::Disconnected => return Err(Fault::Ended),
                CmEventKind::AddressError | CmEventKind::ConnectRequest { .. } => {}
            }
        }
        Ok(())
    }

    fn completions<P: BufPool, M: Bytes>(
        &mut self,
        verbs: &mut Verbs<P, M>,
        now: Instant,
    ) -> Result<(), Fault> {
        while let Some(wc) = self.parts.completion(verbs) {
            match (wc.status, wc.opcode) {
                // Why the stream has ended is said by an event.
                (WcStatus::WrFlushError, _) => {}
                (WcStatus::Success, WcOpcode::Recv) => {
                    self.heard = now;
                    if wc.byte_len as usize != INFO_LEN {
                        return Err(Fault::Message(wc.byte_len));
                    }
                    self.parts.expect(verbs)?;
                    self.go_on(verbs, now)?;
                }
                (WcStatus::Success, _) => {}
                (status, opcode) => return Err(Fault::Work { opcode, status }),
            }
        }
        Ok(())
    }

    /// Begins the next round, or ends.
    fn begin<P: BufPool, M: Bytes>(&mut self, verbs: &mut Verbs<P, M>, now: Instant) -> Result<(), Fault> {
        if self.stopping || (self.plan.count > 0 && self.tally.rounds >= self.plan.count) {
            self.hang_up(verbs, now);
            return Ok(());
        }
        write_text(self.tally.rounds, &mut self.sent);
        self.parts.store(verbs, Text::Source, &self.sent)?;
        let info = self.parts.advertise(verbs, Text::Source, self.plan.size)?;
        self.voice.debug(format_args!("source {info:x?}"));
        (self.wait, self.began) = (Wait::Read, now);
        Ok(())
    }

    /// The server says to go on.
    fn go_on<P: BufPool, M: Bytes>(&mut self, verbs: &mut Verbs<P, M>, now: Instant) -> Result<(), Fault> {
        match self.wait {
            Wait::Read => {
                let info = self.parts.advertise(verbs, Text::Sink, self.plan.size)?;
                self.voice.debug(format_args!("sink {info:x?}"));
                self.wait = Wait::Written;
                Ok(())
            }
            Wait::Written => {
                self.parts.load(verbs, Text::Sink, &mut self.came)?;
                self.voice.text("ping data", visible(&self.came));
                if self.plan.validate && self.came != self.sent {
                    return Err(Fault::Mismatch(self.tally.rounds));
                }
                let bytes = u64::from(self.plan.size).saturating_mul(2);
                self.tally.round(bytes, now.saturating_since(self.began));
                self.begin(verbs, now)
            }
            Wait::Connection | Wait::End | Wait::Nothing => Ok(()),
        }
    }

    fn hang_up<P: BufPool, M: Bytes>(&mut self, verbs: &mut Verbs<P, M>, now: Instant) {
        self.wait = Wait::End;
        verbs.disconnect(self.parts.id, now);
    }
}

/// The code of a Terminate, sent or received.
pub(crate) fn terminate_of(event: AsyncEvent) -> Option<rdma::ErrorCode> {
    match event {
        AsyncEvent::QpFatal(_, code)
        | AsyncEvent::QpRequestError(_, code)
        | AsyncEvent::QpAccessError(_, code)
        | AsyncEvent::QpTerminated(_, code) => Some(code),
        AsyncEvent::CqError(_) | AsyncEvent::QpLastWqeReached(_) | AsyncEvent::SrqLimitReached(_) => None,
    }
}
