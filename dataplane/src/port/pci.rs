//! The kernel's information on PCI devices, from sysfs. [`Port`](super::Port) reads it before it opens a card.

use std::fs;
use std::path::PathBuf;

fn folder(address: &str) -> PathBuf {
    PathBuf::from(format!("/sys/bus/pci/devices/{address}"))
}

/// Returns the kernel driver that is bound to a device; `None` if none is, or if there is no such device.
pub(super) fn kernel_driver(address: &str) -> Option<String> {
    let link = fs::read_link(folder(address).join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Returns the address, numbers and kernel driver, as `0000:3b:00.0 (8086:10d3, kernel driver vfio-pci)`.
pub(super) fn described(address: &str) -> String {
    let kind = kind(address).unwrap_or_else(|| "absent".to_owned());
    let driver = kernel_driver(address).unwrap_or_else(|| "none".to_owned());
    format!("{address} ({kind}, kernel driver {driver})")
}

/// Returns the vendor and device numbers, as `8086:10d3`.
fn kind(address: &str) -> Option<String> {
    let number = |name: &str| {
        let text = fs::read_to_string(folder(address).join(name)).ok()?;
        Some(text.trim().trim_start_matches("0x").to_owned())
    };
    Some(format!("{}:{}", number("vendor")?, number("device")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_has_no_driver() {
        assert_eq!((kernel_driver("ffff:ff:1f.7"), kind("ffff:ff:1f.7")), (None, None));
        assert_eq!(described("ffff:ff:1f.7"), "ffff:ff:1f.7 (absent, kernel driver none)");
    }
}
