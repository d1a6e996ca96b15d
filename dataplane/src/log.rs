//! The daemon's log: lines on stderr, as text or JSON, or entries of the systemd journal. A line that stderr does not
//! accept is counted as lost, and the daemon continues.
//!
//! A log pipe without a reader, a full disk and a closed terminal must not affect the daemon. The subscriber's own
//! error report, a message on the same stderr, would end the process.

mod journal;

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use iwarp_config::{LogFormat, LogLevel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Bytes that a pipe with room accepts without blocking (`PIPE_BUF`).
const PIECE_BYTES: usize = 4096;

/// Longest wait for a slow reader. After a lost line, the next lines do not wait.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

iwarp_counters::counters! {
    /// Counters of the log.
    pub struct LogStats {
        /// Lines written to stderr.
        lines,
        /// Lines lost: stderr did not take them (closed pipe, full disk, reader that does not keep up).
        lines_lost,
    }
}

/// Counters of one sink.
#[derive(Debug)]
struct SinkStats {
    written: AtomicU64,
    lost: AtomicU64,
    /// Lines lost since the last one that was written.
    lost_in_a_row: AtomicU64,
}

static STDERR: SinkStats = SinkStats::new();

impl SinkStats {
    const fn new() -> Self {
        Self { written: AtomicU64::new(0), lost: AtomicU64::new(0), lost_in_a_row: AtomicU64::new(0) }
    }

    /// Writes a line, or counts it as lost. The caller holds the sink's lock.
    fn offer(&self, sink: &mut impl Write, line: &[u8]) {
        let missing = self.lost_in_a_row.load(Ordering::Relaxed);
        let notice = format!("iwarpd: {missing} log lines were lost here\n");
        let notice = if missing > 0 { of_level(Level::WARN, &notice) } else { Cow::default() };
        if sink.write_all(notice.as_bytes()).and_then(|()| sink.write_all(line)).is_ok() {
            self.written.fetch_add(1, Ordering::Relaxed);
            self.lost_in_a_row.store(0, Ordering::Relaxed);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.lost_in_a_row.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the counters since the process started.
pub fn stats() -> LogStats {
    LogStats {
        lines: STDERR.written.load(Ordering::Relaxed),
        lines_lost: STDERR.lost.load(Ordering::Relaxed),
    }
}

/// Returns the lines lost since the last one that was written; 0 while the log works.
pub fn lost_in_a_row() -> u64 {
    STDERR.lost_in_a_row.load(Ordering::Relaxed)
}

/// Writes an error to stderr outside the log. Text that stderr does not accept is counted as lost.
pub fn say(text: &str) {
    STDERR.offer(&mut Stderr(io::stderr().lock()), of_level(Level::ERROR, text).as_bytes());
}

/// Returns text as stderr takes it: with a priority if stderr is the journal.
fn of_level(level: Level, text: &str) -> Cow<'_, str> {
    if *journal::IS_STDERR { journal::with_priority(level, text).into() } else { text.into() }
}

/// Writer to stderr that blocks for [`WRITE_TIMEOUT`] at most.
struct Stderr(io::StderrLock<'static>);

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..PIECE_BYTES).unwrap_or(bytes);
        let limit = if lost_in_a_row() == 0 { WRITE_TIMEOUT } else { Duration::ZERO };
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut set = [PollFd::new(&self.0, PollFlags::OUT)];
        // A signal that interrupts the wait must not cost the line: the write decides.
        if poll(&mut set, Some(&timeout)) == Ok(0) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.write(piece)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writer of one log line, which never fails.
#[derive(Debug)]
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        STDERR.offer(&mut Stderr(io::stderr().lock()), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Lines;

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line
    }
}

/// Log level, which can be changed while the daemon runs, and the format of the log.
pub(crate) struct Log {
    level: Cell<LogLevel>,
    format: LogFormat,
    filter: Box<dyn Fn(LevelFilter)>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("level", &self.level)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// From the least to the most detailed.
const LEVELS: [LogLevel; 4] = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug];

impl Log {
    /// Begins to log as the configuration says. A second log in the same process (a test that runs two daemons) has no
    /// effect of its own.
    ///
    /// # Errors
    /// The journal is configured, and there is none.
    pub(crate) fn open(config: &iwarp_config::Log) -> Result<Self> {
        let (level, format) = (config.level, config.format);
        let (dial, handle) = reload::Layer::new(filter(level));
        let layer = || fmt::layer().with_writer(Lines).log_internal_errors(false);
        let sink = match format {
            LogFormat::Text => lines(layer().with_ansi(io::stderr().is_terminal()), *journal::IS_STDERR),
            LogFormat::Json => objects(layer(), *journal::IS_STDERR),
            LogFormat::Journald => journal::entries()?.boxed(),
        };
        // A subscriber installed earlier stays.
        let _ = tracing_subscriber::registry().with(dial).with(sink).try_init();
        // Fails only if the subscriber is gone, and with it the log.
        let filter = Box::new(move |filter| drop(handle.reload(filter)));
        Ok(Self { level: Cell::new(level), format, filter })
    }

    /// Returns the least severe level that is written.
    pub(crate) fn level(&self) -> LogLevel {
        self.level.get()
    }

    /// Returns the format of the log.
    pub(crate) fn format(&self) -> LogFormat {
        self.format
    }

    /// Sets the level. `cause` names who asked for it.
    pub(crate) fn set(&self, cause: &str, level: LogLevel) {
        self.change(cause, Some(level));
    }

    /// Raises the level of detail by one step: errors, warnings, information, details.
    pub(crate) fn more(&self, why: &str) {
        self.change(why, LEVELS.into_iter().find(|level| rank(*level) > rank(self.level())));
    }

    /// Lowers the level of detail by one step.
    pub(crate) fn less(&self, why: &str) {
        self.change(why, LEVELS.into_iter().rev().find(|level| rank(*level) < rank(self.level())));
    }

    /// Changes the level and logs the change at any level.
    fn change(&self, why: &str, level: Option<LogLevel>) {
        let end = if level.is_some() { "" } else { " already, the last one in this direction" };
        let level = level.unwrap_or(self.level());
        self.level.set(level);
        (self.filter)(filter(LogLevel::Debug));
        tracing::info!("{why}: the log level is {level}{end}");
        (self.filter)(filter(level));
    }
}

/// Layer of a log with the default format.
type Plain<S, W> = fmt::Layer<S, fmt::format::DefaultFields, fmt::format::Format, W>;
/// Any layer of a log.
type Sink<S> = Box<dyn Layer<S> + Send + Sync>;

/// Returns the layer that writes lines for people; to the journal, without the time.
fn lines<S, W>(layer: Plain<S, W>, to_journal: bool) -> Sink<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    if to_journal {
        layer.without_time().map_event_format(journal::Prioritized).boxed()
    } else {
        layer.boxed()
    }
}

/// Returns the layer that writes one JSON object per line. To the journal, too, an object has its time: who reads the
/// objects alone needs it.
fn objects<S, W>(layer: Plain<S, W>, to_journal: bool) -> Sink<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = layer.json().flatten_event(true);
    if to_journal { layer.map_event_format(journal::Prioritized).boxed() } else { layer.boxed() }
}

fn rank(level: LogLevel) -> Option<usize> {
    LEVELS.iter().position(|known| *known == level)
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for `room` bytes.
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            self.text.extend_from_slice(&bytes[..taken]);
            self.room -= taken;
            if taken == 0 && !bytes.is_empty() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_do_not_fit_are_counted_and_the_next_that_does_says_how_many_are_missing() {
        let (stats, mut disk) = (SinkStats::new(), Disk { room: 6, text: Vec::new() });
        for line in ["first\n", "second\n", "third\n"] {
            stats.offer(&mut disk, line.as_bytes());
        }
        assert_eq!(stats.written.load(Ordering::Relaxed), 1);
        assert_eq!(stats.lost.load(Ordering::Relaxed), 2);
        disk.room = 1000;
        stats.offer(&mut disk, b"fourth\n");
        stats.offer(&mut disk, b"fifth\n");
        let text = String::from_utf8(disk.text).unwrap();
        assert_eq!(text, "first\niwarpd: 2 log lines were lost here\nfourth\nfifth\n");
        assert_eq!(stats.written.load(Ordering::Relaxed), 3);
        assert_eq!(stats.lost.load(Ordering::Relaxed), 2);
        assert_eq!(stats.lost_in_a_row.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn levels_have_an_order() {
        assert!(LEVELS.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
    }
}
