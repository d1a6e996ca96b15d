//! Formats replies about ports and their counters.

use std::fmt::Write as _;

use iwarp_control::{Link, PortInfo, PortStatsRow};
use iwarp_terminal::units;

use super::{Width, list as names, table_within};

/// Formats all ports in columns.
pub(crate) fn list(ports: &[PortInfo], width: Width) -> String {
    let rows = ports.iter().map(|port| {
        let link = match port.link {
            Link::Up => "up",
            Link::Down => "down",
            Link::Gone => "gone",
        };
        let speed = match port.speed_mbps {
            0 => "-".to_owned(),
            mbps => units::bit_rate(mbps as f64 * 1e6),
        };
        vec![
            port.name.clone(),
            port.driver.clone(),
            port.device.clone(),
            link.to_owned(),
            speed,
            port.mac.clone(),
            port.mtu.to_string(),
            names(&port.addresses),
            format!("{}/{}", port.rx_queues, port.tx_queues),
            port.rx_packets.to_string(),
            port.tx_packets.to_string(),
            port.rx_missed.to_string(),
            names(&port.offloads),
        ]
    });
    let header = [
        "NAME",
        "DRIVER",
        "DEVICE",
        "LINK",
        "SPEED",
        "MAC",
        "MTU",
        "ADDRESSES",
        "QUEUES",
        "RX",
        "TX",
        "MISSED",
        "OFFLOADS",
    ];
    let spare = ["OFFLOADS", "QUEUES", "DEVICE", "SPEED", "MAC", "MISSED", "TX", "RX"];
    table_within(width, &header, &spare, &rows.collect::<Vec<_>>())
}

/// Formats the counters of ports like `ethtool -S`.
pub(crate) fn stats(ports: &[PortStatsRow]) -> String {
    let mut text = String::new();
    for port in ports {
        // A write to a String cannot fail.
        let _ = writeln!(text, "{} statistics:", port.name);
        for (name, value) in &port.counters.0 {
            let _ = writeln!(text, "     {name}: {value}");
        }
    }
    text
}
