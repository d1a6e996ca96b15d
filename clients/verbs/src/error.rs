//! Errors of the library's calls.

use std::io::ErrorKind;
use std::net::SocketAddr;

use iwarp_control::ClientError;
use rdma::verbs::VerbsError;

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon cannot be reached, or refuses.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// The device refuses a request.
    #[error("{call}: {}", reason.clone().unwrap_or_else(|| cause.to_string()))]
    Refused {
        /// Name of the call.
        call: &'static str,
        /// Reason of the device.
        cause: VerbsError,
        /// Limit that the program's user would exceed, or right that it lacks, in words.
        reason: Option<String>,
    },
    /// The daemon's answer does not fit the request: the two are of different versions.
    #[error("{0}: the daemon's answer is of another kind; is it of another version?")]
    Protocol(&'static str),
    /// The memory that the daemon has sent cannot be mapped.
    #[error("memory of the daemon cannot be mapped: {0}")]
    Map(std::io::Error),
    /// The program's memory cannot be registered.
    #[error("{bytes} bytes at {address:#x} cannot be registered: {reason}")]
    Memory {
        /// Address of the memory.
        address: usize,
        /// Length of the memory, bytes.
        bytes: usize,
        /// Reason why the memory cannot be registered.
        reason: &'static str,
    },
    /// Regions cannot be served at an address.
    #[error("cannot listen at {address}: {cause}{}", listen_help(cause))]
    Listen {
        /// Address to listen at.
        address: SocketAddr,
        /// Error of the system call.
        cause: std::io::Error,
    },
    /// A file cannot be offered as a region.
    #[error("the file of region `{name}` cannot be offered: {reason}")]
    File {
        /// Name of the region.
        name: String,
        /// Reason why the file cannot be offered.
        reason: String,
    },
    /// A system call failed.
    #[error("{call}: {cause}")]
    System {
        /// Name of the system call.
        call: &'static str,
        /// Error of the system call.
        cause: std::io::Error,
    },
    /// The region is deregistered: no peer sends messages to it any more.
    #[error("region {0} is deregistered")]
    RegionGone(String),
    /// The daemon has ended. The context cannot be used any more; a new one finds the next daemon.
    #[error("iwarpd has ended, and this context with it")]
    Lost,
}

/// Returns the end of a message about an address: the action that helps.
fn listen_help(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        ErrorKind::AddrInUse => "; another program listens there: choose another port",
        ErrorKind::AddrNotAvailable => "; no interface of this machine has the address",
        ErrorKind::PermissionDenied => "; the port needs a privilege: choose one from 1024 on",
        _ => "",
    }
}
