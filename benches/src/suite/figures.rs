//! The figures: each requirement with its threshold, the measured value, and the quantities behind it.

use serde::Serialize;

use super::programs;
use crate::Samples;
use crate::document::{Document, Row};

/// A measured quantity with its unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quantity {
    /// Benchmark and row, or a description.
    pub of: String,
    /// The median of the runs, or as the figure says.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
}

/// Threshold of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The value must not be less.
    AtLeast(f64),
    /// The value must not be greater.
    AtMost(f64),
}

/// A requirement and its measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The quantity that has a threshold.
    #[serde(rename = "asked")]
    pub title: &'static str,
    /// Threshold that the value must keep.
    pub bound: Bound,
    /// The aim beyond the threshold.
    pub aim: Option<f64>,
    /// The quantity, or the first of two divided by the second; `None` if one was not measured.
    pub measured: Option<f64>,
    /// True if the threshold is met; `None` if a quantity was not measured.
    pub met: Option<bool>,
    /// The quantities of the figure.
    pub raw: Vec<Quantity>,
    /// Quantities for comparison, which do not enter the figure.
    #[serde(rename = "beside")]
    pub context: Vec<Quantity>,
    /// The quantities that were not measured.
    pub missing: Vec<String>,
}

/// A quantity, or the name of the one that was not measured.
type Measured = Result<Quantity, String>;

impl Figure {
    pub(super) fn new(
        title: &'static str,
        bound: Bound,
        aim: Option<f64>,
        quantities: Vec<Measured>,
    ) -> Self {
        let (mut raw, mut missing) = (Vec::new(), Vec::new());
        for quantity in quantities {
            match quantity {
                Ok(quantity) => raw.push(quantity),
                Err(reason) => missing.push(reason),
            }
        }
        let measured = match raw.as_slice() {
            _ if !missing.is_empty() => None,
            [only] => Some(only.value),
            [first, second] => Some(first.value / second.value).filter(|ratio| ratio.is_finite()),
            _ => None,
        };
        if missing.is_empty() && measured.is_none() {
            missing.push("the divisor is 0".to_owned());
        }
        let met = measured.map(|measured| match bound {
            Bound::AtLeast(least) => measured >= least,
            Bound::AtMost(most) => measured <= most,
        });
        Self { title, bound, aim, measured, met, raw, context: Vec::new(), missing }
    }

    /// Adds a quantity for comparison.
    fn with_context(mut self, quantity: Measured) -> Self {
        match quantity {
            Ok(quantity) => self.context.push(quantity),
            Err(reason) => self.missing.push(reason),
        }
        self
    }
}

/// Selects a quantity in the reports: benchmark, section, fields of the row, and field of the value.
#[derive(Clone, Copy)]
pub(super) struct Selector<'a> {
    pub(super) benchmark: &'a str,
    pub(super) section: &'a str,
    pub(super) row: &'a [(&'a str, &'a str)],
    pub(super) cell: &'a str,
    pub(super) unit: &'static str,
}

/// The reports of the suite.
pub(super) struct Reports<'a>(Vec<&'a Document>);

impl Reports<'_> {
    /// Returns the median of every selected row; rows may differ in fields that the selector does not name.
    fn medians(&self, selector: Selector<'_>) -> Vec<Quantity> {
        self.values(selector, |samples| samples.median)
    }

    /// Returns the least single run: for CPU time, which other work on the machine only increases.
    fn least_run(&self, selector: Selector<'_>) -> Measured {
        let runs = self.values(selector, |samples| samples.min).into_iter();
        runs.min_by(|a, b| a.value.total_cmp(&b.value)).ok_or_else(|| missing(selector))
    }

    fn values(&self, selector: Selector<'_>, of_samples: fn(&Samples) -> f64) -> Vec<Quantity> {
        let Selector { benchmark, section, row: wanted, cell, unit } = selector;
        let is_wanted = |row: &Row| {
            wanted.iter().all(|(name, value)| row.keys.iter().any(|(of, is)| of == name && is == value))
        };
        let documents = self.0.iter().copied().filter(|document| document.benchmark == benchmark);
        let sections = documents.flat_map(Document::sections).filter(|found| found.name == section);
        let rows = sections.flat_map(|section| section.rows).filter(is_wanted);
        let values = rows.filter_map(|row| {
            let value = of_samples(row.cell(cell)?);
            let of = [benchmark, &row.label()].join(" ").trim().to_owned();
            Some(Quantity { of, value, unit })
        });
        values.collect()
    }

    pub(super) fn greatest(&self, selector: Selector<'_>) -> Measured {
        self.medians(selector)
            .into_iter()
            .max_by(|a, b| a.value.total_cmp(&b.value))
            .ok_or_else(|| missing(selector))
    }

    fn least(&self, selector: Selector<'_>) -> Measured {
        self.medians(selector)
            .into_iter()
            .min_by(|a, b| a.value.total_cmp(&b.value))
            .ok_or_else(|| missing(selector))
    }
}

fn missing(selector: Selector<'_>) -> String {
    let Selector { benchmark, row, cell, .. } = selector;
    let row: Vec<String> = row.iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!("{benchmark}: no {cell} of {}", if row.is_empty() { "it".to_owned() } else { row.join(", ") })
}

/// Computes all figures from the reports of the suite.
pub(super) fn figures(documents: &[Document]) -> Vec<Figure> {
    let reports = Reports(documents.iter().collect());
    let mut all = programs::figures(&reports);
    all.extend(bandwidth(&reports));
    all.extend(messages(&reports));
    all.extend(tcp(&reports));
    all.extend(reordering(&reports));
    all.extend(cpu_and_slow_clients(&reports));
    all
}

/// Returns the bandwidth of 64 KiB messages on one queue pair, in one direction, with CRC.
fn bulk(reports: &Reports<'_>, benchmark: &str, mtu: &str) -> Measured {
    reports.greatest(bulk_selector(benchmark, &bulk_row(mtu)))
}

fn bulk_selector<'a>(benchmark: &'a str, row: &'a [(&'a str, &'a str)]) -> Selector<'a> {
    Selector { benchmark, section: "rows", row, cell: "gbps", unit: "Gbit/s" }
}

fn bulk_row(mtu: &str) -> [(&str, &str); 6] {
    [
        ("size", "65536"),
        ("mtu", mtu),
        ("link", "ring"),
        ("crc", "on"),
        ("qps", "1"),
        ("bidirectional", "false"),
    ]
}

fn kernel_bulk(reports: &Reports<'_>, mtu: &str, offloads: &str) -> Measured {
    let row = [("wire.mtu", mtu), ("wire.offloads", offloads), ("message_bytes", "65536")];
    reports.greatest(Selector {
        benchmark: "peers",
        section: "iperf3",
        row: &row,
        cell: "gbps",
        unit: "Gbit/s",
    })
}

fn bandwidth(reports: &Reports<'_>) -> Vec<Figure> {
    let of_handoff = |benchmark, mtu| {
        let row = bulk_row(mtu);
        reports.greatest(Selector { cell: "of_handoff", unit: "×", ..bulk_selector(benchmark, &row) })
    };
    let write = |mtu| bulk(reports, "write-bw", mtu);
    let mut all = Vec::new();
    for (mtu, title, least, aim) in [
        ("1500", "RDMA Write bandwidth ÷ hand-off of the same cores, 64 KiB messages, MTU 1500", 0.50, 0.65),
        ("9000", "RDMA Write bandwidth ÷ hand-off of the same cores, 64 KiB messages, MTU 9000", 0.75, 0.85),
    ] {
        all.push(Figure::new(title, Bound::AtLeast(least), Some(aim), vec![of_handoff("write-bw", mtu)]));
    }
    for (mtu, offloads, title, least) in [
        ("1500", "false", "RDMA Write ÷ kernel TCP bandwidth, veth without offloads, MTU 1500", 5.0),
        ("9000", "false", "RDMA Write ÷ kernel TCP bandwidth, veth without offloads, MTU 9000", 5.0),
        ("1500", "true", "RDMA Write ÷ kernel TCP bandwidth, veth with all offloads, MTU 1500", 1.0),
        ("9000", "true", "RDMA Write ÷ kernel TCP bandwidth, veth with all offloads, MTU 9000", 1.0),
    ] {
        let quantities = vec![write(mtu), kernel_bulk(reports, mtu, offloads)];
        all.push(Figure::new(title, Bound::AtLeast(least), None, quantities));
    }
    for (mtu, title) in [
        ("1500", "RDMA Read ÷ RDMA Write bandwidth, each relative to its hand-off, MTU 1500"),
        ("9000", "RDMA Read ÷ RDMA Write bandwidth, each relative to its hand-off, MTU 9000"),
    ] {
        // Reads and Writes run minutes apart, so each is divided by its own baseline before they are compared.
        let quantities = vec![of_handoff("read-bw", mtu), of_handoff("write-bw", mtu)];
        let figure = Figure::new(title, Bound::AtLeast(0.85), None, quantities);
        all.push(figure.with_context(bulk(reports, "read-bw", mtu)).with_context(write(mtu)));
    }
    all
}

fn messages(reports: &Reports<'_>) -> Vec<Figure> {
    let writes = || {
        let row = [
            ("operation", "write"),
            ("size", "64"),
            ("link", "ring"),
            ("crc", "on"),
            ("bidirectional", "false"),
        ];
        let (benchmark, section, cell, unit) = ("msg-rate", "rows", "mpps", "10⁶/s");
        reports.greatest(Selector { benchmark, section, row: &row, cell, unit })
    };
    let puts = || {
        let row = [("test", "put"), ("message_bytes", "64")];
        let (benchmark, section, cell, unit) = ("peers", "ucx", "messages_per_second", "10⁶/s");
        let found = reports.greatest(Selector { benchmark, section, row: &row, cell, unit });
        found.map(|found| Quantity { value: found.value / 1e6, ..found })
    };
    let latency = |cell| {
        let row = [("size", "64"), ("mtu", "1500"), ("link", "ring"), ("crc", "on")];
        let (benchmark, section, unit) = ("write-lat", "rows", "µs");
        let found = reports.least(Selector { benchmark, section, row: &row, cell, unit });
        found.map(|found| Quantity { value: found.value / 1000.0, ..found })
    };
    let floor = || {
        let (benchmark, section, cell, unit) = ("write-lat", "floor", "p50_ns", "µs");
        let found = reports.least(Selector { benchmark, section, row: &[], cell, unit });
        let of = "round trip of a frame over the same rings without a protocol".to_owned();
        found.map(|found| Quantity { of, value: found.value / 1000.0, unit })
    };
    let kernel = || {
        let (benchmark, section, cell, unit) = ("peers", "sockperf", "p50_us", "µs");
        reports.least(Selector { benchmark, section, row: &[], cell, unit })
    };
    let (p50, p999) = ("histogram.p50_ns", "histogram.p99_9_ns");
    let figure = |title, bound, aim, quantities| Figure::new(title, bound, aim, quantities);
    let (least, most) = (Bound::AtLeast, Bound::AtMost);
    vec![
        figure("RDMA Write rate, 64-byte messages, 10⁶/s", least(5.0), Some(10.0), vec![writes()]),
        figure(
            "RDMA Write rate ÷ UCX put rate over TCP, 64-byte messages",
            least(6.0),
            None,
            vec![writes(), puts()],
        ),
        figure("RDMA Write ping-pong, 64 bytes: median round trip, µs", most(2.0), None, vec![latency(p50)])
            .with_context(floor()),
        figure(
            "RDMA Write ping-pong, 64 bytes: 99.9th percentile ÷ median",
            most(5.0),
            None,
            vec![latency(p999), latency(p50)],
        ),
        figure(
            "Kernel TCP ÷ RDMA Write median round trip, 64 bytes",
            least(4.0),
            None,
            vec![kernel(), latency(p50)],
        ),
    ]
}

fn tcp(reports: &Reports<'_>) -> Vec<Figure> {
    let receive = |cell| {
        let (benchmark, section, unit) = ("tcp-rx", "", "cycles");
        reports.least(Selector { benchmark, section, row: &[], cell, unit })
    };
    let copy = || {
        let of = "the copy alone, from the same frames to the same region".to_owned();
        receive("copy.cycles").map(|found| Quantity { of, ..found })
    };
    let echo = || {
        let (benchmark, section, cell, unit) = ("tcp-echo", "", "request.per_second", "10⁶/s");
        let found = reports.greatest(Selector { benchmark, section, row: &[], cell, unit });
        found.map(|found| Quantity { value: found.value / 1e6, ..found })
    };
    let connections = |cell, unit| {
        let row = [("connections", "100000")];
        reports.greatest(Selector { benchmark: "conns", section: "rows", row: &row, cell, unit })
    };
    let lines = || {
        let (benchmark, section, cell, unit) = ("roofline", "lines", "ns", "ns");
        let of = "an independent miss; a connection has eleven lines that no cache holds".to_owned();
        let found = reports.least(Selector { benchmark, section, row: &[], cell, unit });
        found.map(|found| Quantity { of, ..found })
    };
    vec![
        Figure::new(
            "TCP bulk receive, cycles per 1448-byte segment, copy included",
            Bound::AtMost(400.0),
            None,
            vec![receive("segment.cycles")],
        )
        .with_context(copy()),
        Figure::new("TCP echo of 1 byte, 10⁶ requests/s", Bound::AtLeast(3.5), None, vec![echo()]),
        Figure::new(
            "Memory per connection with 100,000 connections, bytes",
            Bound::AtMost(4096.0),
            None,
            vec![connections("bytes_each", "bytes")],
        ),
        Figure::new(
            "Cost per packet with 100,000 connections, relative to one connection",
            Bound::AtMost(1.5),
            None,
            vec![connections("ratio", "×")],
        )
        .with_context(lines()),
    ]
}

fn reordering(reports: &Reports<'_>) -> Vec<Figure> {
    let goodput = |mtu| {
        let row = [
            ("mtu", mtu),
            ("weather.loss", "0.0"),
            ("weather.reorder", "0.01"),
            ("out_of_order_placement", "true"),
        ];
        reports.greatest(Selector {
            benchmark: "lossy",
            section: "rows",
            row: &row,
            cell: "of_fair",
            unit: "×",
        })
    };
    let figures = [
        ("1500", "Goodput with 1 % reordering ÷ in order, out-of-order placement, MTU 1500"),
        ("9000", "Goodput with 1 % reordering ÷ in order, out-of-order placement, MTU 9000"),
    ];
    figures.map(|(mtu, title)| Figure::new(title, Bound::AtLeast(0.95), None, vec![goodput(mtu)])).into()
}

fn cpu_and_slow_clients(reports: &Reports<'_>) -> Vec<Figure> {
    let one_thread = |way, mtu| {
        let row = [("way", way), ("mtu", mtu)];
        let (benchmark, section, cell, unit) = ("copies", "rows", "cpu_s_per_gib", "s/GiB");
        reports.least_run(Selector { benchmark, section, row: &row, cell, unit })
    };
    let two_cores = |mtu| {
        let (row, cell, unit) = (bulk_row(mtu), "cpu_busy_s_per_gib", "s/GiB");
        reports.least(Selector { benchmark: "write-bw", section: "rows", row: &row, cell, unit })
    };
    let slow_clients = |clients| {
        let row = [("clients", clients)];
        let (benchmark, section, cell, unit) = ("slow-clients", "rows", "ratio", "×");
        reports.least(Selector { benchmark, section, row: &row, cell, unit })
    };
    let mut all = Vec::new();
    for (mtu, on_one_thread, on_two_cores) in [
        (
            "1500",
            "Kernel TCP CPU time per GiB ÷ RDMA Write CPU time per GiB (one thread), MTU 1500",
            "Kernel TCP CPU time per GiB ÷ RDMA Write CPU time per GiB (two cores), MTU 1500",
        ),
        (
            "9000",
            "Kernel TCP CPU time per GiB ÷ RDMA Write CPU time per GiB (one thread), MTU 9000",
            "Kernel TCP CPU time per GiB ÷ RDMA Write CPU time per GiB (two cores), MTU 9000",
        ),
    ] {
        let (least, kernel) = (Bound::AtLeast(2.0), || one_thread("kernel", mtu));
        all.push(Figure::new(on_one_thread, least, None, vec![kernel(), one_thread("rdma", mtu)]));
        all.push(Figure::new(on_two_cores, least, None, vec![kernel(), two_cores(mtu)]));
    }
    all.push(Figure::new(
        "Goodput of fast clients with 256 slow clients, relative to none",
        Bound::AtLeast(0.95),
        None,
        vec![slow_clients("256")],
    ));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document(benchmark: &str, report: Value) -> Document {
        Document { benchmark: benchmark.to_owned(), machine: json!({}), options: json!({}), report }
    }

    fn write(mtu: u16, gbps: f64, ratios: [f64; 3]) -> Value {
        let [min, median, max] = ratios;
        let of_handoff = json!({"median": median, "min": min, "max": max, "runs": ratios});
        json!({"operation": "write", "size": 65536, "mtu": mtu, "link": "ring", "crc": "on", "qps": 1,
            "bidirectional": false, "gbps": gbps, "of_handoff": of_handoff})
    }

    #[test]
    fn a_figure_is_the_ratio_of_two_quantities() {
        let iperf3 = |offloads: bool, median: f64, max: f64| {
            json!({"wire": {"mtu": 1500, "offloads": offloads}, "message_bytes": 65536,
                "gbps": {"median": median, "min": 1.0, "max": max, "runs": []}})
        };
        let documents = [
            document(
                "write-bw",
                json!({"rows": [write(1500, 44.0, [0.4, 0.55, 0.6]), write(9000, 70.0, [0.1, 0.2, 0.9])]}),
            ),
            document(
                "peers",
                json!({"iperf3": [
                    iperf3(false, 11.0, 12.0),
                    iperf3(true, 50.0, 60.0),
                ]}),
            ),
        ];
        let figures = figures(&documents);
        let of = |text: &str| figures.iter().find(|figure| figure.title.contains(text)).unwrap();
        let handoff = of("hand-off of the same cores, 64 KiB messages, MTU 1500");
        assert_eq!((handoff.measured, handoff.met), (Some(0.55), Some(true)));
        assert_eq!(of("hand-off of the same cores, 64 KiB messages, MTU 9000").met, Some(false));
        let kernel = of("without offloads, MTU 1500");
        assert_eq!((kernel.measured, kernel.met), (Some(4.0), Some(false)));
        let values: Vec<f64> = kernel.raw.iter().map(|quantity| quantity.value).collect();
        assert_eq!(values, [44.0, 11.0]);
        assert_eq!(of("with all offloads, MTU 1500").met, Some(false));
    }

    #[test]
    fn round_trips_and_impairments_are_found() {
        let lossy = |mtu: u16, reorder: f64, placed: bool, of_fair: f64| {
            json!({"mtu": mtu, "size": 65536, "weather": {"loss": 0.0, "reorder": reorder, "hold_frames": 8},
                "out_of_order_placement": placed, "gbps": 40.0, "of_fair": of_fair})
        };
        let histogram = json!({"samples": 5, "p50_ns": 1500, "p99_9_ns": 6000});
        let row = json!({"operation": "write", "size": 64, "mtu": 1500, "link": "ring", "crc": "on",
            "histogram": histogram});
        let rows =
            [lossy(1500, 0.0, true, 1.0), lossy(1500, 0.01, true, 0.975), lossy(1500, 0.01, false, 0.2)];
        let floor = json!([{"bytes": 150, "samples": 9, "p50_ns": 600}]);
        let documents = [
            document("write-lat", json!({"rows": [row], "floor": floor})),
            document("lossy", json!({"rows": rows})),
        ];
        let figures = figures(&documents);
        let of = |text: &str| figures.iter().find(|figure| figure.title.contains(text)).unwrap();
        let median = of("median round trip, µs");
        assert_eq!((median.measured, median.raw.len()), (Some(1.5), 1));
        let context: Vec<f64> = median.context.iter().map(|quantity| quantity.value).collect();
        assert_eq!((context, median.missing.len()), (vec![0.6], 0));
        assert_eq!(of("99.9th percentile ÷ median").measured, Some(4.0));
        let reordering = of("1 % reordering ÷ in order, out-of-order placement, MTU 1500");
        assert_eq!((reordering.measured, reordering.met), (Some(0.975), Some(true)));
    }

    /// A figure without a quantity is neither met nor missed, and names the quantity.
    #[test]
    fn a_figure_names_the_quantity_that_was_not_measured() {
        let documents = [document("write-bw", json!({"rows": [write(9000, 70.0, [0.7; 3])]}))];
        let figures = figures(&documents);
        let figure =
            figures.iter().find(|figure| figure.title.contains("without offloads, MTU 9000")).unwrap();
        assert_eq!((figure.measured, figure.met, figure.raw.len()), (None, None, 1));
        assert_eq!(
            figure.missing,
            ["peers: no gbps of wire.mtu 9000, wire.offloads false, message_bytes 65536"]
        );
        let of_writes =
            |figure: &&Figure| figure.title.contains("of the same cores, 64 KiB messages, MTU 9000");
        assert!(figures.iter().filter(of_writes).all(|figure| figure.met == Some(false)));
        let others = |figure: &&Figure| !of_writes(figure);
        assert!(
            figures.iter().filter(others).all(|figure| figure.met.is_none() && !figure.missing.is_empty())
        );
    }
}
