//! Where the outcome of a benchmark goes: to people, to programs, to HdrHistogram's tools.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use serde::Serialize;

use crate::{Machine, plot};

/// What a benchmark has found out.
pub trait Report: Serialize {
    /// Writes it for people.
    ///
    /// # Errors
    /// Those of `out`.
    fn print(&self, out: &mut dyn Write) -> io::Result<()>;

    /// The distributions it rests on, each with a name without blanks or commas.
    fn histograms(&self) -> Vec<(String, &Histogram<u64>)> {
        Vec::new()
    }
}

/// Where reports go.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Write JSON, to FILE or in place of the table.
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write the distributions as an HdrHistogram log (nanoseconds).
    #[arg(long, global = true, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Write plots: rate over message size, latency over percentiles.
    #[arg(long, global = true, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The same, where there is something to plot.
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    svg_if_any: Option<PathBuf>,
}

/// One report as it is written.
#[derive(Serialize)]
struct Document<'a, O, R> {
    benchmark: &'a str,
    machine: Machine,
    options: &'a O,
    report: R,
}

impl Output {
    /// Runs a benchmark and writes what it reports.
    ///
    /// # Errors
    /// The benchmark's own, and those of writing.
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

/// One interval of the log per distribution, tagged with its name.
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
