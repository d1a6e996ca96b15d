//! `suite`: runs all benchmarks, one after the other, and writes one page and one JSON file.
//!
//! Each benchmark runs in a process of its own: DPDK starts once per process, and no benchmark leaves state to the
//! next.

mod figures;
mod page;
mod programs;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::document::{Document, digits};
use crate::peers::NotMeasured;
use crate::{Cores, Report, Stopwatch};

pub use figures::{Bound, Figure, Quantity};

/// The benchmarks in their order, with their flags; `@` stands for the CPUs.
const STEPS: &[(&str, &str)] = &[
    // On interfaces that every machine has: what a user sees first.
    ("programs", "daemons --runs 3"),
    ("programs", "embedded --runs 3"),
    ("programs", "numbers --runs 3"),
    ("programs", "nfs --runs 3"),
    ("roofline", "-D 1 --cores @"),
    ("peers", "-D 1 --limit 225 --cores @"),
    // The other message sizes of the plot of bandwidth; those above belong to figures.
    ("peers", "-s 256,1k,4k,16k,256k,1M -m 1500 -D 1 --limit 225 --cores @"),
    ("write-bw", "-a -D 0.3 --runs 5 --cores @"),
    ("write-bw", "-s 65536 -D 0.6 --crc off --cores @"),
    ("write-bw", "-s 65536 -D 0.6 -q 4,16,64 --cores @"),
    ("write-bw", "-s 65536 -D 0.6 -b --cores @"),
    ("read-bw", "-s 4096,65536,1048576 -D 0.6 --cores @"),
    ("send-bw", "-s 4096,65536,1048576 -D 0.6 --cores @"),
    ("write-bw", "-s 64,65536 -D 0.6 --link memif --cores @"),
    ("read-bw", "-s 65536 -D 0.6 --link memif --cores @"),
    ("send-bw", "-s 65536 -D 0.6 --link memif --cores @"),
    ("msg-rate", "-D 0.6 --cores @"),
    ("write-lat", "-s 64 -D 2 --cores @"),
    ("read-lat", "-s 64 -D 2 --cores @"),
    ("send-lat", "-s 64 -D 2 --cores @"),
    ("write-lat", "-s 64 -D 1 --link memif --cores @"),
    ("write-bw", "-s 64,4096,65536 -m 1500 -D 0.6 --link daemon --cores @"),
    ("read-bw", "-s 65536 -m 1500 -D 0.6 --link daemon --cores @"),
    ("send-bw", "-s 64,65536 -m 1500 -D 0.6 --link daemon --cores @"),
    ("write-lat", "-s 64 -m 1500 -D 1 --link daemon --cores @"),
    ("send-lat", "-s 64 -m 1500 -D 1 --link daemon --cores @"),
    ("application", "-m 1500 --region 4M --cores @"),
    ("lossy", "-D 0.2 --runs 11 --no-peer --cores @"),
    ("tcp-rx", "--laps 2001"),
    ("tcp-echo", "--laps 2001"),
    ("conns", "--laps 2001"),
    ("copies", "-D 1 --cores @"),
    ("slow-clients", "-D 0.5 --runs 11 --cores @"),
];

/// Longest run of a benchmark, seconds; then it is killed and the next starts.
const TIMEOUT_S: &str = "240";

/// Command-line flags of `suite`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Folder for report.html, report.json and the output of each benchmark.
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    to: PathBuf,
    /// Run only these benchmarks.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    only: Vec<String>,
    /// CPUs of initiator and target, pinned.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
    /// Run each benchmark as briefly as it allows: a test that all of them work. The figures then mean nothing.
    #[arg(long)]
    brief: bool,
}

/// Report of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteReport {
    /// The figures with their thresholds.
    pub figures: Vec<Figure>,
    /// Benchmarks and programs without a result.
    pub absent: Vec<NotMeasured>,
    /// Duration of the suite, seconds.
    pub seconds: f64,
    /// The reports of the benchmarks.
    pub documents: Vec<Document>,
    /// Path of the written report.html.
    pub page: PathBuf,
}

/// Title and plot of a benchmark on the page.
struct Part {
    /// Name and flags of the benchmark.
    title: String,
    plot: Option<String>,
}

/// Returns the flags of a step with its durations and repetitions at their least; `peers` knows whole seconds only, and
/// measures one size besides those of the figures.
fn brief(benchmark: &str, args: &str) -> String {
    let mut words: Vec<&str> = args.split_whitespace().collect();
    if benchmark == "application" {
        words.extend(["-D", "", "--runs", ""]);
    }
    if benchmark == "peers" {
        words.extend(["--runs", ""]);
    }
    if benchmark == "programs" {
        words.push("--brief");
    }
    for index in 1..words.len() {
        words[index] = match words[index - 1] {
            "-D" if benchmark == "peers" => "1",
            "-s" if benchmark == "peers" => "256",
            "-D" => "0.1",
            "--runs" => "1",
            "--laps" => "3",
            _ => words[index],
        };
    }
    words.join(" ")
}

/// Runs the benchmarks. The report lists those that fail.
///
/// # Errors
/// The folder cannot be written, or every benchmark has failed.
pub fn run(options: &Options) -> Result<SuiteReport> {
    let watch = Stopwatch::start();
    let (folder, program) = (&options.to, std::env::current_exe()?);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let Cores([a, b]) = options.cores;
    let cores = format!("{a},{b}");
    let (mut documents, mut parts, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (benchmark, args)) in STEPS.iter().enumerate() {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == benchmark) {
            continue;
        }
        let args = if options.brief { brief(benchmark, args) } else { (*args).to_owned() };
        eprintln!("{:4.0} s  {benchmark} {args}", watch.seconds());
        let stem = folder.join(format!("{:02}-{benchmark}", number + 1));
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", TIMEOUT_S, "taskset", "-c", &cores]).arg(&program);
        command.arg(benchmark).args(args.replace('@', &cores).split_whitespace());
        match measure(command, &stem) {
            Ok((document, plot)) => {
                absent.extend(absent_of(&document));
                documents.push(document);
                let title = format!("{benchmark} {}", args.trim_end_matches("--cores @"));
                parts.push(Part { title: title.trim().to_owned(), plot });
            }
            Err(error) => {
                let what = format!("{benchmark} {}", args.replace('@', &cores)).trim().to_owned();
                absent.push(NotMeasured { what, why: format!("{error:#}") });
            }
        }
    }
    ensure!(!documents.is_empty(), "every benchmark has failed: {absent:?}");
    let page = folder.join("report.html");
    let figures = figures::figures(&documents);
    let report = SuiteReport { figures, absent, seconds: watch.seconds(), documents, page: page.clone() };
    fs::write(&page, page::html(&report, &parts)).with_context(|| page.display().to_string())?;
    let json = folder.join("report.json");
    fs::write(&json, serde_json::to_vec_pretty(&report)?).with_context(|| json.display().to_string())?;
    Ok(report)
}

/// Runs one benchmark; returns its report, and its plots if there are any.
fn measure(mut command: Command, stem: &Path) -> Result<(Document, Option<String>)> {
    let [json, svg] = ["json", "svg"].map(|extension| stem.with_extension(extension));
    for old in [&json, &svg] {
        // Removes the output of an earlier run, so that it is not mistaken for this one's.
        let _ = fs::remove_file(old);
    }
    command.arg("--json").arg(&json).arg("--svg-if-any").arg(&svg);
    let output = command.output()?;
    fs::write(stem.with_extension("txt"), [&output.stdout[..], &output.stderr[..]].concat())?;
    // `timeout` exits with 124 if the time is up.
    ensure!(output.status.code() != Some(124), "not done after {TIMEOUT_S} s");
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = errors.lines().find(|line| line.starts_with("error: ")).or_else(|| errors.lines().last());
    ensure!(output.status.success(), "{}: {}", output.status, reason.unwrap_or_default());
    let mut documents = Document::read(&json)?;
    ensure!(documents.len() == 1, "{} has not one report", json.display());
    let document = documents.pop().context("no report")?;
    Ok((document, fs::read_to_string(svg).ok()))
}

/// Returns the programs that a benchmark reports as not measured.
fn absent_of(document: &Document) -> Vec<NotMeasured> {
    let listed = document.report.get("absent").cloned().unwrap_or(Value::Null);
    serde_json::from_value(listed).unwrap_or_default()
}

impl Figure {
    /// Returns the threshold, and the aim in brackets.
    pub(crate) fn bound_text(&self) -> String {
        let bound = match self.bound {
            Bound::AtLeast(least) => format!("≥ {}", digits(least)),
            Bound::AtMost(most) => format!("≤ {}", digits(most)),
        };
        self.aim.map_or_else(|| bound.clone(), |aim| format!("{bound} ({})", digits(aim)))
    }

    /// Returns `met`, `not met` or `not measured`.
    pub(crate) const fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        }
    }

    /// Returns the quantities with their values, and those that were not measured.
    pub(crate) fn evidence(&self) -> String {
        let text = |Quantity { of, value, unit }: &Quantity| format!("{} {unit}: {of}", digits(*value));
        let context = self.context.iter().map(|quantity| format!("for comparison {}", text(quantity)));
        self.raw
            .iter()
            .map(text)
            .chain(context)
            .chain(self.missing.iter().cloned())
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

impl Report for SuiteReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{:<84} {:>17} {:>10}  {:<12}", "figure", "threshold (aim)", "measured", "")?;
        for figure in &self.figures {
            let measured = figure.measured.map_or_else(|| "–".to_owned(), digits);
            let (bound, verdict) = (figure.bound_text(), figure.verdict());
            writeln!(out, "{:<84} {bound:>17} {measured:>10}  {verdict:<12}", figure.title)?;
        }
        for NotMeasured { what, why } in &self.absent {
            writeln!(out, "not measured: {what}: {why}")?;
        }
        writeln!(out, "{:.0} s; {}", self.seconds, self.page.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brief_steps_are_short_and_otherwise_the_same() {
        assert_eq!(brief("write-bw", "-a -D 0.3 --runs 5 --cores @"), "-a -D 0.1 --runs 1 --cores @");
        assert_eq!(
            brief("peers", "-s 256,1k -D 1 --limit 225 --cores @"),
            "-s 256 -D 1 --limit 225 --cores @ --runs 1"
        );
        assert_eq!(brief("application", "--region 4M"), "--region 4M -D 0.1 --runs 1");
        assert_eq!(brief("conns", "--laps 2001"), "--laps 3");
    }
}
