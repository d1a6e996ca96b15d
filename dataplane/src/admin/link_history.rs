//! The history of a port's link, for `port show`.

use std::collections::VecDeque;

use iwarp_control::{Link, LinkChange};
use tcp_stack::Instant;

/// The number of changes kept.
const HISTORY_MAX: usize = 32;

/// The latest changes of a port's link, the latest last.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkHistory(VecDeque<(Instant, Link)>);

impl LinkHistory {
    /// Records the state of the link, unless it has not changed.
    pub(super) fn record(&mut self, now: Instant, link: Link) {
        if self.0.back().is_some_and(|(_, before)| *before == link) {
            return;
        }
        if self.0.len() == HISTORY_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, link));
    }

    /// Returns the changes with their age, the latest last.
    pub(super) fn changes(&self, now: Instant) -> Vec<LinkChange> {
        let age = |since: Instant| u64::try_from(now.saturating_since(since).as_millis()).unwrap_or(u64::MAX);
        self.0.iter().map(|(since, link)| LinkChange { age_ms: age(*since), link: *link }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn changes_have_an_age_and_the_oldest_are_dropped() {
        let mut history = LinkHistory::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        for (second, link) in [(1, Link::Down), (2, Link::Down), (3, Link::Up), (9, Link::Gone)] {
            history.record(at(second), link);
        }
        let changes = history.changes(at(10));
        let ages = changes.iter().map(|change| (change.age_ms, change.link)).collect::<Vec<_>>();
        assert_eq!(ages, [(9000, Link::Down), (7000, Link::Up), (1000, Link::Gone)]);
        for second in 10..100 {
            history.record(at(second), if second % 2 == 0 { Link::Up } else { Link::Down });
        }
        let changes = history.changes(at(100));
        assert_eq!(changes.len(), HISTORY_MAX);
        assert_eq!(changes.last(), Some(&LinkChange { age_ms: 1000, link: Link::Down }));
    }
}
