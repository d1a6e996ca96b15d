//! `port show`: one port in detail.

use iwarp_control::{ErrorKind, ErrorObject, Interrupts, PortDetails};
use tcp_stack::Instant;

use super::report;
use super::watch::PortEntry;
use crate::dpdk::Offloads;

/// Composes the reply to `port.show`.
///
/// # Errors
/// There is no such port, or it does not answer.
pub(super) fn port_show(ports: &[PortEntry], name: &str, now: Instant) -> Result<PortDetails, ErrorObject> {
    let Some(entry) = ports.iter().find(|entry| entry.port.name() == name) else {
        return Err(ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no port `{name}`"))
            .with_help("`iwarpctl port list` shows those there are"));
    };
    let port = &entry.port;
    let names = |offloads: Offloads| {
        offloads.named().iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned()).collect()
    };
    Ok(PortDetails {
        port: report::port(entry)?,
        device_name: port.device_name().to_owned(),
        firmware: port.firmware(),
        bus_address: port.bus_address().map(str::to_owned),
        kernel_driver: port.kernel_driver(),
        numa_node: port.numa_node(),
        offloads_requested: names(entry.spec.offloads()),
        offloads_granted: names(port.offloads()),
        queues_max: port.info().queues_max,
        rss_functions: port.rss_functions().into_iter().map(str::to_owned).collect(),
        interrupts: if port.has_interrupts() { Interrupts::PerQueue } else { Interrupts::None },
        link_history: entry.watched.history().changes(now),
    })
}
