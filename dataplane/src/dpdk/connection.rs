//! The control connection of a memif client. net_memif shows that its link is down, and not if it still waits for the
//! server or has given up: it closes its end then.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{SocketAddrUnix, getpeername};

use super::config::DeviceConfig;
use super::descriptors::{borrow, file_of, open_sockets};
use super::device::{Device, DeviceQueues};
use super::error::DpdkError;
use super::mempool::Mempool;
use super::messages::Attempt;

impl Device {
    /// Configures the device as [`Device::start`] does, and leaves the start to [`Device::connect`].
    ///
    /// # Errors
    /// Every refusal of the driver.
    pub fn set_up(mut self, config: &DeviceConfig, pools: &[Arc<Mempool>]) -> Result<Self, DpdkError> {
        self.assign(config, pools);
        self.configure(config, false)?;
        Ok(self)
    }

    /// Starts the client of a memif that is set up, by which it connects to the server's `socket`.
    ///
    /// # Errors
    /// The server does not accept: the device is handed back, for another attempt.
    pub fn connect(mut self, socket: &Path) -> Result<(Arc<Self>, Vec<DeviceQueues>), Box<Self>> {
        let before = open_sockets();
        let attempt = Attempt::begin();
        let launched = self.launch();
        drop(attempt);
        if let Err(error) = launched {
            tracing::debug!(%error, "no memif server accepts");
            return Err(Box::new(self));
        }
        self.connection = Connection::opened_since(&before, socket);
        Ok(self.run(false))
    }

    /// Stops a device for a further [`Device::connect`]. Returns `None` if a queue of it is in use.
    pub fn disconnect(self: Arc<Self>) -> Option<Self> {
        let mut device = Arc::into_inner(self)?;
        device.stop();
        device.connection = None;
        Some(device)
    }

    /// Returns true while the client of a memif has a server that has not refused it.
    pub fn is_connected(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_open)
    }
}

/// A socket of net_memif.
#[derive(Debug)]
pub(super) struct Connection {
    fd: RawFd,
    /// The kernel's name of the socket, by which another one with the same descriptor differs.
    file: PathBuf,
}

impl Connection {
    /// Returns the connection to `socket` that was opened since `before`; `None` if it is closed already.
    pub(super) fn opened_since(before: &BTreeSet<RawFd>, socket: &Path) -> Option<Self> {
        let server = SocketAddrUnix::new(socket).ok()?;
        let leads_there = |fd: &RawFd| {
            let peer = getpeername(borrow(*fd)).ok().flatten();
            peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok()).is_some_and(|peer| peer == server)
        };
        let fd = open_sockets().difference(before).copied().find(leads_there)?;
        Some(Self { fd, file: file_of(fd)? })
    }

    /// Returns true until the driver has closed it: the server has ended, or has refused the client.
    pub(super) fn is_open(&self) -> bool {
        file_of(self.fd).is_some_and(|file| file == self.file)
    }
}
