//! `plots`: the SVG files of README.md, from a suite's report.
//!
//! `make bench` runs it after the suite. Only measured values are drawn: a peer that the report lacks has no line.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::{Kind, Plot, Series, bars, diagram, draw, message_size};
use crate::Report;
use crate::document::{Document, Row};

/// Largest IP packet of all series, bytes.
const MTU: &str = "1500";

/// One line of the plot: the rows of a benchmark's report that belong to it.
struct Source {
    name: &'static str,
    benchmark: &'static str,
    section: &'static str,
    /// Fields that select the rows.
    row: &'static [(&'static str, &'static str)],
    /// Method of the measurement, for the description of the plot.
    method: &'static str,
}

const SOURCES: [Source; 5] = [
    Source {
        name: "Ironwarp, RDMA Write with CRC32c",
        benchmark: "write-bw",
        section: "rows",
        row: &[("mtu", MTU), ("link", "ring"), ("crc", "on"), ("qps", "1"), ("bidirectional", "false")],
        method: "iwarp-bench write-bw: one queue pair, 128 messages in flight, two cores, a pair of DPDK rings",
    },
    Source {
        name: "kernel TCP, veth with all offloads",
        benchmark: "peers",
        section: "iperf3",
        row: &[("wire.mtu", MTU), ("wire.offloads", "true")],
        method: "iperf3 with CUBIC over a veth pair, the same two cores; segments of up to 64 KiB, no checksums",
    },
    Source {
        name: "kernel TCP, veth without offloads",
        benchmark: "peers",
        section: "iperf3",
        row: &[("wire.mtu", MTU), ("wire.offloads", "false")],
        method: "the same with segmentation, merging and checksum offloads off, as over a plain Ethernet port",
    },
    Source {
        name: "UCX put over kernel TCP, with all offloads",
        benchmark: "peers",
        section: "ucx",
        row: &[("wire.mtu", MTU), ("wire.offloads", "true"), ("test", "put")],
        method: "ucx_perftest ucp_put_bw with UCX_TLS=tcp and 256 operations outstanding, the same veth pair",
    },
    Source {
        name: "UCX put over kernel TCP, without offloads",
        benchmark: "peers",
        section: "ucx",
        row: &[("wire.mtu", MTU), ("wire.offloads", "false"), ("test", "put")],
        method: "the same with the offloads off",
    },
];

/// Command-line flags of `plots`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// JSON reports of a suite or of single benchmarks. Without one only overview.svg is written.
    #[arg(value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// Folder for bandwidth.svg and overview.svg.
    #[arg(long, value_name = "FOLDER", default_value = "docs/plots")]
    to: PathBuf,
}

/// Files and series that were written.
#[derive(Clone, Debug, Serialize)]
pub struct PlotsReport {
    /// Paths of the SVG files.
    pub files: Vec<PathBuf>,
    /// Names of the series in the plot of bandwidth.
    pub series: Vec<String>,
}

/// Writes overview.svg and, from the reports, bandwidth.svg.
///
/// # Errors
/// A report cannot be read or has no RDMA Writes at MTU 1500; a file cannot be written.
pub fn run(options: &Options) -> Result<PlotsReport> {
    let documents = options.reports.iter().map(|path| Document::read(path)).collect::<Result<Vec<_>>>()?;
    let mut report = PlotsReport { files: Vec::new(), series: Vec::new() };
    fs::create_dir_all(&options.to).with_context(|| options.to.display().to_string())?;
    let mut write = |name: &str, text: &str| {
        let path = options.to.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        report.files.push(path);
        anyhow::Ok(())
    };
    write("overview.svg", &diagram::svg()?)?;
    if !options.reports.is_empty() {
        let documents = documents.concat();
        let of_programs = documents.iter().filter(|document| document.benchmark == "programs");
        let bars: Vec<_> = of_programs.flat_map(|document| bars::bars(&document.report)).collect();
        if !bars.is_empty() {
            let mut about = "Bandwidth of programs in Gbit/s, medians of several runs. ".to_owned();
            for bar in &bars {
                let _ = write!(about, "{}: {:.1}. ", bar.name, bar.gbps);
            }
            write("programs.svg", &bars::draw(&bars, &(about + &machines(&documents)))?)?;
        }
        let (text, series) = bandwidth(&documents)?;
        write("bandwidth.svg", &text)?;
        report.series = series;
    }
    Ok(report)
}

/// The plot of bandwidth over message size, and the names of its series.
fn bandwidth(documents: &[Document]) -> Result<(String, Vec<String>)> {
    let found: Vec<(&Source, Series)> =
        SOURCES.iter().filter_map(|source| Some((source, series(documents, source)?))).collect();
    ensure!(
        found.iter().any(|(source, _)| source.benchmark == "write-bw"),
        "no RDMA Writes at MTU {MTU} over rings: run `iwarp-bench suite` or `write-bw -a -m {MTU}`"
    );
    let mut about =
        format!("Payload bandwidth in Gbit/s over message size, MTU {MTU}; medians of several runs. ");
    for (source, _) in &found {
        let _ = write!(about, "{}: {}. ", source.name, source.method);
    }
    about.push_str(&machines(documents));
    let (names, series): (Vec<String>, Vec<Series>) =
        found.into_iter().map(|(_, series)| (series.name.clone(), series)).unzip();
    let title = format!("bandwidth over message size, MTU {MTU}: Gbit/s of payload");
    Ok((draw(&[Plot { kind: Kind::Rate, title, series }], &about)?, names))
}

/// Returns the measured points of one line, by size; `None` if there are none.
fn series(documents: &[Document], source: &Source) -> Option<Series> {
    let is_one = |row: &Row| {
        source.row.iter().all(|(name, value)| row.keys.iter().any(|(of, is)| of == name && is == value))
    };
    let mut points: Vec<(f64, f64)> = documents
        .iter()
        .filter(|document| document.benchmark == source.benchmark)
        .flat_map(Document::sections)
        .filter(|section| section.name == source.section)
        .flat_map(|section| section.rows)
        .filter(is_one)
        .filter_map(|row| Some((message_size(&row)?.log2(), row.cell("gbps")?.median)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    (!points.is_empty()).then(|| Series { name: source.name.to_owned(), points })
}

/// Machine, build and date of each measurement, without repetition.
fn machines(documents: &[Document]) -> String {
    let mut seen: Vec<String> = Vec::new();
    for Document { machine, .. } in documents {
        let text = |name: &str| machine.get(name).and_then(|value| value.as_str()).unwrap_or("?");
        let day = text("date").split('T').next().unwrap_or("?");
        let (cpu, kernel, dpdk) = (text("cpu"), text("kernel"), text("dpdk"));
        let line = format!("{cpu}, {kernel}, DPDK {dpdk}, build {}, {day}", text("build"));
        if !seen.contains(&line) {
            seen.push(line);
        }
    }
    format!("Measured on {}.", seen.join("; "))
}

impl Report for PlotsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for file in &self.files {
            writeln!(out, "{}", file.display())?;
        }
        if self.series.is_empty() {
            return Ok(());
        }
        for Source { name, .. } in
            SOURCES.iter().filter(|source| !self.series.iter().any(|name| name == source.name))
        {
            writeln!(out, "not drawn, for the report lacks it: {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document(benchmark: &str, report: Value) -> Document {
        let machine = json!({"cpu": "a CPU", "kernel": "Linux 6", "dpdk": "22.11", "build": "plain",
            "date": "2026-01-02T03:04:05Z"});
        Document { benchmark: benchmark.to_owned(), machine, options: json!({}), report }
    }

    fn write(mtu: u16, size: u32, crc: &str, gbps: f64) -> Value {
        json!({"operation": "write", "mtu": mtu, "size": size, "link": "ring", "crc": crc, "qps": 1,
            "bidirectional": false, "gbps": gbps})
    }

    #[test]
    fn only_measured_rows_of_the_same_mtu_are_drawn() {
        let rows = [
            write(1500, 65536, "on", 25.0),
            write(1500, 64, "on", 3.0),
            write(9000, 64, "on", 99.0),
            write(1500, 64, "off", 98.0),
        ];
        let put = |bytes: u32, test: &str| {
            json!({"wire": {"mtu": 1500, "offloads": true}, "test": test,
            "message_bytes": bytes, "gbps": 5.0})
        };
        let documents = [
            document("write-bw", json!({"rows": rows})),
            document("peers", json!({"ucx": [put(64, "put"), put(1024, "put"), put(64, "get")]})),
        ];
        let drawn = series(&documents, &SOURCES[0]).unwrap();
        assert_eq!(drawn.points, [(6.0, 3.0), (16.0, 25.0)]);
        let (text, names) = bandwidth(&documents).unwrap();
        assert_eq!(names, [SOURCES[0].name, SOURCES[3].name]);
        assert!(text.contains("<desc>") && text.contains("a CPU") && text.contains("2026-01-02"), "{text}");
        assert!(!text.contains("iperf3") && text.contains("write-bw"), "{text}");
    }

    #[test]
    fn a_report_without_writes_is_refused() {
        let error = bandwidth(&[document("peers", json!({"ucx": []}))]).unwrap_err().to_string();
        assert!(error.contains("write-bw -a"), "{error}");
    }

    #[test]
    fn the_diagram_in_the_documents_is_the_one_that_is_drawn() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/plots/overview.svg");
        let stored = fs::read_to_string(path).unwrap();
        assert!(
            stored == diagram::svg().unwrap(),
            "`iwarp-bench plots` draws another diagram than {path} has"
        );
    }
}
