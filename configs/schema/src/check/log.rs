//! Table `[log]`, and the names of levels and formats.

use std::fmt;

use crate::keys::{Choice, Kind as _, Number, keys};
use crate::types::{LogFormat, LogLevel};

const LEVEL: Choice<'_, LogLevel> = Choice(
    &[
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
    ],
    "this is the least severe level that is written",
);

const FORMAT: Choice<'_, LogFormat> = Choice(
    &[("text", LogFormat::Text), ("json", LogFormat::Json), ("journald", LogFormat::Journald)],
    "text and json go to stderr, journald to the journal",
);

keys! {
    /// Table `[log]`: the log's level and format, and the limits of events.
    pub struct Log in log(section) {
        /// Least severe level that is written.
        level: LogLevel = LogLevel::Info, LEVEL, Live;
        /// Format of the log's lines: text or JSON on stderr, or entries of the journal.
        format: LogFormat = LogFormat::Text, FORMAT, Restart;
        /// Maximum number of events of one kind per second. Further ones are counted.
        events_per_s_max: u32 = 10, Number(1..=10_000, "events of one kind per second"), Live;
        /// Drops of one reason within a second that are reported as a burst.
        drop_burst_per_s: u64 = 1000, Number(1..=1_000_000_000, "drops of one reason per second"), Live;
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&LEVEL.shown(self))
    }
}
