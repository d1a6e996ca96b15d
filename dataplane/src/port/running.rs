//! The device that a port has started, of DPDK or of our own.

use std::sync::Arc;

use super::kernel::Interface;
use crate::dpdk::{Device, DpdkError, Link, PortStats, Tap};

/// A started device of a port.
#[derive(Debug)]
pub(super) enum Running {
    Dpdk(Arc<Device>),
    Kernel(Arc<Interface>),
}

impl Running {
    /// Returns the device of DPDK.
    pub(super) fn dpdk(&self) -> Option<&Device> {
        match self {
            Self::Dpdk(device) => Some(device),
            Self::Kernel(_) => None,
        }
    }

    /// Returns the queue by which to ask for the interface of a TAP.
    pub(super) fn tap(&self) -> Option<&Tap> {
        match self {
            Self::Dpdk(device) => device.tap(),
            Self::Kernel(interface) => interface.tap(),
        }
    }

    /// Returns the number of empty buffers that our own driver holds to read into.
    pub(super) fn armed_buffers(&self, queue: usize) -> u32 {
        match self {
            Self::Dpdk(_) => 0,
            Self::Kernel(interface) => interface.armed_buffers(queue),
        }
    }

    pub(super) fn link(&self) -> Result<Link, DpdkError> {
        match self {
            Self::Dpdk(device) => device.link(),
            Self::Kernel(interface) => Ok(interface.link()),
        }
    }

    pub(super) fn stats(&self) -> Result<PortStats, DpdkError> {
        match self {
            Self::Dpdk(device) => device.stats(),
            Self::Kernel(interface) => Ok(interface.stats()),
        }
    }

    pub(super) fn extended_stats(&self) -> Result<Vec<(String, u64)>, DpdkError> {
        match self {
            Self::Dpdk(device) => device.extended_stats(),
            Self::Kernel(interface) => Ok(interface.extended_stats()),
        }
    }
}
