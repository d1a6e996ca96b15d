//! The network interfaces of this machine, as the device's addresses.

use if_addrs::{IfAddr, get_if_addrs};
use ipnet::IpNet;
use iwarp_shared_verbs::methods::DeviceInfo;
use rustix::io::Errno;

/// Name of the device.
const NAME: &str = "embedded";
/// Largest IP packet that the device states, bytes: that of an Ethernet link. The kernel cuts what is longer.
const MTU: u16 = 1500;

/// Returns the device: all addresses of the machine, those of the loopback interface last.
pub(crate) fn device() -> Result<DeviceInfo, Errno> {
    let found = get_if_addrs().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let (loopback, others): (Vec<_>, Vec<_>) = found.into_iter().partition(if_addrs::Interface::is_loopback);
    let address = |interface: if_addrs::Interface| {
        let prefix = match interface.addr {
            IfAddr::V4(v4) => (v4.ip.into(), v4.prefixlen),
            IfAddr::V6(v6) => (v6.ip.into(), v6.prefixlen),
        };
        IpNet::new(prefix.0, prefix.1).ok()
    };
    let addresses = others.into_iter().chain(loopback).filter_map(address).collect();
    Ok(DeviceInfo { name: NAME.to_owned(), addresses, mtu: MTU })
}
