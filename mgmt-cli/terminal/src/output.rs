//! Writes the result of a command to stdout and its failure to stderr, as text or as JSON.

use std::io::{self, IsTerminal, Write};

use anstream::AutoStream;
use anstream::stream::RawStream;
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use iwarp_control::Exit;
use serde::Serialize;

use crate::failure::Failure;

/// The style of the word `error:`.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// The style of the word `help:`.
pub const HELP: Style = AnsiColor::Cyan.on_default();

/// Columns of the terminal; `None` where a line may have any length: in a file, in a pipe.
pub type Width = Option<u16>;

/// The values of the `--color` option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// Color the output on a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Color the output everywhere.
    Always,
    /// Write text without escape sequences.
    Never,
}

/// Writes results and failures in one format.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
    color: anstream::ColorChoice,
}

/// The format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text for people, with columns and colors.
    Text,
    /// JSON, one line per result.
    Json,
    /// JSON over several lines.
    JsonPretty,
}

impl Output {
    /// Creates an output of this format; `color` applies to text only.
    #[must_use]
    pub const fn new(format: Format, color: Color) -> Self {
        let color = match color {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        };
        Self { format, color }
    }

    /// Creates an output of text, colored on a terminal.
    #[must_use]
    pub const fn plain() -> Self {
        Self { format: Format::Text, color: anstream::ColorChoice::Auto }
    }

    /// Creates an output of JSON, one line per result.
    #[must_use]
    pub const fn json() -> Self {
        Self { format: Format::Json, color: anstream::ColorChoice::Never }
    }

    /// Returns true if results are text.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// Returns true if stderr is a terminal and results are text: progress may be shown there.
    #[must_use]
    pub fn shows_progress(&self) -> bool {
        self.is_text() && io::stderr().is_terminal()
    }

    /// Returns the columns of the terminal behind stdout.
    #[must_use]
    pub fn width(&self) -> Width {
        let terminal = terminal_size::terminal_size_of(io::stdout());
        terminal.map(|(columns, _)| columns.0).filter(|columns| *columns > 0)
    }

    /// Writes a result over the one before: like [`Self::result`], but a terminal is redrawn.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn redraw<T: Serialize>(&self, data: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        match terminal_size::terminal_size_of(io::stdout()) {
            Some((_, rows)) if self.is_text() => {
                let text = text(data);
                let text = if self.colors_results() {
                    text
                } else {
                    anstream::adapter::strip_str(&text).to_string()
                };
                // Past an AutoStream, which would take the terminal's commands out together with the colors.
                written(io::stdout().lock(), &screen(&text, rows.0.into()))
            }
            _ => self.result(data, text),
        }
    }

    /// Returns true if failures are colored.
    #[must_use]
    pub fn colors_errors(&self) -> bool {
        self.colors(&io::stderr())
    }

    /// Returns true if results are colored.
    #[must_use]
    pub fn colors_results(&self) -> bool {
        self.colors(&io::stdout())
    }

    fn colors(&self, stream: &impl RawStream) -> bool {
        match self.color {
            anstream::ColorChoice::Auto => AutoStream::choice(stream) != anstream::ColorChoice::Never,
            choice => choice != anstream::ColorChoice::Never,
        }
    }

    /// Writes one result: `data` as JSON, or the text that `text` returns, which ends with a newline.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn result<T: Serialize>(&self, data: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.is_text() {
            return self.text(&text(data));
        }
        let mut line = self.encode(data);
        line.push('\n');
        self.text(&line)
    }

    /// Writes text as it is.
    ///
    /// # Errors
    /// Stdout cannot be written, or its reader has closed the pipe ([`Failure::pipe_closed`]).
    pub fn text(&self, text: &str) -> Result<(), Failure> {
        written(AutoStream::new(io::stdout().lock(), self.color), text)
    }

    /// Writes a failure to stderr and returns its exit code.
    pub fn fail(&self, failure: &Failure) -> Exit {
        if failure.exit == Exit::Ok {
            return Exit::Ok;
        }
        let text = if self.is_text() {
            let report = failure.report.as_ref().map(|report| report.text.clone());
            let mut text = report.unwrap_or_else(|| format!("{ERROR}error:{ERROR:#} {}\n", failure.message));
            if let Some(help) = &failure.help {
                text.push_str(&format!("  {HELP}help:{HELP:#} {help}\n"));
            }
            text
        } else {
            self.encode(&failure.to_json()) + "\n"
        };
        // A write to a closed stderr fails; the exit code still reports the failure.
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
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::pipe_closed()),
        Err(error) => Err(Failure::new(Exit::Failed, "output", format!("cannot write the result: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Returns `text` as the content of a terminal of `rows` rows: the cursor goes home, each line is cleared behind its
/// text, and the rest of the screen is cleared (ECMA-48 §8.3.21 CUP, §8.3.41 EL, §8.3.39 ED). The terminal cuts lines
/// that are too long (DEC private mode 7): a folded one would take a row more.
fn screen(text: &str, rows: usize) -> String {
    const CUT: &str = "\x1b[?7l";
    const FOLD: &str = "\x1b[?7h";
    const HOME: &str = "\x1b[H";
    const CLEAR_LINE: &str = "\x1b[K\n";
    const CLEAR_BELOW: &str = "\x1b[J";
    // The cursor stands in the row below the last line.
    let room = rows.saturating_sub(1).max(1);
    let lines: Vec<&str> = text.lines().collect();
    let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
    let mut screen = CUT.to_owned() + HOME;
    for line in lines.iter().take(shown) {
        screen = screen + line + CLEAR_LINE;
    }
    if let more @ 1.. = lines.len().saturating_sub(shown) {
        screen = screen + &format!("({more} lines more than the terminal has rows)") + CLEAR_LINE;
    }
    screen + CLEAR_BELOW + FOLD
}

impl Failure {
    /// Creates the end of a command whose reader closed the pipe; its exit code is success.
    #[must_use]
    pub fn pipe_closed() -> Self {
        Self::new(Exit::Ok, "closed", "the reader has closed the pipe")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_drawn_over_the_one_before() {
        assert_eq!(screen("a\nb\n", 24), "\x1b[?7l\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J\x1b[?7h");
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
