//! What must hold between any two calls, looked at from inside: for tests.

use alloc::format;
use alloc::string::String;

use super::Stack;
use crate::buf::Buf;
use crate::conn::{Conn, List, State};
use crate::event::ConnId;
use crate::seq::SeqNum;
use crate::timer::TimerKind;

/// The timers that bring a connection on that has sent something.
const RECOVER: [TimerKind; 3] = [TimerKind::Retransmit, TimerKind::LossProbe, TimerKind::Reordering];

impl<B: Buf> Stack<B> {
    /// Whether segments that are expected are taken the short way, as they always are but where both ways are compared.
    pub fn predict(&mut self, predicts: bool) {
        self.predicts = predicts;
    }

    /// From how many connections on it looks ahead.
    pub fn look_ahead_from(&mut self, connections: u32) {
        self.looks_ahead_from = connections;
    }

    /// All that tells one stack from another: connections, queues, timers, counters.
    pub fn facts(&self) -> String {
        let queues = (&self.events, &self.output, &self.neighbor_wait, &self.pool_wait, &self.held);
        let counters = (&self.stats, self.interface.stats(), self.interface.drops());
        let pools = (self.tx.used(), self.rx.used(), &self.memory);
        format!("{:?} {queues:?} {pools:?} {:?} {counters:?}", self.conns, self.next_deadline())
    }

    /// Looks at every connection and at what they share; an error says what is wrong. What it costs grows
    /// with the connections and all that they have queued.
    ///
    /// * Something outstanding implies a timer that recovers it, and a timer implies an armed wheel.
    /// * What is queued and not outstanding waits to be sent, or for a timer.
    /// * An event that is due is in the list of events.
    /// * No node of a pool and no entry of the table of flows belongs to nobody.
    pub fn audit(&self) -> Result<(), String> {
        let half_open = self.half_open.used();
        let (mut sending, mut receiving) = (0_u32, 0_u32);
        let mut flows = self.time_wait.used().saturating_add(half_open);
        let mut conns = 0_u32;
        for index in 0..self.conns.places() {
            let Some(conn) = self.conns.at(index) else { continue };
            self.audit_conn(index, conn).map_err(|what| format!("place {index}: {what}: {conn:?}"))?;
            conns = conns.saturating_add(1);
            sending = sending.saturating_add(conn.snd.queue.segments());
            receiving = receiving.saturating_add(conn.rcv.held.nodes(&self.rx));
            flows = flows.saturating_add(u32::from(!conn.buried));
        }
        for (what, counted, found) in [
            ("connections", self.conns.used(), conns),
            ("nodes of the send pool", self.tx.used(), sending),
            ("nodes of the receive pool", self.rx.used(), receiving),
            ("entries of the table of flows", self.conns.flows(), flows),
        ] {
            if counted != found {
                return Err(format!("{counted} {what}, of which {found} belong to a connection"));
            }
        }
        Ok(())
    }

    /// The initial sequence numbers of a connection: its own and its peer's.
    pub fn initial_sequences(&self, conn: ConnId) -> Option<(SeqNum, SeqNum)> {
        self.conns.get(conn).map(|conn| (conn.snd.iss, conn.rcv.irs))
    }

    fn audit_conn(&self, index: u32, conn: &Conn) -> Result<(), &'static str> {
        conn.snd.queue.audit(&self.tx)?;
        if conn.has_events() && !self.conns.is_queued(index, List::Events) {
            return Err("an event that nobody will be told of");
        }
        if conn.state == State::Closed {
            return Ok(());
        }
        let has = |kind: TimerKind| conn.timers.is_set(kind);
        if conn.snd.has_outstanding() && !has(TimerKind::Persist) && !RECOVER.into_iter().any(has) {
            return Err("something is outstanding, and no timer runs");
        }
        let waits = [List::Output, List::Neighbor].into_iter().any(|list| self.conns.is_queued(index, list));
        let earliest = conn.timers.earliest(&conn.deadlines, self.now);
        if !conn.snd.queue.is_empty() && !waits && earliest.is_none() {
            return Err("something is queued, and nothing will send it");
        }
        if earliest.is_some_and(|deadline| !self.wheel.is_armed_by(index, deadline)) {
            return Err("a timer of which the wheel does not know");
        }
        if conn.snd.una.after(conn.snd.nxt) || conn.snd.nxt.after(conn.snd.end) {
            return Err("SND.UNA, SND.NXT and the end of the queue are out of order");
        }
        if conn.snd.end == conn.snd.una && !conn.snd.queue.is_empty() {
            return Err("something is queued, and the end of the queue is acknowledged");
        }
        if conn.rcv.nxt.after(conn.rcv.edge) && !conn.rcv.fin_known {
            return Err("RCV.NXT is beyond the window that was offered");
        }
        Ok(())
    }
}
