//! Offloads of an interface of the kernel, as `ethtool -k` shows them (linux/ethtool.h).
#![allow(unsafe_code, reason = "asks the kernel by ioctl(2)")]

use std::io;
use std::os::fd::AsRawFd;

use super::ifreq::{check, request};

const ETHTOOL_GRXCSUM: u32 = 0x14;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGRO: u32 = 0x2b;

/// Work that the kernel leaves to an interface, and the merging of what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceOffloads {
    /// The interface verifies checksums.
    pub rx_checksum: bool,
    /// The kernel merges segments that arrive together (GRO).
    pub rx_merging: bool,
    /// The interface fills in checksums.
    pub tx_checksum: bool,
    /// The interface cuts frames of many TCP segments (TSO).
    pub tx_segmentation: bool,
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

impl InterfaceOffloads {
    /// Returns those of the interface of a name. Any socket of its network namespace serves to ask.
    ///
    /// # Errors
    /// ENODEV: there is no such interface; EOPNOTSUPP: it has none of them to report.
    pub(super) fn of(socket: &impl AsRawFd, name: &str) -> io::Result<Self> {
        let is_on = |command| {
            let mut value = Value { command, data: 0 };
            let mut request = request(name)?;
            request.ifr_ifru.ifru_data = (&raw mut value).cast();
            // SAFETY: an open socket; the kernel reads an `ifreq`, and reads and writes the value that it points to.
            check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
            Ok::<_, io::Error>(value.data != 0)
        };
        Ok(Self {
            rx_checksum: is_on(ETHTOOL_GRXCSUM)?,
            rx_merging: is_on(ETHTOOL_GGRO)?,
            tx_checksum: is_on(ETHTOOL_GTXCSUM)?,
            tx_segmentation: is_on(ETHTOOL_GTSO)?,
        })
    }
}
