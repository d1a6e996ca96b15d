//! Devices of the ports: state of interfaces, cards' NUMA nodes; and the DPDK that drives them.

use iwarp_config::{Config, Driver, Machine, PortRange};

use super::Finding;

/// Folders with libraries, below the root: Debian's, then those of other distributions and of a build by hand.
const LIBRARIES: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib/x86_64-linux-gnu",
    "usr/local/lib64",
];
/// Bytes of the kernel's buffer that a receive descriptor of a packet socket stands for.
const BYTES_PER_DESCRIPTOR: u32 = 4096;
/// The number of the capability by which the daemon passes the kernel's limit (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;
/// DPDK's stable interface 23 came with release 22.11, and each November brings the next.
const OLDEST_INTERFACE: u16 = 23;

pub(super) fn examine(config: &Config, machine: &Machine) -> Vec<Finding> {
    let mut findings = interfaces(config, machine);
    findings.extend(packet_sockets(config, machine));
    findings.extend(cards(config, machine));
    findings.extend(dpdk(config, machine));
    findings
}

/// Returns the state of each kernel interface that a port uses.
fn interfaces(config: &Config, machine: &Machine) -> Vec<Finding> {
    let used = config.ports.iter().filter_map(|port| Some((port, port.driver.interface()?)));
    let mut findings = Vec::new();
    for (port, name) in used {
        if matches!(port.driver, Driver::Tap { .. } | Driver::DpdkTap { .. }) {
            findings.push(Finding::ok("interfaces", format!("the daemon can make the TAP {name}")));
            continue;
        }
        let text = |file: &str| machine.text(&format!("sys/class/net/{name}/{file}"));
        let Some(flags) = text("flags") else { continue };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
        findings.push(if flags & 1 == 0 {
            Finding::warning(
                "interfaces",
                format!("the interface {name} is down"),
                format!("ip link set {name} up"),
            )
        } else if text("carrier").as_deref() == Some("0") {
            let remedy = format!("`ethtool {name}` shows the link; look at the cable and at the other end");
            Finding::warning("interfaces", format!("the interface {name} has no link"), remedy)
        } else {
            Finding::ok("interfaces", format!("the interface {name} is up"))
        });
        if let Some(mtu) = text("mtu") {
            let message =
                format!("port {}: MTU {}, and that of the interface {name} is {mtu}", port.name, port.mtu);
            findings.push(Finding::ok("mtu", message));
        }
    }
    findings
}

/// Returns the limits of the kernel that concern ports on packet sockets.
fn packet_sockets(config: &Config, machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let numbers = |file: &str| -> Vec<u32> {
        let text = machine.text(&format!("proc/sys/net/{file}")).unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    for port in config.ports.iter().filter(|port| matches!(port.driver, Driver::AfPacket { .. })) {
        let wanted = u32::from(port.rx_descriptors).saturating_mul(BYTES_PER_DESCRIPTOR);
        if let [most] = numbers("core/rmem_max").as_slice()
            && *most < wanted
            && !machine.has_capability(CAP_NET_ADMIN)
        {
            findings.push(Finding::warning(
                "receive-buffer",
                format!("port {}: the kernel gives {most} bytes of receive buffer, not {wanted}", port.name),
                format!("sysctl net.core.rmem_max={wanted}, or give iwarpd CAP_NET_ADMIN"),
            ));
        }
        let source = port.source_ports.unwrap_or(PortRange::BESIDE_KERNEL);
        if port.addresses.are_kernels
            && let [first, last] = numbers("ipv4/ip_local_port_range").as_slice()
        {
            let is_apart = u32::from(source.last) < *first || u32::from(source.first) > *last;
            findings.push(if is_apart {
                Finding::ok(
                    "source-ports",
                    format!("port {}: the source ports {source} are not the kernel's", port.name),
                )
            } else {
                Finding::warning(
                    "source-ports",
                    format!(
                        "port {}: the kernel gives the source ports {source} to programs, too ({first}-{last}), \
                         and those are lost to the port while a program has them",
                        port.name
                    ),
                    format!(
                        "source_ports outside of that range, or sysctl \
                         net.ipv4.ip_local_reserved_ports={source}"
                    ),
                )
            });
        }
    }
    findings
}

/// Returns a finding for each PCI card: its driver, and the NUMA node of its workers.
fn cards(config: &Config, machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    for port in &config.ports {
        let Driver::Pci { address } = &port.driver else { continue };
        if machine.has_pci_for_dpdk(address) {
            findings.push(Finding::ok("pci", format!("the driver of the card {address} hands it to DPDK")));
        }
        let node = machine.text(&format!("sys/bus/pci/devices/{address}/numa_node"));
        let Some(node) = node.and_then(|node| node.parse::<u16>().ok()) else { continue };
        let near = machine.cpus_of(&format!("sys/devices/system/node/node{node}/cpulist"));
        let far: Vec<_> = config.workers.cores.iter().filter(|core| !near.contains(core)).collect();
        if !near.is_empty() && !far.is_empty() {
            findings.push(Finding::warning(
                "numa",
                format!("the card {address} is at NUMA node {node}, and the workers' cores {far:?} are not"),
                format!("workers.cores from those of the node: {near:?}"),
            ));
        }
    }
    findings
}

/// Returns the findings about DPDK: its release, and the driver of each port.
fn dpdk(config: &Config, machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "dpdk";
    const REMEDY: &str = "apt-get install librte-meta-bus librte-meta-mempool librte-meta-net";
    let installed = LIBRARIES.into_iter().find_map(|folder| {
        let names = machine.names(folder);
        let interfaces =
            names.iter().filter_map(|name| name.strip_prefix("librte_eal.so.")?.parse::<u16>().ok());
        Some((folder, interfaces.max()?))
    });
    let Some((folder, interface)) = installed else {
        return vec![Finding::warning(CHECK, "DPDK's libraries are not where systems install them", REMEDY)];
    };
    let release = format!("{}.11", interface.saturating_sub(1));
    if interface < OLDEST_INTERFACE {
        let message = format!("DPDK {release} is too old");
        return vec![Finding::warning(CHECK, message, "install DPDK 22.11 or newer")];
    }
    let mut findings = vec![Finding::ok(CHECK, format!("DPDK {release} in /{folder}"))];
    let plugins = format!("{folder}/dpdk/pmds-{interface}.0");
    let plugins = machine.names(&plugins);
    for port in &config.ports {
        let Some(library) = library_of(&port.driver) else { continue };
        if !plugins.iter().any(|name| name.starts_with(&format!("{library}.so"))) {
            let message = format!("DPDK's {library} is not installed: port {} cannot be opened", port.name);
            findings.push(Finding::warning(CHECK, message, REMEDY));
        }
    }
    findings
}

/// Returns DPDK's plugin that drives a port; for a card, that of the bus, as there are many drivers of cards. Our own
/// drivers need none.
fn library_of(driver: &Driver) -> Option<String> {
    match driver {
        Driver::Pci { .. } => Some("librte_bus_pci".to_owned()),
        Driver::Tap { .. } | Driver::AfPacket { .. } => None,
        other => Some(format!("librte_net_{}", other.name().trim_start_matches("dpdk-"))),
    }
}
