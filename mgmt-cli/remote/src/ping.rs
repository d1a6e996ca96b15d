//! Measures round trips: one RDMA Read at a time.

use hdrhistogram::Histogram;
use iwarp_control::Exit;
use iwarp_terminal::{Failure, clock::Clock};
use rdma::Access;

use super::report::Pings;
use super::session::RegionSession;
use super::{Context, nanoseconds, progress};
use crate::options::Ping;

/// The largest value of the histogram, in nanoseconds; longer round trips count as this one.
const LONGEST: u64 = 100_000_000_000;
/// Round trips between two updates of the progress bar.
const ROUNDS: u64 = 64;

pub(super) fn run(ping: &Ping, context: &mut Context<'_>) -> Result<Pings, Failure> {
    let output = context.output;
    let Ping { target, count, size, connect: options } = ping;
    let mut session = RegionSession::open(target, options, Access::REMOTE_READ, (*size).max(1), context)?;
    let range = session.range(target.offset, (*size).into())?;
    let mut times = Histogram::<u64>::new_with_bounds(1, LONGEST, 3)
        .map_err(|error| Failure::new(Exit::Failed, "internal", error.to_string()))?;
    let bar = progress::of_rounds(output, "ping", *count);
    let clock = Clock::start();
    for round in 0..*count {
        let before = clock.now();
        session.post_read(round, 0, *size, range.tagged_offset(0))?;
        session.wait_completion()?;
        times.saturating_record(nanoseconds(clock.now().saturating_sub(before)));
        if round % ROUNDS == 0 {
            bar.set_position(round);
        }
    }
    bar.finish_and_clear();
    let peer = session.peer(target);
    session.close();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a mean lies between its values"
    )]
    let mean_ns = times.mean() as u64;
    Ok(Pings {
        operation: "ping",
        peer,
        offset: target.offset,
        bytes: *size,
        count: *count,
        min_ns: times.min(),
        median_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        max_ns: times.max(),
        mean_ns,
    })
}
