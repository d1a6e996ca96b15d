//! `programs`: what users run, beside the same work over the kernel's TCP: unmodified verbs programs on two daemons and
//! on the embedded device, queue pairs by number, READ of NFS. Scripts of the tests measure; this collects their rows.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::document::digits;
use crate::{Progress, Report, Samples};

/// Programs that one script measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Perftest between two daemons on a bridge.
    Daemons,
    /// Perftest on the device inside the process.
    Embedded,
    /// Queue pairs by number, and the set-up of connections.
    Numbers,
    /// READ of NFS, by RDMA and by TCP.
    Nfs,
}

/// Command-line flags of `programs`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Groups of programs to measure.
    #[arg(value_enum, required = true)]
    subjects: Vec<Subject>,
    /// Repetitions; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Few messages and short times: a test that everything works. The figures then mean nothing.
    #[arg(long)]
    brief: bool,
    /// Folder of the sources, which have the scripts.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    tree: PathBuf,
}

/// A program over a wire, with all that was measured of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProgramRow {
    /// Name of the program.
    pub program: String,
    /// Interface and stack below it.
    pub over: String,
    /// Bytes of a message.
    pub size: u64,
    /// Quantities by name; the name ends with the unit.
    #[serde(flatten)]
    pub quantities: BTreeMap<String, Samples>,
}

/// The result rows of `programs`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProgramsReport {
    /// One row for each program, wire and size, in the order of measurement.
    pub rows: Vec<ProgramRow>,
}

/// A line that a script writes.
#[derive(Debug, Deserialize)]
struct Line {
    program: String,
    over: String,
    size: u64,
    quantity: String,
    runs: Vec<f64>,
}

impl Subject {
    /// Returns the script, and the variables that make its measurement a brief one.
    fn script(self) -> (&'static str, &'static [(&'static str, &'static str)]) {
        match self {
            Self::Daemons => ("dataplane/tests/programs/rates.sh", &[("WRITES", "200")]),
            Self::Embedded => (
                "dataplane/tests/programs/embedded-rates.sh",
                &[("WRITES", "200"), ("GIB", "0.1"), ("IDLE_S", "1")],
            ),
            Self::Numbers => {
                ("dataplane/tests/programs/numbers-rates.sh", &[("WRITES", "200"), ("PAIRS", "50")])
            }
            Self::Nfs => {
                ("apps/tests/nfs/figures.sh", &[("FIGURES_SECONDS", "1"), ("FIGURES_SIZES", "1048576")])
            }
        }
    }
}

/// Runs the scripts, one after the other.
///
/// # Errors
/// A script is missing, or fails.
pub fn run(options: &Options) -> Result<ProgramsReport> {
    let progress = Progress::new(options.subjects.len());
    let mut rows = Vec::new();
    for subject in &options.subjects {
        progress.step(subject.script().0);
        let lines = measure(*subject, options)?;
        collect(&mut rows, &lines).with_context(|| subject.script().0)?;
    }
    Ok(ProgramsReport { rows })
}

/// Runs a script of the tests with the programs beside this one, and returns the lines that it writes.
fn measure(subject: Subject, options: &Options) -> Result<String> {
    let (script, brief) = subject.script();
    let path = options.tree.join(script);
    ensure!(path.is_file(), "{} is not there: --tree names the folder of the sources", path.display());
    let programs = std::env::current_exe()?;
    let programs = programs.parent().unwrap_or(Path::new(".")).to_owned();
    let lines = std::env::temp_dir().join(format!("iwarp-bench-{}.rows", std::process::id()));
    let _ = fs::remove_file(&lines);
    let runs = options.runs.to_string();
    let mut command = Command::new(&path);
    command.env("BUILT", fs::canonicalize(programs)?).env("REPORT", &lines);
    command.env("RUNS", &runs).env("FIGURES_REPEAT", &runs).env("FIGURES_SIZES", "65536 1048576");
    if options.brief {
        command.envs(brief.iter().copied());
    }
    let output = command.output().with_context(|| path.display().to_string())?;
    let text = fs::read_to_string(&lines);
    let _ = fs::remove_file(&lines);
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script}: {}: {}", output.status, said.lines().last().unwrap_or(""));
    text.with_context(|| format!("{script} has written no row"))
}

/// Adds the quantities of a script's lines to the rows.
fn collect(rows: &mut Vec<ProgramRow>, lines: &str) -> Result<()> {
    for line in lines.lines() {
        let Line { program, over, size, quantity, runs } =
            serde_json::from_str(line).with_context(|| line.to_owned())?;
        let samples = Samples::new(runs).with_context(|| format!("{program} over {over}: {quantity}"))?;
        let is_its = |row: &&mut ProgramRow| (&row.program, &row.over, row.size) == (&program, &over, size);
        if let Some(row) = rows.iter_mut().find(is_its) {
            row.quantities.insert(quantity, samples);
        } else {
            rows.push(ProgramRow { program, over, size, quantities: [(quantity, samples)].into() });
        }
    }
    Ok(())
}

impl Report for ProgramsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nmedians, and in brackets the least and the greatest of the runs")?;
        for ProgramRow { program, over, size, quantities } in &self.rows {
            for (name, Samples { median, min, max, .. }) in quantities {
                let (median, least, greatest) = (digits(*median), digits(*min), digits(*max));
                writeln!(
                    out,
                    "{program:<16} {over:<40} {size:>8} {name:<24} {median} ({least} to {greatest})"
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_one_program_are_one_row() {
        let lines = r#"{"program":"ib_write_bw","over":"a wire","size":65536,"quantity":"gbps","runs":[3,1,2]}
{"program":"ib_write_bw","over":"a wire","size":64,"quantity":"mpps","runs":[1]}
{"program":"ib_write_bw","over":"a wire","size":65536,"quantity":"cpu_s_per_gib","runs":[0.5]}"#;
        let mut rows = Vec::new();
        collect(&mut rows, lines).unwrap();
        let [bulk, small] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((bulk.size, bulk.quantities.len(), small.size), (65536, 2, 64));
        assert_eq!(bulk.quantities["gbps"].median, 2.0);
    }

    #[test]
    fn a_script_that_measured_nothing_is_an_error() {
        let empty = r#"{"program":"ib_write_bw","over":"a wire","size":64,"quantity":"gbps","runs":[]}"#;
        assert!(
            format!("{:#}", collect(&mut Vec::new(), empty).unwrap_err()).contains("ib_write_bw over a wire")
        );
        assert!(collect(&mut Vec::new(), "no JSON").is_err());
    }
}
