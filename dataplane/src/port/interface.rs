//! State of the kernel's interfaces. [`Port`](super::Port) uses it for drivers that share one with the kernel.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustix::fd::OwnedFd;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::{AddressFamily, SocketType, socket};

use super::spec::PortSpec;

/// The MTU of a kernel interface, bytes; `None` if there is no such interface in this network namespace.
pub(super) fn mtu(interface: &str) -> Option<u32> {
    attribute(interface, "mtu")?.parse().ok()
}

/// The station address of a kernel interface.
pub(super) fn mac(interface: &str) -> Option<[u8; 6]> {
    parse_mac(&attribute(interface, "address")?)
}

/// The number of a kernel interface in this network namespace; `None` if there is none of that name.
pub(super) fn index(interface: &str) -> Option<u32> {
    name_to_index(any_socket()?, interface).ok()
}

/// Returns true if the interface with this index exists, under any name.
pub(super) fn exists(index: u32) -> bool {
    // Without a socket to ask by, nothing is known, and a port is not given up on that.
    any_socket().is_none_or(|socket| index_to_name(socket, index).is_ok())
}

/// Returns the name that the interface with this index has now.
pub(super) fn name(index: u32) -> Option<String> {
    index_to_name(any_socket()?, index).ok()
}

/// Returns the speed of a link, if its interface has one.
pub(super) fn megabits_per_second(interface: &str) -> Option<u32> {
    attribute(interface, "speed")?.parse().ok()
}

/// Returns true if the kernel reports that an interface has no carrier, or is down.
pub(super) fn is_down(interface: &str) -> bool {
    attribute(interface, "operstate").is_some_and(|state| state == "down" || state == "lowerlayerdown")
}

pub(super) fn any_socket() -> Option<OwnedFd> {
    socket(AddressFamily::INET, SocketType::DGRAM, None).ok()
}

fn attribute(interface: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/{name}")).ok()?;
    Some(text.trim_end().to_owned())
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = bytes.next()??;
    }
    (bytes.next().is_none() && mac != [0; 6]).then_some(mac)
}

/// A locally administered address for a port without one: the same at each start, so that neighbors need not
/// learn it again; different for other ports and other machines.
pub(super) fn made_up_mac(spec: &PortSpec) -> [u8; 6] {
    let mut hasher = DefaultHasher::new();
    fs::read("/etc/machine-id").unwrap_or_default().hash(&mut hasher);
    spec.name.hash(&mut hasher);
    format!("{:?}", spec.driver).hash(&mut hasher);
    let [_, a, b, c, d, e, ..] = hasher.finish().to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_whole_or_not_at_all() {
        assert_eq!(parse_mac("02:00:5e:00:53:ff"), Some([2, 0, 0x5e, 0, 0x53, 0xff]));
        for text in ["", "02:00:5e:00:53", "02:00:5e:00:53:ff:00", "02:00:5e:00:53:xx", "00:00:00:00:00:00"] {
            assert_eq!(parse_mac(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_loopback_interface_has_an_mtu_and_no_address() {
        assert!(mtu("lo").is_some_and(|mtu| mtu >= 576));
        assert_eq!(mac("lo"), None);
        assert_eq!(mtu("no-such-if"), None);
        assert!(index("lo").is_some_and(exists) && !exists(u32::MAX >> 1));
        assert_eq!(index("no-such-if"), None);
    }
}
