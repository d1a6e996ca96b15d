//! Reads values from a table with source positions, and collects every mistake.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};

use toml::de::{DeTable, DeValue};

use crate::errors::{Found, Source};
use crate::machine::Machine;
use crate::text::parse_size;

/// Collects the mistakes that the checks report.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Machine to compare the file with, if any.
    machine: Option<Machine>,
    found: RefCell<Vec<Found>>,
    /// Every key that a check has read, present or not: the reference file must contain all of them.
    asked: RefCell<Vec<String>>,
}

impl Report {
    pub(crate) fn new(machine: Option<Machine>) -> Self {
        Self { machine, ..Self::default() }
    }

    /// Returns the machine to compare the file with, if any.
    pub(crate) fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// Returns true if a mistake was reported in one of these tables.
    pub(crate) fn has_mistakes_in(&self, tables: &[&str]) -> bool {
        self.found.borrow().iter().any(|found| {
            let table = found.key.split(['.', '[']).next().unwrap_or_default();
            found.source == Source::File && tables.contains(&table)
        })
    }

    pub(crate) fn into_parts(self) -> (Vec<Found>, Vec<String>) {
        (self.found.into_inner(), self.asked.into_inner())
    }

    fn push(&self, place: &Place, message: String, allowed: Option<String>, help: String, source: Source) {
        let (span, key) = (place.span.clone(), place.key.clone());
        self.found.borrow_mut().push(Found { span, key, message, allowed, help, source });
    }

    /// Reports a mistake at a value, with advice.
    pub(crate) fn at(&self, place: &Place, message: impl Into<String>, help: impl Into<String>) {
        self.push(place, message.into(), None, help.into(), Source::File);
    }

    /// Reports something that the machine lacks, with advice.
    pub(crate) fn lacks(&self, place: &Place, message: impl Into<String>, help: impl Into<String>) {
        self.push(place, message.into(), None, help.into(), Source::Machine);
    }

    /// Reports something that the machine lacks, with the list of what it has.
    pub(crate) fn lacks_among(
        &self,
        place: &Place,
        message: impl Into<String>,
        has: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(place, message.into(), Some(has.into()), help.into(), Source::Machine);
    }

    /// Reports a mistake at a value, with the allowed values.
    pub(crate) fn not_allowed(
        &self,
        place: &Place,
        message: impl Into<String>,
        allowed: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(place, message.into(), Some(allowed.into()), help.into(), Source::File);
    }
}

/// Position of a value in the file, and the path of its key from the top.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) key: String,
    pub(crate) span: Range<usize>,
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Value<'a> {
    pub(crate) place: Place,
    pub(crate) value: &'a DeValue<'a>,
}

impl<'a> Value<'a> {
    /// Returns the text of the value, or reports a mistake.
    pub(crate) fn text(&self, report: &Report, what: &str) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.wrong_type(report, what, "put the value in quotes");
        }
        text
    }

    fn wrong_type(&self, report: &Report, what: &str, help: &str) {
        let have = self.value.type_str();
        report.not_allowed(&self.place, format!("this is of type {have}"), what, help);
    }

    /// Returns the integer; `None` if the value is not one or has more than 128 bits.
    pub(crate) fn integer(&self) -> Option<i128> {
        let integer = self.value.as_integer()?;
        i128::from_str_radix(integer.as_str(), integer.radix()).ok()
    }
}

/// One table of the file. [`finish`](Self::finish) must be called, or unknown keys pass.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    report: &'a Report,
    table: Option<&'a DeTable<'a>>,
    place: Place,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub(crate) fn new(report: &'a Report, table: Option<&'a DeTable<'a>>, place: Place) -> Self {
        Self { report, table, place, asked: Vec::new() }
    }

    /// Returns the table's own place, for mistakes that belong to no key.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the report of the file.
    pub(crate) const fn report(&self) -> &'a Report {
        self.report
    }

    /// Returns true if the file has the table.
    pub(crate) const fn is_there(&self) -> bool {
        self.table.is_some()
    }

    fn path(&self, key: &str) -> String {
        if self.place.key.is_empty() { key.to_owned() } else { format!("{}.{key}", self.place.key) }
    }

    /// Returns the value of a key, if present.
    pub(crate) fn value(&mut self, key: &'static str) -> Option<Value<'a>> {
        self.asked.push(key);
        let value = self.table?.get(key)?;
        Some(Value { place: Place { key: self.path(key), span: value.span() }, value: value.get_ref() })
    }

    /// Returns the place of a key's value, or of the table if the key is absent.
    pub(crate) fn place_of(&self, key: &str) -> Place {
        let span = self.table.and_then(|t| t.get(key)).map(|v| v.span());
        Place { key: self.path(key), span: span.unwrap_or_else(|| self.place.span.clone()) }
    }

    /// Reports a required key that is absent.
    pub(crate) fn missing(&self, key: &str, help: &str) {
        let place = Place { key: self.path(key), span: self.place.span.clone() };
        self.report.at(&place, format!("`{key}` is missing"), help);
    }

    /// Returns true if a mistake was reported at a key, its absence included.
    pub(crate) fn is_wrong(&self, key: &str) -> bool {
        let path = self.path(key);
        let found = self.report.found.borrow();
        // The table that is being read has the latest mistakes.
        let mut of_table = found.iter().rev().take_while(|found| found.key.starts_with(&self.place.key));
        of_table.any(|found| found.key == path)
    }

    /// Reads an integer within a range.
    pub(crate) fn number<T>(&mut self, key: &'static str, range: RangeInclusive<T>, what: &str) -> Option<T>
    where
        T: Copy + PartialOrd + Display + TryFrom<i128>,
    {
        let value = self.value(key)?;
        let allowed = format!("{} to {}", range.start(), range.end());
        if value.value.as_integer().is_none() {
            value.wrong_type(self.report, &allowed, &format!("write {what} as a number without quotes"));
            return None;
        }
        let number = value.integer().and_then(|n| T::try_from(n).ok()).filter(|n| range.contains(n));
        if number.is_none() {
            let help = format!("this is {what}");
            self.report.not_allowed(&value.place, "the number is out of range", allowed, help);
        }
        number
    }

    /// Reads a size in bytes within a range, as a number or as text with a unit.
    pub(crate) fn size<T>(&mut self, key: &'static str, range: RangeInclusive<T>, what: &str) -> Option<T>
    where
        T: Copy + PartialOrd + TryFrom<u64> + Into<u64>,
    {
        let value = self.value(key)?;
        let (low, high): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
        let allowed = format!("{} to {}", show_size(low), show_size(high));
        let size = match value.value {
            DeValue::String(text) => match parse_size(text) {
                Ok(size) => Some(size),
                Err(message) => {
                    self.report.not_allowed(&value.place, message, allowed, format!("this is {what}"));
                    return None;
                }
            },
            DeValue::Integer(_) => value.integer().and_then(|n| u64::try_from(n).ok()),
            _ => {
                value.wrong_type(self.report, &allowed, "write bytes, or text with a unit such as \"64M\"");
                return None;
            }
        };
        let size = size.and_then(|n| T::try_from(n).ok()).filter(|n| range.contains(n));
        if size.is_none() {
            self.report.not_allowed(
                &value.place,
                "the size is out of range",
                allowed,
                format!("this is {what}"),
            );
        }
        size
    }

    /// Reads `true` or `false`.
    pub(crate) fn flag(&mut self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        let flag = value.value.as_bool();
        if flag.is_none() {
            value.wrong_type(self.report, "true or false", "write it without quotes");
        }
        flag
    }

    /// Reads one of a list of words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
        help: &str,
    ) -> Option<T> {
        let value = self.value(key)?;
        let allowed = quoted(choices.iter().map(|(word, _)| *word));
        let word = value.text(self.report, &allowed)?;
        let chosen = choices.iter().find(|(name, _)| *name == word).map(|(_, chosen)| *chosen);
        if chosen.is_none() {
            self.report.not_allowed(&value.place, format!("`{word}` is not a choice"), allowed, help);
        }
        chosen
    }

    /// Reads text and parses it with a function, whose error is the message.
    pub(crate) fn parsed<T>(
        &mut self,
        key: &'static str,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let text = value.text(self.report, what)?;
        parse(text).map_err(|message| self.report.at(&value.place, message, format!("write {what}"))).ok()
    }

    /// Reads the items of an array.
    pub(crate) fn list(&mut self, key: &'static str, what: &str) -> Option<Vec<Value<'a>>> {
        let value = self.value(key)?;
        let Some(array) = value.value.as_array() else {
            value.wrong_type(self.report, what, "put the values in brackets");
            return None;
        };
        let item = |(index, item): (usize, &'a toml::Spanned<DeValue<'a>>)| Value {
            place: Place { key: format!("{}[{index}]", value.place.key), span: item.span() },
            value: item.get_ref(),
        };
        Some(array.iter().enumerate().map(item).collect())
    }

    /// Returns the section of a `[table]`; empty if absent.
    pub(crate) fn section(&mut self, key: &'static str) -> Self {
        let Some(value) = self.value(key) else {
            return Self::new(self.report, None, self.place_of(key));
        };
        let table = value.value.as_table();
        if table.is_none() {
            value.wrong_type(self.report, "a table", &format!("write `[{key}]` on a line of its own"));
        }
        Self::new(self.report, table, value.place)
    }

    /// Returns the sections of the `[[tables]]` of a name.
    pub(crate) fn sections(&mut self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let help = format!("write `[[{key}]]`, in double brackets, on a line of its own");
        let Some(array) = value.value.as_array() else {
            value.wrong_type(self.report, "an array of tables", &help);
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let place = Place { key: format!("{}[{index}]", self.path(key)), span: item.span() };
            let item = Value { place, value: item.get_ref() };
            match item.value.as_table() {
                Some(table) => sections.push(Self::new(self.report, Some(table), item.place)),
                None => item.wrong_type(self.report, "a table", &help),
            }
        }
        sections
    }

    /// Returns the sections of the `[[tables]]` of a name, and reports the first one beyond `count_max`. `allowed`
    /// describes their number, and `help` is the advice.
    pub(crate) fn sections_at_most(
        &mut self,
        key: &'static str,
        count_max: usize,
        allowed: String,
        help: &str,
    ) -> Vec<Self> {
        let sections = self.sections(key);
        if let Some(beyond) = sections.get(count_max) {
            self.report.not_allowed(&beyond.place, format!("too many {key}s"), allowed, help);
        }
        sections
    }

    /// Reports every key that no check has read.
    pub(crate) fn finish(self) {
        let section = strip_indices(&self.place.key);
        for key in &self.asked {
            let path = if section.is_empty() { (*key).to_owned() } else { format!("{section}.{key}") };
            self.report.asked.borrow_mut().push(path);
        }
        let Some(table) = self.table else { return };
        for key in table.keys() {
            let name = key.get_ref().as_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let place = Place { key: self.path(name), span: key.span() };
            let help = match nearest(name, &self.asked) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "remove it, or put it into the table it belongs to".to_owned(),
            };
            let allowed = quoted(self.asked.iter().copied());
            self.report.not_allowed(&place, format!("unknown key `{name}`"), allowed, help);
        }
    }
}

/// Removes the indices of a key path: `port[3].neighbor[0]` → `port.neighbor`.
fn strip_indices(key: &str) -> String {
    let name = |part: &str| part.split_once('[').map_or(part, |(name, _)| name).to_owned();
    key.split('.').map(name).collect::<Vec<_>>().join(".")
}

fn quoted<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let mut words: Vec<&str> = words.collect();
    words.sort_unstable();
    words.dedup();
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Formats a size with the largest unit that divides it.
pub(crate) fn show_size(bytes: u64) -> String {
    let units = [(1u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")];
    match units.into_iter().find(|(scale, _)| bytes >= *scale && bytes.is_multiple_of(*scale)) {
        Some((scale, unit)) => format!("{}{unit}", bytes.checked_div(scale).unwrap_or_default()),
        None => bytes.to_string(),
    }
}

/// Returns the known key with the fewest edits, if they are few enough for a typing error.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    const KEY_CHARS_MAX: usize = 64;
    if key.len() > KEY_CHARS_MAX {
        return None;
    }
    let near = known.iter().map(|k| (edits(key, k), *k)).min()?;
    (near.0 <= key.len().max(3) / 3).then_some(near.1)
}

/// Returns the Levenshtein distance of two keys.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut left = i.saturating_add(1);
        let mut diagonal = std::mem::replace(row.first_mut().unwrap_or(&mut 0), left);
        for (cell, to) in row.iter_mut().skip(1).zip(b.chars()) {
            let above = *cell;
            let changed = diagonal.saturating_add(usize::from(from != to));
            left = changed.min(above.saturating_add(1)).min(left.saturating_add(1));
            diagonal = above;
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}
