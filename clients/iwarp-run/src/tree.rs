//! Files of the devices, as the kernel's RDMA has them: `/sys/class/infiniband` and `/dev/infiniband`.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use iwarp_verbs::{DeviceInfo, gid};

/// Name of the folder with the devices, in `/sys/class` and in `/dev`.
pub(crate) const DEVICES: &str = "infiniband";

/// A device, as its files show it.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    /// Name, addresses and MTU of the port.
    pub(crate) info: &'a DeviceInfo,
    /// True if the link of its port is up.
    pub(crate) is_up: bool,
}

/// The files of all devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree<'a> {
    /// Devices in the order of their numbers.
    pub(crate) devices: &'a [Shown<'a>],
    /// Interfaces of the kernel, of which files name those with an address of a device.
    pub(crate) interfaces: &'a [DeviceInfo],
}

impl Tree<'_> {
    /// Adds the devices to a folder that stands for `/sys/class`.
    pub(crate) fn write_classes(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir(folder.join(DEVICES))?;
        let mut numbered = self.devices.iter().enumerate();
        numbered.try_for_each(|(number, shown)| describe(folder, number, shown, self.interfaces))
    }

    /// Adds the devices' nodes to a folder that stands for `/dev`; `make` makes each. The libraries open none of them:
    /// programs look whether they are there.
    pub(crate) fn write_nodes(
        &self,
        folder: &Path,
        make: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let folder = folder.join(DEVICES);
        fs::create_dir(&folder)?;
        (0..self.devices.len()).try_for_each(|number| make(&folder.join(format!("uverbs{number}"))))
    }
}

/// Writes the files of a device, as the kernel's RDMA has them (`Documentation/ABI/stable/sysfs-class-infiniband`). A
/// device without hardware has a folder beside the classes instead of one of the PCI bus, and no NUMA node.
fn describe(classes: &Path, number: usize, shown: &Shown<'_>, interfaces: &[DeviceInfo]) -> io::Result<()> {
    let parent = format!("iwarp{number}dev");
    let below = format!("{parent}/{DEVICES}/iwarp{number}");
    let device = classes.join(&below);
    let port = device.join("ports/1");
    for folder in ["gids", "gid_attrs/ndevs", "gid_attrs/types", "pkeys"] {
        fs::create_dir_all(port.join(folder))?;
    }
    symlink(format!("../{below}"), classes.join(DEVICES).join(format!("iwarp{number}")))?;
    symlink("../..", device.join("device"))?;
    let line = |path: PathBuf, text: &str| fs::write(path, format!("{text}\n"));
    line(classes.join(parent).join("numa_node"), "-1")?;
    let guid = groups(&shown.info.guid().to_be_bytes());
    let version = env!("CARGO_PKG_VERSION");
    let of_device = [
        ("node_type", "1: CA"),
        ("node_desc", "Ironwarp"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("fw_ver", version),
        ("hw_rev", "0"),
    ];
    of_device.into_iter().try_for_each(|(file, text)| line(device.join(file), text))?;
    let (state, phys_state) =
        if shown.is_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "2: Polling") };
    let of_port = [
        ("state", state),
        ("phys_state", phys_state),
        ("rate", "40 Gb/sec (4X QDR)"),
        ("link_layer", "Ethernet"),
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("cap_mask", "0x00000000"),
        ("pkeys/0", "0xffff"),
    ];
    of_port.into_iter().try_for_each(|(file, text)| line(port.join(file), text))?;
    for (index, address) in shown.info.addresses.iter().map(|prefix| prefix.addr()).enumerate() {
        line(port.join(format!("gids/{index}")), &groups(&gid(address).octets()))?;
        line(port.join(format!("gid_attrs/types/{index}")), "RoCE v2")?;
        // Programs ask the kernel about the interface; the daemon's ports may have none.
        if let Some(interface) = interface_of(address, interfaces) {
            line(port.join(format!("gid_attrs/ndevs/{index}")), interface)?;
        }
    }
    Ok(())
}

fn interface_of(address: IpAddr, interfaces: &[DeviceInfo]) -> Option<&str> {
    let has = |interface: &&DeviceInfo| interface.addresses.iter().any(|prefix| prefix.addr() == address);
    interfaces.iter().find(has).map(|interface| interface.name.as_str())
}

/// Formats bytes as hexadecimal groups of two.
fn groups(bytes: &[u8]) -> String {
    let pairs = bytes.as_chunks::<2>().0.iter();
    pairs.map(|pair| format!("{:04x}", u16::from_be_bytes(*pair))).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_files_of_the_kernels() {
        let info = |name: &str, addresses: &[&str]| DeviceInfo {
            name: name.to_owned(),
            addresses: addresses.iter().map(|prefix| prefix.parse().unwrap()).collect(),
            mtu: 1500,
        };
        let folder = tempfile::tempdir().unwrap();
        let classes = folder.path();
        fs::create_dir(classes.join(DEVICES)).unwrap();
        let (port, interfaces) =
            (info("p0", &["10.78.0.10/24", "fd00::1/64"]), [info("eth7", &["fd00::1/64"])]);
        describe(classes, 3, &Shown { info: &port, is_up: true }, &interfaces).unwrap();
        let device = classes.join("infiniband/iwarp3");
        let read = |file: &str| fs::read_to_string(device.join(file)).unwrap();
        assert_eq!(read("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:0a4e:000a\n");
        assert_eq!(read("ports/1/gids/1"), "fd00:0000:0000:0000:0000:0000:0000:0001\n");
        assert_eq!(read("ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read("ports/1/gid_attrs/ndevs/1"), "eth7\n");
        assert!(!device.join("ports/1/gid_attrs/ndevs/0").exists(), "no interface has this address");
        assert_eq!(
            (read("node_type"), read("ports/1/state")),
            ("1: CA\n".to_owned(), "4: ACTIVE\n".to_owned())
        );
        assert_eq!(read("device/numa_node"), "-1\n");
        let parent = fs::canonicalize(&device).unwrap().join("../..");
        assert_eq!(fs::canonicalize(parent).unwrap(), fs::canonicalize(device.join("device")).unwrap());
        let guid = read("node_guid");
        assert!(guid.starts_with("02") && guid.len() == 20, "{guid}");
        describe(classes, 4, &Shown { info: &port, is_up: false }, &[]).unwrap();
        assert_eq!(fs::read_to_string(classes.join("infiniband/iwarp4/ports/1/state")).unwrap(), "1: DOWN\n");
    }
}
