//! Families of samples, and their OpenMetrics text.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::time::Duration;

use iwarp_counters::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::dpdk::TelemetryGroup;

/// Kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Count since the daemon started, which only grows.
    Counter,
    /// Value at this moment.
    Gauge,
    /// Distribution of the durations since the daemon started.
    Histogram,
}

/// Values of one counter or gauge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Group of the counter, such as `tcp`.
    pub group: String,
    /// Name of the counter, unique in its group.
    pub name: String,
    /// One-line description.
    pub help: String,
    /// Type of the values.
    pub kind: Kind,
    /// One value per worker, port or pool; at least one.
    pub samples: Vec<Sample>,
}

/// One value of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name and value of the label that distinguishes the samples of a family, if there are several.
    pub label: Option<(&'static str, String)>,
    /// Value of the counter or gauge, or number of durations of the histogram.
    pub value: u64,
    /// Durations of a histogram; `None` for a counter or gauge.
    pub durations: Option<Box<Histogram>>,
}

impl Family {
    /// Returns the families of a block of counters that has one value each. `visit` calls its argument with name, help
    /// and value of each counter, as the `visit` of `iwarp_counters` does.
    pub fn of_block(
        group: &str,
        kind: Kind,
        label: Option<(&'static str, &str)>,
        visit: impl FnOnce(&mut dyn FnMut(&'static str, &'static str, u64)),
    ) -> Vec<Self> {
        let mut families = Vec::new();
        visit(&mut |name, help, value| {
            let label = label.map(|(name, value)| (name, value.to_owned()));
            families.push(Self {
                group: group.to_owned(),
                name: name.to_owned(),
                help: help.trim().to_owned(),
                kind,
                samples: vec![Sample { label, value, durations: None }],
            });
        });
        families
    }

    /// Returns the sum of the samples.
    pub fn sum(&self) -> u64 {
        self.samples.iter().fold(0, |sum, sample| sum.wrapping_add(sample.value))
    }
}

/// Merges families of the same group and name into one with all samples, in the order of their first appearance.
pub(crate) fn merged(families: impl IntoIterator<Item = Family>) -> Vec<Family> {
    let mut place = BTreeMap::new();
    let mut merged: Vec<Family> = Vec::new();
    for mut family in families {
        let at = *place.entry((family.group.clone(), family.name.clone())).or_insert(merged.len());
        match merged.get_mut(at) {
            Some(known) => known.samples.append(&mut family.samples),
            None => merged.push(family),
        }
    }
    merged
}

/// Returns the groups of the families for DPDK's telemetry, each value summed over its samples. Of a histogram, they
/// have number and sum.
pub(crate) fn telemetry(families: &[Family]) -> Vec<TelemetryGroup> {
    let mut groups: Vec<TelemetryGroup> = Vec::new();
    for family in families {
        let values = match family.kind {
            Kind::Counter | Kind::Gauge => vec![(family.name.clone(), family.sum())],
            Kind::Histogram => {
                let durations = family.samples.iter().filter_map(|sample| sample.durations.as_ref());
                let sum_ns = durations.fold(0u64, |sum, duration| sum.wrapping_add(duration.sum_ns()));
                let name = family.name.trim_end_matches("_seconds");
                vec![(format!("{name}_count"), family.sum()), (format!("{name}_sum_ns"), sum_ns)]
            }
        };
        for (name, value) in values {
            // Names are identifiers: no name contains a zero byte.
            let (Ok(group), Ok(name)) = (CString::new(family.group.as_str()), CString::new(name)) else {
                continue;
            };
            match groups.iter_mut().find(|known| known.name == group) {
                Some(known) => known.counters.push((name, value)),
                None => groups.push(TelemetryGroup { name: group, counters: vec![(name, value)] }),
            }
        }
    }
    groups
}

/// Writes the families in the text format of OpenMetrics 1.0.
///
/// # Errors
/// The encoder refuses; a `String` accepts everything.
pub fn text(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Rewrites a text of [`text`] in the text format of Prometheus 0.0.4: help and type have the full name of a counter,
/// and quotes in a help text stand for themselves.
pub(super) fn plain(open_metrics: &str) -> String {
    let mut plain = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        if let Some(described) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help = Some(described);
            continue;
        }
        let counter = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter"));
        let total = if counter.is_some() { "_total" } else { "" };
        if let Some((name, help)) = help.take() {
            plain.extend(["# HELP ", name, total, " ", &help.replace("\\\"", "\""), "\n"]);
        }
        match counter {
            Some(name) => plain.extend(["# TYPE ", name, "_total counter\n"]),
            None => plain.extend([line, "\n"]),
        }
    }
    plain
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { group, name, help, kind, samples } in &self.0 {
            // Prometheus has one unit of time, the second.
            let nanoseconds = name.strip_suffix("_ns");
            let name = match nanoseconds {
                Some(stem) => format!("iwarp_{group}_{stem}_seconds"),
                None => format!("iwarp_{group}_{name}"),
            };
            let seconds = |value: u64| value as f64 / 1e9;
            let kind_of_metric = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(&name, &escaped(help), None, kind_of_metric)?;
            for Sample { label, value, durations } in samples {
                let labels = label.as_ref().map(|(name, value)| [(*name, value.as_str())]);
                let labels = labels.as_ref().map_or([].as_slice(), |labels| labels.as_slice());
                let mut sample = family.encode_family(&labels)?;
                match (kind, durations) {
                    (Kind::Counter, _) if nanoseconds.is_some() => {
                        sample.encode_counter::<NoLabelSet, f64, f64>(&seconds(*value), None)?;
                    }
                    (Kind::Gauge, _) if nanoseconds.is_some() => sample.encode_gauge(&seconds(*value))?,
                    (Kind::Counter, _) => sample.encode_counter::<NoLabelSet, u64, u64>(value, None)?,
                    (Kind::Gauge, _) => sample.encode_gauge(value)?,
                    (Kind::Histogram, Some(durations)) => {
                        let bound = |bound: Option<Duration>| {
                            bound.map_or(f64::INFINITY, |bound| bound.as_secs_f64())
                        };
                        let buckets: Vec<_> =
                            durations.buckets().map(|(to, count)| (bound(to), count)).collect();
                        sample.encode_histogram::<NoLabelSet>(
                            seconds(durations.sum_ns()),
                            *value,
                            &buckets,
                            None,
                        )?;
                    }
                    (Kind::Histogram, None) => {}
                }
            }
        }
        Ok(())
    }
}

/// Escapes a help text: the encoder writes it as it is.
fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
