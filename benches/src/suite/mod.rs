//! All benchmarks, one after the other, into one page and one file.
//!
//! Each runs in a process of its own: DPDK starts once per process, and nothing that one leaves behind slows the next.

mod figures;
mod page;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::document::{Document, digits};
use crate::peers::Absent;
use crate::{Cores, Report, Stopwatch};

pub use figures::{Bound, Figure, Quantity};

/// What is run, in this order; `@` stands for the CPUs.
const STEPS: &[(&str, &str)] = &[
    ("roofline", "-D 1 --cores @"),
    ("peers", "-D 1 --limit 225 --cores @"),
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
    ("lossy", "-D 0.2 --runs 11 --cores @"),
    ("tcp-rx", "--laps 2001"),
    ("tcp-echo", "--laps 2001"),
    ("conns", "--laps 2001"),
    ("copies", "-D 1 --cores @"),
    ("slow-clients", "-D 0.5 --runs 11 --cores @"),
];

/// Seconds that a benchmark may take: none may keep the others from their turn.
const PATIENCE_S: &str = "240";

/// What to run, and where to.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Where report.html, report.json and what they are made from go.
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    to: PathBuf,
    /// Only these benchmarks.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    only: Vec<String>,
    /// CPUs: initiator, target.
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    cores: Cores,
}

/// The whole.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteReport {
    /// What is asked, and what was measured.
    pub figures: Vec<Figure>,
    /// What could not be measured.
    pub absent: Vec<Absent>,
    /// Seconds that it took.
    pub seconds: f64,
    /// The reports of the benchmarks.
    pub documents: Vec<Document>,
    /// Where the page is.
    pub page: PathBuf,
}

/// What the page has of a benchmark beside its report.
struct Part {
    /// Its name and flags.
    title: String,
    plot: Option<String>,
}

/// Runs all of it. That one benchmark fails is part of the report.
///
/// # Errors
/// The folder cannot be written; no benchmark has worked.
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
        eprintln!("{:4.0} s  {benchmark} {args}", watch.seconds());
        let stem = folder.join(format!("{:02}-{benchmark}", number + 1));
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE_S, "taskset", "-c", &cores]).arg(&program);
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
                absent.push(Absent { what, why: format!("{error:#}") });
            }
        }
    }
    ensure!(!documents.is_empty(), "no benchmark has worked: {absent:?}");
    let page = folder.join("report.html");
    let figures = figures::figures(&documents);
    let report = SuiteReport { figures, absent, seconds: watch.seconds(), documents, page: page.clone() };
    fs::write(&page, page::html(&report, &parts)).with_context(|| page.display().to_string())?;
    let json = folder.join("report.json");
    fs::write(&json, serde_json::to_vec_pretty(&report)?).with_context(|| json.display().to_string())?;
    Ok(report)
}

/// Runs one benchmark; its report, and its plots if it has some.
fn measure(mut command: Command, stem: &Path) -> Result<(Document, Option<String>)> {
    let [json, svg] = ["json", "svg"].map(|extension| stem.with_extension(extension));
    for old in [&json, &svg] {
        // Of an earlier run, if there is one: it must not be taken for this one's.
        let _ = fs::remove_file(old);
    }
    command.arg("--json").arg(&json).arg("--svg-if-any").arg(&svg);
    let output = command.output()?;
    fs::write(stem.with_extension("txt"), [&output.stdout[..], &output.stderr[..]].concat())?;
    // As `timeout` says that the time was up.
    ensure!(output.status.code() != Some(124), "not done after {PATIENCE_S} s");
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find(|line| line.starts_with("error: ")).or_else(|| said.lines().last());
    ensure!(output.status.success(), "{}: {}", output.status, reason.unwrap_or_default());
    let mut documents = Document::read(&json)?;
    ensure!(documents.len() == 1, "{} has not one report", json.display());
    let document = documents.pop().context("no report")?;
    Ok((document, fs::read_to_string(svg).ok()))
}

/// What a benchmark itself says that it could not measure.
fn absent_of(document: &Document) -> Vec<Absent> {
    let listed = document.report.get("absent").cloned().unwrap_or(Value::Null);
    serde_json::from_value(listed).unwrap_or_default()
}

impl Figure {
    /// What is asked of it, in short.
    pub(crate) fn bound_text(&self) -> String {
        let bound = match self.bound {
            Bound::AtLeast(least) => format!("≥ {}", digits(least)),
            Bound::AtMost(most) => format!("≤ {}", digits(most)),
        };
        self.aim.map_or_else(|| bound.clone(), |aim| format!("{bound} ({})", digits(aim)))
    }

    /// Whether it is met, in a word.
    pub(crate) const fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        }
    }

    /// What it was made from.
    pub(crate) fn evidence(&self) -> String {
        let text = |Quantity { of, value, unit }: &Quantity| format!("{} {unit}: {of}", digits(*value));
        let beside = self.beside.iter().map(|quantity| format!("beside it {}", text(quantity)));
        self.raw
            .iter()
            .map(text)
            .chain(beside)
            .chain(self.missing.iter().cloned())
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

impl Report for SuiteReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{:<80} {:>16} {:>10}  {:<12}", "figure", "asked (aim)", "measured", "")?;
        for figure in &self.figures {
            let measured = figure.measured.map_or_else(|| "–".to_owned(), digits);
            let (bound, verdict) = (figure.bound_text(), figure.verdict());
            writeln!(out, "{:<80} {bound:>16} {measured:>10}  {verdict:<12}", figure.asked)?;
        }
        for Absent { what, why } in &self.absent {
            writeln!(out, "not measured: {what}: {why}")?;
        }
        writeln!(out, "{:.0} s; {}", self.seconds, self.page.display())
    }
}
