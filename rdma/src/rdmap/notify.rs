//! Messages of a peer to a region, on a connection without a queue pair: no receive queue has a buffer for them, so the
//! programs that watch the region receive them. Without such a program, the stream ends as it does without a buffer.

use crate::Env;
use crate::memory::{Memory, Message, NOTIFICATION_BYTES_MAX, Notification};
use crate::mpa::{Fpdu, PlacedRun};
use crate::qp::QueuePair;
use crate::stats::count;
use crate::terminate::StreamError;
use crate::wire::Stag;
use crate::wire::ddp::{TaggedHeader, UntaggedHeader};
use crate::wire::rdmap::OpcodeRow;

impl QueuePair {
    /// Returns true if a program receives messages that have no buffer.
    pub(super) fn is_watched<M: Memory>(&self, env: &Env<'_, M>) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| env.memory.is_watched(inbox.region))
    }

    /// Passes Immediate Data to those who watch the region.
    #[cold]
    pub(super) fn notify_immediate<M: Memory>(
        &mut self,
        data: [u8; 8],
        solicited: bool,
        env: &mut Env<'_, M>,
    ) {
        let written = self.written();
        let Some(inbox) = &self.inbox else { return };
        let message = Message::Immediate(data);
        env.memory.notify(inbox.region, &Notification { message, solicited, written });
    }

    /// Receives a segment of a Send for those who watch the region.
    #[cold]
    pub(super) fn notify_send<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        row: &OpcodeRow,
        len: usize,
        fpdu: &Fpdu<'_, C>,
        env: &mut Env<'_, M>,
    ) -> Result<(), StreamError> {
        if !self.is_watched(env) {
            return Err(StreamError::NoBuffer);
        }
        let start = self.in_sends.offset.0;
        self.in_sends.check_offset(header, len, NOTIFICATION_BYTES_MAX as u64)?;
        if let Some(inbox) = &mut self.inbox {
            let bytes = fpdu.pieces(UntaggedHeader::LEN).flatten();
            inbox.bytes.iter_mut().skip(start as usize).zip(bytes).for_each(|(to, from)| *to = *from);
        }
        self.in_sends.advance(len, header.last);
        if !header.last {
            return Ok(());
        }
        if row.invalidates {
            env.stags.invalidate(Stag(header.ulp_word), self.origin).map_err(StreamError::Invalidate)?;
            count(&mut env.stats.rdmap.stags_invalidated, 1);
        }
        let (written, solicited) = (self.written(), row.solicited);
        if let Some(inbox) = &self.inbox {
            let end = (start as usize).saturating_add(len);
            let message = Message::Send(inbox.bytes.get(..end).unwrap_or_default());
            env.memory.notify(inbox.region, &Notification { message, solicited, written });
        }
        count(&mut self.counters.in_sends, 1);
        count(&mut env.stats.rdmap.in_sends, 1);
        Ok(())
    }

    /// Returns the bytes that were delivered since the last notification, and begins to count anew.
    fn written(&mut self) -> u64 {
        let placed = self.counters.bytes_placed;
        let Some(inbox) = &mut self.inbox else { return 0 };
        let delivered = placed.saturating_sub(inbox.placed_ahead);
        delivered.saturating_sub(core::mem::replace(&mut inbox.reported, delivered))
    }

    /// Counts bytes that were placed behind a gap.
    pub(super) fn count_placed_ahead(&mut self, len: usize) {
        if let Some(inbox) = &mut self.inbox {
            inbox.placed_ahead = inbox.placed_ahead.saturating_add(len as u64);
        }
    }

    /// Counts the bytes of a run that was placed behind a gap, which the stream has reached.
    pub(super) fn count_delivered(&mut self, run: &PlacedRun) {
        if let Some(inbox) = &mut self.inbox {
            let headers = u64::from(run.fpdus).saturating_mul(TaggedHeader::LEN as u64);
            let payload = run.ulpdu_bytes.saturating_sub(headers);
            inbox.placed_ahead = inbox.placed_ahead.saturating_sub(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Origin, RegionId, StreamId};
    use crate::qp::{Depths, Inbox};

    /// Bytes behind a gap count once the stream has reached them, and not in a notification in front of them.
    #[test]
    fn bytes_placed_ahead_count_when_they_are_delivered() {
        let mut qp = QueuePair::new(Origin::new(StreamId(1), None), Depths::default());
        assert_eq!(qp.written(), 0);
        qp.inbox = Some(Box::new(Inbox::new(RegionId(3))));
        qp.counters.bytes_placed = 1000;
        qp.count_placed_ahead(300);
        assert_eq!((qp.written(), qp.written()), (700, 0));
        qp.counters.bytes_placed += 50;
        let headers = 2 * TaggedHeader::LEN as u64;
        qp.count_delivered(&PlacedRun { fpdus: 2, ulpdu_bytes: 300 + headers, ..PlacedRun::default() });
        assert_eq!((qp.written(), qp.written()), (350, 0));
    }
}
