//! Prefetch of a control block's cache lines, by reads whose results are not used.

use core::hint::black_box;

use super::Conn;

/// Defines a function that reads some fields, and a constant with their offsets for the layout tests.
macro_rules! prefetch {
    ($(#[$doc:meta])* $name:ident, $places:ident: $($($field:ident).+),+) => {
        impl Conn {
            $(#[$doc])*
            #[inline]
            pub(crate) fn $name(&self) {
                $(black_box(self.$($field).+);)+
            }

            #[cfg(test)]
            pub(super) const $places: &[usize] = &[$(core::mem::offset_of!(Conn, $($field).+)),+];
        }
    };
}

prefetch! {
    /// Reads from each of the eight cache lines that a request and its response use.
    prefetch, PREFETCHED:
    ts_offset, window.cwnd, snd.nagle, snd.wnd, rcv.unread, rcv.irs, recovery.backoff, bytes_acked
}

prefetch! {
    /// Reads from the cache lines that timer expirations use.
    prefetch_timers, PREFETCHED_FOR_TIMERS:
    timers, rcv.unread, recovery.backoff, settings
}
