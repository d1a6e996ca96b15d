//! Configuration of `iwarp-nfsd`: checked values, with every default filled in.
//!
//! The structs are `non_exhaustive`: only this crate creates them, from a file that passed every check.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::RegionName;

/// A complete, checked configuration file of `iwarp-nfsd`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nfsd {
    /// Table `[rdma]`: NFS over RDMA, through `iwarpd`.
    pub rdma: NfsdRdma,
    /// Table `[tcp]`: MOUNT and NFS over the kernel's TCP; `None`: the server is reached over RDMA only.
    pub tcp: Option<NfsdTcp>,
    /// Table `[nfs]`: transfers, and the state of NFS version 4.1.
    pub nfs: Nfs,
    /// Table `[state]`: what outlives a restart.
    pub state: NfsdState,
    /// Table `[control]`: the control socket.
    pub control: NfsdControl,
    /// Tables `[[export]]`, at least one, with distinct paths.
    pub exports: Vec<NfsdExport>,
}

/// Table `[rdma]`: NFS over RDMA, through `iwarpd`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NfsdRdma {
    /// Address of a port of the daemon, and the TCP port to listen on.
    pub listen: SocketAddr,
    /// Verbs socket of the daemon.
    pub socket: PathBuf,
    /// Control socket of the daemon, for exports of its regions.
    pub control: PathBuf,
    /// Connections at a time.
    pub connections_max: u16,
    /// Calls of a connection in flight, 1 to 256.
    pub credits: u16,
    /// Bytes of a message sent or received inline: a multiple of 1024 (RFC 8797 §4.1).
    pub inline_bytes: u32,
    /// Segments of all chunk lists of a call.
    pub segments_max: u16,
    /// Transfers between files and memory in flight, of all connections.
    pub transfers_max: u16,
}

/// Table `[tcp]`: MOUNT and NFS over the kernel's TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NfsdTcp {
    /// Address of the kernel.
    pub listen: SocketAddr,
    /// Connections at a time.
    pub connections_max: u16,
    /// Seconds after which a silent connection is closed.
    pub idle_timeout_s: u32,
}

/// Table `[nfs]`: transfers, and the state of NFS version 4.1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nfs {
    /// Bytes of a READ or WRITE, at most: a multiple of 4096.
    pub transfer_bytes: u32,
    /// Seconds after which a silent client loses its opens and locks.
    pub lease_s: u32,
    /// Seconds in which clients reclaim their opens and locks after a restart, at least [`Self::lease_s`].
    pub grace_s: u32,
    /// Clients at a time.
    pub clients_max: u32,
    /// Sessions of a client.
    pub sessions_max: u32,
    /// Slots of a session: calls of a client in flight.
    pub slots_max: u32,
    /// Opens of a client.
    pub opens_max: u32,
    /// Byte ranges that a client has locked.
    pub locks_max: u32,
    /// Bytes of a reply that is kept for a repeated call.
    pub cached_reply_bytes: u32,
}

/// Table `[state]`: what outlives a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NfsdState {
    /// Folder with the key of file handles and the record of clients.
    pub directory: PathBuf,
}

/// Table `[control]`: the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NfsdControl {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Mode of the socket file: 0600 or 0660.
    pub mode: u32,
    /// Group of the socket file, by name or number.
    pub group: Option<String>,
}

/// Table `[[export]]`: a directory or regions of the daemon, and the clients that may mount it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NfsdExport {
    /// Path by which clients mount it: absolute, without a slash at the end.
    pub path: String,
    /// Content of the export.
    pub content: NfsdContent,
    /// True if clients over TCP may have ports from 1024 on.
    pub insecure: bool,
    /// Tables `[[export.client]]`, at least one, with distinct prefixes.
    pub clients: Vec<NfsdClients>,
}

/// Content of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsdContent {
    /// A directory of this machine: `directory = "/…"`.
    Directory(PathBuf),
    /// The regions of the daemon that any peer may use, without a token and from any address: `regions = "*"`.
    PublicRegions,
    /// Regions of the daemon by name, at least one: `regions = ["…"]`.
    Regions(BTreeSet<RegionName>),
}

/// Table `[[export.client]]`: rights of the clients in a prefix. The longest prefix that contains a client counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NfsdClients {
    /// Addresses of the clients.
    pub prefix: IpNet,
    /// True if they may change something.
    pub write: bool,
    /// Users that become the anonymous one.
    pub squash: NfsdSquash,
    /// User that squashed callers become.
    pub anonuid: u32,
    /// Group that squashed callers become.
    pub anongid: u32,
}

/// Users that become the anonymous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsdSquash {
    /// Nobody, except callers without a credential.
    None,
    /// The user and the group 0.
    Root,
    /// All users, whatever their number.
    All,
}
