//! Watches the ports once per second: link changes, interfaces that are deleted, cards that are unplugged, and their
//! return. `daemon` calls [`ControlHandler::watch_ports`].

use std::sync::Arc;

use ipnet::IpNet;
use iwarp_config::{Driver, OnLoss};
use iwarp_control::{Link, MovedInterface};
use tcp_stack::Instant;

use super::link_history::LinkHistory;
use super::{ControlHandler, report};
use crate::dpdk::{Eal, Mempool};
use crate::events::Event;
use crate::port::{Port, PortError, PortSpec};
use crate::worker::Command;

/// Most seconds between two attempts to reopen a port.
const RETRY_SKIP_MAX: u32 = 32;

/// An open port with its configuration and pools.
#[derive(Debug)]
pub struct PortEntry {
    /// DPDK port, open or lost.
    pub port: Port,
    /// Networks of the port.
    pub addresses: Vec<IpNet>,
    /// Number of receive queues, and of transmit queues.
    pub queues: u16,
    /// Packet buffer pool of each worker.
    pub pools: Vec<Arc<Mempool>>,
    /// Specification for opening and reopening the port.
    pub spec: PortSpec,
    /// Reaction to the loss of its interface.
    pub on_loss: OnLoss,
    /// Link state and retry state of the port watch.
    pub watched: Watched,
}

/// State of the watch for one port.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Link state at the last check; `None` before the first one.
    up: Option<bool>,
    /// Interface of the port at the last check, if it was renamed or moved.
    moved: Option<MovedInterface>,
    /// Checks to skip before the next attempt to reopen the port.
    skip: u32,
    /// Checks to skip before the attempt after that.
    skip_next: u32,
    /// Earlier states of the link.
    history: LinkHistory,
}

/// Change of a port since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Vanished,
    CanReturn,
    Link(bool),
}

impl ControlHandler {
    /// Checks every port. Called once per second.
    ///
    /// # Errors
    /// The interface of a port is gone, and `on_loss` is "exit".
    pub async fn watch_ports(&self, eal: &Eal) -> anyhow::Result<()> {
        let count = self.ports.borrow().len();
        for index in 0..count {
            if let Some(shared) = self.ports.borrow().get(index).and_then(|entry| entry.port.shared()) {
                shared.refill();
            }
            let change = self.ports.borrow_mut().get_mut(index).and_then(PortEntry::check);
            match change {
                Some(Change::Vanished) => self.lose(index).await?,
                Some(Change::CanReturn) => self.regain(index, eal),
                Some(Change::Link(up)) => self.note_link(index, up),
                None => {}
            }
            let link =
                self.ports.borrow_mut().get_mut(index).and_then(|entry| entry.remember(self.clock.now()));
            if let Some((applications, link)) = self.applications.as_ref().zip(link) {
                applications.set_link(index, link == Link::Up);
            }
        }
        Ok(())
    }

    /// Removes the queues from the workers and closes the device.
    async fn lose(&self, index: usize) -> anyhow::Result<()> {
        for handle in self.workers.iter() {
            let detached = handle.ask(|reply| Command::Detach { port: index, reply }).await;
            detached.map_err(|error| anyhow::anyhow!("a port is gone, and {error}"))?;
        }
        let mut ports = self.ports.borrow_mut();
        let Some(entry) = ports.get_mut(index) else { return Ok(()) };
        entry.port.lose();
        if !entry.port.is_gone() {
            // The client of a memif waits for another server.
            if entry.watched.link(false).is_some() {
                self.report(&Event::LinkDown { port: entry.spec.name.clone() });
            }
            return Ok(());
        }
        entry.watched = Watched { history: std::mem::take(&mut entry.watched.history), ..Watched::default() };
        let (name, device, what) = (&entry.spec.name, entry.spec.driver.device(), kind(&entry.spec.driver));
        anyhow::ensure!(
            entry.on_loss == OnLoss::Wait,
            "port {name}: the {what} {device} is gone, and on_loss = \"exit\""
        );
        let (port, device) = (name.clone(), device.to_owned());
        self.report(&Event::PortGone { port, device, what });
        Ok(())
    }

    /// Reopens a port and passes its queues to the workers.
    fn regain(&self, index: usize, eal: &Eal) {
        let mut ports = self.ports.borrow_mut();
        let Some(entry) = ports.get_mut(index) else { return };
        let (name, device, gone) =
            (entry.spec.name.clone(), entry.spec.driver.device(), entry.port.is_gone());
        match entry.port.reopen(eal, &entry.spec, &entry.pools) {
            Ok(pairs) => {
                if gone {
                    let (device, what) = (device.to_owned(), kind(&entry.spec.driver));
                    self.report(&Event::PortReturned { port: name, device, what });
                }
                for (handle, queues) in self.workers.iter().zip(pairs) {
                    // A worker that accepts no command has ended, which ends the daemon.
                    let _ = handle.send(Command::Attach { port: index, queues: Box::new(queues) });
                }
            }
            // A server is found within a second, so that its clients need no restart.
            Err(PortError::NoServer { .. }) => {}
            Err(error) => {
                let seconds = entry.watched.delay();
                let error = anyhow::Error::new(error);
                tracing::warn!("port {name} is still gone: {error:#}; next attempt in {seconds} s");
            }
        }
    }

    fn note_link(&self, index: usize, up: bool) {
        let ports = self.ports.borrow();
        let Some(port) = ports.get(index).map(|entry| entry.spec.name.clone()) else { return };
        self.report(&if up { Event::LinkUp { port } } else { Event::LinkDown { port } });
    }
}

/// The word for what is behind a port.
fn kind(driver: &Driver) -> &'static str {
    if driver.is_pci() { "card" } else { "interface" }
}

impl PortEntry {
    /// Returns the change since the last check. A link that is up at the first check was logged with the port.
    fn check(&mut self) -> Option<Change> {
        if self.port.is_closed() {
            if !self.port.is_gone() && self.watched.up.is_none() {
                return self.watched.link(false);
            }
            return (self.watched.is_retry_due() && self.port.can_return()).then_some(Change::CanReturn);
        }
        if self.port.has_vanished() {
            return Some(Change::Vanished);
        }
        self.note_moved();
        // The port keeps what it has read, should its connection end.
        let _ = self.port.stats();
        let up = self.port.link().ok()?.up;
        self.watched.link(up)
    }

    /// Logs that the interface was renamed or moved, or is as before.
    fn note_moved(&mut self) {
        let moved = report::moved(&self.port);
        if moved == self.watched.moved {
            return;
        }
        let (name, device) = (&self.spec.name, self.spec.driver.device());
        match &moved {
            Some(now) => tracing::warn!("port {name}: its interface {device} is now {now}"),
            None => tracing::info!("port {name}: its interface is {device} again"),
        }
        self.watched.moved = moved;
    }

    /// Notes how the link is, and returns it; `None` for an interface that has just returned, whose state is read at
    /// the next check.
    fn remember(&mut self, now: Instant) -> Option<Link> {
        let link = match (self.port.is_gone(), self.watched.up) {
            (true, _) => Link::Gone,
            (false, Some(true)) => Link::Up,
            (false, Some(false)) => Link::Down,
            (false, None) => return None,
        };
        self.watched.history.record(now, link);
        Some(link)
    }
}

impl Watched {
    /// Returns the history of the link.
    pub(super) fn history(&self) -> &LinkHistory {
        &self.history
    }

    fn link(&mut self, up: bool) -> Option<Change> {
        let before = self.up.replace(up).unwrap_or(true);
        (before != up).then_some(Change::Link(up))
    }

    /// Returns true if another attempt is due.
    fn is_retry_due(&mut self) -> bool {
        let is_due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        is_due
    }

    /// Doubles the delay before the next attempt. Returns the delay in checks.
    fn delay(&mut self) -> u32 {
        self.skip_next = self.skip_next.saturating_mul(2).clamp(2, RETRY_SKIP_MAX);
        self.skip = self.skip_next.saturating_sub(1);
        self.skip_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_change_is_reported_and_an_initial_up_is_not() {
        let mut watched = Watched::default();
        let states = [true, true, false, false, true];
        let changes = states.map(|up| watched.link(up));
        assert_eq!(changes, [None, None, Some(Change::Link(false)), None, Some(Change::Link(true))]);
        assert_eq!(Watched::default().link(false), Some(Change::Link(false)));
    }

    #[test]
    fn attempts_back_off_up_to_a_bound() {
        let mut watched = Watched::default();
        let mut attempts = Vec::new();
        for check in 0..100_u32 {
            if watched.is_retry_due() {
                attempts.push(check);
                watched.delay();
            }
        }
        assert_eq!(attempts, [0, 2, 6, 14, 30, 62, 94]);
    }
}
