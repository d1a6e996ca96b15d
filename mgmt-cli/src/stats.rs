//! `iwarpctl stats`: the daemon's counters, and with `--watch` their changes per second.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use iwarp_control::{CounterGroup, CounterRow, Exit, NoParams, StatsMethod, StatsReply, WorkerStatus};
use iwarp_terminal::clock::{self, Clock};
use iwarp_terminal::{Failure, Output};
use serde::Serialize;

use crate::args::{Global, Stats};
use crate::{render, watch};

/// The counters at one moment: the reply of the daemon, and more members if it is one of several reports.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    moment: Option<Moment>,
    pub(crate) groups: Vec<Group>,
    pub(crate) workers: Vec<WorkerStatus>,
}

/// The time of a report that is one of several.
#[derive(Debug, Serialize)]
struct Moment {
    /// The time of day by RFC 3339, in UTC.
    time: String,
    /// The same in milliseconds since 1970.
    time_ms: u64,
    /// Milliseconds since the report before, by a clock that does not jump.
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ms: Option<u64>,
}

/// The counters of one layer.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) group: String,
    pub(crate) counters: Vec<Counter>,
}

/// A counter and its change per second since the report before.
#[derive(Debug, Serialize)]
pub(crate) struct Counter {
    #[serde(flatten)]
    pub(crate) row: CounterRow,
    /// Absent without a report before, and after a restart of the daemon: the counter is lower than before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_second: Option<f64>,
}

impl Report {
    /// Creates the only report.
    pub(crate) fn once(stats: StatsReply) -> Self {
        Self::new(stats, None, None)
    }

    /// Creates one of several reports. `since` is the report before, and the time that has passed since.
    pub(crate) fn watched(stats: StatsReply, at: SystemTime, since: Option<(Duration, &StatsReply)>) -> Self {
        let moment = Moment {
            time: humantime::format_rfc3339_millis(at).to_string(),
            time_ms: milliseconds(at.duration_since(UNIX_EPOCH).unwrap_or_default()),
            elapsed_ms: since.map(|(elapsed, _)| milliseconds(elapsed)),
        };
        Self::new(stats, Some(moment), since)
    }

    fn new(stats: StatsReply, moment: Option<Moment>, since: Option<(Duration, &StatsReply)>) -> Self {
        let counter = |group: &str, row: CounterRow| {
            let rate = |(elapsed, before): (Duration, &StatsReply)| {
                let change = row.value.checked_sub(value(before, group, &row.name))?;
                // Three decimal places: a counter has no better ones.
                Some((change as f64 / elapsed.as_secs_f64().max(1e-9) * 1e3).round() / 1e3)
            };
            let per_second = since.and_then(rate);
            Counter { row, per_second }
        };
        let groups = stats.groups.into_iter().map(|CounterGroup { group, counters }| {
            let counters = counters.into_iter().map(|row| counter(&group, row)).collect();
            Group { group, counters }
        });
        Self { moment, groups: groups.collect(), workers: stats.workers }
    }

    /// Returns true if there is a report before.
    pub(crate) fn has_rates(&self) -> bool {
        self.moment.as_ref().is_some_and(|moment| moment.elapsed_ms.is_some())
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn value(stats: &StatsReply, group: &str, name: &str) -> u64 {
    let group = stats.groups.iter().find(|candidate| candidate.group == group);
    group
        .and_then(|group| group.counters.iter().find(|counter| counter.name == name))
        .map_or(0, |found| found.value)
}

/// Reports the counters once or repeatedly.
pub(crate) fn run(options: &Stats, global: &Global, output: &Output) -> Result<(), Failure> {
    let clock = Clock::start();
    let mut before: Option<(Duration, StatsReply)> = None;
    let ask = |client: &mut iwarp_control::Client| {
        let all = client.call::<StatsMethod>(&NoParams {})?;
        let now = clock.now();
        let shown = selected(&all, options)?;
        let since = before.as_ref().map(|(at, stats)| (now.saturating_sub(*at), stats));
        let report = match options.view.watch {
            true => Report::watched(shown, clock::time_of_day(), since),
            false => Report::once(shown),
        };
        before = Some((now, all));
        Ok(report)
    };
    let text = |report: &Report, width| render::stats::show(report, options.details, width);
    watch::show(&options.view, global, output, ask, text).map(drop)
}

/// Selects the requested groups and counters.
fn selected(all: &StatsReply, options: &Stats) -> Result<StatsReply, Failure> {
    let known = || all.groups.iter().map(|group| group.group.as_str());
    if let Some(unknown) = options.groups.iter().find(|name| !known().any(|known| known == name.as_str())) {
        let message = format!("there is no group of counters `{unknown}`");
        let help = format!("the groups are: {}", known().collect::<Vec<_>>().join(", "));
        return Err(Failure::new(Exit::NoSuchObject, "no_such_object", message).with_help(help));
    }
    let mut shown = all.clone();
    shown.groups.retain(|group| options.groups.is_empty() || options.groups.contains(&group.group));
    if options.nonzero {
        shown.groups.iter_mut().for_each(|group| group.counters.retain(|counter| counter.value != 0));
        shown.groups.retain(|group| !group.counters.is_empty());
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(value: u64) -> StatsReply {
        let counters = vec![CounterRow { name: "segments".into(), help: "h".into(), value }];
        StatsReply { groups: vec![CounterGroup { group: "tcp".into(), counters }], workers: Vec::new() }
    }

    #[test]
    fn a_report_has_its_time_and_rates() {
        let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let report = Report::watched(reply(107), at, Some((Duration::from_millis(3000), &reply(7))));
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            "{\"time\":\"2023-11-14T22:13:20.123Z\",\"time_ms\":1700000000123,\"elapsed_ms\":3000,\
             \"groups\":[{\"group\":\"tcp\",\"counters\":[{\"name\":\"segments\",\"help\":\"h\",\
             \"value\":107,\"per_second\":33.333}]}],\"workers\":[]}"
        );
    }

    #[test]
    fn one_report_is_the_daemon_s_reply() {
        let report = serde_json::to_value(Report::once(reply(7))).unwrap();
        assert_eq!(report, serde_json::to_value(reply(7)).unwrap());
    }

    #[test]
    fn a_counter_that_fell_has_no_rate() {
        let report = Report::watched(reply(3), UNIX_EPOCH, Some((Duration::from_secs(1), &reply(7))));
        assert_eq!(report.groups[0].counters[0].per_second, None);
        assert!(report.has_rates());
    }
}
