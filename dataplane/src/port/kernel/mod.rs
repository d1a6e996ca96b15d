//! Ports on interfaces of the kernel, with frames of many segments in both directions.
//!
//! A packet socket per worker carries a header of virtio before each frame: the stack's runs of segments leave as one
//! frame that the kernel passes on whole or segments at the last moment, and what the kernel passes up as one frame is
//! cut into segments while it is read. The stack sees what a card would have delivered.

mod counters;
mod cut;
mod header;
mod packet;
mod rx;
mod tx;

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use counters::{Counters, sum};

pub use rx::KernelRx;
pub use tx::KernelTx;

use super::spec::PortSpec;
use super::{PortError, interface};
use crate::dpdk::{DeviceInfo, Link, Mempool, Offloads, PortStats};

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
}

#[derive(Debug)]
struct Queue {
    socket: Arc<OwnedFd>,
    counters: Arc<Counters>,
}

/// The capabilities of the driver.
pub(super) fn info() -> DeviceInfo {
    let offloads = Offloads {
        rx_ip_checksum: true,
        rx_tcp_checksum: true,
        // A host that gets a frame whole verifies its header.
        tx_ip_checksum: false,
        tx_tcp_checksum: true,
        tx_segmentation: true,
    };
    DeviceInfo {
        driver: "af_packet".to_owned(),
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

impl Interface {
    /// Opens a packet socket per pool on the interface of `name`, and makes a queue pair of each.
    ///
    /// # Errors
    /// There is no such interface, it is no Ethernet's, or the process may not open packet sockets.
    pub(super) fn open(
        spec: &PortSpec,
        name: &str,
        pools: &[Arc<Mempool>],
    ) -> Result<(Self, Vec<(KernelRx, KernelTx)>), PortError> {
        let refused = |what: &'static str| {
            let (port, interface) = (spec.name.clone(), name.to_owned());
            move |source: io::Error| PortError::Interface { port, interface, what, source }
        };
        let missing = || io::Error::from_raw_os_error(libc::ENODEV);
        let index = interface::index(name).ok_or_else(missing).map_err(refused("find it"))?;
        let ifindex = c_int::try_from(index).unwrap_or(c_int::MAX);
        let buffer = DESCRIPTOR_BYTES.saturating_mul(spec.rx_descriptors.into());
        let mut queues = Vec::new();
        for _ in pools {
            let socket = packet::open(ifindex, buffer).map_err(refused("open a packet socket"))?;
            queues.push(Queue { socket: Arc::new(socket), counters: Arc::default() });
        }
        let own = queues.first().and_then(|queue| packet::address(&queue.socket));
        let no_ethernet = || refused("use it")(io::Error::other("it is no Ethernet interface"));
        let own = own.ok_or_else(no_ethernet)?;
        let mac = spec.mac.unwrap_or(own);
        let mut group = None;
        for Queue { socket, .. } in &queues {
            if pools.len() > 1 {
                let joined = packet::join(socket, group);
                group = Some(joined.map_err(refused("divide its flows among workers"))?);
            }
            let other = (mac != own).then_some(mac);
            packet::admit(socket, ifindex, other).map_err(refused("receive multicast"))?;
        }
        let frame_max = u32::from(spec.mtu).saturating_add(LINK_HEADER);
        let pair = |(Queue { socket, counters }, pool): (&Queue, &Arc<Mempool>)| {
            let (socket, counters) = (|| Arc::clone(socket), || Arc::clone(counters));
            let rx = KernelRx::new(socket(), Arc::clone(pool), spec.mtu, counters());
            (rx, KernelTx::new(socket(), frame_max, counters()))
        };
        let pairs = queues.iter().zip(pools).map(pair).collect();
        let port = Self { index, mac, queues, missed: AtomicU64::new(0) };
        Ok((port, pairs))
    }

    /// Returns the station address to send from.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the state of the link, under whatever name the interface has now.
    pub(super) fn link(&self) -> Link {
        let name = interface::name(self.index);
        let is_running =
            |name: &String| self.queues.first().is_some_and(|queue| packet::is_running(&queue.socket, name));
        let up = name.as_ref().is_some_and(is_running);
        let speed = name.and_then(|name| interface::megabits_per_second(&name));
        Link { up, megabits_per_second: speed }
    }

    /// Returns true if the interface was deleted, or moved to another network namespace.
    pub(super) fn has_vanished(&self) -> bool {
        !interface::exists(self.index)
    }

    /// Returns the counters of all queues.
    pub(super) fn stats(&self) -> PortStats {
        let dropped = self.queues.iter().map(|queue| u64::from(packet::take_drops(&queue.socket))).sum();
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
        let all: [(&str, Counter); 5] = [
            ("rx_super_frames", |of| &of.rx_super_frames),
            ("rx_super_frame_segments", |of| &of.rx_segments),
            ("rx_super_frame_guesses_missed", |of| &of.rx_guesses_missed),
            ("tx_super_frames", |of| &of.tx_super_frames),
            ("tx_super_frame_segments", |of| &of.tx_segments),
        ];
        all.map(|(name, counter)| (name.to_owned(), sum(self.counters(), counter))).into()
    }

    fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.queues.iter().map(|queue| queue.counters.as_ref())
    }
}
