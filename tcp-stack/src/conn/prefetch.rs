//! What is read of a block to have it in the cache before it is needed.

use core::hint::black_box;

use super::Conn;

/// A function that reads some fields, and where they are.
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
    /// Reads from each cache line of the block that a request and its answer need.
    prefetch, PREFETCHED:
    ts_offset, window.cwnd, snd.nagle, snd.wnd, rcv.unread, rcv.irs, recovery.backoff, bytes_acked
}

prefetch! {
    /// Reads from the cache lines of a block that is looked at since a timer may have expired.
    prefetch_timers, PREFETCHED_FOR_TIMERS:
    timers, rcv.unread, recovery.backoff, settings
}
