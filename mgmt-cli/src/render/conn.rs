//! Formats replies about connections.

use std::time::Duration;

use iwarp_control::{ConnBbrInfo, ConnInfo, ConnRdmaInfo, ConnsClosed};
use iwarp_terminal::units;
use serde_json::Value;

use super::{Width, number_or_dash, pairs, table, yes_no};

/// Formats all connections in columns.
pub(crate) fn list(conns: &[ConnInfo], width: Width) -> String {
    let rows = conns.iter().map(|conn| {
        let region = conn.rdma.as_ref().and_then(|rdma| rdma.region.clone());
        vec![
            conn.id.to_string(),
            conn.state.clone(),
            conn.local.to_string(),
            conn.remote.to_string(),
            conn.service.clone(),
            number_or_dash(conn.app),
            region.unwrap_or_else(|| "-".to_owned()),
            units::size(conn.bytes_in),
            units::size(conn.bytes_out),
            format!("{} µs", conn.rtt_us),
            conn.retransmits.to_string(),
            conn.congestion.clone(),
            units::duration(Duration::from_millis(conn.age_ms)),
        ]
    });
    let header = [
        "ID",
        "STATE",
        "LOCAL",
        "REMOTE",
        "SERVICE",
        "APP",
        "REGION",
        "IN",
        "OUT",
        "RTT",
        "RETRANSMITS",
        "CONGESTION",
        "AGE",
    ];
    let spare = ["CONGESTION", "RTT", "RETRANSMITS", "AGE", "LOCAL", "OUT", "IN"];
    table(width, &header, &spare, rows)
}

/// Formats each connection on one line: pairs of key and value, with the keys of JSON; absent values are left out.
pub(crate) fn lines(conns: &[ConnInfo]) -> String {
    let line = |conn| {
        let mut pairs = Vec::new();
        flatten("", &serde_json::to_value(conn).unwrap_or_default(), &mut pairs);
        pairs.join(" ") + "\n"
    };
    conns.iter().map(line).collect()
}

/// Appends the pairs of a value; the keys of an object in an object are joined by dots.
fn flatten(key: &str, value: &Value, pairs: &mut Vec<String>) {
    let scalar = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    match value {
        Value::Null => {}
        Value::Object(members) => {
            for (name, member) in members {
                let name = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&name, member, pairs);
            }
        }
        Value::Array(items) => {
            pairs.push(format!("{key} {}", items.iter().map(scalar).collect::<Vec<_>>().join(",")));
        }
        value => pairs.push(format!("{key} {}", scalar(value))),
    }
}

/// Formats one connection, a line per property.
pub(crate) fn show(conn: &ConnInfo, width: Width) -> String {
    let [wscale_in, wscale_out] = conn.wscale;
    let ssthresh = match conn.ssthresh_bytes {
        u64::MAX => "none".to_owned(),
        bytes => bytes.to_string(),
    };
    let text = pairs(
        width,
        &[
            ("id", conn.id.to_string()),
            ("state", conn.state.clone()),
            ("local", conn.local.to_string()),
            ("remote", conn.remote.to_string()),
            ("service", conn.service.clone()),
            ("app", number_or_dash(conn.app)),
            ("worker", conn.worker.to_string()),
            ("age", units::duration(Duration::from_millis(conn.age_ms))),
            ("bytes_in", conn.bytes_in.to_string()),
            ("bytes_out", conn.bytes_out.to_string()),
            ("segments_in", conn.segments_in.to_string()),
            ("segments_out", conn.segments_out.to_string()),
            ("retransmits", conn.retransmits.to_string()),
            ("rtt", format!("{} µs, variation {} µs", conn.rtt_us, conn.rttvar_us)),
            ("min_rtt", format!("{} µs", conn.min_rtt_us)),
            ("rto", format!("{} ms", conn.rto_ms)),
            ("attempts", conn.attempts.to_string()),
            ("soft_error", yes_no(conn.soft_error).to_owned()),
            ("timeouts", conn.timeouts.to_string()),
            ("recoveries", conn.recoveries.to_string()),
            ("congestion", conn.congestion.clone()),
            ("ecn", conn.ecn.clone()),
            ("pacing", rate_or_dash(conn.pacing_bytes_per_s)),
            ("delivery", delivery(conn)),
            ("cwnd_bytes", conn.cwnd_bytes.to_string()),
            ("ssthresh_bytes", ssthresh),
            ("in_flight_bytes", conn.in_flight_bytes.to_string()),
            ("mss", conn.mss.to_string()),
            ("path_mtu", conn.path_mtu.to_string()),
            ("snd_wnd", conn.snd_wnd.to_string()),
            ("rcv_wnd", conn.rcv_wnd.to_string()),
            ("unread_bytes", conn.unread_bytes.to_string()),
            ("urgent_bytes", conn.urgent_bytes.to_string()),
            ("held_bytes", conn.held_bytes.to_string()),
            ("sack", yes_no(conn.sack).to_owned()),
            ("timestamps", yes_no(conn.timestamps).to_owned()),
            ("wscale", format!("{wscale_in},{wscale_out}")),
        ],
    );
    let bbr = conn.bbr.as_ref().map_or_else(String::new, |bbr| show_bbr(bbr, width));
    let rdma = conn.rdma.as_ref().map_or_else(String::new, |rdma| show_rdma(rdma, width));
    text + &bbr + &rdma
}

/// Formats the closed connections: a line for each, and their number.
pub(crate) fn closed(closed: &ConnsClosed, width: Width) -> String {
    let rows = closed.closed.iter().map(|conn| {
        vec![conn.id.to_string(), conn.local.to_string(), conn.remote.to_string(), conn.service.clone()]
    });
    let plural = if closed.count == 1 { "" } else { "s" };
    table(width, &["ID", "LOCAL", "REMOTE", "SERVICE"], &[], rows)
        + &format!("{} connection{plural} closed\n", closed.count)
}

fn rate_or_dash(bytes_per_s: Option<u64>) -> String {
    bytes_per_s.map_or_else(|| "-".to_owned(), |rate| units::byte_rate(rate as f64))
}

fn delivery(conn: &ConnInfo) -> String {
    let why = if conn.delivery_app_limited { ", limited by the application" } else { "" };
    rate_or_dash(conn.delivery_bytes_per_s) + why
}

fn show_bbr(bbr: &ConnBbrInfo, width: Width) -> String {
    pairs(
        width,
        &[
            ("bbr.state", bbr.state.clone()),
            ("bbr.bandwidth", rate_or_dash(Some(bbr.bandwidth_bytes_per_s))),
            ("bbr.min_rtt", format!("{} µs", bbr.min_rtt_us)),
            ("bbr.pacing_gain", format!("{} %", bbr.pacing_gain_percent)),
            ("bbr.cwnd_gain", format!("{} %", bbr.cwnd_gain_percent)),
        ],
    )
}

fn show_rdma(rdma: &ConnRdmaInfo, width: Width) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    pairs(
        width,
        &[
            ("rdma.state", rdma.state.clone()),
            ("rdma.region", or_dash(&rdma.region)),
            ("rdma.mpa_revision", rdma.mpa_revision.to_string()),
            ("rdma.crc", yes_no(rdma.crc).to_owned()),
            ("rdma.ird", rdma.ird.to_string()),
            ("rdma.ord", rdma.ord.to_string()),
            ("rdma.in_writes", rdma.in_writes.to_string()),
            ("rdma.in_reads", rdma.in_reads.to_string()),
            ("rdma.bytes_placed", rdma.bytes_placed.to_string()),
            ("rdma.bytes_fetched", rdma.bytes_fetched.to_string()),
            ("rdma.last_terminate", or_dash(&rdma.last_terminate)),
        ],
    )
}
