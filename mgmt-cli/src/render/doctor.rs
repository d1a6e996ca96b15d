//! Formats the findings of `doctor`.

use std::fmt::Write as _;

use iwarp_terminal::{ERROR, HELP};

use super::{GOOD, WARNING};
use crate::doctor::{Examination, Level};

/// Formats a line for each finding, and its remedy below it; a command in a remedy is never broken. Leaves out what is
/// well unless `all` is true.
pub(crate) fn show(examination: &Examination, all: bool) -> String {
    let mut text = String::new();
    let findings = &examination.findings;
    for finding in findings.iter().filter(|finding| all || finding.level != Level::Ok) {
        let (style, word) = match finding.level {
            Level::Ok => (GOOD, "ok"),
            Level::Warning => (WARNING, "warning"),
            Level::Error => (ERROR, "error"),
        };
        // A write to a String cannot fail.
        let _ = writeln!(text, "{style}{word}{style:#}: {}: {}", finding.check, finding.message);
        for (index, line) in finding.remedy.iter().flat_map(|remedy| remedy.lines()).enumerate() {
            let _ = match index {
                0 => writeln!(text, "  {HELP}help:{HELP:#} {}", line.trim_start()),
                _ => writeln!(text, "        {}", line.trim_start()),
            };
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (errors, warnings, well) = (count(Level::Error), count(Level::Warning), count(Level::Ok));
    let config = examination.config.display();
    let _ = writeln!(text, "{config}: errors {errors}, warnings {warnings}, ok {well}");
    text
}
