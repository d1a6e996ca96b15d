//! The machine's facts that a configuration depends on: cores, interfaces, PCI devices, groups, folders, hugepages.
//!
//! All of them are files below one root, so that a test makes a machine in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};

/// A machine that a configuration is checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    root: PathBuf,
}

/// A kernel interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Bytes of its largest IP packet, if the kernel says.
    pub(crate) mtu: Option<u32>,
    /// It is a TUN or TAP.
    pub(crate) tap: bool,
}

/// How far a PCI device is from use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pci {
    Missing,
    Unbound,
    Bound,
}

impl Machine {
    /// The machine that this process runs on, in the process's own namespaces.
    pub fn this() -> Self {
        Self::at("/")
    }

    /// The machine whose `/sys`, `/proc`, `/etc` and folders lie below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The CPUs that are online, isolated ones included; CPU 0 where the system does not tell.
    pub fn cores(&self) -> Vec<u16> {
        let text = self.online();
        let range = |part: &str| {
            let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
        };
        text.split(',').filter_map(range).flatten().collect()
    }

    /// The CPUs that are online, as the kernel writes them: `0-3,8`.
    pub(crate) fn online(&self) -> String {
        self.text("sys/devices/system/cpu/online").unwrap_or_else(|| "0".to_owned())
    }

    /// The interface of a name in this network namespace.
    pub(crate) fn interface(&self, name: &str) -> Option<Interface> {
        let folder = format!("sys/class/net/{name}");
        self.exists(Path::new(&folder)).then(|| Interface {
            mtu: self.text(&format!("{folder}/mtu")).and_then(|text| text.parse().ok()),
            tap: self.exists(Path::new(&format!("{folder}/tun_flags"))),
        })
    }

    /// The names of all interfaces in this network namespace.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        let mut names = names(&self.root.join("sys/class/net"));
        names.sort();
        names
    }

    /// The process that has a TUN or TAP open: its id and its name. Only root sees the processes of others.
    pub(crate) fn holder(&self, interface: &str) -> Option<(u32, String)> {
        let processes = self.root.join("proc");
        let network = |process: &str| fs::read_link(processes.join(process).join("ns/net")).ok();
        let here = network("self");
        let holds = |process: &str| {
            let (links, details) =
                (processes.join(process).join("fd"), processes.join(process).join("fdinfo"));
            names(&links).iter().any(|fd| {
                fs::read_link(links.join(fd)).is_ok_and(|device| device == Path::new("/dev/net/tun"))
                    && fs::read_to_string(details.join(fd))
                        .is_ok_and(|text| names_interface(&text, interface))
            })
        };
        let pids = names(&processes).into_iter().filter_map(|name| name.parse::<u32>().ok());
        let pid =
            pids.into_iter().find(|pid| holds(&pid.to_string()) && network(&pid.to_string()) == here)?;
        Some((pid, self.text(&format!("proc/{pid}/comm")).unwrap_or_default()))
    }

    /// The PCI device at an address that is written with its domain.
    pub(crate) fn pci(&self, address: &str) -> Pci {
        let device = PathBuf::from(format!("sys/bus/pci/devices/{address}"));
        match (self.exists(&device), self.exists(&device.join("driver"))) {
            (false, _) => Pci::Missing,
            (true, false) => Pci::Unbound,
            (true, true) => Pci::Bound,
        }
    }

    /// Whether a group exists, by number or by its name in `/etc/group`.
    pub(crate) fn has_group(&self, group: &str) -> bool {
        let named = |line: &str| line.split(':').next() == Some(group);
        group.parse::<u32>().is_ok() || self.text("etc/group").is_some_and(|text| text.lines().any(named))
    }

    /// Whether a folder exists at an absolute path.
    pub(crate) fn has_folder(&self, path: &Path) -> bool {
        self.place(path).is_dir()
    }

    /// Whether anything exists at a path, absolute or below the root.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        self.place(path).exists()
    }

    /// Hugepages of 2 MiB that nobody uses and that are promised to nobody.
    pub(crate) fn hugepages_free(&self) -> u64 {
        let count = |name: &str| {
            let text = self.text(&format!("sys/kernel/mm/hugepages/hugepages-2048kB/{name}"));
            text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        };
        count("free_hugepages").saturating_sub(count("resv_hugepages"))
    }

    /// Hugepages of 2 MiB that are set aside, whoever uses them.
    pub(crate) fn hugepages_total(&self) -> u64 {
        let text = self.text("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim_end().to_owned())
    }
}

/// The names in a folder; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Whether a descriptor of `/dev/net/tun` is attached to an interface, by its `fdinfo`.
fn names_interface(fdinfo: &str, interface: &str) -> bool {
    fdinfo.lines().any(|line| line.strip_prefix("iff:").is_some_and(|name| name.trim() == interface))
}
