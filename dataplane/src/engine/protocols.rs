//! What drives the protocols of a port.

use tcp_stack::{BufPool, Instant, RxFrame, TxFrame};

/// The protocols of one port on one worker: frames in, frames out, at given times.
pub trait PortProtocols {
    /// Where its buffers come from.
    type Pool: BufPool;

    /// One round: takes a burst of frames, lets those above TCP act on what they brought, emits at most `max`
    /// frames. Returns how many it emitted. Timers are looked at if `due`: when [`Self::next_deadline`] has come, and now and
    /// then where it was not asked since the last step.
    fn poll(
        &mut self,
        now: Instant,
        due: bool,
        frames: &mut impl Iterator<Item = RxFrame<<Self::Pool as BufPool>::Buf>>,
        pool: &mut Self::Pool,
        out: &mut impl FnMut(TxFrame<<Self::Pool as BufPool>::Buf>),
        max: usize,
    ) -> usize;

    /// Does what can wait until the frames of a step have left. Comes after every step, before anything else.
    fn run_deferred(&mut self) {}

    /// When the next step is due at the latest though no frame arrives. A step changes that, and nothing else does.
    fn next_deadline(&self) -> Option<Instant>;

    /// Whether a further step would do something at once: there is something to send, or the program has asked for
    /// something since the last one.
    fn has_output(&self) -> bool;

    /// Resets every connection: the program is going down.
    fn abort_all(&mut self, now: Instant);
}
