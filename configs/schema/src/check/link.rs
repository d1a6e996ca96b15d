//! Checks the neighbors of a port: gateways, and hosts with configured link addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::port::{is_host_v4, is_host_v6, mac_address, own_ipv4, required};
use crate::read::{Place, Report, Section};
use crate::types::{NEIGHBORS_MAX, Neighbor};

pub(super) fn check_gateways(
    section: &Section<'_>,
    report: &Report,
    v4: (Option<Ipv4Net>, Option<Ipv4Addr>),
    v6: (Option<Ipv6Net>, Option<Ipv6Addr>),
) {
    const HELP: &str = "a gateway is another machine on the same link";
    if let (net, Some(gateway)) = v4 {
        let good =
            net.is_some_and(|net| net.contains(&gateway) && net.addr() != gateway) && is_host_v4(gateway);
        complain(report, &section.place_of("gateway"), good, gateway.into(), net.map(Into::into), HELP);
    }
    if let (net, Some(gateway)) = v6 {
        let on_link = |net: Ipv6Net| {
            net.addr() != gateway && (net.contains(&gateway) || gateway.is_unicast_link_local())
        };
        let good = net.is_some_and(on_link) && is_host_v6(gateway);
        complain(report, &section.place_of("gateway6"), good, gateway.into(), net.map(Into::into), HELP);
    }
}

fn complain(report: &Report, place: &Place, good: bool, gateway: IpAddr, net: Option<IpNet>, help: &str) {
    if good {
        return;
    }
    let message = format!("{gateway} cannot be this port's gateway");
    match net {
        Some(net) => report.not_allowed(place, message, format!("another address in {}", net.trunc()), help),
        None => report.at(place, message, "give the port an address of that family first"),
    }
}

/// Reads the `[[port.neighbor]]` tables.
pub(super) fn neighbors(
    section: &mut Section<'_>,
    report: &Report,
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
) -> Vec<Neighbor> {
    let mut neighbors: Vec<Neighbor> = Vec::new();
    for (index, mut table) in section.sections("neighbor").into_iter().enumerate() {
        if index == NEIGHBORS_MAX {
            let allowed = format!("0 to {NEIGHBORS_MAX}");
            report.not_allowed(table.place(), "too many neighbors", allowed, "remove this table");
        }
        let address =
            required(&mut table, "address", "the address of a host on the link", |t| neighbor(t).map(Some));
        let mac = required(&mut table, "mac", "six bytes, e.g. \"02:00:00:00:00:01\"", mac_address);
        let place = table.place_of("address");
        table.finish();
        let Some(address) = address else { continue };
        let on_link = match address {
            IpAddr::V4(a) => ipv4.is_some_and(|net| net.contains(&a) && own_ipv4_in(net, a)),
            IpAddr::V6(a) => {
                ipv6.is_some_and(|net| net.addr() != a && (net.contains(&a) || a.is_unicast_link_local()))
            }
        };
        if !on_link {
            let message = format!("{address} is not another host on this port's link");
            report.at(&place, message, "name an address inside of one of the port's prefixes");
        } else if neighbors.iter().any(|other| other.address == address) {
            report.at(&place, format!("{address} has a neighbor table already"), "name each neighbor once");
        }
        neighbors.push(Neighbor { address, mac });
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
