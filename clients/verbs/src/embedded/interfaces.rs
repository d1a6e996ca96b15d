//! The network interfaces of this machine, as devices and their addresses.

use if_addrs::{IfAddr, Interface, get_if_addrs};
use ipnet::IpNet;
use iwarp_shared_verbs::methods::DeviceInfo;
use rustix::io::Errno;

/// Name of the device that has all interfaces.
const NAME: &str = "embedded";
/// Largest IP packet that a device states, bytes: that of an Ethernet link. The kernel cuts what is longer.
pub(super) const MTU: u16 = 1500;

/// Returns the name of an interface, without the label of an address (`eth0:1`).
fn name(interface: &Interface) -> String {
    interface.name.split(':').next().unwrap_or_default().to_owned()
}

/// Returns the addresses of the machine with the names of their interfaces, those of the loopback interface last.
fn addresses() -> Result<Vec<(String, IpNet)>, Errno> {
    let found = get_if_addrs().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // By interface: that of the loopback addresses may have others, too.
    let loopbacks: Vec<_> = found.iter().filter(|found| found.is_loopback()).map(name).collect();
    let (loopback, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|found| loopbacks.contains(&name(found)));
    let address = |interface: Interface| {
        let prefix = match &interface.addr {
            IfAddr::V4(v4) => (v4.ip.into(), v4.prefixlen),
            IfAddr::V6(v6) => (v6.ip.into(), v6.prefixlen),
        };
        Some((name(&interface), IpNet::new(prefix.0, prefix.1).ok()?))
    };
    Ok(others.into_iter().chain(loopback).filter_map(address).collect())
}

/// Returns the device of all interfaces.
pub(crate) fn device() -> Result<DeviceInfo, Errno> {
    let addresses = addresses()?.into_iter().map(|(_, address)| address).collect();
    Ok(DeviceInfo { name: NAME.to_owned(), addresses, mtu: MTU })
}

/// Returns a device for each interface with an address, by its name, the loopback interface last.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>, Errno> {
    Ok(by_name(addresses()?))
}

fn by_name(addresses: Vec<(String, IpNet)>) -> Vec<DeviceInfo> {
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for (name, address) in addresses {
        match devices.iter_mut().find(|device| device.name == name) {
            Some(device) => device.addresses.push(address),
            None => devices.push(DeviceInfo { name, addresses: vec![address], mtu: MTU }),
        }
    }
    devices
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn each_interface_is_a_device_with_all_of_its_addresses() {
        let all = ["eth0 10.0.0.1/24", "eth1 10.1.0.1/24", "eth0 fd00::1/64", "lo 127.0.0.1/8", "lo ::1/128"];
        let pairs = all.iter().map(|line| line.split_once(' ').unwrap());
        let devices =
            by_name(pairs.map(|(name, address)| (name.to_owned(), address.parse().unwrap())).collect());
        let names: Vec<_> =
            devices.iter().map(|device| (device.name.as_str(), device.addresses.len())).collect();
        assert_eq!(names, [("eth0", 2), ("eth1", 1), ("lo", 2)]);
    }

    #[test]
    fn the_loopback_interface_is_the_last_device() {
        let last = devices().unwrap().pop().unwrap();
        assert!(last.addresses.iter().any(|address| address.addr().is_loopback()), "{last:?}");
    }
}
