//! Reads JSON reports back as tables, independent of the benchmark: each row has keys, which name it, and measured
//! cells. `suite`, `compare` and the plots use it.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Samples;

/// Numeric fields that are keys of a row rather than results. Text and truth values always are keys.
const KEY_FIELDS: [&str; 21] = [
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
    "bursts",
    "burst_frames",
    "burst_us",
    "reorder",
    "hold_frames",
    "hold_us",
    "cpu",
];

/// Fields that come first in a row, in this order; the others follow.
const FIRST_FIELDS: [&str; 27] = [
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
    "bursts",
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

/// Report of one benchmark, as `--json` writes it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Document {
    /// Name of the benchmark.
    pub benchmark: String,
    /// Hardware, build and date.
    pub machine: Value,
    /// Flags of the benchmark.
    pub options: Value,
    /// Results of the benchmark.
    pub report: Value,
}

/// Rows of one kind in a report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Section {
    /// Name of the field; empty for fields of the report itself.
    pub(crate) name: String,
    pub(crate) rows: Vec<Row>,
}

/// Keys and results of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// Names and values that identify the row.
    pub(crate) keys: Vec<(String, String)>,
    /// Names of the results, and their samples.
    pub(crate) cells: Vec<(String, Samples)>,
}

impl Document {
    /// Reads a file with one report or with those of a suite.
    ///
    /// # Errors
    /// The file cannot be read or is no report.
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

    /// Returns the sections of the report.
    pub(crate) fn sections(&self) -> Vec<Section> {
        sections(&self.report)
    }
}

/// Returns the sections of a report.
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
        // A pair of a key and a result.
        Value::Array(pair) => {
            if let [of, value] = pair.as_slice() {
                row.keys.push(("of".to_owned(), text_of(of)));
                row.take("value", value);
            }
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| row.take(name, value)),
        _ => {}
    }
    row.keys.sort_by_key(|(name, _)| rank(name));
    row.cells.sort_by_key(|(name, _)| rank(name));
    row
}

/// Returns the position of a field in its row.
fn rank(name: &str) -> usize {
    let last = name.rsplit('.').next().unwrap_or(name);
    FIRST_FIELDS.iter().position(|first| *first == last).unwrap_or(FIRST_FIELDS.len())
}

impl Row {
    fn take(&mut self, name: &str, value: &Value) {
        let last = name.rsplit('.').next().unwrap_or(name);
        match value {
            Value::Number(number) if !KEY_FIELDS.contains(&last) => {
                let one = number.as_f64().and_then(|number| Samples::new(vec![number]).ok());
                self.cells.extend(one.map(|one| (name.to_owned(), one)));
            }
            Value::Number(_) | Value::String(_) | Value::Bool(_) => {
                self.keys.push((name.to_owned(), text_of(value)));
            }
            Value::Object(fields) => match Samples::deserialize(value) {
                Ok(samples) => self.cells.push((name.to_owned(), samples)),
                Err(_) => fields.iter().for_each(|(part, value)| self.take(&format!("{name}.{part}"), value)),
            },
            // Lists within a row are raw results; another field has their median.
            Value::Array(_) | Value::Null => {}
        }
    }

    /// Returns the keys as one line of text.
    pub(crate) fn label(&self) -> String {
        let words = self.keys.iter().map(|(name, value)| match value.as_str() {
            "true" => name.clone(),
            "false" => format!("not {name}"),
            _ if name == "crc" => format!("CRC {value}"),
            _ if value.parse::<f64>().is_ok() => format!("{name} {value}"),
            _ => value.clone(),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Returns the samples of a result.
    pub(crate) fn cell(&self, name: &str) -> Option<&Samples> {
        self.cells.iter().find(|(of, _)| of == name).map(|(_, samples)| samples)
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats a number with three to five significant digits.
pub(crate) fn digits(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 || number == 0.0 => format!("{number:.0}"),
        size if size >= 100.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        size if size >= 0.1 => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_split_into_sections_and_rows() {
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
        assert_eq!(row.cell("p50").map(|cell| cell.median), Some(2.0));
        assert_eq!(row.cells.len(), 2);
        let pair = all.get(1).and_then(|section| section.rows.first()).unwrap();
        assert_eq!((pair.label(), pair.cell("value").unwrap().median), ("of 1500".to_owned(), 73.5));
    }

    #[test]
    fn numbers_have_few_digits() {
        assert_eq!(
            [12345.6, 123.45, 1.234, 0.1234, 0.01234, 0.0].map(digits),
            ["12346", "123.5", "1.23", "0.123", "0.0123", "0"]
        );
    }
}
