//! What is asked of Ironwarp, and what was measured: each figure with both sides of its ratio.

use serde::Serialize;

use crate::Samples;
use crate::document::{Document, Row};

/// A number that was measured, and of what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quantity {
    /// What it is of.
    pub of: String,
    /// How much.
    pub value: f64,
    /// In what.
    pub unit: &'static str,
}

/// What a figure must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What is asked.
    pub asked: &'static str,
    /// The bound.
    pub bound: Bound,
    /// What one would like beyond it.
    pub aim: Option<f64>,
    /// What was measured: the quantity, or the first by the second; `None` where something is missing.
    pub measured: Option<f64>,
    /// Whether the bound is kept; `None` where it was not measured.
    pub met: Option<bool>,
    /// The quantities that it was made from.
    pub raw: Vec<Quantity>,
    /// What stands beside it, and is no part of it.
    pub beside: Vec<Quantity>,
    /// What is missing.
    pub missing: Vec<String>,
}

/// What was measured of one quantity, or what is missing.
type Found = Result<Quantity, String>;

impl Figure {
    fn new(asked: &'static str, bound: Bound, aim: Option<f64>, sides: Vec<Found>) -> Self {
        let (mut raw, mut missing) = (Vec::new(), Vec::new());
        for side in sides {
            match side {
                Ok(quantity) => raw.push(quantity),
                Err(reason) => missing.push(reason),
            }
        }
        let measured = match raw.as_slice() {
            _ if !missing.is_empty() => None,
            [only] => Some(only.value),
            [first, second] => Some(first.value / second.value).filter(|it| it.is_finite()),
            _ => None,
        };
        if missing.is_empty() && measured.is_none() {
            missing.push("there is nothing to divide by".to_owned());
        }
        let met = measured.map(|measured| match bound {
            Bound::AtLeast(least) => measured >= least,
            Bound::AtMost(most) => measured <= most,
        });
        Self { asked, bound, aim, measured, met, raw, beside: Vec::new(), missing }
    }

    /// The same with something beside it.
    fn beside(mut self, what: Found) -> Self {
        match what {
            Ok(quantity) => self.beside.push(quantity),
            Err(reason) => self.missing.push(reason),
        }
        self
    }
}

/// Where a quantity is found: the benchmark, what names the row, and the figure.
#[derive(Clone, Copy)]
struct Place<'a> {
    benchmark: &'a str,
    section: &'a str,
    row: &'a [(&'a str, &'a str)],
    cell: &'a str,
    unit: &'static str,
}

/// The reports of a suite.
struct Reports<'a>(Vec<&'a Document>);

impl Reports<'_> {
    /// Every value of the place, of several runs the median: there may be rows that differ in what it does not name.
    fn all(&self, place: Place<'_>) -> Vec<Quantity> {
        self.every(place, |samples| samples.median)
    }

    /// The least of all runs: of CPU time, which other work on the machine only ever adds to.
    fn least_run(&self, place: Place<'_>) -> Found {
        let runs = self.every(place, |samples| samples.min).into_iter();
        runs.min_by(|a, b| a.value.total_cmp(&b.value)).ok_or_else(|| missing(place))
    }

    fn every(&self, place: Place<'_>, of_runs: fn(&Samples) -> f64) -> Vec<Quantity> {
        let Place { benchmark, section, row: wanted, cell, unit } = place;
        let is_wanted = |row: &Row| {
            wanted.iter().all(|(name, value)| row.of.iter().any(|(of, is)| of == name && is == value))
        };
        let documents = self.0.iter().copied().filter(|document| document.benchmark == benchmark);
        let sections = documents.flat_map(Document::sections).filter(|found| found.name == section);
        let rows = sections.flat_map(|section| section.rows).filter(is_wanted);
        let values = rows.filter_map(|row| {
            let value = of_runs(row.cell(cell)?);
            let of = [benchmark, &row.label()].join(" ").trim().to_owned();
            Some(Quantity { of, value, unit })
        });
        values.collect()
    }

    fn most(&self, place: Place<'_>) -> Found {
        self.all(place).into_iter().max_by(|a, b| a.value.total_cmp(&b.value)).ok_or_else(|| missing(place))
    }

    fn least(&self, place: Place<'_>) -> Found {
        self.all(place).into_iter().min_by(|a, b| a.value.total_cmp(&b.value)).ok_or_else(|| missing(place))
    }
}

fn missing(place: Place<'_>) -> String {
    let Place { benchmark, row, cell, .. } = place;
    let row: Vec<String> = row.iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!("{benchmark}: no {cell} of {}", if row.is_empty() { "it".to_owned() } else { row.join(", ") })
}

/// All figures.
pub(super) fn figures(documents: &[Document]) -> Vec<Figure> {
    let reports = Reports(documents.iter().collect());
    let mut all = bandwidth(&reports);
    all.extend(messages(&reports));
    all.extend(tcp(&reports));
    all.extend(rest(&reports));
    all
}

/// 64 KiB of one operation on one queue pair, in one direction, CRC on.
fn bulk(reports: &Reports<'_>, benchmark: &str, mtu: &str) -> Found {
    reports.most(bulk_place(benchmark, &bulk_row(mtu)))
}

fn bulk_place<'a>(benchmark: &'a str, row: &'a [(&'a str, &'a str)]) -> Place<'a> {
    Place { benchmark, section: "rows", row, cell: "gbps", unit: "Gbit/s" }
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

fn kernel_bulk(reports: &Reports<'_>, mtu: &str, offloads: &str) -> Found {
    let row = [("wire.mtu", mtu), ("wire.offloads", offloads)];
    reports.most(Place { benchmark: "peers", section: "iperf3", row: &row, cell: "gbps", unit: "Gbit/s" })
}

fn bandwidth(reports: &Reports<'_>) -> Vec<Figure> {
    let of_handoff = |benchmark, mtu| {
        let row = bulk_row(mtu);
        reports.most(Place { cell: "of_handoff", unit: "×", ..bulk_place(benchmark, &row) })
    };
    let write = |mtu| bulk(reports, "write-bw", mtu);
    let mut all = Vec::new();
    for (mtu, asked, least, aim) in [
        ("1500", "RDMA Write of 64 KiB, by the hand-off of the same cores, MTU 1500", 0.50, 0.65),
        ("9000", "RDMA Write of 64 KiB, by the hand-off of the same cores, MTU 9000", 0.75, 0.85),
    ] {
        all.push(Figure::new(asked, Bound::AtLeast(least), Some(aim), vec![of_handoff("write-bw", mtu)]));
    }
    for (mtu, offloads, asked, least) in [
        ("1500", "false", "RDMA Write, by the kernel's TCP on a veth without offloads, MTU 1500", 5.0),
        ("9000", "false", "RDMA Write, by the kernel's TCP on a veth without offloads, MTU 9000", 5.0),
        ("1500", "true", "RDMA Write, by the kernel's TCP with all veth offloads, MTU 1500", 1.0),
        ("9000", "true", "RDMA Write, by the kernel's TCP with all veth offloads, MTU 9000", 1.0),
    ] {
        let sides = vec![write(mtu), kernel_bulk(reports, mtu, offloads)];
        all.push(Figure::new(asked, Bound::AtLeast(least), None, sides));
    }
    for (mtu, asked) in [("1500", "RDMA Read by Write, MTU 1500"), ("9000", "RDMA Read by Write, MTU 9000")] {
        // Minutes lie between them: each by the hand-off of its own.
        let sides = vec![of_handoff("read-bw", mtu), of_handoff("write-bw", mtu)];
        let figure = Figure::new(asked, Bound::AtLeast(0.85), None, sides);
        all.push(figure.beside(bulk(reports, "read-bw", mtu)).beside(write(mtu)));
    }
    all
}

fn messages(reports: &Reports<'_>) -> Vec<Figure> {
    let small = || {
        let row = [
            ("operation", "write"),
            ("size", "64"),
            ("link", "ring"),
            ("crc", "on"),
            ("bidirectional", "false"),
        ];
        reports
            .most(Place { benchmark: "msg-rate", section: "rows", row: &row, cell: "mpps", unit: "10⁶/s" })
    };
    let put = || {
        let row = [("test", "put"), ("message_bytes", "64")];
        let cell = "messages_per_second";
        let found =
            reports.most(Place { benchmark: "peers", section: "ucx", row: &row, cell, unit: "10⁶/s" });
        found.map(|found| Quantity { value: found.value / 1e6, ..found })
    };
    let latency = |cell| {
        let row = [("size", "64"), ("mtu", "1500"), ("link", "ring"), ("crc", "on")];
        let found =
            reports.least(Place { benchmark: "write-lat", section: "rows", row: &row, cell, unit: "µs" });
        found.map(|found| Quantity { value: found.value / 1000.0, ..found })
    };
    let floor = || {
        let (section, cell, unit) = ("floor", "p50_ns", "µs");
        let found = reports.least(Place { benchmark: "write-lat", section, row: &[], cell, unit });
        let of = "round trip of a frame over the same rings without a protocol".to_owned();
        found.map(|found| Quantity { of, value: found.value / 1000.0, unit })
    };
    let kernel = || {
        let place = Place { benchmark: "peers", section: "sockperf", row: &[], cell: "p50_us", unit: "µs" };
        reports.least(place)
    };
    let (p50, p999) = ("histogram.p50_ns", "histogram.p99_9_ns");
    vec![
        Figure::new("Writes of 64 bytes, 10⁶ per second", Bound::AtLeast(5.0), Some(10.0), vec![small()]),
        Figure::new(
            "Writes of 64 bytes, by UCX puts over TCP",
            Bound::AtLeast(6.0),
            None,
            vec![small(), put()],
        ),
        Figure::new(
            "Write ping-pong of 64 bytes, median round trip, µs",
            Bound::AtMost(2.0),
            None,
            vec![latency(p50)],
        )
        .beside(floor()),
        Figure::new(
            "Write ping-pong of 64 bytes, 99.9th percentile by median",
            Bound::AtMost(5.0),
            None,
            vec![latency(p999), latency(p50)],
        ),
        Figure::new(
            "Median round trip of the kernel's TCP, by that of Writes",
            Bound::AtLeast(4.0),
            None,
            vec![kernel(), latency(p50)],
        ),
    ]
}

fn tcp(reports: &Reports<'_>) -> Vec<Figure> {
    let receive = |cell| {
        let place = Place { benchmark: "tcp-rx", section: "", row: &[], cell, unit: "cycles" };
        reports.least(place)
    };
    let copy = || {
        let of = "the copy alone, from the same frames to the same region".to_owned();
        receive("copy.cycles").map(|found| Quantity { of, ..found })
    };
    let echo = || {
        let (cell, unit) = ("request.per_second", "10⁶/s");
        let found = reports.most(Place { benchmark: "tcp-echo", section: "", row: &[], cell, unit });
        found.map(|found| Quantity { value: found.value / 1e6, ..found })
    };
    let many = |cell, unit| {
        let row = [("connections", "100000")];
        reports.most(Place { benchmark: "conns", section: "rows", row: &row, cell, unit })
    };
    let lines = || {
        let place = Place { benchmark: "roofline", section: "lines", row: &[], cell: "ns", unit: "ns" };
        let of =
            "each of the eleven lines of a connection, from random places that wait for no other".to_owned();
        reports.least(place).map(|found| Quantity { of, ..found })
    };
    vec![
        Figure::new(
            "Bulk receive by TCP, cycles per packet of 1448 bytes with its copy",
            Bound::AtMost(400.0),
            None,
            vec![receive("segment.cycles")],
        )
        .beside(copy()),
        Figure::new(
            "Echo of 1 byte by TCP, 10⁶ requests per second",
            Bound::AtLeast(3.5),
            None,
            vec![echo()],
        ),
        Figure::new(
            "Memory of a connection among 100,000, bytes",
            Bound::AtMost(4096.0),
            None,
            vec![many("bytes_each", "bytes")],
        ),
        Figure::new(
            "A packet among 100,000 connections, by one of a single connection",
            Bound::AtMost(1.5),
            None,
            vec![many("ratio", "×")],
        )
        .beside(lines()),
    ]
}

fn rest(reports: &Reports<'_>) -> Vec<Figure> {
    let cpu = |way, mtu| {
        let (row, unit) = ([("way", way), ("mtu", mtu)], "s/GiB");
        reports.least_run(Place {
            benchmark: "copies",
            section: "rows",
            row: &row,
            cell: "cpu_s_per_gib",
            unit,
        })
    };
    let worked = |mtu| {
        let (row, cell, unit) = (bulk_row(mtu), "cpu_busy_s_per_gib", "s/GiB");
        reports.least(Place { benchmark: "write-bw", section: "rows", row: &row, cell, unit })
    };
    let beside_slow = |clients| {
        let row = [("clients", clients)];
        let (benchmark, section, cell, unit) = ("slow-clients", "rows", "ratio", "×");
        reports.least(Place { benchmark, section, row: &row, cell, unit })
    };
    let goodput = |mtu, reorder| {
        let row = [
            ("mtu", mtu),
            ("weather.loss", "0.0"),
            ("weather.reorder", reorder),
            ("out_of_order_placement", "true"),
        ];
        let cell = "of_fair";
        reports.most(Place { benchmark: "lossy", section: "rows", row: &row, cell, unit: "×" })
    };
    let mut all = Vec::new();
    for (mtu, asked) in [
        ("1500", "Goodput with 1 % reordered, placement behind gaps, by that in order, MTU 1500"),
        ("9000", "Goodput with 1 % reordered, placement behind gaps, by that in order, MTU 9000"),
    ] {
        all.push(Figure::new(asked, Bound::AtLeast(0.95), None, vec![goodput(mtu, "0.01")]));
    }
    for (mtu, one_thread, two_cores) in [
        (
            "1500",
            "CPU time per GiB of the kernel's TCP, by RDMA Write's work, both ends on one thread, MTU 1500",
            "CPU time per GiB of the kernel's TCP, by RDMA Write's work, on two cores, MTU 1500",
        ),
        (
            "9000",
            "CPU time per GiB of the kernel's TCP, by RDMA Write's work, both ends on one thread, MTU 9000",
            "CPU time per GiB of the kernel's TCP, by RDMA Write's work, on two cores, MTU 9000",
        ),
    ] {
        let least = Bound::AtLeast(2.0);
        all.push(Figure::new(one_thread, least, None, vec![cpu("kernel", mtu), cpu("rdma", mtu)]));
        all.push(Figure::new(two_cores, least, None, vec![cpu("kernel", mtu), worked(mtu)]));
    }
    all.push(Figure::new(
        "Goodput of fast clients beside 256 slow ones, by that without",
        Bound::AtLeast(0.95),
        None,
        vec![beside_slow("256")],
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
        json!({"operation": "write", "size": 65536, "mtu": mtu, "link": "ring", "crc": "on", "qps": 1, "bidirectional": false,
            "gbps": gbps, "of_handoff": of_handoff})
    }

    #[test]
    fn a_figure_is_a_ratio_of_what_was_measured() {
        let documents = [
            document(
                "write-bw",
                json!({"rows": [write(1500, 44.0, [0.4, 0.55, 0.6]), write(9000, 70.0, [0.1, 0.2, 0.9])]}),
            ),
            document(
                "peers",
                json!({"iperf3": [
                    {"wire": {"mtu": 1500, "offloads": false}, "gbps": {"median": 11.0, "min": 1.0, "max": 12.0, "runs": []}},
                    {"wire": {"mtu": 1500, "offloads": true}, "gbps": {"median": 50.0, "min": 1.0, "max": 60.0, "runs": []}},
                ]}),
            ),
        ];
        let figures = figures(&documents);
        let of = |text: &str| figures.iter().find(|figure| figure.asked.contains(text)).unwrap();
        let handoff = of("hand-off of the same cores, MTU 1500");
        assert_eq!((handoff.measured, handoff.met), (Some(0.55), Some(true)));
        assert_eq!(of("hand-off of the same cores, MTU 9000").met, Some(false));
        let kernel = of("without offloads, MTU 1500");
        assert_eq!((kernel.measured, kernel.met), (Some(4.0), Some(false)));
        let values: Vec<f64> = kernel.raw.iter().map(|quantity| quantity.value).collect();
        assert_eq!(values, [44.0, 11.0]);
        assert_eq!(of("all veth offloads, MTU 1500").met, Some(false));
    }

    #[test]
    fn round_trips_and_weather_are_found() {
        let lossy = |mtu: u16, reorder: f64, placed: bool, of_fair: f64| {
            json!({"mtu": mtu, "size": 65536, "weather": {"loss": 0.0, "reorder": reorder, "hold_frames": 8},
                "out_of_order_placement": placed, "gbps": 40.0, "of_fair": of_fair})
        };
        let histogram = json!({"samples": 5, "p50_ns": 1500, "p99_9_ns": 6000});
        let row = json!({"operation": "write", "size": 64, "mtu": 1500, "link": "ring", "crc": "on", "histogram": histogram});
        let rows =
            [lossy(1500, 0.0, true, 1.0), lossy(1500, 0.01, true, 0.975), lossy(1500, 0.01, false, 0.2)];
        let floor = json!([{"bytes": 150, "samples": 9, "p50_ns": 600}]);
        let documents = [
            document("write-lat", json!({"rows": [row], "floor": floor})),
            document("lossy", json!({"rows": rows})),
        ];
        let figures = figures(&documents);
        let of = |text: &str| figures.iter().find(|figure| figure.asked.contains(text)).unwrap();
        let median = of("median round trip, µs");
        assert_eq!((median.measured, median.raw.len()), (Some(1.5), 1));
        let beside: Vec<f64> = median.beside.iter().map(|quantity| quantity.value).collect();
        assert_eq!((beside, median.missing.len()), (vec![0.6], 0));
        assert_eq!(of("99.9th percentile by median").measured, Some(4.0));
        let weather = of("1 % reordered, placement behind gaps, by that in order, MTU 1500");
        assert_eq!((weather.measured, weather.met), (Some(0.975), Some(true)));
    }

    /// What was not measured is neither met nor missed, and the reason is told.
    #[test]
    fn what_is_missing_is_said() {
        let documents = [document("write-bw", json!({"rows": [write(9000, 70.0, [0.7; 3])]}))];
        let figures = figures(&documents);
        let figure =
            figures.iter().find(|figure| figure.asked.contains("without offloads, MTU 9000")).unwrap();
        assert_eq!((figure.measured, figure.met, figure.raw.len()), (None, None, 1));
        assert_eq!(figure.missing, ["peers: no gbps of wire.mtu 9000, wire.offloads false"]);
        let of_writes = |figure: &&Figure| figure.asked.contains("of the same cores, MTU 9000");
        assert!(figures.iter().filter(of_writes).all(|figure| figure.met == Some(false)));
        let others = |figure: &&Figure| !of_writes(figure);
        assert!(figures.iter().filter(others).all(|it| it.met.is_none() && !it.missing.is_empty()));
    }
}
