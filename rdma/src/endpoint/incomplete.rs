//! Incomplete FPDUs: the chunks held for one, and its time limit.

use core::time::Duration;

use super::Endpoint;
use crate::qp::CloseHow;
use crate::stats::{RdmaStats, count};
use crate::terminate::ErrorCode;

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Returns the number of received chunks held for an incomplete FPDU, each a packet buffer.
    #[inline]
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.deframer.as_ref().map_or(0, |deframer| deframer.chunks())
    }

    /// Copies the bytes of the chunks held, and drops the chunks.
    #[cold]
    pub fn compact(&mut self, stats: &mut RdmaStats) {
        if let Some(deframer) = &mut self.deframer {
            deframer.compact(&mut stats.mpa);
        }
    }

    /// Records when the FPDU at the front became incomplete. The timer is not moved when that changes but checked
    /// again when it expires, so a split FPDU costs no timer operation.
    #[inline]
    pub(super) fn watch_fpdu(&mut self, now: Duration) {
        let whole = self.qp.is_stalled();
        match self.deframer.as_ref().and_then(|deframer| deframer.incomplete_from()) {
            _ if whole => self.incomplete = None,
            None => self.incomplete = None,
            Some(from) if self.incomplete.is_some_and(|(before, _)| before == from) => {}
            Some(from) => {
                self.incomplete = Some((from, now));
                let limit = self.config.fpdu_timeout.map(|limit| now.saturating_add(limit));
                self.fpdu_check_at = self.fpdu_check_at.or(limit);
            }
        }
    }

    /// Ends the stream if its FPDU has been incomplete for too long.
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
        self.qp.fail_without_terminate(ErrorCode::TCP_LOST);
        self.end(CloseHow::Reset);
    }
}
