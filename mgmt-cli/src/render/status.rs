//! Formats the state of the daemon.

use std::fmt::Write as _;
use std::time::Duration;

use iwarp_control::{Link, PortInfo, State, Status};
use iwarp_terminal::units;

use super::{GOOD, WARNING, Width, folded, worker};
use crate::render;

/// Formats the state on one screen.
pub(crate) fn show(status: &Status, width: Width) -> String {
    folded(width, &lines(status))
}

fn lines(status: &Status) -> String {
    let mut text = head(status);
    for worker in &status.workers {
        text += &worker::line(worker);
    }
    for port in &status.ports {
        text += &port_line(port);
    }
    let conns = &status.connections;
    let regions = &status.regions;
    // A write to a String cannot fail.
    let _ = writeln!(
        text,
        "connections  {} established, {} opening, {} closing, {} time-wait, at most {}",
        conns.established, conns.opening, conns.closing, conns.time_wait, conns.max
    );
    let _ = writeln!(text, "regions  {} of {}, {}", regions.count, regions.max, units::size(regions.bytes));
    for pool in &status.pools {
        let _ = writeln!(
            text,
            "pool {}  {} of {} buffers in use, {} reserved, {} bytes each",
            pool.name, pool.in_use, pool.buffers, pool.reserve, pool.data_room_bytes
        );
    }
    if let Some(draining) = &status.draining {
        let left = units::duration(Duration::from_millis(draining.left_ms));
        let _ = writeln!(text, "draining  {} connections have not ended, {left} left", draining.connections);
    }
    for reason in &status.degraded {
        let _ = writeln!(text, "{WARNING}!{WARNING:#} {reason}");
    }
    text
}

fn head(status: &Status) -> String {
    let state = match status.state {
        _ if status.draining.is_some() => format!("{WARNING}draining{WARNING:#}"),
        State::Ok => format!("{GOOD}ok{GOOD:#}"),
        State::Degraded => format!("{WARNING}degraded{WARNING:#}"),
    };
    let pages = &status.hugepages;
    let size = match pages.page_bytes {
        0 => "none in use".to_owned(),
        bytes => format!("{} of {} free, {} each", pages.free, pages.total, units::size(bytes)),
    };
    format!(
        "iwarpd {}  state {state}  up {}  pid {}  dpdk {}  config {}\nhugepages  {size}, {}  resident {}\n",
        status.version,
        units::duration(Duration::from_millis(status.uptime_ms)),
        status.pid,
        status.dpdk_version,
        status.config_path.display(),
        if pages.required { "required" } else { "preferred" },
        units::size(status.rss_bytes)
    )
}

fn port_line(port: &PortInfo) -> String {
    let link = match port.link {
        Link::Up => format!("{GOOD}up{GOOD:#}"),
        Link::Down => format!("{WARNING}down{WARNING:#}"),
        Link::Gone => format!("{WARNING}gone{WARNING:#}"),
    };
    format!(
        "port {}  {} {}  {link}  mtu {}  {}  rx {} packets, {}  tx {} packets, {}  missed {}\n",
        port.name,
        port.driver,
        port.device,
        port.mtu,
        render::list(&port.addresses),
        port.rx_packets,
        units::size(port.rx_bytes),
        port.tx_packets,
        units::size(port.tx_bytes),
        port.rx_missed
    )
}
