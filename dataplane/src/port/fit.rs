//! Checks that MTU, queues and packet buffers of a port fit its device.

use std::sync::Arc;

use iwarp_config::Driver;

use super::{PortError, PortSpec, interface};
use crate::dpdk::{DeviceInfo, Mempool, Offloads};

/// Ethernet header and one VLAN tag, bytes.
const FRAME_OVERHEAD: u32 = 18;

/// Bytes of an ordinary page.
const PAGE_BYTES: u32 = 4096;

/// Returns the offloads that are requested and that the device has.
pub(super) fn offloads(spec: &PortSpec, info: &DeviceInfo) -> Offloads {
    let offloads = spec.offloads().and(info.offloads);
    // Neither an IPv4 header's checksum nor segments without that of TCP.
    Offloads {
        tx_ip_checksum: offloads.tx_ip_checksum && offloads.tx_tcp_checksum,
        tx_segmentation: offloads.tx_segmentation && offloads.tx_tcp_checksum,
        ..offloads
    }
}

/// Refuses what would fail later with a worse message.
pub(super) fn check_fit(spec: &PortSpec, info: &DeviceInfo, pools: &[Arc<Mempool>]) -> Result<(), PortError> {
    let port = || spec.name.clone();
    if pools.is_empty() || info.queues_max == 0 {
        let (workers, driver, max) = (pools.len(), info.driver.clone(), info.queues_max);
        return Err(PortError::Queues { port: port(), workers, driver, max });
    }
    if !(info.mtu_min..=info.mtu_max).contains(&spec.mtu) {
        let (driver, min, max) = (info.driver.clone(), info.mtu_min, info.mtu_max);
        return Err(PortError::Mtu { port: port(), mtu: spec.mtu, driver, min, max });
    }
    if let Some(interface) = spec.kernel_interface()
        && let Some(interface_mtu) = interface::mtu(interface)
        && interface_mtu < u32::from(spec.mtu)
    {
        let interface = interface.to_owned();
        return Err(PortError::InterfaceMtu { port: port(), mtu: spec.mtu, interface, interface_mtu });
    }
    check_shared(spec, pools)?;
    let needed = u32::from(spec.mtu).saturating_add(FRAME_OVERHEAD).saturating_add(xdp_headroom(spec));
    match pools.iter().map(|pool| u32::from(pool.frame_room())).min() {
        Some(room) if room < needed => Err(PortError::Buffers { port: port(), mtu: spec.mtu, room, needed }),
        _ => Ok(()),
    }
}

/// Bytes that the kernel keeps free before a frame that it receives into a buffer.
fn xdp_headroom(spec: &PortSpec) -> u32 {
    if matches!(spec.driver, Driver::AfXdp { .. }) { u32::from(Driver::XDP_HEADROOM_BYTES) } else { 0 }
}

/// Refuses buffers that net_af_xdp would hand to the kernel and the kernel would not take: it would drop every frame in
/// them, each time.
fn check_shared(spec: &PortSpec, pools: &[Arc<Mempool>]) -> Result<(), PortError> {
    if !matches!(spec.driver, Driver::AfXdp { .. }) {
        return Ok(());
    }
    let page_bytes = PAGE_BYTES;
    match pools.iter().find(|pool| !pool.is_contiguous() || pool.object_bytes() > page_bytes) {
        None => Ok(()),
        Some(pool) => Err(PortError::SharedBuffers {
            port: spec.name.clone(),
            contiguous: pool.is_contiguous(),
            object_bytes: pool.object_bytes(),
            page_bytes,
        }),
    }
}

/// Queue pairs that the device has at most. A memif has as many as its client makes, which is not known yet: one is
/// sure.
pub(super) fn queues_max(spec: &PortSpec, info: &DeviceInfo) -> u16 {
    if matches!(spec.driver, Driver::Memif(_)) { info.queues_max.min(1) } else { info.queues_max }
}
