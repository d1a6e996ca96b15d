//! Table `[metrics]`: the address at which the daemon serves its counters. Without the table it serves none.

use std::net::Ipv4Addr;
use std::path::Path;

use super::applications::Applications;
use super::service::{Control, GROUP, check_socket, listen_address, socket_path};
use crate::keys::{Mode, Number, Text, keys};
use crate::read::{Report, Section};
use crate::types::MetricsAddress;

/// Port of the default address.
const PORT_DEFAULT: u16 = 9464;

const LISTEN: Text<MetricsAddress> =
    Text("an IP address with a port, or the absolute path of a socket", address, |address| match address {
        MetricsAddress::Tcp(address) => address.to_string(),
        MetricsAddress::Unix(path) => path.display().to_string(),
    });

keys! {
    /// Table `[metrics]`: counters for Prometheus and its relatives, over HTTP; without the table there are none.
    pub struct Metrics in metrics(section) {
        /// Address of the exporter, of TCP or a Unix socket. There is no encryption and no authentication.
        listen: MetricsAddress = MetricsAddress::Tcp((Ipv4Addr::LOCALHOST, PORT_DEFAULT).into()), LISTEN, Restart;
        /// File mode of the Unix socket; 0666 is for every user.
        mode: u32 = 0o660, Mode(&[0o600, 0o660, 0o666]), Restart;
        /// Group that owns the Unix socket; default: the daemon's.
        group: Option<String> = None, GROUP, Restart, "\"root\"";
        /// Maximum number of clients at a time.
        clients_max: u16 = 8, Number(1..=64, "clients at a time"), Restart;
        /// Time for one request and its reply, ms; then the client is disconnected.
        timeout_ms: u32 = 5000, Number(100..=60_000, "the time for a request and its reply"), Restart;
    }
}

pub(super) fn read(
    mut section: Section<'_>,
    report: &Report,
    control: &Control,
    applications: Option<&Applications>,
) -> Option<Metrics> {
    let is_there = section.is_there();
    let metrics = Metrics::read(&mut section);
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
    listen_address(text).map(MetricsAddress::Tcp)
}
