//! Place for a message of the peer to the region that was granted to its connection.

use crate::memory::{NOTIFICATION_BYTES_MAX, RegionId};

/// Inbox of a connection without a queue pair.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Region that was granted to the connection.
    pub(crate) region: RegionId,
    /// Bytes of the current Send.
    pub(crate) bytes: [u8; NOTIFICATION_BYTES_MAX],
    /// Bytes placed behind a gap, and not delivered yet.
    pub(crate) placed_ahead: u64,
    /// Bytes that notifications have reported.
    pub(crate) reported: u64,
}

impl Inbox {
    pub(crate) const fn new(region: RegionId) -> Self {
        Self { region, bytes: [0; NOTIFICATION_BYTES_MAX], placed_ahead: 0, reported: 0 }
    }
}
