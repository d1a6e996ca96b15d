//! Invariants that hold between any two calls, for simulations and fuzzers.

use alloc::format;
use alloc::string::String;

use super::Stack;
use crate::buf::Buf;
use crate::config::EvictionPolicy;
use crate::conn::{Conn, QueueKind};
use crate::event::ConnId;
use crate::seq::SeqNum;
use crate::state::State;
use crate::timer::TimerKind;

/// The timers that recover outstanding data.
const RECOVER: [TimerKind; 3] = [TimerKind::Retransmit, TimerKind::LossProbe, TimerKind::Reordering];

impl<B: Buf> Stack<B> {
    /// Turns header prediction and trains on or off. They are on except in tests that compare both paths.
    pub fn predict(&mut self, predicts: bool) {
        self.predicts = predicts;
    }

    /// Sets the number of slots from which on bursts are prefetched.
    pub fn set_prefetch_from(&mut self, connections: u32) {
        self.prefetch_from = connections;
    }

    /// Returns the whole state as text, to compare two stacks: connections, queues, timers, counters.
    pub fn facts(&self) -> String {
        let queues = (&self.events, &self.output, &self.neighbor_wait, &self.pool_wait, &self.retaining);
        let eviction = (&self.evictable, self.searched, &self.evicted);
        let counters = (&self.stats, self.interface.stats(), self.interface.drops());
        let pools = (self.tx.used(), self.rx.used(), &self.memory);
        format!("{:?} {queues:?} {eviction:?} {pools:?} {:?} {counters:?}", self.conns, self.next_deadline())
    }

    /// Checks every connection and the shared state; the error names the violation. The cost grows with the
    /// connections and all their queued segments.
    ///
    /// * The checks of [`Self::audit_connections`].
    /// * The sums of a send queue match its segments.
    /// * Every used node of the receive pool belongs to a connection.
    /// * The retained packet buffers match the counts, of all connections together and in the accounts.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_connections()?;
        let (mut receiving, mut retained, mut app_retained) = (0_u32, 0_u32, 0_u32);
        for (index, conn) in self.connections() {
            conn.snd.queue.audit(&self.tx).map_err(|what| describe(index, what, conn))?;
            receiving = receiving.saturating_add(conn.rcv.held.nodes(&self.rx));
            let held = conn.rcv.held.count(&self.rx).unwrap_or((u32::MAX, u32::MAX));
            expect_equal("payloads held behind gaps", conn.rcv.held.payloads(), held.0)
                .and(expect_equal(
                    "bytes of packet buffers held behind gaps",
                    conn.rcv.held.held_bytes(),
                    held.1,
                ))
                .map_err(|what| describe(index, &what, conn))?;
            retained = retained.saturating_add(conn.retained());
            app_retained = app_retained.saturating_add(conn.app_retained);
        }
        expect_equal("nodes of the receive pool", self.rx.used(), receiving)?;
        expect_equal("retained buffers", self.memory.budget.used(), retained)?;
        expect_equal("retained buffers in accounts", self.accounts.total().buffers, retained)?;
        expect_equal("buffers that applications retain", self.app_retained, app_retained)
    }

    /// Checks what needs no walk through the queues, so that a simulation can afford it after each step.
    ///
    /// * Outstanding data implies a timer that recovers it, and a timer implies an armed wheel.
    /// * Queued data that is not outstanding waits to be sent, or for a timer.
    /// * A connection with an event is in the event queue.
    /// * Every connection is counted in its accounts; one that may be evicted is in the queue for that.
    /// * Every used node of the send pool, and every entry of the flow table, belongs to a connection or record.
    pub fn audit_connections(&self) -> Result<(), String> {
        let (mut conns, mut sending) = (0_u32, 0_u32);
        let mut flows = self.time_wait.used().saturating_add(self.half_open.used());
        for (index, conn) in self.connections() {
            self.audit_conn(index, conn).map_err(|what| describe(index, what, conn))?;
            conns = conns.saturating_add(1);
            sending = sending.saturating_add(conn.snd.queue.segments());
            flows = flows.saturating_add(u32::from(!conn.unlinked));
        }
        expect_equal("connections", self.conns.used(), conns)?;
        expect_equal("nodes of the send pool", self.tx.used(), sending)?;
        expect_equal("entries of the table of flows", self.conns.flows(), flows)?;
        let counted = self.accounts.total().connections;
        expect_equal("connections in accounts", counted, conns.saturating_add(self.half_open.used()))
    }

    fn connections(&self) -> impl Iterator<Item = (u32, &Conn)> {
        (0..self.conns.places()).filter_map(|index| Some((index, self.conns.at(index)?)))
    }

    /// Returns the initial sequence numbers of a connection: ours and the peer's.
    pub fn initial_sequences(&self, conn: ConnId) -> Option<(SeqNum, SeqNum)> {
        self.conns.get(conn).map(|conn| (conn.snd.iss, conn.rcv.irs))
    }

    fn audit_conn(&self, index: u32, conn: &Conn) -> Result<(), &'static str> {
        if conn.has_events() && !self.conns.is_queued(index, QueueKind::Events) {
            return Err("an event is pending, and the connection is not in the event queue");
        }
        if conn.eviction_policy != EvictionPolicy::Never && !self.conns.is_queued(index, QueueKind::Evictable)
        {
            return Err("it may be evicted, and is not in the queue for that");
        }
        if conn.state == State::Closed {
            return Ok(());
        }
        let has = |kind: TimerKind| conn.timers.is_set(kind);
        // The byte that a probe has put into a closed window is outstanding but not in flight: it is sent again
        // with the rest of its segment, once the window is large enough (RFC 9293 §3.8.6.2.1).
        let probed = conn.snd.queue.in_flight() == 0 && conn.snd.queue.lost() == 0;
        let recovers = RECOVER.into_iter().any(has)
            || has(TimerKind::Persist)
            || (probed && has(TimerKind::SendOverride));
        if conn.snd.has_outstanding() && !recovers {
            return Err("something is outstanding, and no timer runs");
        }
        let waits = [QueueKind::Output, QueueKind::Neighbor]
            .into_iter()
            .any(|list| self.conns.is_queued(index, list));
        let earliest = conn.timers.earliest(&conn.deadlines, self.now);
        if !conn.snd.queue.is_empty() && !waits && earliest.is_none() {
            return Err("something is queued, and nothing will send it");
        }
        if earliest.is_some_and(|deadline| !self.wheel.is_armed_no_later(index, deadline)) {
            return Err("a timer runs, and the wheel is not armed for it");
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

/// Formats a violation with its connection.
fn describe(index: u32, what: &str, conn: &Conn) -> String {
    format!("place {index}: {what}: {conn:?}")
}

/// Checks that the number in use equals the number that connections have.
fn expect_equal(what: &str, used: u32, found: u32) -> Result<(), String> {
    let text = || format!("{used} {what}, of which {found} belong to a connection");
    if used == found { Ok(()) } else { Err(text()) }
}
