//! Checks that this process may open the devices of the ports: their files, and capabilities (capabilities(7)).

use std::path::Path;

use crate::machine::Machine;
use crate::read::{Report, Section};
use crate::types::{Driver, Pcap};

/// Capabilities: the name and the number of `linux/capability.h`.
const NET_ADMIN: (&str, u32) = ("CAP_NET_ADMIN", 12);
const NET_RAW: (&str, u32) = ("CAP_NET_RAW", 13);

/// Device through which TAPs are made.
const TUN: &str = "/dev/net/tun";

/// Reports what a port takes and this process may not open.
pub(super) fn check(section: &Section<'_>, report: &Report, machine: &Machine, driver: &Driver) {
    let place = section.place_of("interface");
    if matches!(driver, Driver::Tap { .. } | Driver::DpdkTap { .. })
        && let Some(error) = machine.cannot_open(Path::new(TUN))
    {
        let message = format!("{TUN}, by which the daemon makes a TAP, cannot be opened: {error}");
        let help = "load the module: modprobe tun; in a container, give it the device: --device /dev/net/tun";
        report.lacks(&place, message, help);
    }
    for (name, number) in needed(driver) {
        if !machine.has_capability(*number) {
            let message =
                format!("a port with the driver {} takes {name}, which this process lacks", driver.name());
            let help = format!(
                "start iwarpd as root; in a container, give it the capability: --cap-add {}",
                name.trim_start_matches("CAP_")
            );
            report.lacks(&place, message, help);
        }
    }
}

/// Returns the capabilities without which a port cannot be opened.
fn needed(driver: &Driver) -> &'static [(&'static str, u32)] {
    match driver {
        Driver::Tap { .. } | Driver::DpdkTap { .. } => &[NET_ADMIN],
        // They set the flags of the interface.
        Driver::DpdkAfPacket { .. } | Driver::AfXdp { .. } => &[NET_ADMIN, NET_RAW],
        Driver::AfPacket { .. } | Driver::Pcap(Pcap::Interface(_)) => &[NET_RAW],
        // A card takes files of /dev, by its kernel driver.
        Driver::Pci { .. } | Driver::Pcap(Pcap::Files { .. }) | Driver::Ring | Driver::Memif(_) => &[],
    }
}
