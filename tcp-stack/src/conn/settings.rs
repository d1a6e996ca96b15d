//! The options of a connection that is open, in 16 octets.

use core::time::Duration;

use crate::config::{ConnOptions, Keepalive};

/// What of [`ConnOptions`] an open connection needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
    user_timeout_ms: u32,
    keepalive_probes: u8,
    has_keepalive: bool,
    has_user_timeout: bool,
    pub(crate) nagle: bool,
}

impl Settings {
    pub(super) fn of(options: &ConnOptions) -> Self {
        let keepalive = options.keepalive.unwrap_or_default();
        Self {
            keepalive_idle_ms: keepalive.idle_ms,
            keepalive_interval_ms: keepalive.interval_ms,
            user_timeout_ms: options.user_timeout_ms.unwrap_or(0),
            keepalive_probes: keepalive.probes,
            has_keepalive: options.keepalive.is_some(),
            has_user_timeout: options.user_timeout_ms.is_some(),
            nagle: options.nagle,
        }
    }

    pub(crate) fn keepalive(&self) -> Option<Keepalive> {
        self.has_keepalive.then_some(Keepalive {
            idle_ms: self.keepalive_idle_ms,
            interval_ms: self.keepalive_interval_ms,
            probes: self.keepalive_probes,
        })
    }

    pub(crate) fn user_timeout(&self) -> Option<Duration> {
        self.has_user_timeout.then(|| Duration::from_millis(self.user_timeout_ms.into()))
    }
}
