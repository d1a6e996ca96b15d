//! Checks `[metrics]`: the address at which the daemon serves its counters. Without the table it serves none.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::service::{check_socket, group, mode, socket_path};
use crate::read::{Report, Section};
use crate::types::{Applications, Control, Metrics, MetricsAddress};

/// Port of the default address.
const PORT_DEFAULT: u16 = 9464;

pub(super) fn read(
    mut section: Section<'_>,
    report: &Report,
    control: &Control,
    applications: Option<&Applications>,
) -> Option<Metrics> {
    let is_there = section.is_there();
    let listen =
        section.parsed("listen", "an IP address with a port, or the absolute path of a socket", address);
    let metrics = Metrics {
        listen: listen.unwrap_or_else(|| MetricsAddress::Tcp((Ipv4Addr::LOCALHOST, PORT_DEFAULT).into())),
        mode: mode(&mut section, report, &[0o600, 0o660, 0o666]).unwrap_or(0o660),
        group: section.parsed("group", "the name or number of a group", group),
        clients_max: section.number("clients_max", 1..=64, "clients at a time").unwrap_or(8),
        timeout_ms: section
            .number("timeout_ms", 100..=60_000, "the time for a request and its reply")
            .unwrap_or(5000),
    };
    if is_there && let MetricsAddress::Unix(socket) = &metrics.listen {
        let others = [("control", Some(control.socket.as_path())), ("applications", socket_of(applications))];
        for (table, _) in others.iter().filter(|(_, other)| *other == Some(socket.as_path())) {
            let message = format!("{table}.socket has the same path");
            report.at(&section.place_of("listen"), message, "give each socket a path of its own");
        }
        check_socket(&section, report, "listen", metrics.group.as_deref(), socket);
    }
    section.finish();
    is_there.then_some(metrics)
}

fn socket_of(applications: Option<&Applications>) -> Option<&Path> {
    applications.map(|table| table.socket.as_path())
}

fn address(text: &str) -> Result<MetricsAddress, String> {
    if text.starts_with('/') {
        return socket_path(text).map(MetricsAddress::Unix);
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("port 0 is not a port to listen on".to_owned()),
        Ok(address) => Ok(MetricsAddress::Tcp(address)),
        Err(_) => Err(format!("`{text}` is not an IP address with a port")),
    }
}
