//! Repeats a transfer on a new connection after the one before broke.

use std::time::Duration;

use indicatif::ProgressBar;
use iwarp_terminal::{Failure, clock, units};

use super::Context;
use super::report::Peer;
use crate::options::Resume;

/// The pause before the first repetition; it doubles while nothing more is complete.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// The longest pause before a repetition.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A transfer that can continue on another connection.
pub(super) trait Resumable {
    /// Connects and transfers everything that is not yet complete.
    fn attempt(&mut self, context: &Context<'_>) -> Result<Peer, Failure>;
    /// Returns a number that grows with every byte that becomes complete; `None` while no peer has granted the region.
    fn progress(&self) -> Option<u64>;
    /// Returns the progress bar, which gives way to a message.
    fn bar(&self) -> &ProgressBar;
}

/// Runs a transfer to its end. Returns the peer, and the number of connections that replaced a broken one.
///
/// # Errors
/// The first connection was never granted the region, the failure is final, or too many attempts in a row completed
/// nothing.
pub(super) fn run(
    transfer: &mut impl Resumable,
    options: &Resume,
    context: &Context<'_>,
) -> Result<(Peer, u32), Failure> {
    let (mut resumed, mut in_vain, mut before) = (0u32, 0, None);
    loop {
        let failure = match transfer.attempt(context) {
            Ok(peer) => return Ok((peer, resumed)),
            Err(failure) => failure,
        };
        let progress = transfer.progress();
        if !options.resume || progress.is_none() || !may_pass(&failure) {
            return Err(failure);
        }
        in_vain = if progress > before { 0 } else { in_vain + 1 };
        before = progress;
        if in_vain >= options.retries {
            let help = format!("{in_vain} attempts in a row completed nothing; --retries N tries longer");
            return Err(failure.with_help(help));
        }
        let pause = pause(in_vain);
        if context.output.is_text() {
            let note = format!("{}; connecting again in {}", failure.message, units::duration(pause));
            transfer.bar().suspend(|| eprintln!("{note}"));
        }
        clock::sleep(pause);
        resumed = resumed.saturating_add(1);
    }
}

/// Returns true for failures of the path or of a peer that is starting, and for a grant that the peer has not yet taken
/// back from the broken connection.
fn may_pass(failure: &Failure) -> bool {
    ["connection_lost", "timeout", "unreachable", "no_resources"].contains(&failure.kind)
}

/// Returns the pause after this many attempts in vain.
fn pause(in_vain: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << in_vain.min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let millis: Vec<u128> = (0..8).map(|in_vain| pause(in_vain).as_millis()).collect();
        assert_eq!(millis, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
