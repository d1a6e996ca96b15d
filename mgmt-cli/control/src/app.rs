//! Messages about applications and their objects: queue pairs, completion queues and memory regions.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The parameters of `app.show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppShow {
    /// The application's number, as `app.list` gives it.
    pub app: u32,
}

/// The parameters of `qp.list`, `cq.list` and `mr.list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppObjects {
    /// The number of one application; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<u32>,
}

/// An application: a program's connection to the verbs socket, with the device that it has opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppInfo {
    /// The number of the application.
    pub app: u32,
    /// The process id of the program; 0 if it is in another PID namespace.
    pub pid: u32,
    /// The user id of the program.
    pub uid: u32,
    /// The name of the program; empty if the system does not report it.
    pub command: String,
    /// The device: a port's name; absent until the program opens one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The worker that serves the application; absent until the program opens a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// Milliseconds since the program connected to the daemon.
    pub age_ms: u64,
    /// Number of queue pairs.
    pub queue_pairs: u64,
    /// Number of completion queues.
    pub completion_queues: u64,
    /// Number of shared receive queues.
    pub shared_receive_queues: u64,
    /// Number of memory regions.
    pub memory_regions: u64,
    /// Bytes of the memory regions.
    pub registered_bytes: u64,
    /// Bytes of memory for the rings of all queues.
    pub queue_bytes: u64,
    /// Work requests posted to send and receive queues that the daemon has taken.
    pub work_requests: u64,
    /// Completions delivered to the program.
    pub completions: u64,
    /// Completions with an error, flushed work included.
    pub errors: u64,
    /// Regions of the daemon that the program watches.
    #[serde(default)]
    pub watches: Vec<WatchInfo>,
}

/// A region that a program watches: it receives the Immediate Data and the Sends of peers to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchInfo {
    /// The name of the region.
    pub region: String,
    /// Notifications delivered to the program.
    pub notifications: u64,
    /// Notifications lost, because the program had not taken earlier ones.
    pub lost: u64,
}

/// A user of the verbs socket: the objects of all its programs together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserInfo {
    /// The user id.
    pub uid: u32,
    /// Use of each limit.
    pub usage: Vec<UsageInfo>,
}

/// Use of one limit of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageInfo {
    /// The objects, such as "queue pairs".
    pub what: String,
    /// Objects of the user, in bytes for memory. With `per_device`: on the worker and port that has most of them.
    pub used: u64,
    /// The most that the user may have.
    pub max: u64,
    /// The key of the configuration that sets `max`.
    pub key: String,
    /// True if the limit holds for each worker and port.
    pub per_device: bool,
}

/// A queue pair of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// The number of the application.
    pub app: u32,
    /// The number of the queue pair. Queue pairs on other ports or workers may have the same number.
    pub number: u32,
    /// The state of the queue pair: `idle`, `rts`, `closing`, `terminate` or `error`.
    pub state: String,
    /// The peer's address and port, if the queue pair has a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// Slots of the send queue.
    pub send_slots: u32,
    /// Slots of the send queue in use: work requests whose completion was not polled.
    pub send_slots_used: u32,
    /// Slots of the receive queue. With a shared receive queue: buffers that the queue pair may take from it.
    pub recv_slots: u32,
    /// Slots of the receive queue in use: buffers whose completion was not polled.
    pub recv_slots_used: u32,
    /// The number of the shared receive queue, if the queue pair takes its buffers from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_receive_queue: Option<u32>,
}

/// A completion queue of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqInfo {
    /// The number of the application.
    pub app: u32,
    /// The number of the completion queue. Queues on other ports or workers may have the same number.
    pub number: u32,
    /// Completions that the queue holds at most.
    pub entries: u32,
    /// Events raised: completions for which the program had armed the queue.
    pub events: u64,
    /// Completions delivered to the program.
    pub completions: u64,
    /// Completions with an error, flushed work included.
    pub errors: u64,
}

/// The memory of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MrKind {
    /// The daemon allocated it in hugepages for the program.
    Hugepages,
    /// The daemon allocated it in ordinary pages for the program.
    Pages,
    /// It is a region of the daemon.
    Region,
    /// It is the program's own memory, and the daemon maps all of it.
    Shared,
    /// It is the program's own memory. The daemon maps whole pages, and reaches the rest through the kernel.
    SharedAndKernel,
    /// It is the program's own memory, which the daemon reaches through the kernel only.
    Kernel,
}

/// A memory region of an application. Its key is a secret and is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrInfo {
    /// The number of the application.
    pub app: u32,
    /// The number of the memory region. Memory regions on other ports or workers may have the same number.
    pub number: u32,
    /// The length in bytes.
    pub bytes: u64,
    /// The rights, by name: those of peers, and those of the program's own work requests.
    pub access: Vec<String>,
    /// The kind of memory.
    pub kind: MrKind,
    /// The name of the daemon's region, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The bytes that the daemon reaches through the kernel.
    #[serde(default)]
    pub kernel_bytes: u64,
}
