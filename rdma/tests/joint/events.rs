//! Events of a stream, and its owner's reactions.

use rdma::{CloseHow, Event, Stag, WcOpcode};
use tcp_stack::{Duration, Instant};

use crate::engine::Engine;
use crate::stream::{Stream, Tools};

/// Time that the peer has to close after this side has.
const LINGER: Duration = Duration::from_secs(60);

impl Stream {
    /// Polls the events of the engine.
    pub(crate) fn collect(&mut self, now: Instant, tools: &mut Tools) -> Result<(), String> {
        let next = |engine: &mut Engine| match engine {
            Engine::Endpoint(endpoint) => endpoint.poll_event(),
            Engine::Verbs(_) => None,
        };
        while let Some(event) = self.act(tools, |engine, _| next(engine))? {
            self.write_down(|| format!("{event:?}"))?;
            self.handle_event(now, event, tools)?;
        }
        if let Engine::Verbs(_) = self.engine {
            while let Some(notice) = self.next_notice(tools)? {
                self.write_down(|| format!("{notice:?}"))?;
                self.handle_notice(now, notice, tools)?;
            }
        }
        Ok(())
    }

    fn write_down(&mut self, text: impl FnOnce() -> String) -> Result<(), String> {
        if self.is_over() {
            return Err(format!("an event behind the end: {}", text()));
        }
        if let Some(log) = &mut self.log {
            log.push(text());
        }
        Ok(())
    }

    fn handle_event(&mut self, now: Instant, event: Event, tools: &mut Tools) -> Result<(), String> {
        match event {
            Event::ConnectRequest { private_data, .. } => self.asked(&private_data, tools)?,
            Event::Established { private_data, crc, ird, ord, .. } => {
                self.established(now, &private_data, (ird, ord, crc))?;
            }
            Event::Rejected { private_data } => self.was_rejected(&private_data)?,
            Event::Completion { wr_id, op: WcOpcode::Recv, .. } => self.buffer_flushed(wr_id)?,
            Event::Completion { wr_id, op, status, bytes } => {
                self.post_at = Some(now);
                self.completed((wr_id, op, bytes), status, tools)?;
            }
            Event::Received { wr_id, bytes, solicited, invalidated, .. } => {
                self.received_send(now, (wr_id, bytes, solicited, invalidated), tools)?;
            }
            Event::Immediate { wr_id, data, solicited, .. } => {
                self.received_immediate(now, (wr_id, data, solicited))?;
            }
            Event::Datagram { .. } | Event::Datagrams => return Err("a connection has no datagrams".into()),
            Event::TerminateSent { code, .. } => self.outcome.terminate_sent = Some(code),
            Event::TerminateReceived { code, .. } => self.outcome.terminate_received = Some(code),
            // The end of the stream follows.
            Event::Failed { .. } => {}
            Event::Close { how } => self.ended(now, how, tools)?,
        }
        Ok(())
    }

    /// Answers the peer's connect request.
    pub(crate) fn asked(&mut self, private_data: &[u8], tools: &mut Tools) -> Result<(), String> {
        if !self.hostile && *private_data != *self.private_data[0] {
            return Err("the private data of the request are not those sent".into());
        }
        self.needs_turn = true;
        self.engine.answer(self.rejects, &self.private_data[1], tools)
    }

    /// Checks that the stream entered full operation with the agreed depths and CRCs.
    pub(crate) fn established(
        &mut self,
        now: Instant,
        private_data: &[u8],
        terms: (u16, u16, bool),
    ) -> Result<(), String> {
        let right = if self.side == 0 { &self.private_data[1][..] } else { &[] };
        if !self.hostile && private_data != right {
            return Err("the private data of the reply are not those sent".into());
        }
        self.outcome.established = true;
        (self.terms, self.ord, self.post_at) = (Some(terms), terms.1, Some(now));
        Ok(())
    }

    pub(crate) fn was_rejected(&mut self, private_data: &[u8]) -> Result<(), String> {
        if !self.hostile && *private_data != *self.private_data[1] {
            return Err("the private data of the reply are not those sent".into());
        }
        self.outcome.rejected = true;
        Ok(())
    }

    pub(crate) fn received_send(
        &mut self,
        now: Instant,
        (wr_id, bytes, solicited, invalidated): (u64, u32, bool, Option<Stag>),
        tools: &mut Tools,
    ) -> Result<(), String> {
        self.received(now, wr_id, |message| {
            message.immediate.is_none()
                && (message.len, message.solicited, message.invalidate) == (bytes, solicited, invalidated)
        })?;
        invalidated.map_or(Ok(()), |stag| self.invalidated(stag, tools))
    }

    pub(crate) fn received_immediate(
        &mut self,
        now: Instant,
        (wr_id, data, solicited): (u64, [u8; 8], bool),
    ) -> Result<(), String> {
        self.received(now, wr_id, |message| (message.immediate, message.solicited) == (Some(data), solicited))
    }

    /// Handles the last event: all posted work must be finished by now.
    pub(crate) fn ended(&mut self, now: Instant, how: CloseHow, tools: &mut Tools) -> Result<(), String> {
        self.outcome.close = Some(how);
        self.stopped = true;
        self.outcome.taken[1] += self.taken.iter().map(|(_, len)| len).sum::<u64>();
        if self.plan.srq {
            self.model.borrow_mut().leave_shared(self.host, (self.connection, self.side))?;
        }
        let buffers = self.model.borrow().offers[self.connection][self.side].buffers.len();
        if !self.posted.is_empty() || buffers > 0 {
            return Err(format!("not given back: {:?}, and {buffers} buffers", self.posted));
        }
        if self.outcome.tcp.is_none() {
            match how {
                CloseHow::Fin => {
                    self.linger_deadline = Some(now + LINGER);
                    tools.stack.close(now, self.conn);
                }
                CloseHow::Reset if self.left => self.linger_deadline = Some(now + LINGER),
                CloseHow::Reset => tools.stack.abort(now, self.conn),
            }
        }
        Ok(())
    }
}
