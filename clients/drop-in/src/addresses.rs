//! Addresses of devices, and those that stand for any address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::device_list::{Device, devices, is_embedded, known_interface};

/// Returns the device with an address of this machine. Of those inside the process, the loopback interface has all
/// loopback addresses.
pub(crate) fn device_at(ip: IpAddr) -> Option<&'static Device> {
    if is_embedded()
        && let Some(known) = known_interface(ip)
    {
        return Some(known);
    }
    let has = |device: &&&Device| device.addresses().any(|own| own == ip);
    let is_loopback = |device: &&&Device| {
        is_embedded() && ip.is_loopback() && device.addresses().any(|own| own.is_loopback())
    };
    let all = || devices().iter().flatten();
    all().find(has).or_else(|| all().find(is_loopback)).copied()
}

/// Returns the devices that may reach a peer, and their addresses: first that of the peer's network. For the device
/// inside the process, the kernel chooses the address.
pub(crate) fn devices_to(peer: IpAddr) -> Vec<(&'static Device, IpAddr)> {
    if is_embedded() {
        return devices().iter().flatten().take(1).map(|device| (*device, unspecified(peer))).collect();
    }
    let same_family = |device: &'static Device| {
        let prefixes = device.info().addresses.iter();
        prefixes
            .filter(move |prefix| prefix.addr().is_ipv4() == peer.is_ipv4())
            .map(move |prefix| (device, prefix))
    };
    let mut all: Vec<_> = devices().iter().flatten().copied().flat_map(same_family).collect();
    all.sort_by_key(|(_, prefix)| !prefix.contains(&peer));
    all.into_iter().map(|(device, prefix)| (device, prefix.addr())).collect()
}

/// Returns the unspecified address of the same family.
pub(crate) const fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Returns true for an address that stands for any of this machine. A loopback address does, as with the kernel's CM,
/// unless the device is inside the process, which has it.
pub(crate) fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback() && !is_embedded()
}
