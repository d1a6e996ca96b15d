//! Measures round trips: one RDMA Read at a time.

use std::time::Duration;

use hdrhistogram::Histogram;
use iwarp_control::Exit;
use iwarp_terminal::{Failure, clock::Clock};
use iwarp_verbs::Access;

use super::report::Pings;
use super::session::{RegionRange, RegionSession};
use super::{Context, nanoseconds, progress, whole};
use crate::options::Ping;

/// The largest value of the histogram, in nanoseconds; longer round trips count as this one.
const LONGEST: u64 = 100_000_000_000;
/// Round trips between two updates of the progress bar.
const ROUNDS: u64 = 64;
/// The quantile of the median.
pub(super) const MEDIAN: f64 = 0.5;

pub(super) fn run(ping: &Ping, context: &Context<'_>) -> Result<Pings, Failure> {
    let output = context.output;
    let Ping { target, count, size, connect: options } = ping;
    let mut session = RegionSession::open(target, options, Access::REMOTE_READ, (*size).max(1), context)?;
    let range = session.range(target.offset, (*size).into())?;
    let bar = progress::of_rounds(output, "ping", *count);
    let times = round_trips(&mut session, &range, *size, &mut |round, _| {
        if round % ROUNDS == 0 {
            bar.set_position(round);
        }
        round < *count
    })?;
    bar.finish_and_clear();
    let peer = session.peer(target);
    Ok(Pings {
        operation: "ping",
        peer,
        offset: target.offset,
        bytes: *size,
        count: *count,
        min_ns: times.min(),
        median_ns: times.value_at_quantile(MEDIAN),
        p99_ns: times.value_at_quantile(0.99),
        max_ns: times.max(),
        mean_ns: whole(times.mean()),
    })
}

/// Reads `size` bytes again and again while `goes_on` returns true for the round trips and the time so far. Returns the
/// round-trip times in nanoseconds.
pub(super) fn round_trips(
    session: &mut RegionSession,
    range: &RegionRange,
    size: u32,
    goes_on: &mut dyn FnMut(u64, Duration) -> bool,
) -> Result<Histogram<u64>, Failure> {
    let mut times = Histogram::<u64>::new_with_bounds(1, LONGEST, 3)
        .map_err(|error| Failure::new(Exit::Failed, "internal", error.to_string()))?;
    let clock = Clock::start();
    let (mut round, mut now) = (0u64, Duration::ZERO);
    while goes_on(round, now) {
        let before = clock.now();
        session.post_read(round, 0, size, range.offset(0))?;
        session.wait_completion()?;
        now = clock.now();
        times.saturating_record(nanoseconds(now.saturating_sub(before)));
        round = round.saturating_add(1);
    }
    Ok(times)
}
