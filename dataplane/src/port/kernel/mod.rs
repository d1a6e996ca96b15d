//! Ports on interfaces of the kernel, with frames of many segments in both directions.
//!
//! A packet socket, or a queue of a TAP, per worker carries a header of virtio before each frame: the stack's runs of
//! segments leave as one frame, which the kernel passes on whole or segments at the last moment; a frame of many
//! segments is cut while it is read. The stack sees what a card would have delivered.

mod address;
mod counters;
mod cut;
mod ethtool;
mod filter;
mod header;
mod ifreq;
mod packet;
mod rx;
mod share;
mod tap;
mod tx;

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use counters::{Counters, sum};
use rustix::net::sockopt::socket_recv_buffer_size;

pub use address::KernelAddresses;
pub use ethtool::InterfaceOffloads;
pub use rx::KernelRx;
pub use share::{Reservation, Shared};
pub use tx::KernelTx;

use super::spec::PortSpec;
use super::{PortError, interface};
use crate::dpdk::{DeviceInfo, Link, Mempool, Offloads, PortStats, Tap};

/// The way of the frames between an interface and its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// Packet sockets, on an interface that exists.
    Packet,
    /// The queues of a TAP.
    Tap,
}

/// State of the kernel that a port on one of its interfaces depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSide {
    /// Bytes that the kernel holds for a queue until it is read, as it accounts them; none for a TAP, which counts
    /// frames.
    pub receive_buffer_bytes: Option<usize>,
    /// Offloads of the interface; of a TAP, those at the kernel's end.
    pub offloads: InterfaceOffloads,
}

/// Chooses a counter of a queue.
type Counter = fn(&Counters) -> &AtomicU64;

/// Sockets of one interface.
const QUEUES_MAX: u16 = 64;
/// Smallest MTU: that of IPv4 (RFC 791 §3.2).
const MTU_MIN: u16 = 68;
/// Bytes that a receive descriptor stands for in the kernel's buffer.
const DESCRIPTOR_BYTES: c_int = 4096;
/// Headers before the MTU: Ethernet with a tag.
const LINK_HEADER: u32 = 18;

/// The control side of a port on an interface: what it is, and what its queues have counted.
#[derive(Debug)]
pub(super) struct Interface {
    index: u32,
    mac: [u8; 6],
    queues: Vec<Queue>,
    /// Frames that the kernel dropped because nobody fetched them in time.
    missed: AtomicU64,
    /// A handle on a queue, by which to ask for a TAP.
    tap: Option<Tap>,
}

/// An interface, and the queue pairs of its workers.
type Opened = (Interface, Vec<(KernelRx, KernelTx)>);

#[derive(Debug)]
struct Queue {
    socket: Arc<OwnedFd>,
    counters: Arc<Counters>,
}

/// The capabilities of the driver of this name.
pub(super) fn info(driver: &str) -> DeviceInfo {
    let offloads = Offloads {
        rx_ip_checksum: true,
        rx_tcp_checksum: true,
        // A host that gets a frame whole verifies its header.
        tx_ip_checksum: false,
        tx_tcp_checksum: true,
        tx_segmentation: true,
    };
    DeviceInfo {
        driver: driver.to_owned(),
        mtu_min: MTU_MIN,
        mtu_max: u16::MAX,
        queues_max: QUEUES_MAX,
        offloads,
        vlan_filter: false,
        tx_buffers_max: 0,
        rss: false,
        rss_key_bytes: 0,
        rss_table_entries: 0,
    }
}

/// Returns the error that the kernel has refused an operation.
fn refused(spec: &PortSpec, name: &str, what: &'static str) -> impl FnOnce(io::Error) -> PortError + use<> {
    let (port, interface) = (spec.name.clone(), name.to_owned());
    move |source| PortError::Interface { port, interface, what, source }
}

impl Interface {
    /// Opens a packet socket per pool on the interface of `name`, and makes a queue pair of each.
    ///
    /// # Errors
    /// There is no such interface, it is no Ethernet's, or the process may not open packet sockets.
    pub(super) fn open(spec: &PortSpec, name: &str, pools: &[Arc<Mempool>]) -> Result<Opened, PortError> {
        let refused = |what| refused(spec, name, what);
        let missing = || io::Error::from_raw_os_error(libc::ENODEV);
        let index = interface::index(name).ok_or_else(missing).map_err(refused("find it"))?;
        let ifindex = c_int::try_from(index).unwrap_or(c_int::MAX);
        let buffer = DESCRIPTOR_BYTES.saturating_mul(spec.rx_descriptors.into());
        let mut sockets = Vec::new();
        for _ in pools {
            sockets.push(packet::open(ifindex, buffer).map_err(refused("open a packet socket"))?);
        }
        let own = sockets.first().and_then(packet::address);
        let no_ethernet = || refused("use it")(io::Error::other("it is no Ethernet interface"));
        let own = own.ok_or_else(no_ethernet)?;
        let mac = spec.mac.unwrap_or(own);
        let mut group = None;
        for socket in &sockets {
            if pools.len() > 1 {
                let joined = packet::join(socket, group);
                group = Some(joined.map_err(refused("divide its flows among workers"))?);
            }
            let other = (mac != own).then_some(mac);
            packet::admit(socket, ifindex, other).map_err(refused("receive multicast"))?;
        }
        let (interface, queues) = Self::with_queues((Wire::Packet, sockets), spec, (index, mac, None), pools);
        if let Some(shared) = &spec.shared {
            shared.check(name, (own, mac)).map_err(refused("share its addresses"))?;
            let sockets = interface.queues.iter().map(|queue| &queue.socket);
            shared.narrow(sockets).map_err(refused("limit what it receives"))?;
        }
        Ok((interface, queues))
    }

    /// Makes the TAP of `name` with a queue per pool, sets its MTU and brings it up.
    ///
    /// # Errors
    /// The process may not, or another interface or process has the name.
    pub(super) fn make_tap(spec: &PortSpec, name: &str, pools: &[Arc<Mempool>]) -> Result<Opened, PortError> {
        let refused = |what| refused(spec, name, what);
        let queues = tap::open(name, pools.len(), spec.segmentation).map_err(refused("make the TAP"))?;
        tap::configure(name, spec.mtu).map_err(refused("set its MTU and bring it up"))?;
        let lost = || io::Error::from_raw_os_error(libc::ENODEV);
        let tap = queues.first().and_then(Tap::of);
        let index = interface::index(name).ok_or_else(lost).map_err(refused("find it"))?;
        // The device's address is that of the kernel's end.
        let mac = spec.mac.unwrap_or_else(|| interface::made_up_mac(spec));
        Ok(Self::with_queues((Wire::Tap, queues), spec, (index, mac, tap), pools))
    }

    fn with_queues(
        (wire, descriptors): (Wire, Vec<OwnedFd>),
        spec: &PortSpec,
        (index, mac, tap): (u32, [u8; 6], Option<Tap>),
        pools: &[Arc<Mempool>],
    ) -> Opened {
        let queue = |socket| Queue { socket: Arc::new(socket), counters: Arc::default() };
        let queues: Vec<Queue> = descriptors.into_iter().map(queue).collect();
        let frame_max = u32::from(spec.mtu).saturating_add(LINK_HEADER);
        let pair = |(Queue { socket, counters }, pool): (&Queue, &Arc<Mempool>)| {
            let (wire, counters) = (|| (wire, Arc::clone(socket)), || Arc::clone(counters));
            let rx = KernelRx::new(wire(), Arc::clone(pool), spec.mtu, counters());
            (rx, KernelTx::new(wire(), frame_max, counters()))
        };
        let pairs = queues.iter().zip(pools).map(pair).collect();
        (Self { index, mac, queues, missed: AtomicU64::new(0), tap }, pairs)
    }

    /// Returns the handle by which to ask for a TAP.
    pub(super) fn tap(&self) -> Option<&Tap> {
        self.tap.as_ref()
    }

    /// Returns the station address to send from.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the state of the link, under whatever name the interface has now.
    pub(super) fn link(&self) -> Link {
        if let Some(tap) = &self.tap {
            return Link { up: tap.is_up(), megabits_per_second: None };
        }
        let name = interface::name(self.index);
        let is_running =
            |name: &String| self.queues.first().is_some_and(|queue| packet::is_running(&queue.socket, name));
        let up = name.as_ref().is_some_and(is_running);
        let speed = name.and_then(|name| interface::megabits_per_second(&name));
        Link { up, megabits_per_second: speed }
    }

    /// Returns the counters of all queues.
    pub(super) fn stats(&self) -> PortStats {
        let sockets = self.queues.iter().filter(|_| self.tap.is_none());
        let dropped = sockets.map(|queue| u64::from(packet::take_drops(&queue.socket))).sum();
        let missed = self.missed.fetch_add(dropped, Ordering::Relaxed).saturating_add(dropped);
        let sum = |counter: Counter| sum(self.counters(), counter);
        PortStats {
            rx_frames: sum(|of| &of.rx_frames),
            tx_frames: sum(|of| &of.tx_frames),
            rx_bytes: sum(|of| &of.rx_bytes),
            tx_bytes: sum(|of| &of.tx_bytes),
            rx_missed: missed,
            rx_errors: 0,
            tx_errors: sum(|of| &of.tx_refused),
            rx_no_buffer: sum(|of| &of.rx_no_buffer),
        }
    }

    /// Returns the counters of super-frames, by name.
    pub(super) fn extended_stats(&self) -> Vec<(String, u64)> {
        let all: [(&str, Counter); 6] = [
            ("rx_super_frames", |of| &of.rx_super_frames),
            ("rx_super_frame_segments", |of| &of.rx_segments),
            ("rx_super_frame_guesses_missed", |of| &of.rx_guesses_missed),
            ("rx_super_frames_too_long", |of| &of.rx_too_long),
            ("tx_super_frames", |of| &of.tx_super_frames),
            ("tx_super_frame_segments", |of| &of.tx_segments),
        ];
        all.map(|(name, counter)| (name.to_owned(), sum(self.counters(), counter))).into()
    }

    /// Returns the kernel's side, under whatever name the interface has now.
    pub(super) fn kernel_side(&self) -> Option<KernelSide> {
        let offloads =
            InterfaceOffloads::of(&interface::any_socket()?, &interface::name(self.index)?).ok()?;
        let queue = self.queues.first().filter(|_| self.tap.is_none());
        let bytes = queue.and_then(|queue| socket_recv_buffer_size(&queue.socket).ok());
        Some(KernelSide { receive_buffer_bytes: bytes, offloads })
    }

    /// Returns the number of empty buffers that a queue holds to read into.
    pub(super) fn armed_buffers(&self, queue: usize) -> u32 {
        let armed = self.queues.get(queue).map_or(0, |of| of.counters.rx_armed.load(Ordering::Relaxed));
        u32::try_from(armed).unwrap_or(u32::MAX)
    }

    fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.queues.iter().map(|queue| queue.counters.as_ref())
    }
}
