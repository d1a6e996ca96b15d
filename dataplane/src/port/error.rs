//! Reasons why a port could not be opened, from [`Port::open`](super::Port::open).

use std::path::PathBuf;

use crate::dpdk::DpdkError;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A string would be taken for something else among DPDK's device arguments.
    #[error("port {port}: {what} {value:?} cannot be passed to DPDK")]
    Argument {
        /// The name of the port.
        port: String,
        /// The kind of string.
        what: &'static str,
        /// The string that was rejected.
        value: String,
    },
    /// The device cannot do the MTU.
    #[error("port {port}: MTU {mtu} is out of range: {driver} does {min} to {max}")]
    Mtu {
        /// The name of the port.
        port: String,
        /// The MTU asked for.
        mtu: u16,
        /// DPDK's name of the driver.
        driver: String,
        /// The smallest MTU possible.
        min: u16,
        /// The largest MTU possible.
        max: u16,
    },
    /// A kernel interface has a smaller MTU than the port.
    #[error("port {port}: MTU {mtu} is more than that of the interface {interface}, {interface_mtu}")]
    InterfaceMtu {
        /// The name of the port.
        port: String,
        /// The MTU asked for.
        mtu: u16,
        /// The name of the interface.
        interface: String,
        /// The MTU of the interface.
        interface_mtu: u32,
    },
    /// No queue pair is left for a worker.
    #[error("port {port}: no queue, with {workers} workers and {max} queue pairs of {driver}")]
    Queues {
        /// The name of the port.
        port: String,
        /// For how many workers.
        workers: usize,
        /// DPDK's name of the driver.
        driver: String,
        /// The largest number of the device.
        max: u16,
    },
    /// The ends of a wire have different numbers of queues.
    #[error("ports {ports}: a wire needs as many queues on both ends")]
    Ends {
        /// The names of both.
        ports: String,
    },
    /// A whole frame does not fit into a packet buffer.
    #[error("port {port}: packet buffers hold {room} bytes, MTU {mtu} needs {needed}")]
    Buffers {
        /// The name of the port.
        port: String,
        /// The MTU asked for.
        mtu: u16,
        /// Bytes of a buffer behind its headroom.
        room: u32,
        /// Bytes of the longest frame.
        needed: u32,
    },
    /// The packet buffers are not what AF_XDP can share with the kernel.
    #[error(
        "port {port}: AF_XDP shares the packet buffers with the kernel, which takes them one after the other and none \
         larger than a page, {page_bytes} bytes; these take {object_bytes} each, contiguous: {contiguous}. Make the \
         MTU of all ports smaller, or give this port a daemon of its own"
    )]
    SharedBuffers {
        /// The name of the port.
        port: String,
        /// True if the buffers lie one after the other.
        contiguous: bool,
        /// Bytes from one to the next.
        object_bytes: u32,
        /// Bytes of a page.
        page_bytes: u32,
    },
    /// DPDK has not taken a PCI device.
    #[error(
        "port {port}: DPDK does not take the PCI device {device}. Either another process has it open, or its IOMMU \
         group holds devices that other drivers have, or DPDK has no driver for it: DPDK's messages above say which"
    )]
    Pci {
        /// The name of the port.
        port: String,
        /// The device: its address, vendor and device numbers, kernel driver.
        device: String,
        /// The error of DPDK.
        #[source]
        source: DpdkError,
    },
    /// A card that has returned does less than the one before it, for which the stacks were made.
    #[error("port {port}: the card does not do {missing}, which the one before it did: restart iwarpd")]
    Offloads {
        /// The name of the port.
        port: String,
        /// The offloads that are missing.
        missing: String,
    },
    /// The client of a memif has no server yet.
    #[error("port {port}: no memif server accepts connections at {}: start it first", socket.display())]
    NoServer {
        /// The name of the port.
        port: String,
        /// The path of the server's socket.
        socket: PathBuf,
    },
    /// Another program is the server of a memif.
    #[error(
        "port {port}: {owner} serves the socket {} already: stop that, or change this configuration",
        socket.display()
    )]
    Served {
        /// The name of the port.
        port: String,
        /// The path of the socket.
        socket: PathBuf,
        /// The process that listens there.
        owner: String,
    },
    /// The kernel refused an operation on an interface.
    #[error("port {port}: interface {interface}: cannot {what}")]
    Interface {
        /// The name of the port.
        port: String,
        /// The name of the interface.
        interface: String,
        /// The operation that failed, as in "cannot …".
        what: &'static str,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// DPDK refused an operation.
    #[error("port {port}")]
    Device {
        /// The name of the port.
        port: String,
        /// The error and its operation.
        #[source]
        source: DpdkError,
    },
}
