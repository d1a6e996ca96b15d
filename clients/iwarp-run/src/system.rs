//! Files that programs of InfiniBand look for: `/sys/class/infiniband` and `/dev/infiniband`, in a mount namespace of
//! the program's own.
//!
//! In the namespace, `/sys/class` and `/dev` are folders in memory, whose entries are bind mounts of what was there
//! when the program began. Nothing changes for other programs.
#![allow(unsafe_code, reason = "leaves the mount namespace; listed in UNSAFE.md")]

use std::ffi::OsStr;
use std::fs::{self, File, FileType};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use iwarp_verbs::{DeviceInfo, gid};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::mount::{mount, mount_bind, mount_bind_recursive, mount_change, mount_remount, unmount};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const CLASSES: &str = "/sys/class";
const NODES: &str = "/dev";
/// Name of the folder with the devices, in both.
const DEVICES: &str = "infiniband";

/// A device, as its files show it.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    /// Name, addresses and MTU of the port.
    pub(crate) info: &'a DeviceInfo,
    /// True if the link of its port is up.
    pub(crate) is_up: bool,
}

/// Cause for which there are no such files.
#[derive(Debug)]
pub(crate) enum Error {
    /// This user may have no namespace. All is as it was.
    Forbidden(io::Error),
    /// The user has no identity in the new namespace, in which the process is.
    Lost(io::Error),
}

/// Shows files of the devices to this process, and to the program that it becomes. `interfaces` are those of the
/// kernel.
pub(crate) fn show(devices: &[Shown<'_>], interfaces: &[DeviceInfo]) -> io::Result<()> {
    cover(Path::new(CLASSES), |folder| {
        fs::create_dir(folder.join(DEVICES))?;
        devices
            .iter()
            .enumerate()
            .try_for_each(|(number, shown)| describe(folder, number, shown, interfaces))?;
        Ok(mount_remount(folder, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC, c"")?)
    })?;
    let nodes = |folder: &Path| {
        let folder = folder.join(DEVICES);
        fs::create_dir(&folder)?;
        // The libraries open none of them; programs look whether they are there.
        (0..devices.len()).try_for_each(|number| {
            let node = folder.join(format!("uverbs{number}"));
            File::create(&node)?;
            Ok(mount_bind("/dev/null", &node)?)
        })
    };
    cover(Path::new(NODES), nodes).inspect_err(|_| {
        let _ = unmount(CLASSES, UnmountFlags::DETACH);
    })
}

/// Enters a mount namespace of this process's own, with the rights of the user if they suffice: a user namespace would
/// take capabilities. The process must have one thread.
pub(crate) fn enter_namespace() -> Result<(), Error> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: the table of descriptors stays as it is.
    if unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_err() {
        // SAFETY: as above.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }
            .map_err(|error| Error::Forbidden(error.into()))?;
        let write = |file: &str, text: String| fs::write(Path::new("/proc/self").join(file), text);
        // A user without privileges may keep its group only by giving up to change groups: user_namespaces(7).
        write("setgroups", "deny".to_owned())
            .and_then(|()| write("uid_map", format!("{uid} {uid} 1")))
            .and_then(|()| write("gid_map", format!("{gid} {gid} 1")))
            .map_err(Error::Lost)?;
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|error| Error::Forbidden(error.into()))
}

/// Mounts a new folder over one, with bind mounts of its entries except [`DEVICES`], and has `fill` add that.
fn cover(folder: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    // Names below this descriptor stay those of the old folder.
    let old = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
    let entries = fs::read_dir(folder)?
        .map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))));
    let entries: Vec<_> = entries.collect::<io::Result<_>>()?;
    mount("iwarp", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=0755")?;
    let kept = entries.iter().filter(|(name, _)| name != DEVICES);
    let filled = kept
        .map(|(name, kind)| keep(&below, folder, name, *kind))
        .try_for_each(|kept| kept.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) }))
        .and_then(|()| fill(folder));
    filled.inspect_err(|_| {
        let _ = unmount(folder, UnmountFlags::DETACH);
    })
}

/// Returns true if an entry has gone since the folder was read.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Makes an entry of the old folder one of the new folder.
fn keep(old: &Path, new: &Path, name: &OsStr, kind: FileType) -> io::Result<()> {
    let (old, new) = (old.join(name), new.join(name));
    if kind.is_symlink() {
        return symlink(fs::read_link(old)?, new);
    }
    if kind.is_dir() {
        fs::create_dir(&new)?;
        return Ok(mount_bind_recursive(&old, &new)?);
    }
    File::create(&new)?;
    Ok(mount_bind(&old, &new)?)
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
