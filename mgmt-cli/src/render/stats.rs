//! Formats replies about counters.

use std::time::Duration;

use iwarp_control::StatsReply;
use iwarp_terminal::units;

use super::{Width, status, table};

/// Formats counters by group; with an earlier report, the changes per second too.
pub(crate) fn show(
    stats: &StatsReply,
    since: Option<(Duration, &StatsReply)>,
    details: bool,
    width: Width,
) -> String {
    let mut header = vec!["GROUP", "COUNTER", "VALUE"];
    if since.is_some() {
        header.push("RATE");
    }
    if details {
        header.extend(["LINUX", "MEANING"]);
    }
    let mut rows = Vec::new();
    for group in &stats.groups {
        for counter in &group.counters {
            let mut row = vec![group.group.clone(), counter.name.clone(), counter.value.to_string()];
            if let Some((elapsed, before)) = since {
                let change = counter.value.wrapping_sub(value(before, &group.group, &counter.name));
                row.push(units::event_rate(change as f64 / elapsed.as_secs_f64().max(1e-9)));
            }
            if details {
                row.push(linux_name(&group.group, &counter.name).unwrap_or("-").to_owned());
                row.push(counter.help.trim().to_owned());
            }
            rows.push(row);
        }
    }
    let workers: String = stats.workers.iter().map(status::worker_line).collect();
    workers + &table(width, &header, rows)
}

fn value(stats: &StatsReply, group: &str, name: &str) -> u64 {
    let group = stats.groups.iter().find(|candidate| candidate.group == group);
    group
        .and_then(|group| group.counters.iter().find(|counter| counter.name == name))
        .map_or(0, |found| found.value)
}

/// Returns the name of the same counter in Linux's iWARP drivers, which dashboards use.
fn linux_name(group: &str, name: &str) -> Option<&'static str> {
    Some(match (group, name) {
        (_, "rx_tcp_segments") => "tcpInSegs",
        ("tcp", "segments_out") => "tcpOutSegs",
        ("tcp", "retransmits") => "tcpRetransSegs",
        ("rdmap", "stags_invalidated") => "iwRdmaInv",
        ("rdmap", "in_rdma_writes") => "iwInRdmaWrites",
        ("rdmap", "in_rdma_reads") => "iwInRdmaReads",
        ("rdmap", "in_sends") => "iwInRdmaSends",
        ("rdmap", "out_rdma_writes") => "iwOutRdmaWrites",
        ("rdmap", "out_rdma_reads") => "iwOutRdmaReads",
        ("rdmap", "out_sends") => "iwOutRdmaSends",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use iwarp_control::{CounterGroup, CounterRow};

    use super::*;

    fn reply(value: u64) -> StatsReply {
        let counters =
            vec![CounterRow { name: "in_rdma_writes".into(), help: " Writes received.".into(), value }];
        StatsReply { groups: vec![CounterGroup { group: "rdmap".into(), counters }], workers: Vec::new() }
    }

    fn unstyled(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn counters_with_rates_and_meaning() {
        assert_eq!(
            unstyled(&show(&reply(7), None, false, None)),
            "GROUP  COUNTER         VALUE\nrdmap  in_rdma_writes  7\n"
        );
        let text = unstyled(&show(&reply(3007), Some((Duration::from_secs(2), &reply(7))), true, None));
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "rdmap  in_rdma_writes  3007   1.5 k/s  iwInRdmaWrites  Writes received."
        );
    }
}
