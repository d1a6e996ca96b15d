//! Checks `[[port]]`: device, link and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::link::{Neighbor, check_gateways, neighbors};
use crate::keys::{By, Choice, Flag, Number, Optional, Required, Text, keys};
use crate::machine::{Machine, Pci};
use crate::read::{Report, Section};
use crate::types::{Addresses, Driver, Memif, MemifRole, OnLoss, PORTS_MAX, Pcap, PortRange};

/// RFC 8200 §5: "IPv6 requires that every link in the Internet have an MTU of 1280 octets or greater."
const IPV6_MTU_MIN: u16 = 1280;

/// Characters that end a value in DPDK's device arguments.
const ARGUMENT_BREAKERS: [char; 6] = [',', '[', ']', '(', ')', '"'];

/// Advice for a port without an address of its own.
const ADDRESSES_HELP: &str =
    "write the port's own address with the length of its prefix, e.g. \"10.77.0.2/24\"";

#[derive(Clone, Copy, PartialEq)]
enum DriverKind {
    Pci,
    Tap,
    DpdkTap,
    Pcap,
    Ring,
    Memif,
    AfPacket,
    DpdkAfPacket,
    AfXdp,
}

const DRIVERS: Choice<'_, DriverKind> = Choice(
    &[
        ("pci", DriverKind::Pci),
        ("tap", DriverKind::Tap),
        ("dpdk-tap", DriverKind::DpdkTap),
        ("pcap", DriverKind::Pcap),
        ("ring", DriverKind::Ring),
        ("memif", DriverKind::Memif),
        ("af_packet", DriverKind::AfPacket),
        ("dpdk-af_packet", DriverKind::DpdkAfPacket),
        ("af_xdp", DriverKind::AfXdp),
    ],
    "this is how the port reaches the wire",
);

const ROLES: Choice<'_, MemifRole> = Choice(
    &[("server", MemifRole::Server), ("client", MemifRole::Client)],
    "the server listens on the socket, the client connects to it",
);

const ON_LOSS: Choice<'_, OnLoss> = Choice(
    &[("wait", OnLoss::Wait), ("exit", OnLoss::Exit)],
    "`wait` opens the port again when its interface has returned, `exit` ends the daemon",
);

const DESCRIPTORS: Number<u16> = Number(64..=16384, "the number of descriptors of a queue");

/// MAC address of a station.
pub(super) const MAC: Text<[u8; 6]> = Text("six bytes, e.g. \"02:00:00:00:00:01\"", mac_address, |mac| {
    mac.map(|byte| format!("{byte:02x}")).join(":")
});

keys! {
    /// Table `[[port]]`: a DPDK port and its addresses; 1 to 8.
    pub struct Port in port(section, index: usize) {
        /// Name of the port in listings; default: p0, p1, …
        name: String = format!("p{index}"),
            Text::new("1 to 31 letters, digits, `.`, `-` or `_`", |text| word(text, 31)), Restart;
        /// MTU in bytes; at least 1280 with an IPv6 address (RFC 8200 §5).
        mtu: u16 = 1500, Number(576..=9600, "the largest IP packet in bytes"), Restart;
        /// MAC address; default: the device's own.
        mac: Option<[u8; 6]> = None, Optional(MAC), Restart, "\"02:00:00:00:00:02\"";
        /// 802.1Q identifier of every frame sent, and required of every frame received; default: untagged frames.
        vlan: Option<u16> = None, Optional(Number(1..=4094, "an 802.1Q VLAN identifier")), Restart, "100";
        /// Addresses of the port with their prefixes, one of each family, at least one; or "kernel", for af_packet:
        /// those of the interface, which the kernel goes on using.
        addresses: Addresses = Addresses::default(),
            Required(By(addresses, Addresses::to_string, ""), ADDRESSES_HELP), Restart,
            "[\"192.0.2.2/24\", \"2001:db8::2/64\"]";
        /// Source ports of connections that the daemon opens; default: 49152-65535, or 65472-65535 with the addresses
        /// of the kernel, where each is reserved there.
        source_ports: Option<PortRange> = None,
            Optional(Text::new("a range of TCP ports, e.g. \"49152-65535\"", PortRange::parse)), Restart,
            "\"49152-65535\"";
        /// IPv4 next hop for destinations off the link; default: none. With the prefix /32 of one host, outside of it.
        gateway: Option<Ipv4Addr> = None,
            Optional(Text::new("an IPv4 address", ipv4_address)), Restart, "\"192.0.2.1\"";
        /// IPv6 next hop for destinations off the link; default: none. With the prefix /128 of one host, outside of it.
        gateway6: Option<Ipv6Addr> = None,
            Optional(Text::new("an IPv6 address", ipv6_address)), Restart, "\"2001:db8::1\"";
        /// Receive descriptors per queue, of which each worker has one: a power of two.
        rx_descriptors: u16 = 1024, DESCRIPTORS, Restart;
        /// Transmit descriptors per queue: a power of two.
        tx_descriptors: u16 = 1024, DESCRIPTORS, Restart;
        /// Reaction to the deletion of the interface: wait for it, or create the TAP again; or exit.
        on_loss: OnLoss = OnLoss::Wait, ON_LOSS, Restart;
        /// Checksums and segmentation by a card of pci, as far as it can.
        offloads: bool = true, Flag, Restart;
    }
    with {
        /// Device of the port, from the keys of its driver.
        driver: Driver = driver(section).unwrap_or(Driver::Ring);
        /// Neighbors with a fixed MAC address: distinct addresses on the link, at most
        /// [`NEIGHBORS_MAX`](crate::NEIGHBORS_MAX).
        neighbors: Vec<Neighbor> = Vec::new();
    }
}

keys! {
    /// Keys of table `[[port]]` that belong to its driver.
    struct DriverKeys of port {
        /// Device of the port.
        driver: Option<DriverKind> = None,
            Optional(Required(DRIVERS, "choose one, e.g. driver = \"tap\"")), Restart, "\"tap\"";
        /// Kernel interface: of tap and dpdk-tap, which create it; of af_packet, dpdk-af_packet, af_xdp and pcap.
        interface: String = String::new(),
            Required(Text::new("the name of an interface, e.g. \"iw0\"", interface_name), ""), Restart, "\"iw0\"";
        /// PCI address, for pci.
        address: String = String::new(),
            Required(Text::new("a PCI address, e.g. \"0000:3b:00.0\"", pci_address), ""), Restart, "# \"0000:3b:00.0\"";
        /// Capture file of the frames received, for pcap.
        rx_file: PathBuf = PathBuf::new(),
            Required(Text::path("the path of a capture to receive, or use `interface`", device_path), ""), Restart,
            "# \"in.pcap\"";
        /// Capture file of the frames sent, beside `rx_file`.
        tx_file: PathBuf = PathBuf::new(),
            Required(Text::path("the path of a capture to write, or use `interface`", device_path), ""), Restart,
            "# \"out.pcap\"";
        /// Role of this end of a memif.
        role: MemifRole = MemifRole::Server, ROLES, Restart, "# \"server\"";
        /// Number of the memif, the same at both ends.
        id: u32 = 0, Number(0..=u32::MAX, "the number that both ends name"), Restart, "# 0";
        /// Unix socket that connects the ends of a memif.
        socket: PathBuf = PathBuf::new(),
            Required(Text::path("the path of a Unix socket", socket_path), ""), Restart, "# \"/run/iwarpd/m.sock\"";
        /// Index of the first queue of an af_xdp interface.
        start_queue: u16 = 0, Number(0..=1023, "the first of the interface's queues"), Restart, "# 0";
        /// Number of queues of an af_xdp interface.
        queue_count: u16 = 1, Number(1..=64, "the number of queues"), Restart, "# 1";
    }
}

pub(super) fn read_all(top: &mut Section<'_>, report: &Report) -> Vec<Port> {
    let sections = top.sections_at_most("port", PORTS_MAX, format!("1 to {PORTS_MAX}"), "remove this table");
    if sections.is_empty() && top.value("port").is_none() {
        top.missing("port", "write a `[[port]]` table with a driver and addresses");
    }
    let mut taken = Taken::default();
    let ports = sections.into_iter().enumerate();
    ports.filter_map(|(index, section)| read(section, report, index, &mut taken)).collect()
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
    let mut port = Port::read(&mut section, index);
    let Port { mtu, addresses: Addresses { ipv4, ipv6, are_kernels }, gateway, gateway6, .. } = port;
    for (key, count) in [("rx_descriptors", port.rx_descriptors), ("tx_descriptors", port.tx_descriptors)] {
        if !count.is_power_of_two() {
            let help = format!("use {} or {}", count.next_power_of_two() / 2, count.next_power_of_two());
            let message = format!("{count} is not a power of two");
            report.not_allowed(&section.place_of(key), message, "64, 128, … 16384", help);
        }
    }
    if ipv6.is_some() && mtu < IPV6_MTU_MIN {
        report.not_allowed(
            &section.place_of("mtu"),
            format!("an MTU of {mtu} is too small for IPv6"),
            format!("{IPV6_MTU_MIN} to 9600"),
            "raise the MTU or remove the IPv6 address",
        );
    }
    // A gateway may belong to an address that could not be parsed.
    let whole = all_parse(&mut section);
    let gateway = gateway.filter(|_| whole || ipv4.is_some());
    let gateway6 = gateway6.filter(|_| whole || ipv6.is_some());
    if are_kernels {
        check_sharing(&mut section, report, &port);
    } else {
        check_gateways(&section, report, (ipv4, gateway), (ipv6, gateway6));
    }
    port.neighbors = neighbors(&mut section, report, &port);
    if !section.is_wrong("name") {
        taken.name(&section, report, &port.name);
    }
    for address in port.addresses.nets() {
        taken.address(&section, report, &port.name, address.addr());
    }
    let driver_is_known = !section.is_wrong("driver");
    if driver_is_known {
        taken.device(&section, report, &port.name, &port.driver);
        // With the kernel's addresses, the smaller MTU counts.
        check_device(&section, report, &port.driver, if are_kernels { 0 } else { mtu });
    }
    section.finish();
    driver_is_known.then_some(port)
}

/// Checks a port that has the addresses of the kernel.
fn check_sharing(section: &mut Section<'_>, report: &Report, port: &Port) {
    let place = section.place_of("addresses");
    if !section.is_wrong("driver") && !matches!(port.driver, Driver::AfPacket { .. }) {
        let message = format!("the driver {} cannot share the kernel's addresses", port.driver.name());
        report.at(&place, message, "use driver = \"af_packet\", or give the port addresses of its own");
    }
    let own = [
        ("mac", port.mac.is_some()),
        ("vlan", port.vlan.is_some()),
        ("gateway", port.gateway.is_some()),
        ("gateway6", port.gateway6.is_some()),
    ];
    for (key, _) in own.into_iter().filter(|(_, is_set)| *is_set) {
        let message = format!("a port with the kernel's addresses has no `{key}` of its own");
        report.at(&section.place_of(key), message, "remove the line: the interface's and the kernel's count");
    }
    if section.value("neighbor").is_some() {
        let message = "a port with the kernel's addresses has no neighbors of its own";
        report.at(&section.place_of("neighbor"), message, "remove these tables");
    }
    if let Some(range) = port.source_ports.filter(|range| range.ports().len() > PortRange::RESERVED_MAX) {
        let message = format!("{} ports are too many to reserve with the kernel", range.ports().len());
        let allowed = format!("at most {} ports", PortRange::RESERVED_MAX);
        report.not_allowed(&section.place_of("source_ports"), message, allowed, "write a smaller range");
    }
}

/// Returns true if each of the addresses is one.
fn all_parse(section: &mut Section<'_>) -> bool {
    let list = section.value("addresses").and_then(|list| list.value.as_array());
    let is_address = |text: Option<&str>| text.is_some_and(|text| text.parse::<IpNet>().is_ok());
    list.is_some_and(|list| list.iter().all(|item| is_address(item.get_ref().as_str())))
}

/// Reads at most one IPv4 and one IPv6 address, at least one of the two.
fn addresses(section: &mut Section<'_>) -> Option<Addresses> {
    let report = section.report();
    if section.value("addresses").is_some_and(|value| value.value.as_str() == Some("kernel")) {
        return Some(Addresses { are_kernels: true, ..Addresses::default() });
    }
    let list = section.list("addresses", "a list of addresses, or \"kernel\"")?;
    if list.is_empty() {
        report.at(&section.place_of("addresses"), "a port needs an address", ADDRESSES_HELP);
    }
    let mut own = Addresses::default();
    for item in list {
        let Some(text) = item.text(report, "an address with its prefix") else { continue };
        let (taken, problem) = match text.parse::<IpNet>() {
            Err(_) => (false, Some(format!("`{text}` is not an address with a prefix"))),
            Ok(IpNet::V4(net)) => (own.ipv4.replace(net).is_some(), own_ipv4(net)),
            Ok(IpNet::V6(net)) => (own.ipv6.replace(net).is_some(), own_ipv6(net)),
        };
        if let Some(problem) = problem {
            report.at(&item.place, problem, ADDRESSES_HELP);
        }
        if taken {
            let message = "a second address of the same family";
            let allowed = "one IPv4 and one IPv6 address";
            report.not_allowed(&item.place, message, allowed, "remove one of them");
        }
    }
    Some(own)
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
        Driver::Tap { interface } | Driver::DpdkTap { interface } => {
            check_tap(section, report, machine, interface)
        }
        Driver::Pci { address } => check_pci(section, report, machine, address),
        Driver::AfPacket { interface }
        | Driver::DpdkAfPacket { interface }
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

/// Reads the driver and its keys. `None` if the driver is not known.
fn driver(section: &mut Section<'_>) -> Option<Driver> {
    let Some(kind) = DriverKeys::driver(section) else {
        // The keys that belong to the port are not known, so none of them is unknown.
        for row in DriverKeys::rows() {
            section.value(row.key());
        }
        return None;
    };
    Some(match kind {
        DriverKind::Pci => Driver::Pci { address: DriverKeys::address(section) },
        DriverKind::Tap => Driver::Tap { interface: DriverKeys::interface(section) },
        DriverKind::DpdkTap => Driver::DpdkTap { interface: DriverKeys::interface(section) },
        DriverKind::Pcap => Driver::Pcap(pcap(section)),
        DriverKind::Ring => Driver::Ring,
        DriverKind::Memif => Driver::Memif(Memif {
            id: DriverKeys::id(section),
            role: DriverKeys::role(section),
            socket: DriverKeys::socket(section),
        }),
        DriverKind::AfPacket => Driver::AfPacket { interface: DriverKeys::interface(section) },
        DriverKind::DpdkAfPacket => Driver::DpdkAfPacket { interface: DriverKeys::interface(section) },
        DriverKind::AfXdp => Driver::AfXdp {
            interface: DriverKeys::interface(section),
            start_queue: DriverKeys::start_queue(section),
            queue_count: DriverKeys::queue_count(section),
        },
    })
}

/// Reads an interface, or capture files in its place.
fn pcap(section: &mut Section<'_>) -> Pcap {
    if section.value("interface").is_none() {
        return Pcap::Files { rx_file: DriverKeys::rx_file(section), tx_file: DriverKeys::tx_file(section) };
    }
    for key in ["rx_file", "tx_file"] {
        if section.value(key).is_some() {
            let message = format!("`{key}` and `interface` exclude each other");
            section.report().at(&section.place_of(key), message, "remove one");
        }
    }
    let interface = section.parsed("interface", "the name of an interface", interface_name);
    Pcap::Interface(interface.unwrap_or_default())
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

fn mac_address(text: &str) -> Result<[u8; 6], String> {
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
