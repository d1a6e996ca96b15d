//! Deferred copies: an endpoint whose stream waits receives nothing, and goes on when the copies are done.

use core::time::Duration;

use super::{Endpoint, Env, stream_error};
use crate::memory::Memory;
use crate::qp::StreamState;
use crate::stats::count;
use crate::terminate::Fault;

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Returns true if the endpoint waits for deferred copies ([`Reach`](crate::Reach)): the owner calls
    /// [`Self::resume`] until it does not.
    #[inline]
    pub fn is_deferred(&self) -> bool {
        self.qp.is_deferred()
    }

    /// Returns true if the stream can take no more bytes until [`Self::resume`] has returned true: the owner keeps
    /// those behind the chunk that it has passed last.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.qp.is_stalled()
    }

    /// Returns the mark of a connection that its device lists among those that wait.
    pub(crate) fn is_listed(&mut self) -> &mut bool {
        &mut self.qp.waits().is_listed
    }

    /// Checks the copies that the stream waits for. Returns true if some are done or one has failed: the stream goes on
    /// with [`Self::resumed`].
    pub(crate) fn resume_waits<M: Memory>(&mut self, env: &mut Env<'_, M>) -> bool {
        self.qp.resume(env)
    }

    /// Delivers the FPDUs that have waited.
    pub(crate) fn resumed<M: Memory>(&mut self, now: Duration, env: &mut Env<'_, M>) {
        self.deliver(env);
        self.watch_fpdu(now);
        self.apply_state(now);
    }

    /// Goes on if copies that the stream waits for are done. Returns true if some are, or if one has failed.
    pub fn resume<M: Memory>(&mut self, now: Duration, env: &mut Env<'_, M>) -> bool {
        let goes_on = self.resume_waits(env);
        if goes_on {
            self.resumed(now, env);
        }
        goes_on
    }

    /// Takes the bytes at stream position `offset`, which follow those passed before, and copies those of an incomplete
    /// FPDU: for bytes whose packet buffers the owner has not kept. Returns the number of bytes taken; the stream is
    /// stalled if that is not all.
    pub fn receive_copied<M: Memory>(
        &mut self,
        now: Duration,
        offset: u64,
        bytes: &[u8],
        env: &mut Env<'_, M>,
    ) -> usize {
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() && !self.qp.is_stalled() {
            let Self { deframer: Some(deframer), qp, .. } = self else {
                count(&mut env.stats.drops.after_error, 1);
                return bytes.len();
            };
            if qp.state != StreamState::ReadyToSend {
                return bytes.len();
            }
            match deframer.push_copy(at, rest, &mut env.stats.mpa) {
                Ok(taken) => {
                    rest = rest.get(taken..).unwrap_or_default();
                    at = at.saturating_add(taken as u64);
                }
                Err(error) => {
                    qp.fail(&Fault::bare(stream_error(error)), env.stats);
                    rest = &[];
                }
            }
            self.deliver(env);
        }
        self.watch_fpdu(now);
        self.apply_state(now);
        bytes.len().saturating_sub(rest.len())
    }
}
