//! Waits for a daemon that is being started (`status --wait`).

use std::time::Duration;

use iwarp_control::{Client, ClientError, Exit, NoParams, StatusMethod};
use iwarp_terminal::Failure;
use iwarp_terminal::clock::{self, Clock};

use crate::args::Global;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until the daemon answers, for `limit` at most.
///
/// A daemon that starts has no socket, or one that it does not serve yet: it answers once its ports are open and its
/// regions registered.
pub(crate) fn until_it_serves(global: &Global, limit: Duration) -> Result<(), Failure> {
    let clock = Clock::start();
    loop {
        let left = limit.saturating_sub(clock.now()).max(Duration::from_millis(1));
        let asked = Client::connect_with(&global.socket, left)
            .and_then(|mut client| client.call::<StatusMethod>(&NoParams {}));
        let error = match asked {
            Ok(_) => return Ok(()),
            Err(error) if is_of_a_start(&error) => error,
            Err(error) => return Err(error.into()),
        };
        if clock.now() + PAUSE >= limit {
            let message = format!("iwarpd did not serve within {} s: {error}", limit.as_secs_f32());
            let failure = Failure::new(Exit::Unreachable, "timeout", message);
            return Err(failure.with_help("`journalctl -u iwarpd` shows how far its start has come"));
        }
        clock::sleep(PAUSE);
    }
}

/// Returns true for the errors that a daemon causes which starts, or starts again.
fn is_of_a_start(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. } | ClientError::Timeout { .. } | ClientError::Lost { .. })
}
