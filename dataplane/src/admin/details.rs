//! `port show`: one port in detail.

use iwarp_control::{ErrorKind, ErrorObject, Interrupts, KernelSide, PortDetails, Sharing, SuperFrames};
use tcp_stack::Instant;

use super::report;
use super::watch::PortEntry;
use crate::dpdk::Offloads;
use crate::port::{self, InterfaceOffloads, Port, Reservation, Shared};

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
        sharing: port.shared().map(|shared| sharing(shared)),
        super_frames: super_frames(port),
        kernel_side: port.kernel_side().map(kernel_side),
        link_history: entry.watched.history().changes(now),
    })
}

fn sharing(shared: &Shared) -> Sharing {
    let Reservation { ports, refused } = shared.reservation();
    Sharing {
        ports_reserved: ports as u64,
        ports_refused: refused,
        source_ports: shared.source_ports().to_string(),
    }
}

fn kernel_side(side: port::KernelSide) -> KernelSide {
    let port::KernelSide { receive_buffer_bytes, offloads } = side;
    let InterfaceOffloads { rx_checksum, rx_merging, tx_checksum, tx_segmentation } = offloads;
    let receive_buffer_bytes = receive_buffer_bytes.map(|bytes| bytes as u64);
    KernelSide { receive_buffer_bytes, rx_checksum, rx_merging, tx_checksum, tx_segmentation }
}

/// Returns the counters of super-frames, for a driver that has them.
fn super_frames(port: &Port) -> Option<SuperFrames> {
    let counters = port.extended_stats().ok()?;
    let counter = |wanted: &str| counters.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
    Some(SuperFrames {
        rx_frames: counter("rx_super_frames")?,
        rx_segments: counter("rx_super_frame_segments")?,
        rx_guesses_missed: counter("rx_super_frame_guesses_missed")?,
        rx_too_long: counter("rx_super_frames_too_long")?,
        tx_frames: counter("tx_super_frames")?,
        tx_segments: counter("tx_super_frame_segments")?,
    })
}
