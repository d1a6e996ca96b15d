//! The exporter of counters and gauges: OpenMetrics over HTTP, and DPDK's telemetry. `daemon` runs it beside the
//! control socket, on the same thread; no worker takes part.
//!
//! ```text
//! published counters ─▶ Source::families ─┬─▶ Exporter: GET /metrics, at most 10 texts per second
//!                                         └─▶ dpdk::telemetry: /iwarp/stats, one copy per second
//! ```
//!
//! A client has one request with a head of 8 KiB at most, one reply, and a time limit for both.
//! `hyper` parses the request, and `prometheus-client` writes the text.

mod exporter;
mod family;

#[cfg(test)]
mod tests;

pub use exporter::{Exporter, MetricsStats, SharedMetricsStats, Source};
pub use family::{Family, Kind, Sample, text};
pub(crate) use family::{merged, telemetry};
