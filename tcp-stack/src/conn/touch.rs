//! What is read of a block to have it in the cache before it is needed.

use core::hint::black_box;

use super::Conn;

/// A function that reads some fields, and where they are.
macro_rules! touch {
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

touch! {
    /// Reads from every cache line of the block.
    touch, TOUCHED:
    hash, snd.max_wnd, snd.peak_flight, snd.wnd, rcv.unread, rcv.irs, rcv.dsack, last_sent_at, recovery.point,
    recovery.has_ended, pacer, path.mtu, window.cwnd, attempts
}

touch! {
    /// Reads from the cache lines of a block that is looked at since a timer may have expired.
    touch_timers, TOUCHED_FOR_TIMERS:
    snd.max_wnd, timers, rcv.unread, deadlines, attempts
}
