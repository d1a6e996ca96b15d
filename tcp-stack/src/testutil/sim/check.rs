//! The invariants of a simulation, checked after every poll of a host.
//!
//! * Received bytes are a prefix of the bytes sent ([`App::on_data`](crate::testutil::App::on_data)).
//! * The advertised right edge never moves back, and no peer sends beyond it ([`Watch`](crate::testutil::Watch)).
//! * Outstanding data implies a timer; every resource that a stack counts as used belongs to a connection
//!   ([`Stack::audit_connections`](crate::Stack::audit_connections)). Its queues are consistent
//!   ([`Stack::audit`](crate::Stack::audit)); long queues are checked after every few polls.
//! * Buffers are conserved; each received frame was delivered, or its drop counted.
//! * Acknowledgments have causes, and frames without progress come to an end.
//! * When all connections have closed, every resource is free.

use super::Simulation;
use crate::testutil::Scenario;
use alloc::format;
use alloc::string::String;

/// Queue nodes per skipped audit: a stack with n times as many nodes is audited every n + 1 polls, so that the cost per
/// poll does not grow with the windows.
const AUDIT_NODES: u32 = 64;

/// Frames sent since any application sent, received or changed state. Without a limit two ends could answer each
/// other's answers for ever; timers, reads and attacks raise the limit.
#[derive(Debug)]
pub(super) struct Progress {
    frames: u64,
    allowed: u64,
    /// Frames that may follow the last progress: every segment of every window, several times.
    base: u64,
}

impl Progress {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let buffers = u64::try_from(scenario.buffers).unwrap_or(u64::MAX);
        let base = buffers.saturating_mul(4).saturating_add(2000);
        Self { frames: 0, allowed: base, base }
    }

    /// Restarts the count after progress.
    pub(super) const fn reset(&mut self) {
        self.frames = 0;
        self.allowed = self.base;
    }

    /// Raises the limit by `frames`, for which there is a reason.
    pub(super) const fn allow(&mut self, frames: u64) {
        self.allowed = self.allowed.saturating_add(frames);
    }

    /// Counts a frame that was sent.
    pub(super) const fn count_frame(&mut self) {
        self.frames = self.frames.saturating_add(1);
    }

    fn check(&self) -> Result<(), String> {
        if self.frames > self.allowed {
            return Err(format!(
                "{} frames without progress, for which {} have a reason",
                self.frames, self.allowed
            ));
        }
        Ok(())
    }
}

impl Simulation {
    /// Checks the invariants after a poll of host `index`.
    pub(super) fn check(&mut self, index: usize) -> Result<(), String> {
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        let stats = host.stack.stats();
        let interface = &stats.interface;
        if interface.rx_frames != interface.rx_delivered.wrapping_add(stats.drops.total()) {
            return Err(format!("frames received are not delivered plus dropped: {stats:?}"));
        }
        if host.pool.total() != host.pool.capacity() {
            return Err(format!("a buffer was lost: {:?}", host.pool));
        }
        if host.pure_acks > host.ack_causes {
            let (acks, causes) = (host.pure_acks, host.ack_causes);
            return Err(format!("{acks} acknowledgments for {causes} causes"));
        }
        host.stack.audit_connections()?;
        if host.polls >= host.audit_at {
            host.stack.audit()?;
            let nodes = stats.send_buffers.saturating_add(stats.receive_buffers);
            host.audit_at = host.polls + 1 + u64::from(nodes / AUDIT_NODES);
        }
        self.progress.check()?;
        let config = self.scenario.hosts.get(index).ok_or("no such host")?;
        for (number, side, app) in host.apps.values() {
            let Some(info) = host.stack.info(app.conn()) else { continue };
            let wrong = if u64::from(info.unread_bytes) != app.unread() {
                "another count of unread bytes"
            } else if info.held_bytes > config.held_bytes_max || info.held_segments > config.held_segments_max
            {
                "more is held behind gaps than may be"
            } else if info.send_queue_bytes > config.send_buffer_bytes {
                "more is queued than may be"
            } else {
                continue;
            };
            return Err(format!("connection {number}, side {side}: {wrong}: {info:?}"));
        }
        Ok(())
    }

    /// Checks the final state, when no event is left.
    pub(super) fn check_end(&self) -> Result<(), String> {
        for (index, pair) in self.outcomes.iter().enumerate() {
            let [opener, listener] = pair;
            let listener_ended = listener.established.is_none() || listener.closed.is_some();
            if opener.closed.is_none() || !listener_ended {
                return Err(format!("connection {index} never ends: {pair:?}"));
            }
        }
        for (index, host) in self.hosts.iter().enumerate() {
            if !host.apps.is_empty() {
                return Err(format!("host {index} still has applications: {:?}", host.apps));
            }
            host.stack.audit()?;
            if host.pool.live() != 0 {
                return Err(format!("host {index} still holds buffers: {:?}", host.pool));
            }
            let stats = host.stack.stats();
            let nodes = u64::from(stats.send_buffers)
                + u64::from(stats.receive_buffers)
                + u64::from(stats.half_open_now);
            if stats.connections != 0 || stats.time_wait_now != 0 || nodes != 0 {
                return Err(format!("host {index} still has connections: {stats:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{BufClass, BufPool};
    use crate::testutil::{ConnPlan, Ending, LinkConfig, Plan};
    use crate::time::Duration;
    use crate::{ConnOptions, EvictionPolicy, Ipv4Cidr, MacAddr, StackConfig};
    use core::net::Ipv4Addr;

    /// Returns a simulation of one connection; if `for_ever`, both of its ends wait for the other one to close.
    fn simulation(for_ever: bool) -> Simulation {
        let host = |number: u8| StackConfig {
            mac: MacAddr([2, 0, 0, 0, 0, number]),
            ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, number), 24),
            connections_max: 4,
            buffers_max: 64,
            ..StackConfig::default()
        };
        let ending = if for_ever { Ending::AfterPeer } else { Ending::WhenSent };
        let plan = Plan { ending, ..Plan::bulk(1000) };
        let (at, simultaneous) = (Duration::ZERO, false);
        let conn = ConnPlan {
            at,
            from: 0,
            to: 1,
            ipv6: false,
            simultaneous,
            opener: plan,
            listener: plan,
            shares_listener_of: None,
            eviction: EvictionPolicy::Never,
        };
        let scenario = Scenario {
            hosts: alloc::vec![host(1), host(2)],
            link: LinkConfig::CLEAN,
            link_back: None,
            switched: false,
            conns: alloc::vec![conn],
            conn_options: ConnOptions::default(),
            listener_connections_max: u32::MAX,
            buffers: 128,
            further_buffers: 128,
            poll_interval: Duration::ZERO,
            abort_at: None,
            attack: None,
            liar: None,
            wraps: false,
            hostile: false,
            steps_max: 10_000,
        };
        Simulation::new(&scenario, 1).unwrap()
    }

    /// Each invariant, once broken, ends the run with an error that names it.
    #[test]
    fn violations_are_detected() {
        assert!(simulation(false).run().is_ok());
        let error = simulation(true).run().unwrap_err();
        assert!(error.contains("never ends"), "{error}");

        let mut leaks = simulation(false);
        core::mem::forget(leaks.hosts[0].pool.alloc(BufClass::Data).unwrap());
        let error = leaks.run().unwrap_err();
        assert!(error.contains("host 0 still holds buffers"), "{error}");

        let mut chatters = simulation(false);
        chatters.hosts[1].pure_acks = 1000;
        let error = chatters.run().unwrap_err();
        assert!(error.contains("acknowledgments for"), "{error}");

        let mut circles = simulation(false);
        assert!(circles.run().is_ok());
        (0..=circles.progress.allowed).for_each(|_| circles.progress.count_frame());
        let error = circles.check(0).unwrap_err();
        assert!(error.contains("frames without progress"), "{error}");
    }
}
