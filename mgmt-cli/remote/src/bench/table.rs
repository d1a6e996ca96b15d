//! The rows of a measurement, as data and in the columns of perftest.

use hdrhistogram::Histogram;
use iwarp_control::Exit;
use iwarp_terminal::Failure;
use serde::Serialize;

use super::load::{SLICE, Sample};
use super::{Bench, Operation, span};
use crate::report::{Peer, place};
use crate::{nanoseconds, ping, whole};

/// A measurement of several sizes.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    operation: &'static str,
    measurement: &'static str,
    #[serde(flatten)]
    peer: Peer,
    offset: u64,
    connections: u16,
    /// Outstanding messages of each connection.
    depth: u32,
    pub(super) rows: Vec<Row>,
}

/// The result for one size.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Row {
    Bandwidth(Bandwidth),
    Latency(Latency),
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Bandwidth {
    /// Bytes of a message.
    bytes: u32,
    /// Messages of all connections.
    iterations: u64,
    duration_ns: u64,
    peak_bytes_per_second: u64,
    bytes_per_second: u64,
    messages_per_second: u64,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    /// Bytes of a message.
    bytes: u32,
    /// Round trips of all connections.
    iterations: u64,
    duration_ns: u64,
    min_ns: u64,
    max_ns: u64,
    median_ns: u64,
    mean_ns: u64,
    stdev_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
}

impl Report {
    pub(super) const fn new(bench: &Bench, peer: Peer, depth: u32) -> Self {
        Self {
            operation: "bench",
            measurement: bench.operation.name(),
            peer,
            offset: bench.target.offset,
            connections: bench.connections,
            depth,
            rows: Vec::new(),
        }
    }

    /// Returns a line about the measurement, and the names of the columns.
    pub(super) fn heading(&self) -> String {
        let Self { measurement, peer, offset, connections, depth, .. } = self;
        let mut text = format!("bench {measurement} {}+{offset}: {connections} connection", place(peer));
        text += if *connections == 1 { "" } else { "s" };
        if *measurement == Operation::Latency.name() {
            text += ", times in µs\n";
            text += " #bytes #iterations   t_min    t_max t_typical   t_avg  t_stdev     99%    99.9%\n";
        } else {
            text += &format!(", {depth} outstanding\n");
            text += " #bytes #iterations  BW peak[MB/s]  BW average[MB/s]  MsgRate[Mpps]\n";
        }
        text
    }
}

impl Row {
    /// Combines the results of all connections.
    ///
    /// # Errors
    /// Nothing was measured.
    pub(super) fn new(bytes: u32, samples: &[Sample]) -> Result<Self, Failure> {
        let iterations = samples.iter().map(|sample| sample.operations).fold(0, u64::saturating_add);
        let duration_ns = nanoseconds(span(samples));
        let mut times: Option<Histogram<u64>> = None;
        for sample in samples.iter().filter_map(|sample| sample.times.as_ref()) {
            match &mut times {
                None => times = Some(sample.clone()),
                Some(all) => all.add(sample).map_err(|error| internal(&error.to_string()))?,
            }
        }
        if iterations == 0 {
            return Err(internal("no message was completed"));
        }
        Ok(match times {
            Some(times) => Self::Latency(Latency::new(bytes, duration_ns, &times)),
            None => Self::Bandwidth(Bandwidth::new(bytes, (iterations, duration_ns), samples)),
        })
    }

    /// Returns the row of the table.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Bandwidth(row) => format!(
                "{:>7} {:>11} {:>14.2} {:>17.2} {:>14.6}\n",
                row.bytes,
                row.iterations,
                row.peak_bytes_per_second as f64 / 1e6,
                row.bytes_per_second as f64 / 1e6,
                row.messages_per_second as f64 / 1e6,
            ),
            Self::Latency(row) => {
                let Latency { min_ns, max_ns, median_ns, mean_ns, stdev_ns, p99_ns, p999_ns, .. } = *row;
                let us = |nanoseconds| nanoseconds as f64 / 1e3;
                format!(
                    "{:>7} {:>11} {:>7.1} {:>8.1} {:>9.1} {:>7.1} {:>8.1} {:>7.1} {:>8.1}\n",
                    row.bytes,
                    row.iterations,
                    us(min_ns),
                    us(max_ns),
                    us(median_ns),
                    us(mean_ns),
                    us(stdev_ns),
                    us(p99_ns),
                    us(p999_ns),
                )
            }
        }
    }
}

impl Bandwidth {
    fn new(bytes: u32, (iterations, duration_ns): (u64, u64), samples: &[Sample]) -> Self {
        let per_second = |count: u128| {
            u64::try_from(count * 1_000_000_000 / u128::from(duration_ns.max(1))).unwrap_or(u64::MAX)
        };
        let bytes_per_second = per_second(u128::from(iterations) * u128::from(bytes));
        let slices_per_s = 1000 / u64::try_from(SLICE.as_millis()).unwrap_or(1);
        let peak = peak(samples).saturating_mul(slices_per_s).saturating_mul(bytes.into());
        Self {
            bytes,
            iterations,
            duration_ns,
            // A measurement shorter than a slice has no other rate than its average.
            peak_bytes_per_second: peak.max(bytes_per_second),
            bytes_per_second,
            messages_per_second: per_second(iterations.into()),
        }
    }
}

impl Latency {
    fn new(bytes: u32, duration_ns: u64, times: &Histogram<u64>) -> Self {
        Self {
            bytes,
            iterations: times.len(),
            duration_ns,
            min_ns: times.min(),
            max_ns: times.max(),
            median_ns: times.value_at_quantile(ping::MEDIAN),
            mean_ns: whole(times.mean()),
            stdev_ns: whole(times.stdev()),
            p99_ns: times.value_at_quantile(0.99),
            p999_ns: times.value_at_quantile(0.999),
        }
    }
}

/// Returns the most operations of all connections in one slice, the last and unfinished ones left out.
fn peak(samples: &[Sample]) -> u64 {
    let whole = samples.iter().map(|sample| sample.slices.len().saturating_sub(1)).min().unwrap_or(0);
    let sum = |slice: usize| {
        let operations = samples.iter().filter_map(|sample| sample.slices.get(slice));
        operations.fold(0u64, |sum, operations| sum.saturating_add(*operations))
    };
    (0..whole).map(sum).max().unwrap_or(0)
}

fn internal(error: &str) -> Failure {
    Failure::new(Exit::Failed, "internal", error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(slices: &[u64], millis: u64) -> Sample {
        let operations = slices.iter().sum();
        let ended = Duration::from_millis(millis);
        Sample { operations, started: Duration::ZERO, ended, slices: slices.to_vec(), times: None }
    }

    #[test]
    fn rates_of_all_connections_add_up() {
        let samples = [sample(&[10, 30, 10], 250), sample(&[10, 40], 200)];
        let Ok(Row::Bandwidth(row)) = Row::new(1000, &samples) else { panic!() };
        let expected = Bandwidth {
            bytes: 1000,
            iterations: 100,
            duration_ns: 250_000_000,
            // Only the first slice is whole on both: 20 messages in 100 ms; the average is higher.
            peak_bytes_per_second: 400_000,
            bytes_per_second: 400_000,
            messages_per_second: 400,
        };
        assert_eq!(row, expected);
        let samples = [sample(&[10, 90, 10], 220)];
        let Ok(Row::Bandwidth(row)) = Row::new(1000, &samples) else { panic!() };
        assert_eq!((row.peak_bytes_per_second, row.bytes_per_second), (900_000, 500_000));
        assert_eq!(
            Row::Bandwidth(row).text(),
            "   1000         110           0.90              0.50       0.000500\n"
        );
        assert!(Row::new(1, &[sample(&[], 1)]).is_err());
    }

    #[test]
    fn times_of_all_connections_are_one_distribution() {
        let mut samples = [sample(&[1], 1), sample(&[1], 1)];
        for (sample, nanoseconds) in samples.iter_mut().zip([1000, 3000]) {
            let mut times = Histogram::new(3).unwrap();
            times.record(nanoseconds).unwrap();
            sample.times = Some(times);
        }
        let Ok(Row::Latency(row)) = Row::new(8, &samples) else { panic!() };
        assert_eq!((row.iterations, row.min_ns, row.median_ns, row.stdev_ns), (2, 1000, 1000, 1000));
        assert!((2999..3002).contains(&row.max_ns) && (2999..3002).contains(&row.p999_ns));
        let text = Row::Latency(row).text();
        assert_eq!(
            text,
            "      8           2     1.0      3.0       1.0     2.0      1.0     3.0      3.0\n"
        );
    }
}
