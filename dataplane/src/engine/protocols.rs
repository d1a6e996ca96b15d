//! The interface between a worker and the protocols of a port. [`Engine`](super::Engine) and
//! [`Verbs`](crate::verbs::Verbs) implement it; [`WorkerPort`](crate::worker::WorkerPort) calls it.

use tcp_stack::{BufPool, Instant, RxFrame, TxFrame};

/// Protocols of one port on one worker: frames in, frames out, at given times.
pub trait PortProtocols {
    /// Pool that packet buffers are allocated from.
    type Pool: BufPool;

    /// Processes a burst of received frames, runs the applications above TCP, and emits at most `max` frames through
    /// `out`. Returns the number of frames emitted. Also runs expired timers if `due` is set.
    fn poll(
        &mut self,
        now: Instant,
        due: bool,
        frames: &mut impl Iterator<Item = RxFrame<<Self::Pool as BufPool>::Buf>>,
        pool: &mut Self::Pool,
        out: &mut impl FnMut(TxFrame<<Self::Pool as BufPool>::Buf>),
        max: usize,
    ) -> usize;

    /// Runs work that can wait until the emitted frames have been sent. Called after every poll, before anything else.
    fn run_deferred(&mut self) {}

    /// Returns the time at which the next poll is due even if no frame arrives. Only a poll changes it.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns true if another poll would have immediate work: output to send, or a request that the program posted
    /// since the last poll.
    fn has_output(&self) -> bool;

    /// Resets every connection, because the program ends.
    fn abort_all(&mut self, now: Instant);
}
