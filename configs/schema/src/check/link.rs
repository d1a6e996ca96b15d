//! Checks the neighbors of a port: gateways, and hosts with configured link addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::port::{MAC, Port, is_host_v4, is_host_v6, own_ipv4};
use crate::keys::{Required, Text, keys};
use crate::read::{Place, Report, Section};
use crate::types::{Addresses, NEIGHBORS_MAX};

/// Checks that each gateway is another host on the link. A prefix of one address, as cloud providers assign it, has no
/// room for a gateway: there it may have any address.
pub(super) fn check_gateways(
    section: &Section<'_>,
    report: &Report,
    v4: (Option<Ipv4Net>, Option<Ipv4Addr>),
    v6: (Option<Ipv6Net>, Option<Ipv6Addr>),
) {
    if let (net, Some(gateway)) = v4 {
        let on_link = |net: Ipv4Net| {
            let near = net.prefix_len() == 32 || net.contains(&gateway);
            near && net.addr() != gateway && is_host_v4(gateway)
        };
        let good = net.is_some_and(on_link);
        complain(report, &section.place_of("gateway"), good, gateway.into(), net.map(Into::into));
    }
    if let (net, Some(gateway)) = v6 {
        let on_link = |net: Ipv6Net| {
            let near = net.prefix_len() == 128 || net.contains(&gateway) || gateway.is_unicast_link_local();
            near && net.addr() != gateway && is_host_v6(gateway)
        };
        let good = net.is_some_and(on_link);
        complain(report, &section.place_of("gateway6"), good, gateway.into(), net.map(Into::into));
    }
}

fn complain(report: &Report, place: &Place, good: bool, gateway: IpAddr, net: Option<IpNet>) {
    if good {
        return;
    }
    let message = format!("{gateway} cannot be this port's gateway");
    match net {
        Some(net) if net.prefix_len() == net.max_prefix_len() => {
            report.at(place, message, "name the address of another machine on the same link");
        }
        Some(net) => report.not_allowed(
            place,
            message,
            format!("another address in {}", net.trunc()),
            format!(
                "a gateway is another machine on the same link; if it is outside of every subnet, the port's address \
                 has the prefix /{}",
                net.max_prefix_len()
            ),
        ),
        None => report.at(place, message, "give the port an address of that family first"),
    }
}

keys! {
    /// Table `[[port.neighbor]]`: a host that the port never resolves, and that ARP and NDP never change; 0 to 1024.
    #[derive(Copy, Eq)]
    pub struct Neighbor in neighbor(section) {
        /// Address of another host on the link: in a prefix of the port, or its gateway.
        address: IpAddr = Ipv4Addr::UNSPECIFIED.into(),
            Required(Text::new("the address of a host on the link", neighbor), ""), Restart, "\"192.0.2.1\"";
        /// MAC address of the host: neither multicast nor zero.
        mac: [u8; 6] = [0; 6], Required(MAC, ""), Restart, "\"02:00:00:00:00:01\"";
    }
}

/// Reads the `[[port.neighbor]]` tables.
pub(super) fn neighbors(section: &mut Section<'_>, report: &Report, port: &Port) -> Vec<Neighbor> {
    let Port { addresses: Addresses { ipv4, ipv6, are_kernels }, gateway, gateway6, .. } = *port;
    let allowed = format!("0 to {NEIGHBORS_MAX}");
    let mut neighbors: Vec<Neighbor> = Vec::new();
    for mut table in section.sections_at_most("neighbor", NEIGHBORS_MAX, allowed, "remove this table") {
        let neighbor = Neighbor::read(&mut table);
        let (place, is_wrong) = (table.place_of("address"), table.is_wrong("address"));
        table.finish();
        if is_wrong || are_kernels {
            continue;
        }
        let address = neighbor.address;
        let on_link = match address {
            IpAddr::V4(a) => {
                let near = |net: Ipv4Net| net.contains(&a) || gateway == Some(a);
                ipv4.is_some_and(|net| near(net) && own_ipv4_in(net, a))
            }
            IpAddr::V6(a) => {
                let near =
                    |net: Ipv6Net| net.contains(&a) || a.is_unicast_link_local() || gateway6 == Some(a);
                ipv6.is_some_and(|net| net.addr() != a && near(net))
            }
        };
        if !on_link {
            let message = format!("{address} is not another host on this port's link");
            let help = "name the gateway, or an address inside of one of the port's prefixes";
            report.at(&place, message, help);
        } else if neighbors.iter().any(|other| other.address == address) {
            report.at(&place, format!("{address} has a neighbor table already"), "name each neighbor once");
        }
        neighbors.push(neighbor);
    }
    neighbors
}

/// Returns true if another host of the network can have this address.
fn own_ipv4_in(net: Ipv4Net, address: Ipv4Addr) -> bool {
    let host = Ipv4Net::new(address, net.prefix_len());
    net.addr() != address && host.is_ok_and(|host| own_ipv4(host).is_none())
}

fn neighbor(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("`{text}` is not an address"))?;
    let good = match address {
        IpAddr::V4(address) => is_host_v4(address),
        IpAddr::V6(address) => is_host_v6(address),
    };
    if good { Ok(address) } else { Err(format!("`{text}` cannot be the address of a neighbor")) }
}
