//! Details of a port for its operator.

use iwarp_config::Driver;

use super::kernel::KernelSide;
use super::running::Running;
use super::{Port, pci};
use crate::dpdk::{Device, DpdkError};

impl Port {
    /// Returns the names of the RSS hash functions; none with one queue, or while the port is gone.
    pub fn rss_functions(&self) -> Vec<&'static str> {
        let device = self.device.as_ref().filter(|_| self.rss.is_some());
        device.and_then(Running::dpdk).map(Device::rss_functions).unwrap_or_default()
    }

    /// Returns the version of the device's firmware, if its driver reports one and the port is not gone.
    pub fn firmware(&self) -> Option<String> {
        self.device.as_ref()?.dpdk()?.firmware()
    }

    /// Returns the device's NUMA node, if the system reports one.
    pub fn numa_node(&self) -> Option<u32> {
        self.device.as_ref()?.dpdk()?.numa_node()
    }

    /// Returns the PCI address of a card.
    pub fn bus_address(&self) -> Option<&str> {
        if let Driver::Pci { address } = &self.driver { Some(address) } else { None }
    }

    /// Returns the kernel driver that hands a card to DPDK.
    pub fn kernel_driver(&self) -> Option<String> {
        pci::kernel_driver(self.bus_address()?)
    }

    /// Returns the driver's own counters, by DPDK's names; nothing while the port is gone.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn extended_stats(&self) -> Result<Vec<(String, u64)>, DpdkError> {
        self.device.as_ref().map_or(Ok(Vec::new()), Running::extended_stats)
    }

    /// Returns the kernel's side of an interface of our own driver; `None` for other drivers, and while the port is
    /// gone.
    pub fn kernel_side(&self) -> Option<KernelSide> {
        match self.device.as_ref()? {
            Running::Kernel(interface) => interface.kernel_side(),
            Running::Dpdk(_) => None,
        }
    }
}
