//! The specification of a port, and its arguments for DPDK. `setup` and [`Node`](crate::verbs::Node) make one,
//! [`Port::open`](super::Port::open) takes it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use iwarp_config::{Driver, MemifRole, Pcap};

use super::PortError;
use super::kernel::Shared;
use crate::dpdk::{DpdkError, Offloads};

/// The specification of a port.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// The name in listings and messages.
    pub name: String,
    /// The device behind it.
    pub driver: Driver,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Station address; `None` takes the device's own, or makes one up where that is not ours.
    pub mac: Option<[u8; 6]>,
    /// Receive descriptors per queue; the device may round.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue; the device may round.
    pub tx_descriptors: u16,
    /// Use the device's checksum computation where it has one. Not on a TAP that sends what may have to be sent again:
    /// since DPDK 23.11 net_tap cuts the headers off the buffer that it is given.
    pub checksum_offload: bool,
    /// Let the device cut frames into segments where it can, and computes checksums.
    pub segmentation: bool,
    /// Provide something to sleep on until frames arrive, where the device can (PCI, TAP).
    pub rx_interrupt: bool,
    /// The VLAN that the device shall admit, where it filters; `None`: frames without a tag.
    pub vlan: Option<u16>,
    /// The addresses of the interface, if the port shares them with the kernel.
    pub shared: Option<Arc<Shared>>,
}

impl From<&iwarp_config::Port> for PortSpec {
    /// As configured. Checksums and segmentation are left to hardware and to our own drivers: net_tap, which offers
    /// both, does them in software. No receive interrupts, and no addresses of the kernel.
    fn from(port: &iwarp_config::Port) -> Self {
        let offloads = port.offloads && has_offloads(&port.driver);
        Self {
            name: port.name.clone(),
            driver: port.driver.clone(),
            mtu: port.mtu,
            mac: port.mac,
            rx_descriptors: port.rx_descriptors,
            tx_descriptors: port.tx_descriptors,
            checksum_offload: offloads,
            segmentation: offloads,
            rx_interrupt: false,
            // An interface that the kernel uses too is not ours to configure.
            vlan: port.vlan.filter(|_| port.driver.is_pci()),
            shared: None,
        }
    }
}

impl PortSpec {
    /// A port with the usual number of descriptors (1024), MTU 1500, and nothing special.
    pub fn new(name: &str, driver: Driver) -> Self {
        let offloads = has_offloads(&driver);
        Self {
            name: name.to_owned(),
            driver,
            mtu: 1500,
            mac: None,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            checksum_offload: offloads,
            segmentation: offloads,
            rx_interrupt: false,
            vlan: None,
            shared: None,
        }
    }

    /// Returns the offloads that are requested of the device.
    pub fn offloads(&self) -> Offloads {
        let checksum = self.checksum_offload;
        Offloads {
            rx_ip_checksum: checksum,
            rx_tcp_checksum: checksum,
            tx_ip_checksum: checksum,
            tx_tcp_checksum: checksum,
            tx_segmentation: self.segmentation,
        }
    }

    /// The kernel interface that the port shares with the kernel.
    pub(super) fn kernel_interface(&self) -> Option<&str> {
        match &self.driver {
            Driver::Pcap(Pcap::Interface(interface))
            | Driver::AfPacket { interface }
            | Driver::DpdkAfPacket { interface }
            | Driver::AfXdp { interface, .. } => Some(interface),
            Driver::Pci { .. } | Driver::Tap { .. } | Driver::DpdkTap { .. } => None,
            Driver::Pcap(_) | Driver::Ring | Driver::Memif(_) => None,
        }
    }

    /// Name and arguments of the virtual device, with `queues` queue pairs.
    pub(super) fn virtual_device(&self, queues: usize) -> Result<(String, String), PortError> {
        let (driver, arguments) = match &self.driver {
            Driver::DpdkTap { interface } => ("net_tap", format!("iface={}", self.interface(interface)?)),
            Driver::Pcap(Pcap::Interface(interface)) => {
                let interface = self.interface(interface)?;
                // Inbound only: a plain capture also sees what is sent, our own frames among it.
                ("net_pcap", format!("rx_iface_in={interface},tx_iface={interface}"))
            }
            Driver::Pcap(Pcap::Files { rx_file, tx_file }) => {
                let (rx, tx) =
                    (self.path("capture to read", rx_file)?, self.path("capture to write", tx_file)?);
                ("net_pcap", format!("rx_pcap={rx},tx_pcap={tx}"))
            }
            Driver::Memif(memif) => {
                let role = match memif.role {
                    MemifRole::Server => "server",
                    MemifRole::Client => "client",
                };
                let socket = self.path("socket", &memif.socket)?;
                let log2 = self.rx_descriptors.max(2).ilog2();
                let mac = self.mac.map(|mac| format!(",mac={}", text_of(mac))).unwrap_or_default();
                let id = memif.id;
                (
                    "net_memif",
                    format!("id={id},role={role},socket={socket},socket-abstract=no,rsize={log2}{mac}"),
                )
            }
            Driver::DpdkAfPacket { interface } => {
                let interface = self.interface(interface)?;
                let frames = self.rx_descriptors.max(2);
                // Its frames have 2048 bytes by default: two per page.
                (
                    "net_af_packet",
                    format!("iface={interface},qpairs={queues},framecnt={frames},qdisc_bypass=1"),
                )
            }
            Driver::AfXdp { interface, start_queue, queue_count } => {
                let interface = self.interface(interface)?;
                (
                    "net_af_xdp",
                    format!("iface={interface},start_queue={start_queue},queue_count={queue_count}"),
                )
            }
            Driver::Pci { address } => return Err(self.argument("address", address)),
            Driver::Ring | Driver::AfPacket { .. } | Driver::Tap { .. } => {
                return Err(self.argument("driver", self.driver.name()));
            }
        };
        Ok((unique(driver), arguments))
    }

    fn interface<'a>(&self, name: &'a str) -> Result<&'a str, PortError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
        if (1..=15).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.') {
            Ok(name)
        } else {
            Err(self.argument("interface", name))
        }
    }

    fn path<'a>(&self, what: &'static str, path: &'a Path) -> Result<&'a str, PortError> {
        // What `rte_kvargs` treats as syntax.
        let syntax = |c: char| c.is_control() || matches!(c, ',' | '=' | '[' | ']' | '"' | '\'');
        match path.to_str() {
            Some(text) if !text.is_empty() && !text.contains(syntax) => Ok(text),
            Some(_) | None => Err(self.argument(what, &path.to_string_lossy())),
        }
    }

    fn argument(&self, what: &'static str, value: &str) -> PortError {
        PortError::Argument { port: self.name.clone(), what, value: value.to_owned() }
    }

    /// The error that DPDK refused something.
    pub(super) fn refused(&self, source: DpdkError) -> PortError {
        PortError::Device { port: self.name.clone(), source }
    }
}

/// Returns true if checksums and segmentation are left to a driver's device.
const fn has_offloads(driver: &Driver) -> bool {
    matches!(driver, Driver::Pci { .. } | Driver::AfPacket { .. } | Driver::Tap { .. })
}

/// `stem` and a number that no other device of this process has.
pub(super) fn unique(stem: &str) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("{stem}{}", MADE.fetch_add(1, Ordering::Relaxed))
}

fn text_of(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use iwarp_config::Memif;

    use super::*;

    fn arguments(driver: Driver) -> Result<String, String> {
        let spec = PortSpec { mac: Some([2, 0, 0, 0, 0, 0xfe]), ..PortSpec::new("p0", driver) };
        spec.virtual_device(2).map(|(_, arguments)| arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn drivers_are_told_what_they_need() {
        let tap = Driver::DpdkTap { interface: "iw0".into() };
        assert_eq!(arguments(tap).unwrap(), "iface=iw0");
        let pcap = Driver::Pcap(Pcap::Interface("eth0".into()));
        assert_eq!(arguments(pcap).unwrap(), "rx_iface_in=eth0,tx_iface=eth0");
        let files = Pcap::Files { rx_file: "/tmp/a.pcap".into(), tx_file: "/tmp/b.pcap".into() };
        assert_eq!(arguments(Driver::Pcap(files)).unwrap(), "rx_pcap=/tmp/a.pcap,tx_pcap=/tmp/b.pcap");
        let memif = Memif { id: 3, role: MemifRole::Client, socket: "/run/m.sock".into() };
        assert_eq!(
            arguments(Driver::Memif(memif)).unwrap(),
            "id=3,role=client,socket=/run/m.sock,socket-abstract=no,rsize=10,mac=02:00:00:00:00:fe"
        );
        let af_packet = Driver::DpdkAfPacket { interface: "eth0".into() };
        assert_eq!(arguments(af_packet).unwrap(), "iface=eth0,qpairs=2,framecnt=1024,qdisc_bypass=1");
        let af_xdp = Driver::AfXdp { interface: "eth0".into(), start_queue: 1, queue_count: 2 };
        assert_eq!(arguments(af_xdp).unwrap(), "iface=eth0,start_queue=1,queue_count=2");
    }

    #[test]
    fn names_that_are_syntax_are_refused() {
        for interface in ["", "a,b", "iw0,remote=eth0", "a/b", "..", "0123456789abcdef", "ä"] {
            let driver = Driver::DpdkTap { interface: interface.into() };
            assert!(arguments(driver).is_err(), "{interface:?}");
        }
        for path in ["", "/tmp/a,b", "/tmp/a=b", "/tmp/[a]", "/tmp/\n"] {
            let memif = Memif { id: 0, role: MemifRole::Server, socket: PathBuf::from(path) };
            assert!(arguments(Driver::Memif(memif)).is_err(), "{path:?}");
        }
    }

    #[test]
    fn device_names_are_unique() {
        assert_ne!(unique("net_tap"), unique("net_tap"));
    }
}
