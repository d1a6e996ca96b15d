//! Addresses of devices, and those that stand for any address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::device_list::{Device, devices, is_embedded, known_devices};

/// Returns the device with an address of this machine. Of those inside the process, the loopback interface has all
/// loopback addresses.
pub(crate) fn device_at(ip: IpAddr) -> Option<&'static Device> {
    let find = |list: &'static [Option<&'static Device>], is_it: &dyn Fn(IpAddr) -> bool| {
        list.iter().flatten().find(|device| device.addresses().any(is_it)).copied()
    };
    let is_own = |own| own == ip;
    if is_embedded()
        && let Some(known) = find(known_devices(), &is_own)
    {
        return Some(known);
    }
    let list = devices();
    let loopback = || find(list, &|own| own.is_loopback()).filter(|_| is_embedded() && ip.is_loopback());
    find(list, &is_own).or_else(loopback)
}

/// Returns the devices that serve an id without an address: all, or one interface of the device inside this process,
/// which serves for all of them.
pub(crate) fn devices_at_any() -> impl Iterator<Item = &'static Device> {
    devices().iter().flatten().copied().take(if is_embedded() { 1 } else { usize::MAX })
}

/// Returns the devices that may reach a peer, and their addresses: first that of the peer's network. For the device
/// inside the process, the kernel chooses the address.
pub(crate) fn devices_to(peer: IpAddr) -> Vec<(&'static Device, IpAddr)> {
    if is_embedded() {
        return devices_at_any().map(|device| (device, unspecified(peer))).collect();
    }
    let same_family = |device: &'static Device| {
        let prefixes = device.info().addresses.iter();
        prefixes
            .filter(move |prefix| prefix.addr().is_ipv4() == peer.is_ipv4())
            .map(move |prefix| (device, prefix))
    };
    let mut all: Vec<_> = devices_at_any().flat_map(same_family).collect();
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
