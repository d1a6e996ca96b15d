//! Programs that watch the regions of one worker and port: they receive the messages of peers to these regions.

use std::collections::BTreeMap;
use std::sync::Arc;

use iwarp_shared_verbs::worker::{NotificationRing, NotificationStats};
use rdma::{Notification, RegionId};

use super::shared_words::SharedWords;
use crate::wake::Waker;

/// One watch on this worker and port.
#[derive(Debug)]
pub struct Watch {
    /// Number of the watch, which no other has.
    pub number: u64,
    /// Ring of notifications for the program.
    pub ring: NotificationRing<SharedWords>,
    /// Wakes the program, which waits for all rings of the watch.
    pub waker: Arc<Waker>,
}

/// Watches of each region that a program watches.
#[derive(Debug, Default)]
pub(super) struct Watches(BTreeMap<RegionId, Vec<Watch>>);

impl Watches {
    pub(super) fn add(&mut self, region: RegionId, watch: Watch) {
        self.0.entry(region).or_default().push(watch);
    }

    pub(super) fn remove(&mut self, region: RegionId, number: u64) {
        if let Some(watches) = self.0.get_mut(&region) {
            watches.retain(|watch| watch.number != number);
            if watches.is_empty() {
                self.0.remove(&region);
            }
        }
    }

    /// Ends the watches of a region that is gone, and tells their programs.
    pub(super) fn close(&mut self, region: RegionId) {
        for mut watch in self.0.remove(&region).into_iter().flatten() {
            if watch.ring.close() {
                watch.waker.wake();
            }
        }
    }

    pub(super) fn has(&self, region: RegionId) -> bool {
        self.0.contains_key(&region)
    }

    /// Passes a notification to each watch of the region. The configuration bounds their number.
    pub(super) fn notify(&mut self, region: RegionId, notification: &Notification<'_>) {
        for watch in self.0.get_mut(&region).into_iter().flatten() {
            if watch.ring.push(notification) {
                watch.waker.wake();
            }
        }
    }

    pub(super) fn stats(&self, region: RegionId, number: u64) -> Option<NotificationStats> {
        Some(self.0.get(&region)?.iter().find(|watch| watch.number == number)?.ring.stats())
    }
}
