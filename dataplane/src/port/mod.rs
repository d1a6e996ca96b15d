//! One DPDK port with any driver: PCI cards, TAP, pcap, rings, memif, AF_PACKET, AF_XDP.
//!
//! A [`PortSpec`] says what is wanted; [`Port::open`] makes it so and hands out one queue pair per worker.
//! What the drivers differ in stands in `spec.rs` (how they are made) and in [`Port::open`] (what they are
//! asked for), and nowhere else.

mod claim;
mod describe;
mod error;
mod fit;
mod interface;
mod kernel;
mod memif;
mod pci;
mod queue;
mod running;
mod spec;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use iwarp_config::{Driver, MemifRole};
use tcp_stack::{Rss, Segmentation};

use crate::dpdk::{
    Device, DeviceConfig, DeviceInfo, DeviceQueues, DpdkError, Eal, Link, Mempool, Offloads, PortStats,
    RING_QUEUES_MAX, RealtimeSignalsOccupied, Ring, TapInterface,
};

use fit::{check_fit, offloads, queues_max};
use running::Running;

pub use claim::{ClaimError, Claims};
pub use error::PortError;
pub use kernel::{InterfaceOffloads, KernelAddresses, KernelRx, KernelSide, KernelTx, Reservation, Shared};
pub use queue::{PortQueues, RxQueue, TxQueue};
pub use spec::PortSpec;

/// Bytes of a Toeplitz key that every device takes.
const RSS_KEY_BYTES: usize = 40;

/// A started port, as the control thread holds it. The device goes when this and all queues are dropped.
#[derive(Debug)]
pub struct Port {
    name: String,
    driver: Driver,
    device_name: String,
    /// `None` while the interface behind the port is gone.
    device: Option<Running>,
    /// The device of a memif client that has no server: set up, and not started.
    waiting: Option<Box<Device>>,
    /// The kernel's number of the interface behind the port, if there is one.
    interface: Option<u32>,
    /// The counters of the devices before this one.
    counted: PortStats,
    /// The counters when they were read last. net_memif reports none while it is not connected, and counts on from the
    /// former ones when it is again.
    known: Cell<PortStats>,
    info: DeviceInfo,
    mac: [u8; 6],
    mtu: u16,
    offloads: Offloads,
    rss: Option<Rss>,
    queues: u16,
    interrupts: bool,
    shared: Option<Arc<Shared>>,
}

impl Port {
    /// Opens and starts a port for as many workers as there are pools, worker *i* allocating from `pools[i]`.
    /// Hands out one queue pair per worker, or as many as the device has, if these are fewer.
    ///
    /// # Errors
    /// The device cannot be had, or cannot do what `spec` says.
    pub fn open(
        eal: &Eal,
        spec: &PortSpec,
        pools: &[Arc<Mempool>],
    ) -> Result<(Self, Vec<PortQueues>), PortError> {
        let (port, pairs) = Self::open_or_wait(eal, spec, pools)?;
        match memif::client(&spec.driver) {
            Some(memif) if port.is_closed() => {
                Err(PortError::NoServer { port: port.name, socket: memif.socket.clone() })
            }
            _ => Ok((port, pairs)),
        }
    }

    /// Opens a port as [`Port::open`] does. The client of a memif without a server is opened, too: without a link and
    /// without queues, which [`Port::reopen`] hands out later.
    ///
    /// # Errors
    /// As [`Port::open`], except that a server may be missing.
    pub fn open_or_wait(
        eal: &Eal,
        spec: &PortSpec,
        pools: &[Arc<Mempool>],
    ) -> Result<(Self, Vec<PortQueues>), PortError> {
        if let Driver::Memif(memif) = &spec.driver
            && memif.role == MemifRole::Server
        {
            memif::make_way(spec, &memif.socket)?;
        }
        // The TAP driver looks for a free signal when it opens the device, and again for each queue.
        let _signals = matches!(spec.driver, Driver::DpdkTap { .. }).then(RealtimeSignalsOccupied::new);
        let device = match &spec.driver {
            Driver::Pci { address } => return Self::open_pci(eal, spec, address, pools),
            Driver::Ring => {
                let wires = wires(eal, spec, pools.len().min(RING_QUEUES_MAX))?;
                Device::from_rings(eal, &spec::unique("p"), &wires, &wires)
            }
            Driver::AfPacket { interface } | Driver::Tap { interface } => {
                return Self::open_interface(spec, interface, pools);
            }
            Driver::DpdkTap { .. }
            | Driver::Pcap(_)
            | Driver::Memif(_)
            | Driver::DpdkAfPacket { .. }
            | Driver::AfXdp { .. } => {
                let (name, arguments) = spec.virtual_device(pools.len())?;
                Device::virtual_device(eal, &name, &arguments)
            }
        };
        if matches!(spec.driver, Driver::AfXdp { .. }) {
            pools.iter().for_each(|pool| pool.lend_for_good());
        }
        Self::start(device.map_err(|source| spec.refused(source))?, spec, pools)
    }

    fn open_interface(
        spec: &PortSpec,
        interface: &str,
        pools: &[Arc<Mempool>],
    ) -> Result<(Self, Vec<PortQueues>), PortError> {
        let info = kernel::info(spec.driver.name());
        check_fit(spec, &info, pools)?;
        let served = pools.get(..usize::from(info.queues_max)).unwrap_or(pools);
        let (device, pairs) = match spec.driver {
            Driver::Tap { .. } => kernel::Interface::make_tap(spec, interface, served)?,
            _ => kernel::Interface::open(spec, interface, served)?,
        };
        // The kernel passes frames without checksums whether they are asked for or not.
        let offloads = Offloads { rx_ip_checksum: true, rx_tcp_checksum: true, ..offloads(spec, &info) };
        let mac = device.mac();
        let port = Self {
            device: Some(Running::Kernel(Arc::new(device))),
            interrupts: true,
            ..Self::closed(spec, interface.to_owned(), info, (mac, offloads), served.len())
        };
        Ok((port, pairs.into_iter().map(PortQueues::from).collect()))
    }

    fn open_pci(
        eal: &Eal,
        spec: &PortSpec,
        address: &str,
        pools: &[Arc<Mempool>],
    ) -> Result<(Self, Vec<PortQueues>), PortError> {
        let device = Device::pci(eal, address).map_err(|source| PortError::Pci {
            port: spec.name.clone(),
            device: pci::described(address),
            source,
        })?;
        Self::start(device, spec, pools)
    }

    /// Opens two ring ports with a wire between them: what one sends, the other receives. `specs` and `pools`
    /// are those of the two ends; both have as many queues.
    ///
    /// # Errors
    /// As [`Port::open`]; or the ends have different numbers of queues.
    pub fn open_pair(
        eal: &Eal,
        specs: [&PortSpec; 2],
        pools: [&[Arc<Mempool>]; 2],
    ) -> Result<[(Self, Vec<PortQueues>); 2], PortError> {
        let ([left, right], [left_pools, right_pools]) = (specs, pools);
        let queues = left_pools.len().min(RING_QUEUES_MAX);
        if left_pools.len() != right_pools.len() {
            return Err(PortError::Ends { ports: format!("{} and {}", left.name, right.name) });
        }
        let east = wires(eal, left, queues)?;
        let west = wires(eal, right, queues)?;
        let open = |spec: &PortSpec, rx, tx, pools| {
            let device = Device::from_rings(eal, &spec::unique("p"), rx, tx);
            Self::start(device.map_err(|source| spec.refused(source))?, spec, pools)
        };
        Ok([open(left, &west, &east, left_pools)?, open(right, &east, &west, right_pools)?])
    }

    /// Configures the device as far as it can do what is wanted, and starts it.
    fn start(
        device: Device,
        spec: &PortSpec,
        pools: &[Arc<Mempool>],
    ) -> Result<(Self, Vec<PortQueues>), PortError> {
        let refused = |source| spec.refused(source);
        let info = device.info().map_err(refused)?;
        check_fit(spec, &info, pools)?;
        let mac = station_address(&device, spec)?;
        let offloads = offloads(spec, &info);
        // Only hardware spreads by Toeplitz hash; net_tap says so too, but leaves it to the kernel's own hash.
        let served = pools.get(..usize::from(queues_max(spec, &info))).unwrap_or(pools);
        let rss_wanted = served.len() > 1 && info.rss && matches!(spec.driver, Driver::Pci { .. });
        let config = DeviceConfig {
            mtu: spec.mtu,
            // The MTU of an interface that the kernel uses too is not ours to change.
            set_mtu: matches!(spec.driver, Driver::Pci { .. } | Driver::DpdkTap { .. }),
            offloads,
            // virtio drops tagged frames unless their VLAN is admitted.
            vlan_filter: spec.vlan.is_some() && info.vlan_filter,
            rss_key: rss_wanted.then(|| rss_key(&info)),
            rx_interrupt: spec.rx_interrupt
                && matches!(spec.driver, Driver::Pci { .. } | Driver::DpdkTap { .. }),
            // For net_tap, "descriptors" are segments of one frame: the MTU fits one.
            rx_descriptors: if matches!(spec.driver, Driver::DpdkTap { .. }) {
                1
            } else {
                spec.rx_descriptors
            },
            tx_descriptors: spec.tx_descriptors,
        };
        let device_name = device.name().to_owned();
        let (device, waiting, pairs) = launch(device, spec, &config, served)?;
        if let Some(device) = &device {
            admit_frames(device, spec, mac)?;
            if let Some(vlan) = spec.vlan.filter(|_| config.vlan_filter) {
                device.admit_vlan(vlan).map_err(refused)?;
            }
        }
        let rss = device.as_ref().filter(|_| rss_wanted).and_then(|device| device.rss(&info));
        let port = Self {
            device: device.map(Running::Dpdk),
            waiting,
            rss,
            interrupts: !pairs.is_empty() && pairs.iter().all(|pair| pair.rx.has_descriptor()),
            ..Self::closed(spec, device_name, info, (mac, offloads), served.len())
        };
        Ok((port, pairs.into_iter().map(PortQueues::from).collect()))
    }

    /// Returns a port without a device.
    fn closed(
        spec: &PortSpec,
        device_name: String,
        info: DeviceInfo,
        (mac, offloads): ([u8; 6], Offloads),
        queues: usize,
    ) -> Self {
        Self {
            name: spec.name.clone(),
            driver: spec.driver.clone(),
            device_name,
            device: None,
            waiting: None,
            interface: spec.driver.interface().and_then(interface::index),
            counted: PortStats::default(),
            known: Cell::default(),
            info,
            mac,
            mtu: spec.mtu,
            offloads,
            rss: None,
            queues: u16::try_from(queues).unwrap_or(u16::MAX),
            interrupts: false,
            shared: spec.shared.clone(),
        }
    }

    /// Returns the name of the port in listings.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device behind it, as configured.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// DPDK's name of the device: a PCI address, or that of a virtual device.
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// Returns the capabilities of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The station address to send from. On a TAP the kernel's end has another.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the addresses that the port shares with the kernel, if it does.
    pub fn shared(&self) -> Option<&Arc<Shared>> {
        self.shared.as_ref()
    }

    /// Largest IP packet, bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns the offloads that are on, of those that were [requested](PortSpec::offloads). A frame that needs
    /// another one is sent with a wrong checksum.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Returns the segmentation of the device (TSO); `None` if it has none, or must not use it.
    pub fn segmentation(&self) -> Option<Segmentation> {
        self.offloads.tx_segmentation.then(|| segmentation(&self.info))
    }

    /// Returns the receive-side scaling; `None` with one queue, or if the driver does not report it.
    pub fn rss(&self) -> Option<&Rss> {
        self.rss.as_ref()
    }

    /// Returns true if each receive queue has a descriptor to sleep on until frames arrive.
    pub fn has_interrupts(&self) -> bool {
        self.interrupts
    }

    /// Returns the number of empty buffers of the pool that our own driver holds for a queue.
    pub fn armed_buffers(&self, queue: usize) -> u32 {
        self.device.as_ref().map_or(0, |device| device.armed_buffers(queue))
    }

    /// Queue pairs in use.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// State of the link; down while the port [is gone](Port::is_gone).
    ///
    /// # Errors
    /// The driver does not say.
    pub fn link(&self) -> Result<Link, DpdkError> {
        let Some(device) = &self.device else { return Ok(Link { up: false, megabits_per_second: None }) };
        let link = device.link()?;
        // DPDK asks by the old name, in the daemon's namespace.
        if let (Some(tap), Some(moved)) = (device.tap(), self.moved()) {
            let down = moved.namespace.is_none() && interface::is_down(&moved.name);
            return Ok(Link { up: tap.is_up() && !down, ..link });
        }
        // Some drivers of interfaces that the kernel uses too always report a link that is up.
        let shared = matches!(device, Running::Dpdk(_)) && !matches!(self.driver, Driver::DpdkTap { .. });
        let down = shared && self.driver.interface().is_some_and(interface::is_down);
        Ok(Link { up: link.up && !down, ..link })
    }

    /// Returns the counters of all devices that the port has had.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn stats(&self) -> Result<PortStats, DpdkError> {
        let now = match (&self.device, &self.waiting) {
            (Some(device), _) => device.stats()?,
            (None, Some(waiting)) => waiting.stats()?,
            (None, None) => PortStats::default(),
        };
        let stats = self.counted.plus(now).at_least(self.known.get());
        self.known.set(stats);
        Ok(stats)
    }

    /// Returns true if the interface behind the port was deleted, the kernel has requested the card's release, or the
    /// client of a memif has lost its server.
    pub fn has_vanished(&self) -> bool {
        let Some(device) = &self.device else { return false };
        if memif::client(&self.driver).is_some() {
            return device.dpdk().is_some_and(|device| !device.is_connected());
        }
        let deleted = match device.tap() {
            Some(tap) => tap.is_deleted(),
            None => self.interface.is_some_and(|index| !interface::exists(index)),
        };
        deleted || device.dpdk().is_some_and(Device::is_to_be_removed)
    }

    /// Returns the interface of a TAP that was renamed or moved to another network namespace; the port goes on.
    pub fn moved(&self) -> Option<TapInterface> {
        self.device.as_ref()?.tap()?.moved()
    }

    /// Returns true if the port has no running device: after [`Port::lose`], or while the client of a memif waits for
    /// its server, until [`Port::reopen`] succeeds.
    pub fn is_closed(&self) -> bool {
        self.device.is_none()
    }

    /// Returns true if the port is closed for want of its interface. The client of a memif without a server only has
    /// no link.
    pub fn is_gone(&self) -> bool {
        self.is_closed() && memif::client(&self.driver).is_none()
    }

    /// Closes the device of a port that has vanished; that of a memif client waits for another server. The workers have
    /// given up its queues before.
    pub fn lose(&mut self) {
        let counted = self.stats().unwrap_or(self.counted);
        let Some(device) = self.device.take() else { return };
        if let (Some(_), Running::Dpdk(device)) = (memif::client(&self.driver), device) {
            self.waiting = device.disconnect().map(Box::new);
        }
        if self.waiting.is_none() {
            self.counted = counted;
        }
    }

    /// Returns true if the interface, the card or the socket of the server is present for another attempt. A TAP is
    /// created by opening it.
    pub fn can_return(&self) -> bool {
        match &self.driver {
            Driver::Tap { .. } | Driver::DpdkTap { .. } => true,
            Driver::Pci { address } => iwarp_config::Machine::this().has_pci_for_dpdk(address),
            Driver::Memif(memif) => memif.socket.exists(),
            driver => driver.interface().is_some_and(|name| interface::index(name).is_some()),
        }
    }

    /// Opens the device again, with the station address and as many queues as before, and hands out the queues.
    ///
    /// # Errors
    /// As [`Port::open`]; or the new interface has fewer queues; or the server of a memif is still missing.
    pub fn reopen(
        &mut self,
        eal: &Eal,
        spec: &PortSpec,
        pools: &[Arc<Mempool>],
    ) -> Result<Vec<PortQueues>, PortError> {
        if let (Some(memif), Some(waiting)) = (memif::client(&self.driver), self.waiting.take()) {
            let connected = waiting.connect(&memif.socket);
            return match connected {
                Ok((device, pairs)) => {
                    self.device = Some(Running::Dpdk(device));
                    Ok(pairs.into_iter().map(PortQueues::from).collect())
                }
                Err(device) => {
                    self.waiting = Some(device);
                    Err(PortError::NoServer { port: self.name.clone(), socket: memif.socket.clone() })
                }
            };
        }
        let spec = PortSpec { mac: Some(self.mac), ..spec.clone() };
        let (port, pairs) = Self::open_or_wait(eal, &spec, pools)?;
        if port.queues != self.queues {
            let (workers, driver, max) = (usize::from(self.queues), port.info.driver.clone(), port.queues);
            return Err(PortError::Queues { port: spec.name, workers, driver, max });
        }
        let missing = self.offloads.beyond(port.offloads);
        if !missing.is_empty() {
            return Err(PortError::Offloads { port: spec.name, missing: missing.join(", ") });
        }
        *self = Self { counted: self.counted, ..port };
        Ok(pairs)
    }
}

/// A started device, or one that waits for its server, and the queues of the former.
type Launched = (Option<Arc<Device>>, Option<Box<Device>>, Vec<DeviceQueues>);

/// Configures and starts a device. The client of a memif may have to wait.
fn launch(
    device: Device,
    spec: &PortSpec,
    config: &DeviceConfig,
    pools: &[Arc<Mempool>],
) -> Result<Launched, PortError> {
    let refused = |source| spec.refused(source);
    let Some(memif) = memif::client(&spec.driver) else {
        let (device, pairs) = device.start(config, pools).map_err(refused)?;
        return Ok((Some(device), None, pairs));
    };
    Ok(match device.set_up(config, pools).map_err(refused)?.connect(&memif.socket) {
        Ok((device, pairs)) => (Some(device), None, pairs),
        Err(waiting) => (None, Some(waiting), Vec::new()),
    })
}

/// One ring per queue.
fn wires(eal: &Eal, spec: &PortSpec, queues: usize) -> Result<Vec<Arc<Ring>>, PortError> {
    (0..queues)
        .map(|_| Ring::new(eal, spec.rx_descriptors).map(Arc::new))
        .collect::<Result<_, _>>()
        .map_err(|source| spec.refused(source))
}

/// Most buffers of a frame for devices that name no limit: what an IP packet takes at the usual MTU, and headers.
const FRAME_BUFFERS: u16 = 46;

/// Returns the limits of a device that segments frames.
fn segmentation(info: &DeviceInfo) -> Segmentation {
    let buffers_max =
        if info.tx_buffers_max == 0 { FRAME_BUFFERS } else { info.tx_buffers_max.min(FRAME_BUFFERS) };
    Segmentation { bytes_max: 65_000, buffers_max }
}

/// The address to send from: the configured one, else the device's own, where it has one of its own.
fn station_address(device: &Device, spec: &PortSpec) -> Result<[u8; 6], PortError> {
    if let Some(mac) = spec.mac {
        return Ok(mac);
    }
    match &spec.driver {
        // The device's address is that of the kernel's end.
        Driver::Tap { .. } | Driver::DpdkTap { .. } => return Ok(interface::made_up_mac(spec)),
        Driver::Pcap(iwarp_config::Pcap::Interface(name)) => {
            if let Some(mac) = interface::mac(name) {
                return Ok(mac);
            }
        }
        Driver::Pcap(_) | Driver::Pci { .. } | Driver::Ring | Driver::Memif(_) => {}
        Driver::AfPacket { .. } | Driver::DpdkAfPacket { .. } | Driver::AfXdp { .. } => {}
    }
    match device.mac().map_err(|source| spec.refused(source))? {
        [0, 0, 0, 0, 0, 0] => Ok(interface::made_up_mac(spec)),
        mac => Ok(mac),
    }
}

/// Has the device hand up what is addressed to `mac`, and multicast (IPv6 needs it). Where nothing filters,
/// nothing is done.
fn admit_frames(device: &Device, spec: &PortSpec, mac: [u8; 6]) -> Result<(), PortError> {
    let refused = |source| spec.refused(source);
    let mut all = false;
    match &spec.driver {
        Driver::Tap { .. } | Driver::DpdkTap { .. } => return Ok(()),
        Driver::Pcap(_) | Driver::Ring | Driver::Memif(_) => return Ok(()),
        Driver::Pci { .. } => {
            if device.mac().map_err(refused)? != mac {
                all |= !device.set_mac(mac).map_err(refused)?;
            }
        }
        // The kernel's address on an interface that it uses too is not ours to change.
        Driver::AfPacket { .. } | Driver::DpdkAfPacket { .. } | Driver::AfXdp { .. } => {
            all |= device.mac().map_err(refused)? != mac;
        }
    }
    all |= !device.receive_multicast().map_err(refused)?;
    if all && !device.receive_all().map_err(refused)? {
        tracing::warn!(port = spec.name, "the device cannot be told to receive multicast or other addresses");
    }
    Ok(())
}

/// Returns a random Toeplitz key of the length that the device wants, so that nobody outside can aim connections at one
/// worker. (It is no secret from those who can observe the workers.) A port that returns has the same key: its
/// connections stay on their workers.
fn rss_key(info: &DeviceInfo) -> Vec<u8> {
    static KEY: OnceLock<[u8; u8::MAX as usize]> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        let mut key = [0; u8::MAX as usize];
        if getrandom::fill(&mut key).is_err() {
            // Any key spreads; only its being unguessable is lost.
            for (byte, value) in key.iter_mut().zip([0x6d, 0x5a].into_iter().cycle()) {
                *byte = value;
            }
        }
        key
    });
    let bytes = if info.rss_key_bytes == 0 { RSS_KEY_BYTES } else { usize::from(info.rss_key_bytes) };
    key.iter().copied().take(bytes).collect()
}
