//! The socket by which the two ends of a memif find each other. net_memif binds it and does not remove one that a
//! killed server has left, which would keep the next one from starting.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use iwarp_config::{Driver, Memif, MemifRole};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{PortError, PortSpec};

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
/// Another program serves there, or is about to.
pub(super) fn make_way(spec: &PortSpec, path: &Path) -> Result<(), PortError> {
    if !fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        return Ok(());
    }
    match touch(path) {
        // The process that has bound it has ended.
        Err(Errno::CONNREFUSED) => {
            // Where the file cannot be removed, DPDK says what it cannot do with the socket.
            if fs::remove_file(path).is_ok() {
                let (port, socket) = (&spec.name, path.display());
                tracing::info!(port, %socket, "removed the socket that a memif server has left");
            }
            Ok(())
        }
        Ok(()) | Err(Errno::PROTOTYPE) => {
            let owner = match owner(path) {
                // Two ports of one process share the socket.
                Some(pid) if pid == std::process::id() => return Ok(()),
                Some(pid) => format!("process {pid}"),
                None => "another process".to_owned(),
            };
            Err(PortError::Served { port: spec.name.clone(), socket: path.to_owned(), owner })
        }
        Err(_) => Ok(()),
    }
}

/// Tells whether a socket is bound to a path, by a connection of a kind that a server of memifs does not have:
/// EPROTOTYPE says yes, ECONNREFUSED no (unix(7)). The server sees nothing of it, and need not listen yet.
fn touch(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Returns the process that holds a socket bound to a path, this one before others, as far as /proc shows them.
fn owner(path: &Path) -> Option<u32> {
    // Num RefCount Protocol Flags Type St Inode Path
    let table = BufReader::new(fs::File::open("/proc/net/unix").ok()?);
    let links: Vec<PathBuf> = table
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| {
            let (facts, bound) =
                line.split_once(" /").map(|(facts, rest)| (facts.to_owned(), format!("/{rest}")))?;
            let inode = facts.split_whitespace().nth(6)?;
            (Path::new(&bound) == path).then(|| PathBuf::from(format!("socket:[{inode}]")))
        })
        .collect();
    let holds = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| links.contains(&link))
    };
    let others = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = others.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    std::iter::once(std::process::id()).chain(others).find(holds)
}
