//! Measures bandwidth and latency of a peer's region over parallel connections.
//!
//! ```text
//!  run ── sizes, one after the other ──► one thread for each connection: load::serve ──► RegionSession
//!   └──◄── one sample of each connection: operations, times ──◄──┘
//!  table: a row for each size
//! ```

mod load;
mod options;
mod table;

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};
use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::{Failure, Output, clock::Clock};

pub use self::options::{Bench, Operation};

use self::load::{Load, Reply, Sample};
use self::table::{Report, Row};

/// A thread with one connection.
struct Connection {
    sizes: Sender<u32>,
    replies: Receiver<Result<Reply, Failure>>,
}

impl Connection {
    fn next(&self) -> Result<Reply, Failure> {
        let ended = |_| Failure::new(Exit::Failed, "internal", "a connection ended without a result");
        self.replies.recv().map_err(ended)?
    }
}

/// Measures every size and writes the rows as they come, or all of them as JSON. The peer may be silent for `timeout`.
///
/// # Errors
/// The command line is wrong, the peer is unreachable, it refuses, or a connection broke.
pub fn run(bench: &Bench, timeout: Duration, output: &Output) -> Result<(), Failure> {
    if bench.operation == Operation::Latency && bench.depth.is_some() {
        return Err(Failure::usage("latency is measured with one message at a time: leave out --depth"));
    }
    let load = Load { bench, timeout, output, clock: Clock::start(), stop: AtomicBool::new(false) };
    thread::scope(|scope| {
        let connections: Vec<_> = (0..bench.connections).map(|_| connect(scope, &load)).collect();
        // The threads end when their channels are dropped.
        measure(bench, &connections, output)
    })
}

fn connect<'scope>(scope: &'scope Scope<'scope, '_>, load: &'scope Load<'_>) -> Connection {
    let (sizes, to_measure) = channel();
    let (answer, replies) = channel();
    scope.spawn(move || load.serve(&to_measure, &answer));
    Connection { sizes, replies }
}

fn measure(bench: &Bench, connections: &[Connection], output: &Output) -> Result<(), Failure> {
    let (mut first, mut depth) = (None, u32::from(u16::MAX));
    for connection in connections {
        if let Reply::Granted { peer, room, depth: its } = connection.next()? {
            depth = depth.min(its);
            first.get_or_insert((peer, room));
        }
    }
    let Some((peer, room)) = first else {
        return Err(Failure::new(Exit::Failed, "internal", "no connection was opened"));
    };
    let mut report = Report::new(bench, peer, depth);
    if output.is_text() {
        output.text(&report.heading())?;
    }
    for size in bench.sizes(room) {
        for connection in connections {
            // The reply of a thread that has ended says why.
            let _ = connection.sizes.send(size);
        }
        let mut samples = Vec::with_capacity(connections.len());
        for connection in connections {
            if let Reply::Measured(sample) = connection.next()? {
                samples.push(sample);
            }
        }
        let row = Row::new(size, &samples)?;
        if output.is_text() {
            output.text(&row.text())?;
        }
        report.rows.push(row);
    }
    if output.is_text() { Ok(()) } else { output.result(&report, |_| String::new()) }
}

/// Returns the time from the first start to the last end.
fn span(samples: &[Sample]) -> Duration {
    let started = samples.iter().map(|sample| sample.started).min().unwrap_or_default();
    let ended = samples.iter().map(|sample| sample.ended).max().unwrap_or_default();
    ended.saturating_sub(started)
}
