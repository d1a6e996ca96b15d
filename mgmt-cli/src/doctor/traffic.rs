//! Interfaces of the kernel below the ports of a running daemon: whether frames of many segments pass them, each at the
//! price of one system call.

use iwarp_config::Machine;
use iwarp_control::{KernelSide, PortDetails};

use super::Finding;

pub(super) fn examine(ports: &[PortDetails], machine: &Machine) -> Vec<Finding> {
    ports.iter().flat_map(|details| too_long(details).into_iter().chain(offloads(details, machine))).collect()
}

/// Returns the interface of a port by the name that it has now.
fn interface(details: &PortDetails) -> String {
    details.port.interface.as_ref().map_or_else(|| details.device_name.clone(), ToString::to_string)
}

/// Returns the finding about frames that no packet socket takes whole.
fn too_long(details: &PortDetails) -> Option<Finding> {
    const CHECK: &str = "frame-length";
    let (frames, name) = (details.super_frames?.rx_too_long, &details.port.name);
    if frames == 0 {
        return Some(Finding::ok(CHECK, format!("port {name}: no frame was longer than 64 KiB")));
    }
    let interface = interface(details);
    Some(Finding::warning(
        CHECK,
        format!("port {name}: {frames} frames were dropped, as they are longer than 64 KiB (BIG TCP)"),
        format!(
            "ip link set {interface} gro_max_size 65536 gro_ipv4_max_size 65536, and at the other end of a veth \
             gso_max_size 65536 gso_ipv4_max_size 65536"
        ),
    ))
}

/// Returns the findings about offloads that are off.
fn offloads(details: &PortDetails, machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "offloads";
    let Some(side) = details.kernel_side else { return Vec::new() };
    let KernelSide { rx_checksum, rx_merging, tx_checksum, tx_segmentation, .. } = side;
    let (interface, name) = (interface(details), &details.port.name);
    let is_tap = details.port.driver.ends_with("tap");
    // A virtual interface passes the frames of its other end, merged or not.
    let is_card = !machine.names(&format!("sys/class/net/{interface}/device")).is_empty();
    let (cuts, sums) = if is_tap {
        ("the kernel passes single segments, each at the price of a system call", "the kernel sums each byte")
    } else {
        (
            "the kernel cuts each frame of many segments",
            "the kernel sums each byte, and cuts frames of many segments",
        )
    };
    let costs = [
        (tx_checksum, "tx", sums),
        (tx_segmentation || !tx_checksum, "tso", cuts),
        (rx_checksum || is_tap || !is_card, "rx", "checksums are verified in software"),
        (rx_merging || !is_card, "gro", "segments come one by one, each at the price of a system call"),
    ];
    let off = costs.into_iter().filter(|(on, ..)| !on).map(|(_, offload, cost)| {
        let message = format!("port {name}: the offload {offload} of {interface} is off: {cost}");
        Finding::warning(CHECK, message, format!("ethtool -K {interface} {offload} on"))
    });
    let off: Vec<Finding> = off.collect();
    if !off.is_empty() {
        return off;
    }
    vec![Finding::ok(CHECK, format!("port {name}: the offloads of {interface} are on"))]
}
