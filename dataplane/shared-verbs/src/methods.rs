//! Methods of the verbs socket: a program opens a context, registers memory, and has its requests executed.
//!
//! One connection is one context, which ends with it. The messages are framed as those of the control socket
//! ([`iwarp_control`]), whose `hello` the socket answers, too.

use ipnet::IpNet;
use iwarp_control::NoParams;
use iwarp_shared_queues::RingShape;
use rdma::verbs::{Access, AddressBase, MemoryRegion, PdId, VerbsError};
use serde::{Deserialize, Serialize};

use crate::{Request, Response};

/// Path of the verbs socket if the configuration names none.
pub const DEFAULT_SOCKET: &str = "/run/iwarpd/verbs.sock";
/// Most requests of one [`ExecuteMethod`].
pub const REQUESTS_MAX: usize = 256;
/// Most parts of one memory region.
pub const PARTS_MAX: usize = 64;
/// Size up to which memory is on ordinary pages, if they are allowed, or may be shared ([`AllocMemory::shared`]): a
/// quarter of a hugepage, bytes.
pub const SMALL_BYTES: u64 = 512 << 10;
/// Bytes of queue memory of a context that does not ask for another size.
pub const QUEUE_BYTES_DEFAULT: u64 = 4 << 20;

/// A device that a program may open: a port of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Name of the port.
    pub name: String,
    /// Addresses of the port, with their prefixes.
    pub addresses: Vec<IpNet>,
    /// Largest IP packet, bytes.
    pub mtu: u16,
}

impl DeviceInfo {
    /// Returns a number that tells the ports of one machine apart. It begins as locally administered EUI-64 do.
    pub fn guid(&self) -> u64 {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let text: String = self.addresses.iter().map(|prefix| prefix.addr().to_string()).collect();
        let hash = self.name.bytes().chain(text.bytes()).fold(0xcbf2_9ce4_8422_2325, hash);
        hash & 0x00ff_ffff_ffff_ffff | 0x0200_0000_0000_0000
    }
}

/// Parameters of [`OpenMethod`], which opens the context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Name of the device; `None`: the first.
    pub device: Option<String>,
    /// Bytes of memory for the rings of all queues; `None`: [`QUEUE_BYTES_DEFAULT`].
    pub queue_bytes: Option<u64>,
}

/// Reply of [`OpenMethod`]. Its descriptors are the context's memory, and the event counters on which the program waits
/// for completions and for events, and with which it wakes the worker, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Number of the application, as `iwarpctl app list` shows it.
    pub app: u32,
    /// Device that the context is open on.
    pub device: DeviceInfo,
    /// Bytes of the context's memory.
    pub bytes: u64,
    /// True if the link of the device's port is up. [`crate::Event::PortActive`] and [`crate::Event::PortDown`] follow.
    pub link_up: bool,
}

/// Parameters of [`ExecuteMethod`], which executes requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    /// Requests, at most [`REQUESTS_MAX`].
    pub requests: Vec<Request>,
}

/// Reply of [`ExecuteMethod`], with the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Result of each request, in order. An error does not keep the later ones from being executed.
    pub results: Vec<Result<Response, VerbsError>>,
    /// Reason why the daemon has refused the first of those that it has not passed to the worker: the limit with its
    /// key and value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Parameters of [`AllocMemoryMethod`], which allocates memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocMemory {
    /// Length of the memory, bytes.
    pub bytes: u64,
    /// True for memory that takes the place of pages of the program, whole pages of 4 KiB, for [`RegPartsMethod`].
    #[serde(default)]
    pub exchange: bool,
    /// True if small memory may be shared: of at most [`SMALL_BYTES`], on a hugepage. The reply's memory is then the
    /// whole hugepage, of which the program registers pieces by [`RegPartsMethod`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// Parameters of [`OpenRegionMethod`], which opens a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenRegion {
    /// Name of the daemon's region.
    pub name: String,
}

/// Parameters of [`WatchRegionMethod`], which watches a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchRegion {
    /// Name of the daemon's region.
    pub name: String,
}

/// Reply of [`WatchRegionMethod`]. Its descriptors are the region's memory, the memory of the rings of notifications,
/// and the event counter on which the program waits for them, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    /// Number of the watch.
    pub watch: u64,
    /// Name of the region.
    pub name: String,
    /// Length of the region, bytes.
    pub bytes: u64,
    /// Bytes of one page of the region's memory.
    pub page_bytes: u64,
    /// Access rights of peers to the memory.
    pub access: Access,
    /// Number of rings, one for each worker and port.
    pub rings: u32,
    /// Size of each ring.
    pub shape: RingShape,
}

/// Parameters of [`UnwatchRegionMethod`], which ends a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnwatchRegion {
    /// Number of the watch.
    pub watch: u64,
}

/// Memory that can be registered. The reply's descriptor has `bytes`, rounded up to whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Number of the memory.
    pub memory: u32,
    /// Length of the memory, bytes.
    pub bytes: u64,
    /// Bytes of one page.
    pub page_bytes: u64,
}

/// Parameters of [`RegMrMethod`], which registers memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegMr {
    /// Memory, all of which becomes the memory region.
    pub memory: u32,
    /// Protection domain of the memory region.
    pub pd: PdId,
    /// Address of the first byte.
    pub base: AddressBase,
    /// Rights of the memory region.
    pub access: Access,
}

/// Part of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MemoryPart {
    /// Memory that has taken the place of pages of the program, or a piece of a hugepage that small buffers share.
    Exchanged {
        /// Number of the memory, allocated with [`AllocMemory::exchange`] or [`AllocMemory::shared`].
        memory: u32,
        /// Offset of the part in it, bytes.
        offset: u64,
        /// Length of the part, bytes.
        bytes: u64,
    },
    /// Memory that the daemon reaches through the kernel.
    Kernel {
        /// Address of the part in the program.
        address: u64,
        /// Length of the part, bytes.
        bytes: u64,
    },
}

/// Parameters of [`RegPartsMethod`], which registers a program's own memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegParts {
    /// Protection domain of the memory region.
    pub pd: PdId,
    /// Address of the first byte.
    pub address: u64,
    /// Parts of the memory, in order, at most [`PARTS_MAX`].
    pub parts: Vec<MemoryPart>,
    /// Rights of the memory region.
    pub access: Access,
}

/// Parameters of [`FreeMemoryMethod`], which frees memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreeMemory {
    /// Number of the memory.
    pub memory: u32,
}

iwarp_control::methods! {
    /// Lists the devices that a program may open.
    DeviceListMethod = "device.list" (NoParams) -> Vec<DeviceInfo>;
    /// Opens the context of this connection.
    OpenMethod = "context.open" (Open) -> Opened;
    /// Executes requests of the context.
    ExecuteMethod = "context.execute" (Execute) -> Executed;
    /// Allocates memory, which the program maps before it registers it.
    AllocMemoryMethod = "memory.alloc" (AllocMemory) -> Memory;
    /// Opens a region of the daemon as memory of this context. The client must be admitted to the control socket, too.
    OpenRegionMethod = "memory.region" (OpenRegion) -> Memory;
    /// Registers memory (`ibv_reg_mr`). From here on it cannot be mapped for writing again. It is freed when the memory
    /// region is deregistered.
    RegMrMethod = "mr.register" (RegMr) -> MemoryRegion;
    /// Gives the daemon the program's memory: with the request comes a descriptor of its `/proc/self/mem`, open for
    /// reading and writing. Parts that the daemon reaches through the kernel need it.
    OfferProcessMethod = "memory.process" (NoParams) -> NoParams;
    /// Registers a program's own memory (`ibv_reg_mr`), or a small buffer. Exchanged and shared memory cannot be mapped
    /// for writing again from here on; it is freed by [`FreeMemoryMethod`].
    RegPartsMethod = "mr.register_parts" (RegParts) -> MemoryRegion;
    /// Watches a region of the daemon: from here on, Immediate Data and Sends of its peers reach the program. The
    /// client must be admitted to the control socket, too. No context is needed.
    WatchRegionMethod = "region.watch" (WatchRegion) -> Watching;
    /// Ends a watch: messages to the region reach the program no more.
    UnwatchRegionMethod = "region.unwatch" (UnwatchRegion) -> NoParams;
    /// Frees memory that is not registered.
    FreeMemoryMethod = "memory.free" (FreeMemory) -> NoParams;
}
