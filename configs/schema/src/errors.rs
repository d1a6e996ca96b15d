//! Mistakes in a configuration file, all of them, each with its place.

use std::fmt;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use serde::{Serialize, Serializer};

/// Everything that is wrong with a configuration file; never empty.
///
/// As a [`Diagnostic`] it shows each place with a caret; serialized it is a bare array of [`Mistake`]s.
#[derive(Debug)]
pub struct ConfigErrors {
    source: NamedSource<String>,
    mistakes: Vec<Mistake>,
}

/// One mistake.
#[derive(Clone, Debug, Serialize)]
pub struct Mistake {
    /// The file as it was named.
    pub file: String,
    /// Line, from 1; 0 if the file could not be read.
    pub line: usize,
    /// Column in characters, from 1; 0 if the file could not be read.
    pub column: usize,
    /// The key, as a path from the top: `port[0].mtu`. Empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What would be right, if that is a range or a list.
    pub allowed: Option<String>,
    /// What to do.
    pub help: String,
    /// What the file disagrees with.
    #[serde(skip)]
    pub source: Source,
    #[serde(skip)]
    offset: usize,
    #[serde(skip)]
    length: usize,
}

/// What a mistake disagrees with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The file itself, or another part of it.
    File,
    /// The machine: on another one, or later, the same file may be right.
    Machine,
}

/// A mistake as a check finds it: the place is a range of bytes.
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
    /// Mistakes in `text`, in the order of their places.
    pub(crate) fn new(file: &str, text: &str, mut found: Vec<Found>) -> Self {
        found.sort_by_key(|f| f.span.start);
        let mistakes = found.into_iter().map(|f| locate(file, text, f)).collect();
        Self { source: NamedSource::new(file, text.to_owned()), mistakes }
    }

    /// A file that could not be read at all.
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

    /// The mistakes, in the order of their places.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    /// Whether the file is right by itself, and only this machine lacks what it asks for.
    pub fn only_of_the_machine(&self) -> bool {
        self.mistakes.iter().all(|mistake| mistake.source == Source::Machine)
    }

    /// The report for people: each place with a caret, what is allowed and what to do. It quotes the lines of the file,
    /// a token among them: for the terminal of who edits the file, not for a log.
    pub fn render(&self, color: bool) -> String {
        let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let mut out = String::new();
        match GraphicalReportHandler::new_themed(theme).with_links(false).render_report(&mut out, self) {
            Ok(()) => out,
            Err(fmt::Error) => self.short(),
        }
    }

    /// The report for logs and editors, one line per mistake: `file:line:column: key: message`.
    pub fn short(&self) -> String {
        let mut out = String::new();
        for m in &self.mistakes {
            let allowed = m.allowed.as_ref().map(|a| format!(" (allowed: {a})")).unwrap_or_default();
            out.push_str(&format!("{}:{}:{}: {m}{allowed}; {}\n", m.file, m.line, m.column, m.help));
        }
        out
    }
}

/// Turns an byte range into line and column.
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
