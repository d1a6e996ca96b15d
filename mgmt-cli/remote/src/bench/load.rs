//! The load of one connection: messages in flight up to the depth, or round trips one at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use hdrhistogram::Histogram;
use iwarp_terminal::{Failure, Output, clock::Clock};
use iwarp_verbs::Access;

use super::options::SIZE_MAX;
use super::{Bench, Operation};
use crate::report::Peer;
use crate::session::{RegionRange, RegionSession};
use crate::{Context, ping, put};

/// Time over which BW peak is an average.
pub(super) const SLICE: Duration = Duration::from_millis(100);
/// Outstanding messages without `--depth`.
const DEPTH: u16 = 16;

/// The part of a measurement that all connections have in common.
pub(super) struct Load<'a> {
    pub(super) bench: &'a Bench,
    pub(super) timeout: Duration,
    pub(super) output: &'a Output,
    pub(super) clock: Clock,
    /// True after another connection has failed.
    pub(super) stop: AtomicBool,
}

/// A message of a connection's thread.
pub(super) enum Reply {
    /// The peer granted the region.
    Granted {
        peer: Peer,
        /// Bytes of the region from the offset to the end.
        room: u64,
        /// Messages that are outstanding at a time.
        depth: u32,
    },
    /// A size was measured.
    Measured(Sample),
}

/// The result of one connection for one size.
pub(super) struct Sample {
    pub(super) operations: u64,
    pub(super) started: Duration,
    pub(super) ended: Duration,
    /// Operations that were completed in each [`SLICE`].
    pub(super) slices: Vec<u64>,
    /// Round-trip times in nanoseconds, if they were measured.
    pub(super) times: Option<Histogram<u64>>,
}

impl Load<'_> {
    /// Opens a connection and measures sizes until there are no more.
    pub(super) fn serve(&self, sizes: &Receiver<u32>, answer: &Sender<Result<Reply, Failure>>) {
        if let Err(failure) = self.try_serve(sizes, answer) {
            self.stop.store(true, Ordering::Relaxed);
            // Nobody waits for it if another connection failed first.
            let _ = answer.send(Err(failure));
        }
    }

    fn try_serve(
        &self,
        sizes: &Receiver<u32>,
        answer: &Sender<Result<Reply, Failure>>,
    ) -> Result<(), Failure> {
        let Bench { operation, target, connect, .. } = self.bench;
        let access = match operation {
            Operation::Write => Access::REMOTE_WRITE,
            Operation::Read | Operation::Latency => Access::REMOTE_READ,
        };
        let largest = self.bench.sizes(SIZE_MAX.into()).into_iter().max().unwrap_or(0);
        let context = Context { timeout: self.timeout, output: self.output };
        let mut session = RegionSession::open(target, connect, access, largest, &context)?;
        if !self.bench.all {
            session.range(target.offset, largest.into())?;
        }
        let range = session.range_to_end(target.offset)?;
        let depth = self.depth(&session);
        let _ = answer.send(Ok(Reply::Granted { peer: session.peer(target), room: range.length, depth }));
        for size in sizes {
            let started = self.clock.now();
            let (operations, slices, times) = match operation {
                Operation::Latency => self.round_trips(&mut session, &range, size)?,
                Operation::Write | Operation::Read => self.stream(&mut session, &range, size, depth)?,
            };
            let ended = self.clock.now();
            let _ = answer.send(Ok(Reply::Measured(Sample { operations, started, ended, slices, times })));
        }
        Ok(())
    }

    /// Returns the number of messages that are outstanding at a time.
    fn depth(&self, session: &RegionSession) -> u32 {
        let wanted = self.bench.depth.unwrap_or(DEPTH).into();
        match self.bench.operation {
            Operation::Write => wanted,
            Operation::Read => session.reads_max().min(wanted).max(1),
            Operation::Latency => 1,
        }
    }

    /// Returns true while a measurement that has posted this many messages in this time goes on.
    fn goes_on(&self, posted: u64, elapsed: Duration) -> bool {
        let within = match self.bench.duration {
            Some(duration) => elapsed < duration,
            None => posted < self.bench.iterations,
        };
        within && !self.stop.load(Ordering::Relaxed)
    }

    fn round_trips(
        &self,
        session: &mut RegionSession,
        range: &RegionRange,
        size: u32,
    ) -> Result<Measured, Failure> {
        let times =
            ping::round_trips(session, range, size, &mut |posted, elapsed| self.goes_on(posted, elapsed))?;
        Ok((times.len(), Vec::new(), Some(times)))
    }

    /// Keeps `depth` messages outstanding. All of them use the same bytes at both ends.
    fn stream(
        &self,
        session: &mut RegionSession,
        range: &RegionRange,
        size: u32,
        depth: u32,
    ) -> Result<Measured, Failure> {
        let started = self.clock.now();
        let (mut posted, mut done, mut elapsed) = (0u64, 0u64, Duration::ZERO);
        let mut slices = Vec::new();
        loop {
            while posted.saturating_sub(done) < depth.into() && self.goes_on(posted, elapsed) {
                match self.bench.operation {
                    Operation::Write => session.post_write(posted, 0, size, range.offset(0))?,
                    Operation::Read | Operation::Latency => {
                        session.post_read(posted, 0, size, range.offset(0))?;
                    }
                }
                posted = posted.saturating_add(1);
            }
            if done == posted {
                break;
            }
            session.wait_completion()?;
            done = done.saturating_add(1);
            elapsed = self.clock.now().saturating_sub(started);
            count(&mut slices, elapsed);
        }
        if self.bench.operation == Operation::Write {
            put::prove(session, range)?;
            session.wait_completion()?;
        }
        Ok((done, slices, None))
    }
}

/// Operations, those of each slice, and round-trip times.
type Measured = (u64, Vec<u64>, Option<Histogram<u64>>);

/// Counts an operation in the slice of its completion.
fn count(slices: &mut Vec<u64>, elapsed: Duration) {
    let slice = usize::try_from(elapsed.as_millis() / SLICE.as_millis()).unwrap_or(usize::MAX);
    // A stopped process leaves slices out; a measurement ends after a day.
    while slices.len() <= slice {
        slices.push(0);
    }
    if let Some(operations) = slices.get_mut(slice) {
        *operations = operations.saturating_add(1);
    }
}
