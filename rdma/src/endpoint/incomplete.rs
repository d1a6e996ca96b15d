//! An FPDU of which not all has come: what is kept of it meanwhile, and for how long.

use core::time::Duration;

use super::Endpoint;
use crate::qp::CloseHow;
use crate::stats::{RdmaStats, count};
use crate::terminate::ErrorCode;

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Received chunks that are held, since an FPDU is not complete: as many packet buffers.
    #[inline]
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.deframer.as_ref().map_or(0, |deframer| deframer.chunks())
    }

    /// Lets go of the chunks that are held: what is wanted of them is copied aside.
    #[cold]
    pub fn compact(&mut self, stats: &mut RdmaStats) {
        if let Some(deframer) = &mut self.deframer {
            deframer.compact(&mut stats.mpa);
        }
    }

    /// Notes since when the FPDU at the front is not complete. The time limit stays as it is when that changes, and is looked
    /// at again when it has passed: an FPDU that is split costs no timer.
    #[inline]
    pub(super) fn watch_fpdu(&mut self, now: Duration) {
        match self.deframer.as_ref().and_then(|deframer| deframer.incomplete_from()) {
            None => self.incomplete = None,
            Some(from) if self.incomplete.is_some_and(|(before, _)| before == from) => {}
            Some(from) => {
                self.incomplete = Some((from, now));
                let limit = self.config.fpdu_timeout.map(|limit| now.saturating_add(limit));
                self.fpdu_check_at = self.fpdu_check_at.or(limit);
            }
        }
    }

    /// Ends the stream if its FPDU is not complete for too long: the peer has had time to send it many times.
    #[cold]
    pub(super) fn check_fpdu(&mut self, now: Duration, stats: &mut RdmaStats) {
        self.fpdu_check_at = None;
        let (Some((_, since)), Some(limit)) = (self.incomplete, self.config.fpdu_timeout) else { return };
        let until = since.saturating_add(limit);
        if now < until {
            self.fpdu_check_at = Some(until);
            return;
        }
        count(&mut stats.drops.fpdu_timeout, 1);
        self.qp.fail_untold(ErrorCode::TCP_LOST);
        self.end(CloseHow::Reset);
    }
}
