//! One Ethernet device of DPDK, with any driver. [`Port`](crate::port::Port) owns it.
#![allow(unsafe_code, reason = "configures and queries DPDK devices")]

use std::ffi::{CStr, CString, c_int};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tcp_stack::Rss;

use super::config::{DeviceConfig, Offloads, raw_config};
use super::connection::Connection;
use super::descriptors::open_sockets;
use super::eal::Eal;
use super::error::{DpdkError, Errno, check_for, check_optional};
use super::info::{DeviceInfo, Link, PortStats};
use super::mempool::Mempool;
use super::messages::Attempt;
use super::queue::{DeviceRx, DeviceTx};
use super::removal::RemovalRequest;
use super::ring::Ring;
use super::rss;
use super::tap::Tap;
use super::xdp::XdpSockets;

/// Ethernet header and frame check sequence, bytes.
const ETHERNET_OVERHEAD: u32 = 18;

/// A device. Dropping the last handle (queues are handles too) stops and closes it.
#[derive(Debug)]
pub struct Device {
    id: u16,
    name: String,
    kind: Kind,
    started: AtomicBool,
    queues: u16,
    /// The pools that its queues allocate from and transmit from.
    pools: Vec<Arc<Mempool>>,
    /// The sockets of a net_af_xdp device.
    xdp: XdpSockets,
    /// The control connection of a net_memif client.
    pub(super) connection: Option<Connection>,
    /// A queue of a net_tap device. It is closed last, and the interface ends with it.
    tap: Option<Tap>,
    /// The longest frame to send, bytes.
    frame_max: usize,
    /// The device computes the checksums of TCP.
    checksum: bool,
    eal: Eal,
}

/// The origin of the device, which decides how it is closed.
#[derive(Debug)]
enum Kind {
    Pci { removal: RemovalRequest },
    Virtual,
    Rings { rx: Vec<Arc<Ring>>, tx: Vec<Arc<Ring>> },
}

/// The two ends of a worker's share in a device.
#[derive(Debug)]
pub struct DeviceQueues {
    /// The receive queue of the worker.
    pub rx: DeviceRx,
    /// The transmit queue of the worker.
    pub tx: DeviceTx,
}

impl Device {
    /// Makes a virtual device: `name` begins with its driver's, `arguments` are the driver's `key=value,…`.
    ///
    /// # Errors
    /// The driver refuses; its reasons are in the log.
    pub fn virtual_device(eal: &Eal, name: &str, arguments: &str) -> Result<Self, DpdkError> {
        let device = format!("{name} ({arguments})");
        eal.plug(c"vdev", &c_string(name)?, &c_string(arguments)?, &device)?;
        Self::by_name(eal, name, Kind::Virtual)
    }

    /// A PCI device that the [`Eal`] was started with, or that has returned since.
    ///
    /// # Errors
    /// It is not there, or not bound to a driver that DPDK can use.
    pub fn pci(eal: &Eal, address: &str) -> Result<Self, DpdkError> {
        if port_id(address).is_err() {
            eal.plug(c"pci", &c_string(address)?, c"", address)?;
        }
        let removal = RemovalRequest::watch(address)?;
        Self::by_name(eal, address, Kind::Pci { removal })
    }

    /// A device whose queue *i* receives from `rx[i]` and sends into `tx[i]`, at most [`super::RING_QUEUES_MAX`].
    ///
    /// # Errors
    /// Too many rings, or not enough memory.
    pub fn from_rings(eal: &Eal, name: &str, rx: &[Arc<Ring>], tx: &[Arc<Ring>]) -> Result<Self, DpdkError> {
        let operation = || format!("ring device {name}");
        let name_c = c_string(name)?;
        let raw = |rings: &[Arc<Ring>]| rings.iter().map(|ring| ring.raw()).collect::<Vec<_>>();
        let (rx_raw, tx_raw) = (raw(rx), raw(tx));
        let count = |rings: &[_]| u32::try_from(rings.len()).unwrap_or(u32::MAX);
        if rx.len().max(tx.len()) > super::RING_QUEUES_MAX {
            return Err(DpdkError::new(operation(), Errno::INVALID));
        }
        // SAFETY: both arrays hold as many live rings as said, copied by the call; the name is a C string.
        let returned = unsafe {
            dpdk_sys::rte_eth_from_rings(
                name_c.as_ptr(),
                rx_raw.as_ptr(),
                count(&rx_raw),
                tx_raw.as_ptr(),
                count(&tx_raw),
                0,
            )
        };
        check_for(returned, operation)?;
        let kind = Kind::Rings { rx: rx.to_vec(), tx: tx.to_vec() };
        Self::by_name(eal, &format!("net_ring_{name}"), kind)
    }

    fn by_name(eal: &Eal, name: &str, kind: Kind) -> Result<Self, DpdkError> {
        Ok(Self {
            id: port_id(name)?,
            name: name.to_owned(),
            kind,
            started: AtomicBool::new(false),
            queues: 0,
            pools: Vec::new(),
            xdp: XdpSockets::default(),
            connection: None,
            tap: None,
            frame_max: 0,
            checksum: false,
            eal: eal.clone(),
        })
    }

    /// DPDK's name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the DPDK environment of the device.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// DPDK's number of the device.
    pub(super) fn id(&self) -> u16 {
        self.id
    }

    /// Returns the capabilities of the device.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn info(&self) -> Result<DeviceInfo, DpdkError> {
        let mut raw = dpdk_sys::rte_eth_dev_info::default();
        // SAFETY: the device exists while `self` does; `raw` is writable.
        let returned = unsafe { dpdk_sys::rte_eth_dev_info_get(self.id, &raw mut raw) };
        check_for(returned, || self.operation("capabilities"))?;
        let driver = if raw.driver_name.is_null() {
            String::new()
        } else {
            // SAFETY: not null: a constant, NUL-terminated string of the driver's.
            unsafe { CStr::from_ptr(raw.driver_name) }.to_string_lossy().into_owned()
        };
        let overhead = match raw.max_rx_pktlen.checked_sub(u32::from(raw.max_mtu)) {
            Some(overhead) if raw.max_mtu != u16::MAX && overhead > 0 => overhead,
            _ => ETHERNET_OVERHEAD,
        };
        let mtu_max = raw.max_rx_pktlen.saturating_sub(overhead).min(u32::from(raw.max_mtu));
        let tcp = dpdk_sys::DPDK_RSS_NONFRAG_IPV4_TCP | dpdk_sys::DPDK_RSS_NONFRAG_IPV6_TCP;
        Ok(DeviceInfo {
            driver,
            mtu_min: raw.min_mtu,
            mtu_max: u16::try_from(mtu_max).unwrap_or(u16::MAX),
            queues_max: raw.max_rx_queues.min(raw.max_tx_queues),
            vlan_filter: raw.rx_offload_capa & dpdk_sys::DPDK_RX_OFFLOAD_VLAN_FILTER != 0,
            offloads: Offloads::of_capabilities(raw.rx_offload_capa, raw.tx_offload_capa),
            tx_buffers_max: raw.tx_desc_lim.nb_seg_max,
            rss: raw.flow_type_rss_offloads & tcp == tcp && raw.reta_size > 0,
            rss_key_bytes: raw.hash_key_size,
            rss_table_entries: raw.reta_size,
        })
    }

    /// The device's station address.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn mac(&self) -> Result<[u8; 6], DpdkError> {
        let mut mac = dpdk_sys::rte_ether_addr::default();
        // SAFETY: the device exists while `self` does; `mac` is writable.
        let returned = unsafe { dpdk_sys::rte_eth_macaddr_get(self.id, &raw mut mac) };
        check_for(returned, || self.operation("station address"))?;
        Ok(mac.addr_bytes)
    }

    /// Gives the device another station address; `false` if its driver cannot.
    ///
    /// # Errors
    /// The driver can, but refuses this one.
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<bool, DpdkError> {
        let mut mac = dpdk_sys::rte_ether_addr { addr_bytes: mac };
        // SAFETY: the device exists while `self` does; the address is copied.
        let returned = unsafe { dpdk_sys::rte_eth_dev_default_mac_addr_set(self.id, &raw mut mac) };
        check_optional(returned, || self.operation("setting the station address"))
    }

    /// Receives the frames of a VLAN, by a device that was started with a VLAN filter.
    ///
    /// # Errors
    /// The driver failed.
    pub fn admit_vlan(&self, vlan: u16) -> Result<(), DpdkError> {
        // SAFETY: the device exists while `self` does.
        let returned = unsafe { dpdk_sys::rte_eth_dev_vlan_filter(self.id, vlan, 1) };
        check_for(returned, || self.operation(&format!("receiving VLAN {vlan}"))).map(drop)
    }

    /// Receives all multicast frames; `false` if the driver cannot choose.
    ///
    /// # Errors
    /// The driver can, but failed.
    pub fn receive_multicast(&self) -> Result<bool, DpdkError> {
        // SAFETY: the device exists while `self` does.
        let returned = unsafe { dpdk_sys::rte_eth_allmulticast_enable(self.id) };
        check_optional(returned, || self.operation("receiving multicast"))
    }

    /// Receives all frames; `false` if the driver cannot choose.
    ///
    /// # Errors
    /// The driver can, but failed.
    pub fn receive_all(&self) -> Result<bool, DpdkError> {
        // SAFETY: the device exists while `self` does.
        let returned = unsafe { dpdk_sys::rte_eth_promiscuous_enable(self.id) };
        check_optional(returned, || self.operation("receiving all frames"))
    }

    /// Returns the ring that a transmit queue sends into, if it does.
    fn tx_ring(&self, queue: u16) -> Option<Arc<Ring>> {
        match &self.kind {
            Kind::Rings { tx, .. } => tx.get(usize::from(queue)).cloned(),
            _ => None,
        }
    }

    /// Returns the ring that a receive queue takes frames from, if it does.
    pub(super) fn rx_ring(&self, queue: u16) -> Option<&Ring> {
        match &self.kind {
            Kind::Rings { rx, .. } => rx.get(usize::from(queue)).map(Arc::as_ref),
            _ => None,
        }
    }

    /// Configures the device with one queue pair per pool and starts it; queue *i* receives into `pools[i]`.
    ///
    /// # Errors
    /// Every refusal of the driver.
    pub fn start(
        mut self,
        config: &DeviceConfig,
        pools: &[Arc<Mempool>],
    ) -> Result<(Arc<Self>, Vec<DeviceQueues>), DpdkError> {
        self.assign(config, pools);
        let (sockets_before, taps_before) = (open_sockets(), Tap::open_queues());
        let interrupts = config.rx_interrupt && self.configure_with_interrupts(config);
        if !interrupts {
            self.configure(config, false)?;
            self.launch()?;
        }
        self.xdp = XdpSockets::opened_since(&sockets_before);
        self.tap = Tap::opened_since(&taps_before);
        Ok(self.run(interrupts))
    }

    /// Notes what the queues are made of.
    pub(super) fn assign(&mut self, config: &DeviceConfig, pools: &[Arc<Mempool>]) {
        self.queues = u16::try_from(pools.len()).unwrap_or(u16::MAX);
        self.pools = pools.to_vec();
        self.frame_max = usize::from(config.mtu).saturating_add(14 + 4);
        self.checksum = config.offloads.tx_tcp_checksum;
        if let Kind::Rings { rx, tx } = &self.kind {
            for ring in rx.iter().chain(tx) {
                self.pools.iter().for_each(|pool| ring.keep(pool));
            }
        }
    }

    /// Makes the queues of the device, which has started.
    pub(super) fn run(self, interrupts: bool) -> (Arc<Self>, Vec<DeviceQueues>) {
        self.started.store(true, Ordering::Release);
        let device = Arc::new(self);
        let pair = |index| {
            let descriptor = interrupts.then(|| device.interrupt_descriptor(index)).flatten();
            let (hardware, ring) = (device.is_hardware(), device.tx_ring(index));
            DeviceQueues {
                rx: DeviceRx::new(Arc::clone(&device), index, descriptor, hardware),
                tx: DeviceTx::new(Arc::clone(&device), index, device.frame_max, device.checksum, ring),
            }
        };
        let pairs = (0..device.queues).map(pair).collect();
        (device, pairs)
    }

    /// Configures and starts the device with an interrupt per receive queue; returns false if the device cannot.
    fn configure_with_interrupts(&self, config: &DeviceConfig) -> bool {
        let _attempt = Attempt::begin();
        match self.configure(config, true).and_then(|()| self.launch()) {
            Ok(()) => true,
            Err(error) => {
                let device = &self.name;
                tracing::info!(device, "no receive interrupts, workers sleep by the clock alone: {error}");
                false
            }
        }
    }

    /// Configures the device and sets its queues up.
    pub(super) fn configure(&self, config: &DeviceConfig, interrupts: bool) -> Result<(), DpdkError> {
        let raw = raw_config(config, interrupts);
        // SAFETY: the device exists while `self` does; `raw` is copied, and the key that it points to lives
        // in `config`.
        let returned =
            unsafe { dpdk_sys::rte_eth_dev_configure(self.id, self.queues, self.queues, &raw const raw) };
        check_for(returned, || self.operation(&format!("{} queues, MTU {}", self.queues, config.mtu)))?;
        if config.set_mtu {
            // SAFETY: the device exists while `self` does.
            let returned = unsafe { dpdk_sys::rte_eth_dev_set_mtu(self.id, config.mtu) };
            check_optional(returned, || self.operation(&format!("MTU {}", config.mtu)))?;
        }
        let (mut rx, mut tx) = (config.rx_descriptors, config.tx_descriptors);
        // SAFETY: the device exists while `self` does; both integers are writable.
        let returned =
            unsafe { dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &raw mut rx, &raw mut tx) };
        check_for(returned, || self.operation("descriptors"))?;
        for (queue, pool) in (0..self.queues).zip(&self.pools) {
            self.set_up_queue(queue, pool, rx, tx)?;
        }
        Ok(())
    }

    /// Starts the configured device.
    pub(super) fn launch(&self) -> Result<(), DpdkError> {
        // SAFETY: configured, with all queues set up.
        let returned = unsafe { dpdk_sys::rte_eth_dev_start(self.id) };
        check_for(returned, || self.operation("start")).map(drop)
    }

    fn set_up_queue(&self, queue: u16, pool: &Mempool, rx: u16, tx: u16) -> Result<(), DpdkError> {
        let socket = dpdk_sys::DPDK_SOCKET_ID_ANY.cast_unsigned();
        // SAFETY: the device is configured; null asks for the driver's defaults; the pool lives in `self.pools`
        // as long as the device.
        let returned = unsafe {
            dpdk_sys::rte_eth_rx_queue_setup(self.id, queue, rx, socket, null(), pool.raw().as_ptr())
        };
        check_for(returned, || self.operation(&format!("receive queue {queue}")))?;
        // SAFETY: as above.
        let returned = unsafe { dpdk_sys::rte_eth_tx_queue_setup(self.id, queue, tx, socket, null()) };
        check_for(returned, || self.operation(&format!("transmit queue {queue}"))).map(drop)
    }

    /// Returns true for a PCI device.
    fn is_hardware(&self) -> bool {
        matches!(self.kind, Kind::Pci { .. })
    }

    /// Returns true if the device's queues are rings.
    pub(super) fn is_ring(&self) -> bool {
        matches!(self.kind, Kind::Rings { .. })
    }

    /// Returns true if the kernel has requested the device's release.
    pub fn is_to_be_removed(&self) -> bool {
        matches!(&self.kind, Kind::Pci { removal } if removal.is_made())
    }

    /// Returns the queue by which to ask for the interface of a TAP.
    pub fn tap(&self) -> Option<&Tap> {
        self.tap.as_ref()
    }

    /// Returns the descriptor that a receive queue's interrupt makes readable, if it has one.
    fn interrupt_descriptor(&self, queue: u16) -> Option<i32> {
        // SAFETY: the device is started; a queue without an interrupt answers -1.
        let descriptor = unsafe { dpdk_sys::rte_eth_dev_rx_intr_ctl_q_get_fd(self.id, queue) };
        (descriptor >= 0).then_some(descriptor)
    }

    /// Returns the receive-side scaling of the started device; `None` if the driver does not report it.
    pub fn rss(&self, info: &DeviceInfo) -> Option<Rss> {
        let mut key = vec![0; usize::from(info.rss_key_bytes)];
        let mut conf = dpdk_sys::rte_eth_rss_conf {
            rss_key: key.as_mut_ptr(),
            rss_key_len: info.rss_key_bytes,
            ..Default::default()
        };
        // SAFETY: `conf` points to as many writable bytes as it says.
        let returned = unsafe { dpdk_sys::rte_eth_dev_rss_hash_conf_get(self.id, &raw mut conf) };
        if returned != 0 {
            return None;
        }
        let groups = usize::from(info.rss_table_entries).div_ceil(64);
        let asked = dpdk_sys::rte_eth_rss_reta_entry64 { mask: u64::MAX, ..Default::default() };
        let mut table = vec![asked; groups];
        // SAFETY: `table` has room for `rss_table_entries` entries.
        let returned = unsafe {
            dpdk_sys::rte_eth_dev_rss_reta_query(self.id, table.as_mut_ptr(), info.rss_table_entries)
        };
        if returned != 0 {
            return None;
        }
        let entries = table.iter().flat_map(|group| group.reta).take(usize::from(info.rss_table_entries));
        Rss::new(key, entries.collect())
    }

    /// Returns the names of the started device's RSS hash functions; none if the driver reports none.
    pub fn rss_functions(&self) -> Vec<&'static str> {
        let mut conf = dpdk_sys::rte_eth_rss_conf::default();
        // SAFETY: `conf` is writable, and a null key asks for none.
        let returned = unsafe { dpdk_sys::rte_eth_dev_rss_hash_conf_get(self.id, &raw mut conf) };
        if returned == 0 { rss::functions(conf.rss_hf) } else { Vec::new() }
    }

    /// Returns the firmware version as the driver formats it; `None` if the driver reports none.
    pub fn firmware(&self) -> Option<String> {
        let mut text = [0_u8; 128];
        // SAFETY: as many writable bytes as said.
        let returned =
            unsafe { dpdk_sys::rte_eth_dev_fw_version_get(self.id, text.as_mut_ptr().cast(), text.len()) };
        let version = CStr::from_bytes_until_nul(&text).ok().filter(|_| returned == 0)?;
        Some(version.to_string_lossy().trim().to_owned()).filter(|version| !version.is_empty())
    }

    /// Returns the device's NUMA node; `None` if the system reports none.
    pub fn numa_node(&self) -> Option<u32> {
        // SAFETY: the device exists while `self` does.
        u32::try_from(unsafe { dpdk_sys::rte_eth_dev_socket_id(self.id) }).ok()
    }

    /// State of the link, as last seen by the driver.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn link(&self) -> Result<Link, DpdkError> {
        let (mut up, mut speed) = (0, 0);
        // SAFETY: the device exists while `self` does; both integers are writable.
        let returned = unsafe { dpdk_sys::dpdk_link_get_nowait(self.id, &raw mut up, &raw mut speed) };
        check_for(returned, || self.operation("link"))?;
        let speed = Some(speed).filter(|&speed| speed != 0 && speed != u32::MAX);
        Ok(Link { up: up != 0, megabits_per_second: speed })
    }

    /// Returns the counters of the device since it was created.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn stats(&self) -> Result<PortStats, DpdkError> {
        let mut raw = dpdk_sys::rte_eth_stats::default();
        // SAFETY: the device exists while `self` does; `raw` is writable.
        let returned = unsafe { dpdk_sys::rte_eth_stats_get(self.id, &raw mut raw) };
        check_for(returned, || self.operation("statistics"))?;
        // net_af_xdp counts a frame that the kernel refuses later as sent, and of received frames that are lost it
        // reports `rx_dropped` alone.
        let xdp = self.xdp.stats().unwrap_or_default();
        Ok(PortStats {
            rx_frames: raw.ipackets,
            tx_frames: raw.opackets.saturating_sub(xdp.tx_invalid_descs),
            rx_bytes: raw.ibytes,
            tx_bytes: raw.obytes,
            rx_missed: raw.imissed.saturating_add(xdp.rx_ring_full),
            rx_errors: raw.ierrors.saturating_add(xdp.rx_invalid_descs),
            tx_errors: raw.oerrors.saturating_add(xdp.tx_invalid_descs),
            rx_no_buffer: raw.rx_nombuf,
        })
    }

    /// Returns the driver's own counters, by DPDK's names; for an AF_XDP device also the kernel's counters of its
    /// sockets (`XDP_STATISTICS`), by names that begin with `xdp_`.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn extended_stats(&self) -> Result<Vec<(String, u64)>, DpdkError> {
        let operation = || self.operation("extended statistics");
        // SAFETY: null and 0 ask for the number only.
        let count = unsafe { dpdk_sys::rte_eth_xstats_get_names(self.id, null_mut(), 0) };
        let count = check_for(count, operation)?.cast_unsigned();
        let mut names = vec![dpdk_sys::rte_eth_xstat_name::default(); count as usize];
        // SAFETY: `names` has room for `count` names.
        let named = unsafe { dpdk_sys::rte_eth_xstats_get_names(self.id, names.as_mut_ptr(), count) };
        let named = check_for(named, operation)?.cast_unsigned();
        let mut values = vec![dpdk_sys::rte_eth_xstat::default(); count as usize];
        // SAFETY: `values` has room for `count` values.
        let valued = unsafe { dpdk_sys::rte_eth_xstats_get(self.id, values.as_mut_ptr(), count) };
        let valued = check_for(valued, operation)?.cast_unsigned();
        let name_of = |name: &dpdk_sys::rte_eth_xstat_name| {
            let text =
                name.name.iter().map(|c| c.cast_unsigned()).take_while(|&c| c != 0).collect::<Vec<_>>();
            String::from_utf8_lossy(&text).into_owned()
        };
        let valid = values.iter().take(valued.min(named) as usize).filter_map(|value| {
            let name = names.get(usize::try_from(value.id).ok()?)?;
            Some((name_of(name), value.value))
        });
        let xdp = self.xdp.stats().map(|stats| stats.named()).into_iter().flatten();
        Ok(valid.chain(xdp.map(|(name, value)| (name.to_owned(), value))).collect())
    }

    fn operation(&self, what: &str) -> String {
        format!("device {}: {what}", self.name)
    }

    /// Logs the failure of a step in taking the device down: there is nobody left to answer.
    fn report(&self, what: &str, returned: c_int) {
        if let Err(error) = check_optional(returned, || self.operation(what)) {
            tracing::warn!(%error, "closing a device");
        }
    }

    /// Stops the device if it is started.
    pub(super) fn stop(&self) {
        if self.started.swap(false, Ordering::AcqRel) {
            // SAFETY: all queues are gone: each holds a handle on the device.
            self.report("stop", unsafe { dpdk_sys::rte_eth_dev_stop(self.id) });
        }
    }

    /// Takes the device down.
    fn close(&self) {
        self.stop();
        // SAFETY: stopped, and nobody uses it any more.
        self.report("close", unsafe { dpdk_sys::rte_eth_dev_close(self.id) });
        let Ok(name) = c_string(&self.name) else { return };
        let bus = if self.is_hardware() { c"pci" } else { c"vdev" };
        // SAFETY: two C strings; the device is closed.
        self.report("remove", unsafe { dpdk_sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) });
        if self.name.starts_with("net_memif") {
            // It leaves its listening socket with DPDK's interrupt thread, which must not find DPDK's memory gone.
            std::mem::forget(self.eal.clone());
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.close();
    }
}

/// DPDK's number of the device of a name.
fn port_id(name: &str) -> Result<u16, DpdkError> {
    let name_c = c_string(name)?;
    let mut id = 0;
    // SAFETY: a C string and a writable integer.
    let returned = unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name_c.as_ptr(), &raw mut id) };
    check_for(returned, || format!("device {name} not found"))?;
    Ok(id)
}

fn c_string(text: &str) -> Result<CString, DpdkError> {
    CString::new(text).map_err(|_| DpdkError::new(format!("{text:?} holds a NUL"), Errno::INVALID))
}
