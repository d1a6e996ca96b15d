//! Messages of the control socket of `iwarp-nfsd`: the same protocol, with methods of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::counters::CounterGroup;
use crate::method::{HelloReply, NoParams};

/// The path of the control socket of `iwarp-nfsd` if the configuration names none.
pub const DEFAULT_SOCKET: &str = "/run/iwarp-nfsd/control.sock";

crate::methods! {
    /// Returns the versions of the server and of the messages.
    Hello = "hello" (NoParams) -> HelloReply;
    /// Returns the state of the server on one screen.
    StatusMethod = "status" (NoParams) -> Status;
    /// Lists the exports with the rights of their clients.
    ExportsMethod = "exports" (NoParams) -> Vec<Export>;
    /// Lists the clients: connections, and the state of NFS version 4.1.
    ClientsMethod = "clients" (NoParams) -> Clients;
    /// Returns the counters: calls by procedure, errors by reason, transports.
    StatsMethod = "stats" (NoParams) -> Stats;
    /// Loads the exports of the configuration file again, all of them or none.
    ReloadMethod = "reload" (NoParams) -> Reloaded;
}

/// The reply to `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the server.
    pub version: String,
    /// The server's process id.
    pub pid: u32,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// Path of the configuration file.
    pub config: PathBuf,
    /// The address at which it serves NFS over RDMA.
    pub rdma: SocketAddr,
    /// The address at which it serves MOUNT and NFS over TCP; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<SocketAddr>,
    /// True while clients reclaim the opens and locks that they had before a restart.
    pub in_grace: bool,
    /// Exports that clients may mount.
    pub exports: u64,
    /// Open connections of clients over RDMA.
    pub connections_rdma: u64,
    /// Open connections of clients over TCP.
    pub connections_tcp: u64,
    /// Clients of NFS version 4.1.
    pub clients: u64,
    /// Sessions of these clients.
    pub sessions: u64,
    /// Opens of these clients.
    pub opens: u64,
    /// Byte ranges that these clients have locked.
    pub locks: u64,
    /// Calls executed since the start, the operations of a COMPOUND not counted.
    pub calls: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Access to files of calls over RDMA.
    pub files: Files,
    /// The mistake that kept the latest reload from changing the exports; absent if it did, or if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload_error: Option<String>,
}

/// Access to files of calls over RDMA. A transfer is a READ, WRITE or COMMIT that may wait for a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The way of READ and COMMIT: `io_uring`, or `threads`, which always do WRITE.
    pub access: String,
    /// The reason why it is not io_uring; absent if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Transfers in flight, at most.
    pub transfers_max: u64,
    /// Transfers in flight at present.
    pub in_flight: u64,
    /// Calls that wait for room at present.
    pub waiting: u64,
    /// Transfers done since the start.
    pub done: u64,
    /// Calls that have had to wait for room since the start.
    pub waited: u64,
    /// READs answered from the page cache since the start: they were no transfers.
    pub cached: u64,
}

/// Export as the server applies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The path by which clients mount it.
    pub path: String,
    /// The content: the path of a directory.
    pub content: String,
    /// Rights of clients, by prefix.
    pub clients: Vec<ExportClients>,
    /// True if clients over TCP may have ports from 1024 on.
    #[serde(default)]
    pub insecure: bool,
    /// Clients that mount it by NFS version 3, as far as they have said so.
    pub mounts: Vec<IpAddr>,
}

/// Rights of the clients in a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportClients {
    /// Addresses of the clients.
    pub prefix: IpNet,
    /// The rights: `ro` or `rw`.
    pub access: String,
    /// The users that become the anonymous one: `none`, `root` or `all`.
    pub squash: String,
    /// User that squashed callers become.
    pub anonuid: u32,
    /// Group that squashed callers become.
    pub anongid: u32,
}

/// The reply to `clients`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// Connections, the oldest first.
    pub connections: Vec<Connection>,
    /// Clients of NFS version 4.1, by number.
    pub nfs4: Vec<Nfs4Client>,
}

/// A connection of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The address of the client.
    pub address: IpAddr,
    /// The transport: `rdma` or `tcp`.
    pub transport: String,
    /// Milliseconds since it was accepted.
    pub age_ms: u64,
    /// Calls answered since the start.
    pub calls: u64,
}

/// A client of NFS version 4.1 (RFC 8881 §2.4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nfs4Client {
    /// The number that the server has given it.
    pub id: u64,
    /// The name that the client has given itself; bytes that are no text are replaced.
    pub owner: String,
    /// True once the client has a session.
    pub confirmed: bool,
    /// True once it has reclaimed what it had before a restart of the server.
    pub reclaimed: bool,
    /// Milliseconds since it renewed its lease.
    pub silent_ms: u64,
    /// Sessions of the client (NFS 4.1).
    pub sessions: u64,
    /// Files that the client has open.
    pub opens: u64,
    /// Number of locked byte ranges.
    pub locks: u64,
}

/// The reply to `stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Procedures and operations that were called.
    pub procedures: Vec<Procedure>,
    /// Number of errors by their reason.
    pub errors: Vec<Errors>,
    /// Counters of the transports.
    pub groups: Vec<CounterGroup>,
}

/// A procedure of NFS version 3 or MOUNT, or an operation of NFS version 4.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Procedure {
    /// The program: `nfs3`, `nfs4` or `mount`.
    pub program: String,
    /// The name of the procedure or operation.
    pub procedure: String,
    /// Calls of the procedure that were executed.
    pub calls: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Payload bytes that clients have read.
    pub read_bytes: u64,
    /// Payload bytes that clients have written.
    pub written_bytes: u64,
    /// Nanoseconds of a call on average: from the whole request to the reply, without their transfer.
    pub mean_ns: u64,
    /// Nanoseconds that 99 % of the calls did not exceed, rounded up to a power of two.
    pub p99_ns: u64,
    /// Nanoseconds of the longest call.
    pub max_ns: u64,
}

/// Calls that failed for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// The program: `nfs3`, `nfs4` or `mount`; `rpc` for a call that no procedure executed.
    pub program: String,
    /// The name of the status.
    pub reason: String,
    /// The number of the status; absent for `rpc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u32>,
    /// The count since the start of the server.
    pub count: u64,
}

/// The reply to `reload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Number of exports now.
    pub exports: u64,
}
