//! Formats replies about counters.

use iwarp_terminal::units;

use super::{Width, table, worker};
use crate::stats::Report;

/// Formats counters by group; of a report that follows another one, the changes per second too.
pub(crate) fn show(report: &Report, details: bool, width: Width) -> String {
    let mut header = vec!["GROUP", "COUNTER", "VALUE"];
    if report.has_rates() {
        header.push("RATE");
    }
    if details {
        header.extend(["LINUX", "MEANING"]);
    }
    let mut rows = Vec::new();
    for group in &report.groups {
        for counter in &group.counters {
            let row = &counter.row;
            let mut cells = vec![group.group.clone(), row.name.clone(), row.value.to_string()];
            if report.has_rates() {
                cells.push(counter.per_second.map_or_else(|| "-".to_owned(), units::event_rate));
            }
            if details {
                cells.push(linux_name(&group.group, &row.name).unwrap_or("-").to_owned());
                cells.push(row.help.trim().to_owned());
            }
            rows.push(cells);
        }
    }
    let workers: String = report.workers.iter().map(worker::line).collect();
    workers + &table(width, &header, &["LINUX"], rows)
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
    use std::time::{Duration, UNIX_EPOCH};

    use iwarp_control::{CounterGroup, CounterRow, StatsReply};

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
            unstyled(&show(&Report::once(reply(7)), false, None)),
            "GROUP  COUNTER         VALUE\nrdmap  in_rdma_writes  7\n"
        );
        let since = Some((Duration::from_secs(2), &reply(7)));
        let text = unstyled(&show(&Report::watched(reply(3007), UNIX_EPOCH, since), true, None));
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "rdmap  in_rdma_writes  3007   1.5 k/s  iwInRdmaWrites  Writes received."
        );
    }
}
