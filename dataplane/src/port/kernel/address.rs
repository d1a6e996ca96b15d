//! Addresses and routers that the kernel has on an interface.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use if_addrs::{IfAddr, get_if_addrs};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::port::interface;

/// Flags of an IPv6 address that is not for new connections: temporary, deprecated, and one that another host has
/// (linux/if_addr.h).
const NOT_FOR_USE: u32 = 0x01 | 0x20 | 0x08;
/// The route has a next hop (linux/route.h).
const RTF_GATEWAY: u32 = 0x2;
/// Scope of an IPv6 address that is valid everywhere.
const GLOBAL: u32 = 0;
/// Scope of an IPv6 address that is valid on its link.
const LINK: u32 = 0x20;

/// Addresses and routers of an interface when they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelAddresses {
    /// The first IPv4 address, with its prefix.
    pub ipv4: Option<Ipv4Net>,
    /// The first IPv6 address that is valid everywhere, with its prefix.
    pub ipv6: Option<Ipv6Net>,
    /// The link-local address of IPv6.
    pub link_local: Option<Ipv6Addr>,
    /// The router of IPv4 with the least metric.
    pub gateway: Option<Ipv4Addr>,
    /// The router of IPv6 with the least metric.
    pub gateway6: Option<Ipv6Addr>,
    /// MTU of the interface, bytes.
    pub mtu: u16,
    /// Number of the interface.
    index: u32,
}

impl KernelAddresses {
    /// Reads those of an interface.
    ///
    /// # Errors
    /// ENODEV without such an interface; EADDRNOTAVAIL if it has no address that programs use.
    pub fn of(name: &str) -> io::Result<Self> {
        let lost = || io::Error::from_raw_os_error(libc::ENODEV);
        let index = interface::index(name).ok_or_else(lost)?;
        let text = |file: &str| fs::read_to_string(format!("/proc/self/net/{file}")).unwrap_or_default();
        let found = get_if_addrs()?;
        let ipv4 = found.into_iter().filter(|found| found.index == Some(index)).find_map(|found| {
            let IfAddr::V4(v4) = found.addr else { return None };
            Ipv4Net::new(v4.ip, v4.prefixlen).ok()
        });
        let listed = text("if_inet6");
        let ipv6 = ipv6_addresses(&listed, index, GLOBAL).next();
        let addresses = Self {
            ipv4,
            ipv6,
            link_local: ipv6_addresses(&listed, index, LINK).next().map(|net| net.addr()),
            gateway: ipv4.and_then(|_| ipv4_router(&text("route"), name)),
            gateway6: ipv6.and_then(|_| ipv6_router(&text("ipv6_route"), name)),
            mtu: interface::mtu(name).and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(u16::MAX),
            index,
        };
        let none = || io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        addresses.nets().next().map(|_| addresses).ok_or_else(none)
    }

    /// Returns the addresses with their prefixes, that of IPv4 first.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> + use<> {
        self.ipv4.map(IpNet::V4).into_iter().chain(self.ipv6.map(IpNet::V6))
    }

    /// Returns the ends of a TCP port: one for each address, the link-local one included where IPv6 is in use.
    pub(super) fn ends(&self, port: u16) -> impl Iterator<Item = SocketAddr> + use<> {
        let (index, link_local) = (self.index, self.link_local.filter(|_| self.ipv6.is_some()));
        let addresses = self.nets().map(|net| net.addr()).chain(link_local.map(IpAddr::V6));
        addresses.map(move |address| end(address, port, index))
    }
}

/// Returns an end with the scope that a link-local address needs.
fn end(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            SocketAddrV6::new(address, port, 0, scope).into()
        }
        address => SocketAddr::new(address, port),
    }
}

/// Returns the IPv6 addresses of an interface and a scope, from `/proc/net/if_inet6`.
fn ipv6_addresses(text: &str, index: u32, scope: u32) -> impl Iterator<Item = Ipv6Net> {
    text.lines().filter_map(move |line| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        let mut number = || u32::from_str_radix(words.next()?, 16).ok();
        let (of, prefix, of_scope, flags) = (number()?, number()?, number()?, number()?);
        let is_wanted = of == index && of_scope == scope && flags & NOT_FOR_USE == 0;
        Ipv6Net::new(Ipv6Addr::from_bits(address), u8::try_from(prefix).ok()?).ok().filter(|_| is_wanted)
    })
}

/// Returns the next hop of the default route through an interface, from `/proc/net/route`.
fn ipv4_router(text: &str, name: &str) -> Option<Ipv4Addr> {
    let routes = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [of, to, gateway, flags, _, _, metric, mask, ..] = words.as_slice() else { return None };
        let hex = |word: &str| u32::from_str_radix(word, 16).ok();
        let is_default = *of == name && hex(to)? == 0 && hex(mask)? == 0 && hex(flags)? & RTF_GATEWAY != 0;
        // In the byte order of this machine, which is that of the network read backwards.
        let gateway = Ipv4Addr::from_bits(u32::from_be(hex(gateway)?));
        is_default.then_some((metric.parse::<u32>().ok()?, gateway))
    });
    routes.min().map(|(_, gateway)| gateway)
}

/// Returns the next hop of the default route through an interface, from `/proc/net/ipv6_route`.
fn ipv6_router(text: &str, name: &str) -> Option<Ipv6Addr> {
    let routes = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [to, prefix, _, _, gateway, metric, _, _, flags, of] = words.as_slice() else { return None };
        let hex = |word: &str| u32::from_str_radix(word, 16).ok();
        let is_default = *of == name
            && u128::from_str_radix(to, 16).ok()? == 0
            && hex(prefix)? == 0
            && hex(flags)? & RTF_GATEWAY != 0;
        let gateway = Ipv6Addr::from_bits(u128::from_str_radix(gateway, 16).ok()?);
        is_default.then_some((hex(metric)?, gateway))
    });
    routes.min().map(|(_, gateway)| gateway)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IF_INET6: &str = "00000000000000000000000000000001 01 80 10 80       lo\n\
        20010db8000000000000000000000077 07 40 00 01     eth0\n\
        20010db8000000000000000000000002 07 40 00 80     eth0\n\
        20010db8000000000000000000000003 08 40 00 80     eth1\n\
        fe80000000000000000000fffe000001 07 40 20 80     eth0\n";
    const ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        eth0\t00000000\t090200C0\t0003\t0\t0\t20\t00000000\t0\t0\t0\n\
        eth1\t00000000\t050200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    const IPV6_ROUTE: &str = "20010db8000000000000000000000000 40 00000000000000000000000000000000 00 \
        00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
        fe800000000000000000000000000009 00000400 00000001 00000000 00000003 eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
        00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";

    #[test]
    fn the_kernels_lists_are_read() {
        let found: Vec<_> = ipv6_addresses(IF_INET6, 7, GLOBAL).collect();
        assert_eq!(found, ["2001:db8::2/64".parse().unwrap()], "the temporary one is not for us");
        let local: Vec<_> = ipv6_addresses(IF_INET6, 7, LINK).map(|net| net.addr()).collect();
        assert_eq!(local, ["fe80::ff:fe00:1".parse::<Ipv6Addr>().unwrap()]);
        assert_eq!(ipv4_router(ROUTE, "eth0"), Some("192.0.2.9".parse().unwrap()), "the least metric");
        assert_eq!(ipv4_router(ROUTE, "eth2"), None);
        assert_eq!(ipv6_router(IPV6_ROUTE, "eth0"), Some("fe80::9".parse().unwrap()));
        assert_eq!(ipv6_router(IPV6_ROUTE, "lo"), None);
    }

    #[test]
    fn the_loopback_interface_has_addresses_and_no_router() {
        let lo = KernelAddresses::of("lo").unwrap();
        assert_eq!((lo.ipv4, lo.gateway), (Some("127.0.0.1/8".parse().unwrap()), None));
        assert_eq!(lo.ends(80).next(), Some("127.0.0.1:80".parse().unwrap()));
        let missing = KernelAddresses::of("no-such-if").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
    }
}
