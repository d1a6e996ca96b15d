//! The applications of a simulation: delivers the stacks' events to them and polls them.

use super::host::Host;
use super::{FIRST_PORT, Simulation, key, keys};
use crate::testutil::App;
use crate::{ConnId, Event};
use alloc::format;
use alloc::string::String;

impl Simulation {
    pub(super) fn handle_events(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        loop {
            let event = self.hosts.get_mut(index).and_then(|host| host.stack.poll_event());
            let Some(event) = event else { return Ok(()) };
            if self.log_max > 0 {
                self.note(format!("{:>9} h{index}   {event:?}", now.as_micros()));
            }
            let (conn, event) = match event {
                Event::Accepted { conn, .. } => {
                    self.accept(index, conn)?;
                    continue;
                }
                Event::Connected { conn }
                | Event::Data { conn, .. }
                | Event::OutOfOrder { conn }
                | Event::Reclaim { conn }
                | Event::PeerClosed { conn }
                | Event::Writable { conn }
                | Event::Urgent { conn, .. }
                | Event::EmssChanged { conn, .. }
                | Event::Closed { conn, .. } => (conn, event),
            };
            let host = self.hosts.get_mut(index).ok_or("no such host")?;
            let (number, side, app) = host.apps.get_mut(&key(conn)).ok_or("an event of no connection")?;
            let (number, side) = (*number, *side);
            let judged = match event {
                Event::Connected { .. } => {
                    app.on_established(now);
                    Ok(())
                }
                Event::Data { offset, segment, .. } => {
                    app.on_data(now, offset, &segment, self.scenario.hostile)
                }
                Event::OutOfOrder { .. } => app.on_out_of_order(&mut host.stack),
                Event::PeerClosed { .. } => app.on_peer_closed(),
                Event::Writable { .. } => {
                    app.on_writable();
                    Ok(())
                }
                Event::Reclaim { .. } => {
                    app.on_reclaim();
                    Ok(())
                }
                Event::Closed { reason, .. } => app.on_closed(now, reason),
                Event::Accepted { .. } | Event::Urgent { .. } | Event::EmssChanged { .. } => Ok(()),
            };
            judged.map_err(|error| format!("connection {number}, side {side}: {error}"))?;
            self.settle(index, conn, number, side)?;
        }
    }

    fn accept(&mut self, index: usize, conn: ConnId) -> Result<(), String> {
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        let info = host.stack.info(conn).ok_or("accepted, and nothing is known of it")?;
        // A forged SYN names an opener that does not exist: it stands for the listener's own connection.
        let own = usize::from(info.local.port().wrapping_sub(FIRST_PORT));
        let number = self.openers.get(&(info.remote, info.local.port())).copied().unwrap_or(own);
        let plan = self.scenario.conns.get(number).ok_or("accepted on another port")?;
        host.stack.set_eviction_policy(conn, plan.eviction);
        let mut app = App::new(plan.listener, conn, keys(number, 1), self.random.fork());
        app.on_established(self.now);
        host.apps.insert(key(conn), (number, 1, app));
        Ok(())
    }

    /// Updates the outcome of one side and checks it against the other's.
    fn settle(&mut self, index: usize, conn: ConnId, number: usize, side: usize) -> Result<(), String> {
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        let Some((_, _, app)) = host.apps.get(&key(conn)) else { return Ok(()) };
        let outcome = *app.outcome();
        if outcome.closed.is_some() {
            host.apps.remove(&key(conn));
        }
        let pair = self.outcomes.get_mut(number).ok_or("no such connection")?;
        let [opener, listener] = pair;
        let was = if side == 0 { &mut *opener } else { &mut *listener };
        if *was != outcome {
            *was = outcome;
            self.progress.reset();
        }
        if !self.scenario.hostile && (opener.received > listener.sent || listener.received > opener.sent) {
            return Err(format!("connection {number}: more came than was sent: {pair:?}"));
        }
        Ok(())
    }

    pub(super) fn run_apps(&mut self, index: usize) {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(index) else { return };
        let Host { apps, stack, pool, ack_causes, .. } = host;
        for (number, side, app) in apps.values_mut() {
            let reads = app.poll(now, stack, pool);
            self.progress.allow(reads);
            *ack_causes = ack_causes.saturating_add(reads);
            if let Some(outcome) = self.outcomes.get_mut(*number).and_then(|pair| pair.get_mut(*side))
                && outcome != app.outcome()
            {
                *outcome = *app.outcome();
                self.progress.reset();
            }
        }
    }
}
