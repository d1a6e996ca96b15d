//! Where a command's result goes: data to stdout, failures to stderr.

use std::io::{self, IsTerminal, Write};

use anstream::AutoStream;
use iwarp_control::Exit;
use serde::Serialize;

use crate::args::{Color, Global};
use crate::failure::Failure;
use crate::render::{ERROR, HELP, Width};

/// How results are written.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
    color: anstream::ColorChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    /// One line per result.
    Json,
    JsonPretty,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let format = match (global.json, global.pretty) {
            (_, true) => Format::JsonPretty,
            (true, false) => Format::Json,
            (false, false) => Format::Text,
        };
        let color = match global.color {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        };
        Self { format, color }
    }

    /// For people, with colors where they are seen.
    pub const fn plain() -> Self {
        Self { format: Format::Text, color: anstream::ColorChoice::Auto }
    }

    /// JSON on one line, whatever the command line says.
    pub const fn json() -> Self {
        Self { format: Format::Json, color: anstream::ColorChoice::Never }
    }

    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// Whether a person watches stderr, so that progress may be shown there.
    pub(crate) fn shows_progress(&self) -> bool {
        self.is_text() && io::stderr().is_terminal()
    }

    /// Columns of the terminal that results are written to, if it is one.
    pub(crate) fn width(&self) -> Width {
        let terminal = terminal_size::terminal_size_of(io::stdout());
        terminal.map(|(columns, _)| columns.0).filter(|columns| *columns > 0)
    }

    /// Writes a result in place of the one before: as [`Self::result`], but a terminal is drawn anew.
    pub(crate) fn redraw<T: Serialize>(
        &self,
        data: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match terminal_size::terminal_size_of(io::stdout()) {
            Some((_, rows)) if self.is_text() => {
                let colored = self.color != anstream::ColorChoice::Never
                    && AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
                let text = text(data);
                let text = if colored { text } else { anstream::adapter::strip_str(&text).to_string() };
                // Past an AutoStream, which would take the terminal's commands out together with the colors.
                written(io::stdout().lock(), &screen(&text, rows.0.into()))
            }
            _ => self.result(data, text),
        }
    }

    /// Whether errors are colored.
    pub(crate) fn colors_errors(&self) -> bool {
        match self.color {
            anstream::ColorChoice::Auto => AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never,
            choice => choice != anstream::ColorChoice::Never,
        }
    }

    /// Writes one result: `data` as JSON, or what `text` makes of it, which ends with a newline.
    pub(crate) fn result<T: Serialize>(
        &self,
        data: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if self.is_text() {
            return self.text(&text(data));
        }
        let mut line = self.encode(data);
        line.push('\n');
        self.text(&line)
    }

    /// Writes text as it is. Returns whether anybody still reads: a closed pipe is no failure.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        written(AutoStream::new(io::stdout().lock(), self.color), text)
    }

    /// Tells why a command failed, and returns its exit code.
    pub fn fail(&self, failure: &Failure) -> Exit {
        if failure.exit == Exit::Ok {
            return Exit::Ok;
        }
        let text = if self.is_text() {
            let report = failure.more.as_ref().map(|more| more.report.clone());
            let mut text = report.unwrap_or_else(|| format!("{ERROR}error:{ERROR:#} {}\n", failure.message));
            if let Some(help) = &failure.help {
                text.push_str(&format!("  {HELP}help:{HELP:#} {help}\n"));
            }
            text
        } else {
            self.encode(&failure.to_json()) + "\n"
        };
        // If nobody reads stderr, the exit code still tells.
        let _ = AutoStream::new(io::stderr().lock(), self.color).write_all(text.as_bytes());
        failure.exit
    }

    fn encode(&self, data: &impl Serialize) -> String {
        let encoded = match self.format {
            Format::JsonPretty => serde_json::to_string_pretty(data),
            Format::Text | Format::Json => serde_json::to_string(data),
        };
        // Our types have text keys and no serializer that fails.
        encoded.unwrap_or_else(|error| {
            format!("{{\"error\":{{\"kind\":\"internal\",\"message\":\"{error}\"}}}}")
        })
    }
}

fn written(mut stdout: impl Write, text: &str) -> Result<(), Failure> {
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::nobody_reads()),
        Err(error) => Err(Failure::new(Exit::Failed, "output", format!("cannot write the result: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// A text as the whole of a terminal of so many rows: from its upper left corner on, each line and the rest of the
/// screen cleared behind it (ECMA-48 §8.3.21 CUP, §8.3.41 EL, §8.3.39 ED).
fn screen(text: &str, rows: usize) -> String {
    const HOME: &str = "\x1b[H";
    const CLEAR_LINE: &str = "\x1b[K\n";
    const CLEAR_BELOW: &str = "\x1b[J";
    // The cursor stands in the row below the last line.
    let room = rows.saturating_sub(1).max(1);
    let lines: Vec<&str> = text.lines().collect();
    let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
    let mut screen: String = HOME.to_owned();
    for line in lines.iter().take(shown) {
        screen = screen + line + CLEAR_LINE;
    }
    if let more @ 1.. = lines.len().saturating_sub(shown) {
        screen = screen + &format!("({more} lines more: name groups, or --nonzero)") + CLEAR_LINE;
    }
    screen + CLEAR_BELOW
}

impl Failure {
    /// The reader of stdout has gone, which ends the command and is a success.
    pub(crate) fn nobody_reads() -> Self {
        Self::new(Exit::Ok, "closed", "the reader has gone")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_drawn_over_the_one_before() {
        assert_eq!(screen("a\nb\n", 24), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
        let many = "x\n".repeat(30);
        for rows in [2, 10, 24, 30] {
            let drawn = screen(&many, rows);
            assert_eq!(
                drawn.matches('\n').count(),
                rows - 1,
                "the rows of the terminal, less the cursor's own"
            );
            assert!(drawn.contains(&format!("({} lines more", 30 - (rows - 2))), "{drawn:?}");
        }
        assert!(!screen(&many, 31).contains("more"));
    }
}
