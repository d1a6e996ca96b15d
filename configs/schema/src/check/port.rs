//! Checks `[[port]]`: device, link and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::link::{check_gateways, neighbors};
use crate::keys::keys;
use crate::machine::{Machine, Pci};
use crate::read::{Report, Section};
use crate::types::{Driver, Memif, MemifRole, OnLoss, PORTS_MAX, Pcap, Port};

/// RFC 8200 §5: "IPv6 requires that every link in the Internet have an MTU of 1280 octets or greater."
const IPV6_MTU_MIN: u16 = 1280;

/// Characters that end a value in DPDK's device arguments.
const ARGUMENT_BREAKERS: [char; 6] = [',', '[', ']', '(', ')', '"'];

#[derive(Clone, Copy)]
enum Kind {
    Pci,
    Tap,
    Pcap,
    Ring,
    Memif,
    AfPacket,
    AfXdp,
}

const KINDS: [(&str, Kind); 7] = [
    ("pci", Kind::Pci),
    ("tap", Kind::Tap),
    ("pcap", Kind::Pcap),
    ("ring", Kind::Ring),
    ("memif", Kind::Memif),
    ("af_packet", Kind::AfPacket),
    ("af_xdp", Kind::AfXdp),
];

/// Words for the reaction to the loss of an interface.
const ON_LOSS: [(&str, OnLoss); 2] = [("wait", OnLoss::Wait), ("exit", OnLoss::Exit)];
const ON_LOSS_HELP: &str =
    "`wait` opens the port again when its interface has returned, `exit` ends the daemon";

/// Keys of all drivers.
const DRIVER_KEYS: [&str; 9] =
    ["address", "interface", "rx_file", "tx_file", "id", "role", "socket", "start_queue", "queue_count"];

keys! {
    /// Table `[[port]]`: a DPDK port and its addresses; 1 to 8.
    fn port_rows in "port" {
        /// Name of the port in listings, 1 to 31 letters, digits, `.`, `-` or `_`; default: p0, p1, …
        name = "\"p0\"", Restart;
        /// Device of the port: pci, tap, pcap, ring, memif, af_packet, af_xdp.
        driver = "\"tap\"", Restart;
        /// Kernel interface: of tap, which the daemon creates; of af_packet, af_xdp and pcap.
        interface = "\"iw0\"", Restart;
        /// PCI address, for pci.
        address = "# \"0000:3b:00.0\"", Restart;
        /// Capture file of the frames received, for pcap, in place of `interface`.
        rx_file = "# \"in.pcap\"", Restart;
        /// Capture file of the frames sent, beside `rx_file`.
        tx_file = "# \"out.pcap\"", Restart;
        /// Role of this end of a memif: server or client.
        role = "# \"server\"", Restart;
        /// Number of the memif, the same at both ends.
        id = "# 0", Restart;
        /// Unix socket that connects the ends of a memif.
        socket = "# \"/run/iwarpd/m.sock\"", Restart;
        /// Index of the first queue of an af_xdp interface, 0 to 1023.
        start_queue = "# 0", Restart;
        /// Number of queues of an af_xdp interface, 1 to 64.
        queue_count = "# 1", Restart;
        /// MTU in bytes, 576 to 9600; at least 1280 with an IPv6 address (RFC 8200 §5).
        mtu = "1500", Restart;
        /// MAC address; default: the device's own.
        mac = "\"02:00:00:00:00:02\"", Restart;
        /// 802.1Q identifier of every frame, 1 to 4094; default: untagged frames.
        vlan = "100", Restart;
        /// Addresses of the port with their prefixes, one of each family, at least one.
        addresses = "[\"192.0.2.2/24\", \"2001:db8::2/64\"]", Restart;
        /// IPv4 next hop for destinations off the link; default: none. With the prefix /32 of one host, outside of it.
        gateway = "\"192.0.2.1\"", Restart;
        /// IPv6 next hop for destinations off the link; default: none. With the prefix /128 of one host, outside of it.
        gateway6 = "\"2001:db8::1\"", Restart;
        /// Receive descriptors per queue, of which each worker has one: a power of two, 64 to 16384.
        rx_descriptors = "1024", Restart;
        /// Transmit descriptors per queue: a power of two, 64 to 16384.
        tx_descriptors = "1024", Restart;
        /// Reaction to the deletion of the interface: wait for it, or create the TAP again; or exit.
        on_loss = "\"wait\"", Restart;
        /// Checksums and segmentation by a card of pci, as far as it can.
        offloads = "true", Restart;
    }
}

keys! {
    /// Table `[[port.neighbor]]`: a host that the port never resolves, and that ARP and NDP never change; 0 to 1024.
    fn neighbor_rows in "port.neighbor" {
        /// Address of another host on the link: in a prefix of the port, or its gateway.
        address = "\"192.0.2.1\"", Restart;
        /// MAC address of the host: neither multicast nor zero.
        mac = "\"02:00:00:00:00:01\"", Restart;
    }
}

pub(super) fn read_all(top: &mut Section<'_>, report: &Report) -> Vec<Port> {
    let sections = top.sections("port");
    if sections.is_empty() && top.value("port").is_none() {
        top.missing("port", "write a `[[port]]` table with a driver and addresses");
    }
    let mut ports: Vec<Port> = Vec::new();
    let mut taken = Taken::default();
    for (index, section) in sections.into_iter().enumerate() {
        let place = section.place().clone();
        if index == PORTS_MAX {
            report.not_allowed(&place, "too many ports", format!("1 to {PORTS_MAX}"), "remove this table");
        }
        ports.extend(read(section, report, index, &mut taken));
    }
    ports
}

/// Resources of the ports read so far, each with the port's name.
#[derive(Default)]
struct Taken {
    names: Vec<String>,
    devices: Vec<(String, Driver)>,
    addresses: Vec<(String, IpAddr)>,
}

impl Taken {
    fn name(&mut self, section: &Section<'_>, report: &Report, name: &str) {
        if self.names.iter().any(|other| other == name) {
            let place = section.place_of("name");
            report.at(&place, format!("the name `{name}` is taken"), "name each port once");
        }
        self.names.push(name.to_owned());
    }

    fn address(&mut self, section: &Section<'_>, report: &Report, name: &str, address: IpAddr) {
        if let Some((other, _)) = self.addresses.iter().find(|(_, taken)| *taken == address) {
            let message = format!("{address} is already the address of port `{other}`");
            report.at(&section.place_of("addresses"), message, "give each port addresses of its own");
        }
        self.addresses.push((name.to_owned(), address));
    }

    fn device(&mut self, section: &Section<'_>, report: &Report, name: &str, driver: &Driver) {
        if let Some((other, _)) = self.devices.iter().find(|(_, taken)| same_device(taken, driver)) {
            let message = format!("the device is already port `{other}`");
            report.at(section.place(), message, "give each port a device of its own");
        }
        self.devices.push((name.to_owned(), driver.clone()));
    }
}

/// Returns true if two ports would use the same device. A missing name was reported, and matches no device.
fn same_device(a: &Driver, b: &Driver) -> bool {
    match (a, b) {
        (Driver::Ring, Driver::Ring) => false,
        (Driver::Memif(a), Driver::Memif(b)) => {
            (a.id, &a.socket) == (b.id, &b.socket) && !a.socket.as_os_str().is_empty()
        }
        (Driver::Pci { address: a }, Driver::Pci { address: b }) => a == b && !a.is_empty(),
        (Driver::Pcap(Pcap::Files { tx_file: a, .. }), Driver::Pcap(Pcap::Files { tx_file: b, .. })) => {
            a == b && !a.as_os_str().is_empty()
        }
        _ => a.interface().is_some_and(|name| !name.is_empty() && Some(name) == b.interface()),
    }
}

/// Reads one port. `None` only if the driver is unknown, since the other keys depend on it.
fn read(mut section: Section<'_>, report: &Report, index: usize, taken: &mut Taken) -> Option<Port> {
    let name = section.parsed("name", "1 to 31 letters, digits, `.`, `-` or `_`", |t| word(t, 31));
    let mtu = section.number("mtu", 576..=9600, "the largest IP packet in bytes").unwrap_or(1500);
    let mac = section.parsed("mac", "six bytes, e.g. \"02:00:00:00:00:01\"", mac_address);
    let vlan = section.number("vlan", 1..=4094, "an 802.1Q VLAN identifier");
    let (own, whole) = addresses(&mut section, report);
    let (ipv4, ipv6) = own;
    let gateway = section.parsed("gateway", "an IPv4 address", ipv4_address);
    let gateway6 = section.parsed("gateway6", "an IPv6 address", ipv6_address);
    let rx_descriptors = descriptors(&mut section, report, "rx_descriptors");
    let tx_descriptors = descriptors(&mut section, report, "tx_descriptors");
    let offloads = section.flag("offloads").unwrap_or(true);
    let on_loss = section.choice("on_loss", &ON_LOSS, ON_LOSS_HELP).unwrap_or(OnLoss::Wait);
    let driver = driver(&mut section, report);
    if ipv6.is_some() && mtu < IPV6_MTU_MIN {
        report.not_allowed(
            &section.place_of("mtu"),
            format!("an MTU of {mtu} is too small for IPv6"),
            format!("{IPV6_MTU_MIN} to 9600"),
            "raise the MTU or remove the IPv6 address",
        );
    }
    // A gateway may belong to an address that could not be parsed.
    let gateway = gateway.filter(|_| whole || ipv4.is_some());
    let gateway6 = gateway6.filter(|_| whole || ipv6.is_some());
    check_gateways(&section, report, (ipv4, gateway), (ipv6, gateway6));
    let neighbors = neighbors(&mut section, report, (ipv4, gateway), (ipv6, gateway6));
    let name_is_wrong = name.is_none() && section.value("name").is_some();
    let name = name.unwrap_or_else(|| format!("p{index}"));
    if !name_is_wrong {
        taken.name(&section, report, &name);
    }
    let own = [ipv4.map(|net| IpAddr::V4(net.addr())), ipv6.map(|net| IpAddr::V6(net.addr()))];
    own.into_iter().flatten().for_each(|address| taken.address(&section, report, &name, address));
    if let Some(driver) = &driver {
        taken.device(&section, report, &name, driver);
        check_device(&section, report, driver, mtu);
    }
    section.finish();
    let driver = driver?;
    Some(Port {
        name,
        driver,
        mtu,
        mac,
        vlan,
        ipv4,
        ipv6,
        gateway,
        gateway6,
        neighbors,
        rx_descriptors,
        tx_descriptors,
        offloads,
        on_loss,
    })
}

fn descriptors(section: &mut Section<'_>, report: &Report, key: &'static str) -> u16 {
    let count = section.number(key, 64..=16384, "the number of descriptors of a queue").unwrap_or(1024u16);
    if !count.is_power_of_two() {
        let place = section.place_of(key);
        let help = format!("use {} or {}", count.next_power_of_two() / 2, count.next_power_of_two());
        report.not_allowed(&place, format!("{count} is not a power of two"), "64, 128, … 16384", help);
    }
    count
}

/// Networks of a port, by address family.
type Networks = (Option<Ipv4Net>, Option<Ipv6Net>);

/// Reads at most one IPv4 and one IPv6 address, at least one of the two; and returns true if the whole list is valid.
fn addresses(section: &mut Section<'_>, report: &Report) -> (Networks, bool) {
    const HELP: &str = "write the port's own address with the length of its prefix, e.g. \"10.77.0.2/24\"";
    let (mut ipv4, mut ipv6, mut whole) = (None, None, true);
    let Some(list) = section.list("addresses", "a list of addresses") else {
        if section.value("addresses").is_none() {
            section.missing("addresses", HELP);
        }
        return ((ipv4, ipv6), false);
    };
    if list.is_empty() {
        report.at(&section.place_of("addresses"), "a port needs an address", HELP);
    }
    for item in list {
        let text = item.text(report, "an address with its prefix");
        whole &= text.is_some_and(|text| text.parse::<IpNet>().is_ok());
        let Some(text) = text else { continue };
        let (taken, problem) = match text.parse::<IpNet>() {
            Err(_) => (false, Some(format!("`{text}` is not an address with a prefix"))),
            Ok(IpNet::V4(net)) => (ipv4.replace(net).is_some(), own_ipv4(net)),
            Ok(IpNet::V6(net)) => (ipv6.replace(net).is_some(), own_ipv6(net)),
        };
        if let Some(problem) = problem {
            report.at(&item.place, problem, HELP);
        }
        if taken {
            let allowed = "one IPv4 and one IPv6 address";
            report.not_allowed(
                &item.place,
                "a second address of the same family",
                allowed,
                "remove one of them",
            );
        }
    }
    ((ipv4, ipv6), whole)
}

/// Returns the error in a port's own IPv4 address, if any.
pub(super) fn own_ipv4(net: Ipv4Net) -> Option<String> {
    let address = net.addr();
    // In a prefix of 31 bits both addresses are hosts (RFC 3021).
    let edge = net.prefix_len() < 31 && (address == net.network() || address == net.broadcast());
    (edge || !is_host_v4(address))
        .then(|| format!("{address} cannot be the address of a port in {}", net.trunc()))
}

fn own_ipv6(net: Ipv6Net) -> Option<String> {
    let address = net.addr();
    if address.is_unicast_link_local() {
        return Some(format!("{address} is link-local: the port makes one of its own"));
    }
    (!is_host_v6(address)).then(|| format!("{address} cannot be the address of a port"))
}

pub(super) fn is_host_v4(address: Ipv4Addr) -> bool {
    let reserved = address.is_loopback() || address.is_multicast() || address.is_broadcast();
    !(reserved || address.octets()[0] == 0)
}

pub(super) fn is_host_v6(address: Ipv6Addr) -> bool {
    let reserved = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !(reserved || address.to_ipv4_mapped().is_some())
}

/// Checks that the machine has the device, and that no other process uses it.
fn check_device(section: &Section<'_>, report: &Report, driver: &Driver, mtu: u16) {
    let Some(machine) = report.machine() else { return };
    super::access::check(section, report, machine, driver);
    match driver {
        Driver::Ring => {}
        Driver::Tap { interface } => check_tap(section, report, machine, interface),
        Driver::Pci { address } => check_pci(section, report, machine, address),
        Driver::AfPacket { interface }
        | Driver::AfXdp { interface, .. }
        | Driver::Pcap(Pcap::Interface(interface)) => {
            check_interface(section, report, machine, interface, mtu);
        }
        Driver::Pcap(Pcap::Files { rx_file, tx_file }) => {
            if !rx_file.as_os_str().is_empty() && !machine.exists(rx_file) {
                let message = format!("there is no file {}", rx_file.display());
                report.lacks(&section.place_of("rx_file"), message, "name a capture that exists");
            }
            super::service::check_folder(report, &section.place_of("tx_file"), tx_file, 1);
        }
        Driver::Memif(memif) => {
            super::service::check_folder(report, &section.place_of("socket"), &memif.socket, 1);
        }
    }
}

/// Checks a TAP: the daemon creates it, or it exists and is free.
fn check_tap(section: &Section<'_>, report: &Report, machine: &Machine, interface: &str) {
    let Some(found) = machine.interface(interface).filter(|_| !interface.is_empty()) else { return };
    let place = section.place_of("interface");
    if !found.tap {
        let message = format!("the interface {interface} exists and is not a TAP");
        report.lacks(&place, message, "choose another name: the daemon makes the interface");
    } else if let Some((pid, name)) = machine.holder(interface) {
        let message = format!("the TAP {interface} is in use by process {pid} ({name})");
        report.lacks(&place, message, "stop that process, or choose another name");
    }
}

fn check_interface(section: &Section<'_>, report: &Report, machine: &Machine, interface: &str, mtu: u16) {
    if interface.is_empty() {
        return;
    }
    match machine.interface(interface) {
        None => {
            let (place, message) =
                (section.place_of("interface"), format!("there is no interface {interface}"));
            let has = machine.interfaces().join(", ");
            report.lacks_among(&place, message, has, "`ip link` lists the interfaces of this namespace");
        }
        Some(found) => {
            if let Some(least) = found.mtu.filter(|least| *least < u32::from(mtu)) {
                let message = format!("MTU {mtu} is more than that of the interface {interface}, {least}");
                let help = format!("lower it, or `ip link set {interface} mtu {mtu}`");
                report.lacks(&section.place_of("mtu"), message, help);
            }
        }
    }
}

fn check_pci(section: &Section<'_>, report: &Report, machine: &Machine, address: &str) {
    let place = section.place_of("address");
    match machine.pci(address) {
        _ if address.is_empty() => {}
        Pci::Ready => {}
        Pci::Missing => {
            let devices = machine.pci_network_devices();
            let help = if devices.is_empty() {
                "this machine has no PCI network device".to_owned()
            } else {
                format!("this machine's network devices: {}", devices.join(", "))
            };
            report.lacks(&place, format!("there is no PCI device {address}"), help);
        }
        Pci::Unbound => {
            let message = format!("no kernel driver is bound to the PCI device {address}");
            report.lacks(&place, message, bind_help(address, false));
        }
        Pci::Owned(driver) => {
            let message = format!(
                "the kernel driver {driver} owns the PCI device {address}, and DPDK cannot use it then"
            );
            report.lacks(&place, message, bind_help(address, true));
        }
    }
}

/// The commands that hand a device to DPDK, each on a line of its own: none is to be broken where a message is.
fn bind_help(address: &str, unbind: bool) -> String {
    let device = format!("/sys/bus/pci/devices/{address}");
    let unbind =
        if unbind { format!("    echo {address} > {device}/driver/unbind\n") } else { String::new() };
    format!(
        "bind it to vfio-pci:\n    modprobe vfio-pci\n    echo vfio-pci > {device}/driver_override\n{unbind}    \
         echo {address} > /sys/bus/pci/drivers_probe\nor, without an IOMMU, to uio_pci_generic in the same way"
    )
}

fn driver(section: &mut Section<'_>, report: &Report) -> Option<Driver> {
    let Some(kind) = section.choice("driver", &KINDS, "this is how the port reaches the wire") else {
        if section.value("driver").is_none() {
            section.missing("driver", "choose one, e.g. driver = \"tap\"");
        }
        // The keys that belong to the port are not known, so none of them is unknown.
        for key in DRIVER_KEYS {
            section.value(key);
        }
        return None;
    };
    Some(match kind {
        Kind::Pci => Driver::Pci {
            address: required(section, "address", "a PCI address, e.g. \"0000:3b:00.0\"", pci_address),
        },
        Kind::Tap => Driver::Tap { interface: interface(section) },
        Kind::Pcap => Driver::Pcap(pcap(section, report)),
        Kind::Ring => Driver::Ring,
        Kind::Memif => Driver::Memif(memif(section)),
        Kind::AfPacket => Driver::AfPacket { interface: interface(section) },
        Kind::AfXdp => Driver::AfXdp {
            interface: interface(section),
            start_queue: section
                .number("start_queue", 0..=1023, "the first of the interface's queues")
                .unwrap_or(0),
            queue_count: section.number("queue_count", 1..=64, "the number of queues").unwrap_or(1),
        },
    })
}

/// Reads a key that the driver requires; returns the empty value only if a mistake was reported.
pub(super) fn required<T: Default>(
    section: &mut Section<'_>,
    key: &'static str,
    what: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> T {
    if section.value(key).is_none() {
        section.missing(key, &format!("write {what}"));
        return T::default();
    }
    section.parsed(key, what, parse).unwrap_or_default()
}

fn interface(section: &mut Section<'_>) -> String {
    required(section, "interface", "the name of an interface, e.g. \"iw0\"", interface_name)
}

fn pcap(section: &mut Section<'_>, report: &Report) -> Pcap {
    if let Some(value) = section.value("interface") {
        for key in ["rx_file", "tx_file"] {
            if section.value(key).is_some() {
                report.at(
                    &section.place_of(key),
                    format!("`{key}` and `interface` exclude each other"),
                    "remove one",
                );
            }
        }
        let name = value.text(report, "the name of an interface").map(interface_name);
        return Pcap::Interface(match name {
            Some(Ok(name)) => name,
            Some(Err(message)) => {
                report.at(&value.place, message, "write the name of an interface");
                String::new()
            }
            None => String::new(),
        });
    }
    Pcap::Files {
        rx_file: required(
            section,
            "rx_file",
            "the path of a capture to receive, or use `interface`",
            device_path,
        ),
        tx_file: required(
            section,
            "tx_file",
            "the path of a capture to write, or use `interface`",
            device_path,
        ),
    }
}

fn memif(section: &mut Section<'_>) -> Memif {
    let roles = [("server", MemifRole::Server), ("client", MemifRole::Client)];
    let help = "the server listens on the socket, the client connects to it";
    Memif {
        id: section.number("id", 0..=u32::MAX, "the number that both ends name").unwrap_or(0),
        role: section.choice("role", &roles, help).unwrap_or(MemifRole::Server),
        socket: required(section, "socket", "the path of a Unix socket", socket_path),
    }
}

/// Checks a name of 1 to `len_max` letters, digits, `.`, `-` and `_`.
pub(super) fn word(text: &str, len_max: usize) -> Result<String, String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&letter);
    if (1..=len_max).contains(&text.len()) && text.chars().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` does not fit"))
}

/// Checks an interface name. Linux: at most 15 bytes, no `/`, no white space, not `.` or `..`; here also no character
/// that DPDK would misread.
fn interface_name(text: &str) -> Result<String, String> {
    word(text, 15)
        .ok()
        .filter(|name| name != "." && name != "..")
        .ok_or_else(|| format!("`{text}` is not an interface name: 1 to 15 letters, digits, `.`, `-` or `_`"))
}

fn device_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains(ARGUMENT_BREAKERS) || text.chars().any(char::is_control) {
        return Err(format!("`{text}` is not a path that DPDK takes: no `,`, brackets or quotes"));
    }
    Ok(PathBuf::from(text))
}

fn socket_path(text: &str) -> Result<PathBuf, String> {
    super::service::socket_path(text)?;
    device_path(text)
}

/// Parses a PCI address: `0000:3b:00.0`, or `3b:00.0` for domain 0.
fn pci_address(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is not a PCI address");
    let full = if text.matches(':').count() == 1 { format!("0000:{text}") } else { text.to_owned() };
    let (domain, rest) = full.split_once(':').ok_or_else(wrong)?;
    let (bus, rest) = rest.split_once(':').ok_or_else(wrong)?;
    let (device, function) = rest.split_once('.').ok_or_else(wrong)?;
    let hex = |part: &str, digits: usize, max: u32| {
        part.len() == digits
            && part.chars().all(|c| c.is_ascii_hexdigit())
            && u32::from_str_radix(part, 16).is_ok_and(|n| n <= max)
    };
    if hex(domain, 4, 0xFFFF) && hex(bus, 2, 0xFF) && hex(device, 2, 0x1F) && hex(function, 1, 7) {
        return Ok(full.to_ascii_lowercase());
    }
    Err(wrong())
}

pub(super) fn mac_address(text: &str) -> Result<[u8; 6], String> {
    let byte = |part: &str| {
        let digits = part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let mac: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
    let mac = mac.ok_or_else(|| format!("`{text}` is not a station address"))?;
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(format!("`{text}` is a group address or zero: a port needs a station address"));
    }
    Ok(mac)
}

fn ipv4_address(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| format!("`{text}` is not an IPv4 address"))
}

fn ipv6_address(text: &str) -> Result<Ipv6Addr, String> {
    text.parse().map_err(|_| format!("`{text}` is not an IPv6 address"))
}
