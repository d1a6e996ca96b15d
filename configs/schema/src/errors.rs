//! Mistakes in a configuration file: all of them are reported, each with its place.

use std::fmt;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use serde::{Serialize, Serializer};

/// All mistakes in a configuration file; never empty.
///
/// As a [`Diagnostic`] it displays each place with a caret; serialized it is an array of [`Mistake`]s.
#[derive(Debug)]
pub struct ConfigErrors {
    source: NamedSource<String>,
    mistakes: Vec<Mistake>,
}

/// One mistake in the file.
#[derive(Clone, Debug, Serialize)]
pub struct Mistake {
    /// Name of the file as the caller passed it.
    pub file: String,
    /// Line, from 1; 0 if the file could not be read.
    pub line: usize,
    /// Column in characters, from 1; 0 if the file could not be read.
    pub column: usize,
    /// Path of the key from the top: `port[0].mtu`. Empty for the file as a whole.
    pub key: String,
    /// Description of the mistake.
    pub message: String,
    /// Allowed range or list, if there is one.
    pub allowed: Option<String>,
    /// Advice how to correct it.
    pub help: String,
    /// Fact that the value contradicts.
    #[serde(skip)]
    pub source: Source,
    #[serde(skip)]
    offset: usize,
    #[serde(skip)]
    length: usize,
}

/// Fact that a mistake contradicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The rules of the file, or another part of it.
    File,
    /// The machine: the file may be valid on another machine, or later.
    Machine,
}

/// A mistake as a check reports it, with a byte range as its place.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) span: std::ops::Range<usize>,
    pub(crate) key: String,
    pub(crate) message: String,
    pub(crate) allowed: Option<String>,
    pub(crate) help: String,
    pub(crate) source: Source,
}

impl ConfigErrors {
    /// Creates the report of the mistakes in `text`, sorted by place.
    pub(crate) fn new(file: &str, text: &str, mut found: Vec<Found>) -> Self {
        found.sort_by_key(|f| f.span.start);
        let mistakes = found.into_iter().map(|f| locate(file, text, f)).collect();
        Self { source: NamedSource::new(file, text.to_owned()), mistakes }
    }

    /// Creates the report of a file that could not be read.
    pub(crate) fn unreadable(file: &str, message: String, help: &str) -> Self {
        let mistake = Mistake {
            file: file.to_owned(),
            line: 0,
            column: 0,
            key: String::new(),
            message,
            allowed: None,
            help: help.to_owned(),
            source: Source::File,
            offset: 0,
            length: 0,
        };
        Self { source: NamedSource::new(file, String::new()), mistakes: vec![mistake] }
    }

    /// Returns the mistakes, sorted by place.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    /// Returns true if the file itself is valid and only this machine lacks something that it requires.
    pub fn only_of_the_machine(&self) -> bool {
        self.mistakes.iter().all(|mistake| mistake.source == Source::Machine)
    }

    /// Renders the report for people: each place with a caret, the allowed values and advice. It quotes lines of the
    /// file, tokens included: show it to the editor of the file, do not log it.
    pub fn render(&self, color: bool) -> String {
        let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let mut out = String::new();
        match GraphicalReportHandler::new_themed(theme).with_links(false).render_report(&mut out, self) {
            Ok(()) => out,
            Err(fmt::Error) => self.short(),
        }
    }

    /// Renders the report for logs and editors, one line per mistake: `file:line:column: key: message`.
    pub fn short(&self) -> String {
        let mut out = String::new();
        for m in &self.mistakes {
            let allowed = m.allowed.as_ref().map(|a| format!(" (allowed: {a})")).unwrap_or_default();
            out.push_str(&format!("{}:{}:{}: {m}{allowed}; {}\n", m.file, m.line, m.column, m.help));
        }
        out
    }
}

/// Converts a byte range to line and column.
fn locate(file: &str, text: &str, found: Found) -> Mistake {
    let Found { span, key, message, allowed, help, source } = found;
    let mut offset = span.start.min(text.len());
    while !text.is_char_boundary(offset) {
        offset = offset.saturating_sub(1);
    }
    let before = text.get(..offset).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at.saturating_add(1));
    let column = before.get(line_start..).unwrap_or_default().chars().count().saturating_add(1);
    Mistake {
        file: file.to_owned(),
        line: before.matches('\n').count().saturating_add(1),
        column,
        key,
        message,
        allowed,
        help,
        source,
        offset,
        length: span.end.min(text.len()).saturating_sub(offset),
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mistakes.as_slice() {
            _ if self.only_of_the_machine() => write!(f, "{} does not fit this machine", self.source.name()),
            [one] => write!(f, "a mistake in {}", one.file),
            all => write!(f, "{} mistakes in {}", all.len(), self.source.name()),
        }
    }
}

impl std::error::Error for ConfigErrors {}

impl Diagnostic for ConfigErrors {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.mistakes.iter().map(|m| m as &dyn Diagnostic)))
    }
}

impl Serialize for ConfigErrors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.mistakes.serialize(serializer)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Mistake {}

impl Diagnostic for Mistake {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.help))
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        if self.line == 0 {
            return None;
        }
        let label = self.allowed.as_ref().map(|allowed| format!("allowed: {allowed}"));
        Some(Box::new(std::iter::once(LabeledSpan::new(label, self.offset, self.length))))
    }
}
