//! Connections.

use std::time::Duration;

use iwarp_control::{ConnInfo, ConnRdmaInfo};

use super::{pairs, table, yes_no};
use crate::units;

/// All connections in columns.
pub(crate) fn list(conns: &[ConnInfo]) -> String {
    let rows = conns.iter().map(|conn| {
        let region = conn.rdma.as_ref().and_then(|rdma| rdma.region.clone());
        vec![
            conn.id.to_string(),
            conn.state.clone(),
            conn.local.to_string(),
            conn.remote.to_string(),
            conn.service.clone(),
            region.unwrap_or_else(|| "-".to_owned()),
            units::size(conn.bytes_in),
            units::size(conn.bytes_out),
            format!("{} µs", conn.rtt_us),
            conn.retransmits.to_string(),
            units::duration(Duration::from_millis(conn.age_ms)),
        ]
    });
    let header =
        ["ID", "STATE", "LOCAL", "REMOTE", "SERVICE", "REGION", "IN", "OUT", "RTT", "RETRANSMITS", "AGE"];
    table(&header, rows)
}

/// One connection, a line per property.
pub(crate) fn show(conn: &ConnInfo) -> String {
    let [wscale_in, wscale_out] = conn.wscale;
    let ssthresh = match conn.ssthresh_bytes {
        u64::MAX => "none".to_owned(),
        bytes => bytes.to_string(),
    };
    let text = pairs(&[
        ("id", conn.id.to_string()),
        ("state", conn.state.clone()),
        ("local", conn.local.to_string()),
        ("remote", conn.remote.to_string()),
        ("service", conn.service.clone()),
        ("worker", conn.worker.to_string()),
        ("age", units::duration(Duration::from_millis(conn.age_ms))),
        ("bytes_in", conn.bytes_in.to_string()),
        ("bytes_out", conn.bytes_out.to_string()),
        ("segments_in", conn.segments_in.to_string()),
        ("segments_out", conn.segments_out.to_string()),
        ("retransmits", conn.retransmits.to_string()),
        ("rtt", format!("{} µs, variation {} µs", conn.rtt_us, conn.rttvar_us)),
        ("rto", format!("{} ms", conn.rto_ms)),
        ("cwnd_bytes", conn.cwnd_bytes.to_string()),
        ("ssthresh_bytes", ssthresh),
        ("mss", conn.mss.to_string()),
        ("snd_wnd", conn.snd_wnd.to_string()),
        ("rcv_wnd", conn.rcv_wnd.to_string()),
        ("sack", yes_no(conn.sack).to_owned()),
        ("timestamps", yes_no(conn.timestamps).to_owned()),
        ("wscale", format!("{wscale_in},{wscale_out}")),
    ]);
    match &conn.rdma {
        Some(rdma) => text + &show_rdma(rdma),
        None => text,
    }
}

fn show_rdma(rdma: &ConnRdmaInfo) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    pairs(&[
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
    ])
}
