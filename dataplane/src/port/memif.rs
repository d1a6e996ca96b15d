//! The socket by which the two ends of a memif find each other. net_memif binds it and does not remove one that a
//! killed server has left, which would keep the next one from starting.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use iwarp_config::{Driver, Memif, MemifRole};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{PortError, PortSpec};

/// Longest wait for the first message of a server. One that finds its client gone before it has sent that may fail.
const HELLO_MAX: Duration = Duration::from_millis(100);

/// Returns the memif whose client a port is.
pub(super) fn client(driver: &Driver) -> Option<&Memif> {
    if let Driver::Memif(memif) = driver {
        Some(memif).filter(|memif| memif.role == MemifRole::Client)
    } else {
        None
    }
}

/// Removes the socket of a server that was killed.
///
/// # Errors
/// Another program serves there.
pub(super) fn make_way(spec: &PortSpec, path: &Path) -> Result<(), PortError> {
    if !fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        return Ok(());
    }
    let served =
        |owner: String| Err(PortError::Served { port: spec.name.clone(), socket: path.to_owned(), owner });
    match call(path) {
        // Nobody listens: the process that has bound it has ended.
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Ok(()) => {
                let (port, socket) = (&spec.name, path.display());
                tracing::info!(port, %socket, "removed the socket that a memif server has left");
                Ok(())
            }
            // DPDK says what it cannot do with it.
            Err(_) => Ok(()),
        },
        Ok(server) => {
            let pid =
                socket_peercred(&server).ok().map(|peer| peer.pid.as_raw_nonzero().get().cast_unsigned());
            hear_out(&server);
            match pid {
                // Two ports of one process share the socket.
                Some(pid) if pid == std::process::id() => Ok(()),
                Some(pid) => served(format!("process {pid}")),
                None => served("another process".to_owned()),
            }
        }
        // It is too busy to accept, or no memif server.
        Err(Errno::AGAIN | Errno::PROTOTYPE) => served("another process".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Connects to a socket, if that takes no wait.
fn call(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Waits for what the server says first, and reads it.
fn hear_out(server: &OwnedFd) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(HELLO_MAX.subsec_nanos()) };
    let _ = poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&timeout));
    let _ = rustix::io::read(server, &mut [0_u8; 256]);
}
