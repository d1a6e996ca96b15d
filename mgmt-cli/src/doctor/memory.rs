//! Hugepages, of the machine and of each NUMA node, and the IOMMU.

use iwarp_config::{Config, Driver, Hugepages, Machine, memory_plan};

use super::Finding;

pub(super) fn examine(config: &Config, machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![pool(config, machine)];
    findings.extend(nodes(config, machine));
    findings.extend(iommu(config, machine));
    findings
}

fn pool(config: &Config, machine: &Machine) -> Finding {
    let (needed, free) = (memory_plan(config).hugepages(), machine.hugepages_free());
    let message = format!("{needed} hugepages of 2 MiB are needed and {free} are free");
    if free >= needed || config.memory.hugepages == Hugepages::Require {
        return Finding::ok("hugepages", message);
    }
    let total = machine.hugepages_total().saturating_add(needed).saturating_sub(free);
    Finding::warning(
        "hugepages",
        message + ": the rest goes to ordinary pages",
        format!("sysctl -w vm.nr_hugepages={total}"),
    )
}

/// Returns a finding for each NUMA node with a worker or a card of the configuration.
fn nodes(config: &Config, machine: &Machine) -> Vec<Finding> {
    const FOLDER: &str = "sys/devices/system/node";
    let numbered = |name: &String| name.strip_prefix("node").is_some_and(|id| id.parse::<u16>().is_ok());
    let nodes: Vec<String> = machine.names(FOLDER).into_iter().filter(numbered).collect();
    let needed = memory_plan(config).hugepages();
    if nodes.len() < 2 || needed == 0 {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for node in nodes {
        let cpus = machine.cpus_of(&format!("{FOLDER}/{node}/cpulist"));
        let workers = config.workers.cores.iter().filter(|core| cpus.contains(core)).count();
        let cards =
            config.ports.iter().filter(|port| card_node(machine, &port.driver) == Some(node.as_str().into()));
        if workers == 0 && cards.count() == 0 {
            continue;
        }
        let pool = format!("{FOLDER}/{node}/hugepages/hugepages-2048kB");
        let count =
            |name: &str| machine.text(&format!("{pool}/{name}")).and_then(|text| text.parse::<u64>().ok());
        let (total, free) = (count("nr_hugepages").unwrap_or(0), count("free_hugepages").unwrap_or(0));
        let message = format!("NUMA {node}: {free} of {total} hugepages of 2 MiB are free");
        findings.push(if total == 0 {
            let remedy = format!("echo {needed} > /{pool}/nr_hugepages");
            Finding::warning("numa", message + ": its workers and cards use another node's memory", remedy)
        } else {
            Finding::ok("numa", message)
        });
    }
    findings
}

/// Returns the NUMA node of a card, such as `node0`.
fn card_node(machine: &Machine, driver: &Driver) -> Option<String> {
    let Driver::Pci { address } = driver else { return None };
    let node = machine.text(&format!("sys/bus/pci/devices/{address}/numa_node"))?;
    node.parse::<u16>().ok().map(|node| format!("node{node}"))
}

/// Returns a finding if a port is a PCI card: vfio-pci is safe with an IOMMU only.
fn iommu(config: &Config, machine: &Machine) -> Option<Finding> {
    if !config.ports.iter().any(|port| port.driver.is_pci()) {
        return Some(Finding::ok("iommu", "no port is a PCI card: an IOMMU is not needed"));
    }
    let groups = machine.names("sys/kernel/iommu_groups").len();
    if groups > 0 {
        return Some(Finding::ok("iommu", format!("the IOMMU is on, with {groups} groups of devices")));
    }
    Some(Finding::warning(
        "iommu",
        "the IOMMU is off: a card can write to all memory of the machine, and vfio-pci refuses it",
        "switch VT-d or AMD-Vi on in the firmware, and boot with intel_iommu=on iommu=pt (Intel) or iommu=pt (AMD); \
         a machine without: echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
    ))
}
