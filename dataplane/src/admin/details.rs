//! `port show`: one port in detail.

use std::collections::VecDeque;

use iwarp_control::{ErrorKind, ErrorObject, Interrupts, Link, LinkChange, PortDetails};
use tcp_stack::Instant;

use super::report::{self, PortEntry};
use crate::dpdk::Offloads;

/// Changes of a link that are remembered.
const HISTORY_MAX: usize = 32;

/// The latest changes of a port's link, the latest last.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkHistory(VecDeque<(Instant, Link)>);

impl LinkHistory {
    /// Notes how the link is; one that is as before is no change.
    pub(super) fn note(&mut self, now: Instant, link: Link) {
        if self.0.back().is_some_and(|(_, before)| *before == link) {
            return;
        }
        if self.0.len() == HISTORY_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, link));
    }

    fn told(&self, now: Instant) -> Vec<LinkChange> {
        let age = |since: Instant| u64::try_from(now.saturating_since(since).as_millis()).unwrap_or(u64::MAX);
        self.0.iter().map(|(since, link)| LinkChange { age_ms: age(*since), link: *link }).collect()
    }
}

/// # Errors
/// There is no such port, or it does not answer.
pub(super) fn port_show(ports: &[PortEntry], name: &str, now: Instant) -> Result<PortDetails, ErrorObject> {
    let Some(entry) = ports.iter().find(|entry| entry.port.name() == name) else {
        return Err(ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no port `{name}`"))
            .with_help("`iwarpctl port list` shows those there are"));
    };
    let port = &entry.port;
    let names = |offloads: Offloads| {
        offloads.named().iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned()).collect()
    };
    Ok(PortDetails {
        port: report::port(entry)?,
        device_name: port.device_name().to_owned(),
        firmware: port.firmware(),
        bus_address: port.bus_address().map(str::to_owned),
        kernel_driver: port.kernel_driver(),
        numa_node: port.numa_node(),
        offloads_requested: names(entry.spec.offloads()),
        offloads_granted: names(port.offloads()),
        queues_max: port.info().queues_max,
        rss_functions: port.rss_functions().into_iter().map(str::to_owned).collect(),
        interrupts: if port.has_interrupts() { Interrupts::PerQueue } else { Interrupts::None },
        link_history: entry.watched.history().told(now),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn changes_are_told_with_their_age_and_the_oldest_forgotten() {
        let mut history = LinkHistory::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        for (second, link) in [(1, Link::Down), (2, Link::Down), (3, Link::Up), (9, Link::Gone)] {
            history.note(at(second), link);
        }
        let told = history.told(at(10));
        let ages = told.iter().map(|change| (change.age_ms, change.link)).collect::<Vec<_>>();
        assert_eq!(ages, [(9000, Link::Down), (7000, Link::Up), (1000, Link::Gone)]);
        for second in 10..100 {
            history.note(at(second), if second % 2 == 0 { Link::Up } else { Link::Down });
        }
        let told = history.told(at(100));
        assert_eq!(told.len(), HISTORY_MAX);
        assert_eq!(told.last(), Some(&LinkChange { age_ms: 1000, link: Link::Down }));
    }
}
