//! The options of an open connection, in 16 bytes.

use core::time::Duration;

use crate::config::{ConnOptions, Keepalive};

/// The part of [`ConnOptions`] that is needed after the handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
    /// User timeout; [`NO_TIMEOUT`] for none.
    user_timeout_ms: u32,
    keepalive_probes: u8,
    has_keepalive: bool,
    /// Out-of-order segments are offered to the application: [`ConnOptions::out_of_order`].
    pub(crate) out_of_order: bool,
}

/// The largest value, seven weeks, stands for no timeout.
const NO_TIMEOUT: u32 = u32::MAX;

impl Settings {
    pub(super) fn of(options: &ConnOptions) -> Self {
        let keepalive = options.keepalive.unwrap_or_default();
        Self {
            keepalive_idle_ms: keepalive.idle_ms,
            keepalive_interval_ms: keepalive.interval_ms,
            user_timeout_ms: options.user_timeout_ms.unwrap_or(NO_TIMEOUT),
            keepalive_probes: keepalive.probes,
            has_keepalive: options.keepalive.is_some(),
            out_of_order: options.out_of_order,
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
        (self.user_timeout_ms != NO_TIMEOUT).then(|| Duration::from_millis(self.user_timeout_ms.into()))
    }
}
