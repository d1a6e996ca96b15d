//! Formats replies about ports and their counters.

use std::fmt::Write as _;
use std::time::Duration;

use iwarp_control::{
    Interrupts, KernelSide, Link, PortDetails, PortInfo, PortStatsRow, Sharing, SuperFrames,
};
use iwarp_terminal::units;

use super::{Width, list as names, pairs, table};

/// Formats all ports in columns.
pub(crate) fn list(ports: &[PortInfo], width: Width) -> String {
    let rows = ports.iter().map(|port| {
        vec![
            port.name.clone(),
            port.driver.clone(),
            port.device.clone(),
            word(port.link).to_owned(),
            speed(port),
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
    table(width, &header, &spare, rows)
}

pub(crate) fn word(link: Link) -> &'static str {
    match link {
        Link::Up => "up",
        Link::Down => "down",
        Link::Gone => "gone",
    }
}

pub(crate) fn speed(port: &PortInfo) -> String {
    match port.speed_mbps {
        0 => "-".to_owned(),
        mbps => units::bit_rate(mbps as f64 * 1e6),
    }
}

/// Formats one port, a line per property.
pub(crate) fn show(details: &PortDetails, width: Width) -> String {
    let PortDetails { port, .. } = details;
    let or_dash = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".to_owned());
    let interrupts = match details.interrupts {
        Interrupts::PerQueue => "one per receive queue",
        Interrupts::None => "none: polled",
    };
    let history = details.link_history.iter().map(|change| {
        format!("{} {} ago", word(change.link), units::duration(Duration::from_millis(change.age_ms)))
    });
    pairs(
        width,
        &[
            ("name", port.name.clone()),
            ("driver", format!("{}, {}", port.driver, port.device)),
            ("device", details.device_name.clone()),
            ("interface", or_dash(port.interface.as_ref().map(ToString::to_string).as_ref())),
            ("bus_address", or_dash(details.bus_address.as_ref())),
            ("kernel_driver", or_dash(details.kernel_driver.as_ref())),
            ("firmware", or_dash(details.firmware.as_ref())),
            ("numa_node", details.numa_node.map_or_else(|| "-".to_owned(), |node| node.to_string())),
            ("mac", port.mac.clone()),
            ("mtu", port.mtu.to_string()),
            ("addresses", names(&port.addresses)),
            ("link", word(port.link).to_owned()),
            ("speed", speed(port)),
            ("offloads_requested", names(&details.offloads_requested)),
            ("offloads_granted", names(&details.offloads_granted)),
            (
                "queues",
                format!(
                    "{} receive, {} transmit, at most {}",
                    port.rx_queues, port.tx_queues, details.queues_max
                ),
            ),
            ("rss_functions", names(&details.rss_functions)),
            ("interrupts", interrupts.to_owned()),
            ("sharing", details.sharing.as_ref().map_or_else(|| "-".to_owned(), sharing)),
            ("super_frames", details.super_frames.map_or_else(|| "-".to_owned(), super_frames)),
            ("kernel_side", details.kernel_side.map_or_else(|| "-".to_owned(), kernel_side)),
            ("link_history", names(&history.collect::<Vec<_>>())),
        ],
    )
}

fn sharing(Sharing { ports_reserved, ports_refused, source_ports }: &Sharing) -> String {
    format!(
        "the kernel has the addresses, too: {ports_reserved} ports reserved, source ports {source_ports}, \
         {ports_refused} refused"
    )
}

fn super_frames(counters: SuperFrames) -> String {
    let SuperFrames { rx_frames, rx_segments, rx_guesses_missed, rx_too_long, tx_frames, tx_segments } =
        counters;
    let each = |frames: u64, segments: u64| match frames {
        0 => "none".to_owned(),
        frames => format!("{frames} of {:.1} segments", segments as f64 / frames as f64),
    };
    let (received, sent) = (each(rx_frames, rx_segments), each(tx_frames, tx_segments));
    format!("received {received} ({rx_guesses_missed} cut elsewhere, {rx_too_long} too long), sent {sent}")
}

fn kernel_side(side: KernelSide) -> String {
    let KernelSide { receive_buffer_bytes, rx_checksum, rx_merging, tx_checksum, tx_segmentation } = side;
    let named = [("rx", rx_checksum), ("tx", tx_checksum), ("tso", tx_segmentation), ("gro", rx_merging)];
    let offloads = named.map(|(name, on)| format!("{name} {}", if on { "on" } else { "off" })).join(", ");
    let by = if tx_segmentation { "the interface" } else { "the kernel" };
    let buffer = receive_buffer_bytes.map(|bytes| format!("; receive buffer {}", units::size(bytes)));
    format!("{offloads}; segments of {by}{}", buffer.unwrap_or_default())
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
