//! Output of a benchmark: a table, JSON, SVG plots, an HdrHistogram log, and a progress bar meanwhile.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::{Machine, plot};

/// Result of a benchmark.
pub trait Report: Serialize {
    /// Writes the result as text.
    ///
    /// # Errors
    /// Writing to `out` fails.
    fn print(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Returns the distributions behind the result, each with a name without blanks or commas.
    fn histograms(&self) -> Vec<(String, &Histogram<u64>)> {
        Vec::new()
    }
}

/// Flags that say where reports go.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Write JSON, to FILE or instead of the table.
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write the distributions as an HdrHistogram log (nanoseconds).
    #[arg(long, global = true, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Write plots: rate over message size, latency over percentiles.
    #[arg(long, global = true, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write plots if the result has message sizes or distributions.
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    svg_if_any: Option<PathBuf>,
}

/// A report in JSON.
#[derive(Serialize)]
struct Document<'a, O, R> {
    benchmark: &'a str,
    machine: Machine,
    options: &'a O,
    report: R,
}

impl Output {
    /// Runs a benchmark and writes its report.
    ///
    /// # Errors
    /// The benchmark fails, or a file cannot be written.
    pub fn write<O: Serialize, R: Report>(
        &self,
        benchmark: &str,
        options: &O,
        run: impl FnOnce(&O) -> Result<R>,
    ) -> Result<()> {
        let machine = Machine::here();
        let report = run(options)?;
        if let Some(path) = &self.hdr {
            write_histograms(path, &report).with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(path) = self.svg.as_ref().or(self.svg_if_any.as_ref()) {
            match plot::svg(benchmark, &serde_json::to_value(&report)?, &report.histograms())? {
                Some(plots) => {
                    fs::write(path, plots).with_context(|| format!("writing {}", path.display()))?
                }
                None => {
                    ensure!(self.svg.is_none(), "--svg: there are neither message sizes nor distributions")
                }
            }
        }
        let to_file = self.json.as_deref().filter(|path| *path != Path::new("-"));
        if self.json.is_none() || to_file.is_some() {
            let mut out = io::stdout().lock();
            writeln!(out, "# {benchmark}: {}, {}, DPDK {}", machine.cpu, machine.kernel, machine.dpdk)?;
            writeln!(out, "# commit {}, {}, {}", machine.commit, machine.build, machine.date)?;
            report.print(&mut out)?;
        }
        if self.json.is_some() {
            let document = Document { benchmark, machine, options, report };
            match to_file {
                Some(path) => {
                    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
                    serde_json::to_writer_pretty(file, &document)?;
                }
                None => {
                    serde_json::to_writer_pretty(io::stdout().lock(), &document)?;
                    println!();
                }
            }
        }
        Ok(())
    }
}

/// Writes an HdrHistogram log: one interval per distribution, tagged with its name.
fn write_histograms(path: &Path, report: &impl Report) -> Result<()> {
    let mut file = File::create(path)?;
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .with_base_time(SystemTime::UNIX_EPOCH)
        .begin_log_with(&mut file, &mut serializer)?;
    for (name, histogram) in report.histograms() {
        let tag = Tag::new(&name).with_context(|| format!("`{name}` is no name for a distribution"))?;
        log.write_histogram(histogram, Duration::ZERO, Duration::ZERO, Some(tag))
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
    }
    Ok(())
}

/// Progress bar on the terminal; hidden if standard error is none. Dropping it clears the line.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Shows the bar of a benchmark with `steps` steps.
    #[must_use]
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos}/{len} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Shows that the next step begins.
    pub fn step(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
