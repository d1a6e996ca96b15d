//! Reports as they are read back: whatever the benchmark, tables of rows, each with what names it and what was measured.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Samples;

/// Numbers that say which row it is, rather than how fast it was. Text and truth values always do.
const NAMES: [&str; 18] = [
    "size",
    "message_bytes",
    "mtu",
    "qps",
    "payload",
    "region_bytes",
    "working_set_bytes",
    "clients",
    "connections",
    "bytes",
    "frames",
    "region_kib",
    "iterations",
    "loss",
    "reorder",
    "hold_frames",
    "hold_us",
    "cpu",
];

/// What comes first in a row, in this order; the rest follows by name.
const FIRST: [&str; 26] = [
    "operation",
    "way",
    "test",
    "from",
    "size",
    "message_bytes",
    "payload",
    "mtu",
    "offloads",
    "link",
    "crc",
    "qps",
    "bidirectional",
    "loss",
    "reorder",
    "hold_frames",
    "out_of_order_placement",
    "clients",
    "connections",
    "gbps",
    "gbps_peak",
    "mpps",
    "messages_per_second",
    "of_handoff",
    "p50_ns",
    "p99_9_ns",
];

/// One benchmark's report, as `--json` writes it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Document {
    /// Which benchmark.
    pub benchmark: String,
    /// Where and when.
    pub machine: Value,
    /// With what options.
    pub options: Value,
    /// What it has found out.
    pub report: Value,
}

/// A part of a report: rows of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Section {
    /// The field of the report; empty for the report itself.
    pub(crate) name: String,
    pub(crate) rows: Vec<Row>,
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// What it is the row of: name and value.
    pub(crate) of: Vec<(String, String)>,
    /// What was measured.
    pub(crate) cells: Vec<(String, Samples)>,
}

impl Document {
    /// Reads a file of one report, or of all of a suite's.
    ///
    /// # Errors
    /// There is no such file, or it is something else.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Content {
            One(Document),
            All { documents: Vec<Document> },
        }
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let content = serde_json::from_reader(BufReader::new(file));
        match content.with_context(|| format!("{} is no report of iwarp-bench", path.display()))? {
            Content::One(document) => Ok(vec![document]),
            Content::All { documents } => Ok(documents),
        }
    }

    /// What it has, part by part.
    pub(crate) fn sections(&self) -> Vec<Section> {
        sections(&self.report)
    }
}

/// What a report has, part by part.
pub(crate) fn sections(report: &Value) -> Vec<Section> {
    let Some(fields) = report.as_object() else { return Vec::new() };
    let mut own = Row::default();
    let mut found = Vec::new();
    for (name, value) in fields {
        match value.as_array() {
            Some(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
                let rows = items.iter().map(row_of).collect();
                found.push(Section { name: name.clone(), rows });
            }
            _ => own.take(name, value),
        }
    }
    if !own.cells.is_empty() {
        found.insert(0, Section { name: String::new(), rows: vec![own] });
    }
    found
}

fn row_of(item: &Value) -> Row {
    let mut row = Row::default();
    match item {
        // A pair: what it is of, and what was measured.
        Value::Array(pair) => {
            if let [of, value] = pair.as_slice() {
                row.of.push(("of".to_owned(), plain(of)));
                row.take("value", value);
            }
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| row.take(name, value)),
        _ => {}
    }
    row.of.sort_by_key(|(name, _)| rank(name));
    row.cells.sort_by_key(|(name, _)| rank(name));
    row
}

/// Where a field comes in its row.
fn rank(name: &str) -> usize {
    let last = name.rsplit('.').next().unwrap_or(name);
    FIRST.iter().position(|first| *first == last).unwrap_or(FIRST.len())
}

impl Row {
    fn take(&mut self, name: &str, value: &Value) {
        let last = name.rsplit('.').next().unwrap_or(name);
        match value {
            Value::Number(number) if !NAMES.contains(&last) => {
                let one = number.as_f64().and_then(|number| Samples::new(vec![number]).ok());
                self.cells.extend(one.map(|one| (name.to_owned(), one)));
            }
            Value::Number(_) | Value::String(_) | Value::Bool(_) => {
                self.of.push((name.to_owned(), plain(value)));
            }
            Value::Object(fields) => match Samples::deserialize(value) {
                Ok(samples) => self.cells.push((name.to_owned(), samples)),
                Err(_) => fields.iter().for_each(|(part, value)| self.take(&format!("{name}.{part}"), value)),
            },
            // Lists inside of a row are its raw figures; what they come to has a field of its own.
            Value::Array(_) | Value::Null => {}
        }
    }

    /// What it is the row of, in a line.
    pub(crate) fn label(&self) -> String {
        let words = self.of.iter().map(|(name, value)| match value.as_str() {
            "true" => name.clone(),
            "false" => format!("not {name}"),
            _ if name == "crc" => format!("CRC {value}"),
            _ if value.parse::<f64>().is_ok() => format!("{name} {value}"),
            _ => value.clone(),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// A figure of it.
    pub(crate) fn cell(&self, name: &str) -> Option<&Samples> {
        self.cells.iter().find(|(of, _)| of == name).map(|(_, samples)| samples)
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A number with as many digits as mean something.
pub(crate) fn digits(number: f64) -> String {
    match number.abs() {
        it if it >= 1000.0 || number == 0.0 => format!("{number:.0}"),
        it if it >= 100.0 => format!("{number:.1}"),
        it if it >= 1.0 => format!("{number:.2}"),
        it if it >= 0.1 => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_taken_apart() {
        let report = serde_json::json!({
            "handoff": [[1500, 73.5]],
            "fast": 4,
            "rows": [{
                "operation": "write", "size": 64, "wire": {"mtu": 1500, "offloads": true}, "gbps": 2.5,
                "p50": {"median": 2.0, "min": 1.0, "max": 9.0, "runs": [1.0, 2.0, 9.0]},
                "ratio": null, "spread": [1.0, 2.0],
            }],
        });
        let all = sections(&report);
        let names: Vec<&str> = all.iter().map(|section| section.name.as_str()).collect();
        assert_eq!(names, ["", "handoff", "rows"]);
        let row = all.last().and_then(|section| section.rows.first()).unwrap();
        assert_eq!(row.label(), "write, size 64, wire.mtu 1500, wire.offloads");
        assert_eq!(row.cell("p50").map(|it| it.median), Some(2.0));
        assert_eq!(row.cells.len(), 2);
        let pair = all.get(1).and_then(|section| section.rows.first()).unwrap();
        assert_eq!((pair.label(), pair.cell("value").unwrap().median), ("of 1500".to_owned(), 73.5));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [12345.6, 123.45, 1.234, 0.1234, 0.01234, 0.0].map(digits),
            ["12346", "123.5", "1.23", "0.123", "0.0123", "0"]
        );
    }
}
