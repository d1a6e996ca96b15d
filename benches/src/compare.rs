//! `compare`: shows two runs side by side.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::Report;
use crate::document::{Document, digits};

/// Command-line flags of `compare`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// A report written with --json, or a suite's report.json.
    before: PathBuf,
    /// The report to compare it with.
    after: PathBuf,
}

/// A result in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Benchmark, section, row and name of the result.
    pub figure: String,
    /// Median in the first run.
    pub before: f64,
    /// Median in the second run.
    pub after: f64,
    /// The second divided by the first; `None` if the first is 0.
    pub ratio: Option<f64>,
    /// True if all samples of one are above all samples of the other; `None` if one has a single sample.
    pub apart: Option<bool>,
}

/// Comparison of two runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// Results in both runs, in the order of the first.
    pub changes: Vec<Change>,
    /// Results in one run only.
    pub unmatched: Vec<String>,
    /// Differences of machine or build: name, value in the first run, value in the second.
    pub circumstances: Vec<[String; 3]>,
}

/// Compares two files.
///
/// # Errors
/// A file cannot be read, or the two have no result in common.
pub fn run(options: &Options) -> Result<Comparison> {
    let (before, after) = (Document::read(&options.before)?, Document::read(&options.after)?);
    let comparison = compare(&before, &after);
    ensure!(!comparison.changes.is_empty(), "the two have no figure in common");
    Ok(comparison)
}

fn compare(before: &[Document], after: &[Document]) -> Comparison {
    let (mut old, mut new) = (figures(before), figures(after));
    let mut comparison = Comparison::default();
    for (figure, was) in old.drain(..) {
        let Some(at) = new.iter().position(|(other, _)| *other == figure) else {
            comparison.unmatched.push(figure);
            continue;
        };
        let (_, is) = new.remove(at);
        let ratio = Some(is.median / was.median).filter(|ratio| ratio.is_finite());
        let several = was.runs.len() > 1 && is.runs.len() > 1;
        let apart = several.then_some(is.min > was.max || is.max < was.min);
        comparison.changes.push(Change { figure, before: was.median, after: is.median, ratio, apart });
    }
    comparison.unmatched.extend(new.into_iter().map(|(figure, _)| figure));
    if let (Some(before), Some(after)) = (before.first(), after.first()) {
        for (name, was) in before.machine.as_object().into_iter().flatten() {
            let is = after.machine.get(name).unwrap_or(&serde_json::Value::Null);
            if is != was {
                comparison.circumstances.push([name.clone(), was.to_string(), is.to_string()]);
            }
        }
    }
    comparison
}

fn figures(documents: &[Document]) -> Vec<(String, crate::Samples)> {
    let mut found = Vec::new();
    for document in documents {
        for section in document.sections() {
            for row in section.rows {
                let label = row.label();
                let parts = |name: &str| {
                    let parts = [&document.benchmark, &section.name, &label, name];
                    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" / ")
                };
                found.extend(row.cells.iter().map(|(name, samples)| (parts(name), samples.clone())));
            }
        }
    }
    found
}

impl Report for Comparison {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for [name, was, is] in &self.circumstances {
            writeln!(out, "# {name}: {was} → {is}")?;
        }
        let width = self.changes.iter().map(|change| change.figure.chars().count()).max().unwrap_or(0);
        writeln!(out, "\n{:<width$} {:>12} {:>12} {:>8}", "figure", "before", "after", "ratio")?;
        for Change { figure, before, after, ratio, apart } in &self.changes {
            let ratio = ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"));
            let mark = if *apart == Some(true) { " *" } else { "" };
            let (before, after) = (digits(*before), digits(*after));
            writeln!(out, "{figure:<width$} {before:>12} {after:>12} {ratio:>8}{mark}")?;
        }
        writeln!(out, "* all runs of one are above all runs of the other")?;
        for figure in &self.unmatched {
            writeln!(out, "in one run only: {figure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(commit: &str, gbps: &[f64], size: u64) -> Document {
        let gbps = crate::Samples::new(gbps.to_vec()).unwrap();
        Document {
            benchmark: "write-bw".to_owned(),
            machine: json!({"cpu": "one", "commit": commit}),
            options: json!({}),
            report: json!({"rows": [{"size": size, "gbps": gbps}, {"size": 1, "gbps": 5.0}]}),
        }
    }

    #[test]
    fn results_are_matched_by_benchmark_row_and_name() {
        let (before, after) = (document("a", &[1.0, 2.0], 64), document("b", &[4.0, 3.0], 64));
        let comparison = compare(&[before], std::slice::from_ref(&after));
        assert_eq!(comparison.circumstances, [["commit", "\"a\"", "\"b\""].map(str::to_owned)]);
        let [change, same] = comparison.changes.as_slice() else { panic!("{comparison:?}") };
        assert_eq!(change.figure, "write-bw / rows / size 64 / gbps");
        assert_eq!((change.before, change.after, change.apart), (1.5, 3.5, Some(true)));
        assert_eq!((same.ratio, same.apart), (Some(1.0), None));
        assert!(comparison.unmatched.is_empty());
        let comparison = compare(&[after], &[document("b", &[1.0], 65)]);
        assert_eq!((comparison.changes.len(), comparison.unmatched.len()), (1, 2));
        let mut text = Vec::new();
        comparison.print(&mut text).unwrap();
        assert!(
            String::from_utf8(text).unwrap().contains("in one run only: write-bw / rows / size 65 / gbps")
        );
    }
}
