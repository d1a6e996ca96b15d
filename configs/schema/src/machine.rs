//! Facts about the machine that a configuration depends on: cores, interfaces, PCI devices, groups, folders,
//! hugepages.
//!
//! All facts are files below a root directory, so that a test can build a machine in a folder of its own.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A machine to check a configuration against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    root: PathBuf,
    /// The running daemon: what it holds counts as free.
    daemon: Option<u32>,
}

/// A kernel network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// MTU in bytes, if the kernel reports it.
    pub(crate) mtu: Option<u32>,
    /// True for a TUN or TAP interface.
    pub(crate) tap: bool,
}

/// State of a PCI device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pci {
    /// There is no such device.
    Missing,
    /// No driver of the kernel's is bound to it.
    Unbound,
    /// This driver of the kernel's is, and DPDK cannot use the device beside it.
    Owned(String),
    /// A driver that hands the device to DPDK.
    Ready,
}

/// Drivers of the kernel's that hand a device to DPDK, or that DPDK works beside: Mellanox's and Microsoft's cards
/// keep theirs.
const FOR_DPDK: [&str; 6] = ["vfio-pci", "uio_pci_generic", "igb_uio", "mlx5_core", "mlx4_core", "mana"];

impl Machine {
    /// Returns the machine that this process runs on, in the process's own namespaces.
    pub fn this() -> Self {
        Self::at("/")
    }

    /// Returns the machine whose `/sys`, `/proc`, `/etc` and folders are below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), daemon: None }
    }

    /// Returns the machine as the running daemon with this process id found it: the TAPs and hugepages that the daemon
    /// holds count as free.
    #[must_use]
    pub fn beside(self, daemon: u32) -> Self {
        Self { daemon: Some(daemon), ..self }
    }

    /// Returns the online CPUs, isolated ones included; CPU 0 if the system does not report them.
    pub fn cores(&self) -> Vec<u16> {
        cpu_list(&self.online())
    }

    /// Returns the CPUs that a file lists in the kernel's format, such as `sys/devices/system/cpu/isolated`.
    pub fn cpus_of(&self, path: &str) -> Vec<u16> {
        self.text(path).map(|text| cpu_list(&text)).unwrap_or_default()
    }

    /// Returns the online CPUs in the kernel's format: `0-3,8`.
    pub(crate) fn online(&self) -> String {
        self.text("sys/devices/system/cpu/online").unwrap_or_else(|| "0".to_owned())
    }

    /// Returns the interface of this name in this network namespace.
    pub(crate) fn interface(&self, name: &str) -> Option<Interface> {
        let folder = format!("sys/class/net/{name}");
        self.exists(Path::new(&folder)).then(|| Interface {
            mtu: self.text(&format!("{folder}/mtu")).and_then(|text| text.parse().ok()),
            tap: self.exists(Path::new(&format!("{folder}/tun_flags"))),
        })
    }

    /// Returns the names of all interfaces in this network namespace.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        self.names("sys/class/net")
    }

    /// Returns id and name of the process that has a TUN or TAP open. Only root can see the processes of others.
    pub(crate) fn holder(&self, interface: &str) -> Option<(u32, String)> {
        let processes = self.root.join("proc");
        let network = |process: &str| fs::read_link(processes.join(process).join("ns/net")).ok();
        let here = network("self");
        let holds = |process: &str| {
            let (links, details) =
                (processes.join(process).join("fd"), processes.join(process).join("fdinfo"));
            names(&links).iter().any(|fd| {
                // Without `/dev` if the process has another mount namespace.
                fs::read_link(links.join(fd)).is_ok_and(|device| device.ends_with("net/tun"))
                    && fs::read_to_string(details.join(fd))
                        .is_ok_and(|text| names_interface(&text, interface))
            })
        };
        let pids = names(&processes).into_iter().filter_map(|name| name.parse::<u32>().ok());
        let mut others = pids.filter(|pid| Some(*pid) != self.daemon);
        let pid = others.find(|pid| holds(&pid.to_string()) && network(&pid.to_string()) == here)?;
        Some((pid, self.text(&format!("proc/{pid}/comm")).unwrap_or_default()))
    }

    /// Returns the state of the PCI device at an address with its domain.
    pub(crate) fn pci(&self, address: &str) -> Pci {
        let device = PathBuf::from(format!("sys/bus/pci/devices/{address}"));
        if !self.exists(&device) {
            return Pci::Missing;
        }
        let driver = fs::read_link(self.place(&device.join("driver"))).ok();
        let name =
            driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        match name {
            None => Pci::Unbound,
            // A card's own variant of vfio-pci, as mlx5-vfio-pci, hands it over, too.
            Some(name) if FOR_DPDK.contains(&name.as_str()) || name.contains("vfio") => Pci::Ready,
            Some(name) => Pci::Owned(name),
        }
    }

    /// True if the PCI device at an address that is written with its domain is there, and its kernel driver hands it
    /// to DPDK.
    pub fn has_pci_for_dpdk(&self, address: &str) -> bool {
        self.pci(address) == Pci::Ready
    }

    /// The PCI network devices, each with its driver: `0000:3b:00.0 (i40e)`.
    pub(crate) fn pci_network_devices(&self) -> Vec<String> {
        let folder = "sys/bus/pci/devices";
        let mut addresses = names(&self.root.join(folder));
        addresses.retain(|address| {
            self.text(&format!("{folder}/{address}/class")).is_some_and(|class| class.starts_with("0x02"))
        });
        addresses.sort();
        let told = |address: String| match fs::read_link(
            self.place(Path::new(&format!("{folder}/{address}/driver"))),
        ) {
            Ok(driver) => format!("{address} ({})", driver.file_name().unwrap_or_default().to_string_lossy()),
            Err(_) => format!("{address} (no driver)"),
        };
        addresses.into_iter().map(told).collect()
    }

    /// Returns true if a group exists, by number or by its name in `/etc/group`.
    pub(crate) fn has_group(&self, group: &str) -> bool {
        let named = |line: &str| line.split(':').next() == Some(group);
        group.parse::<u32>().is_ok() || self.text("etc/group").is_some_and(|text| text.lines().any(named))
    }

    /// Returns true if a folder exists at an absolute path.
    pub(crate) fn has_folder(&self, path: &Path) -> bool {
        self.place(path).is_dir()
    }

    /// Returns why a file cannot be opened for reading and writing; `None` if it can be.
    pub(crate) fn cannot_open(&self, path: &Path) -> Option<std::io::Error> {
        fs::File::options().read(true).write(true).open(self.place(path)).err()
    }

    /// Returns true if this process has a capability, by its number (capabilities(7)), or if the system does not report
    /// it. A daemon that runs has what it needs.
    pub fn has_capability(&self, number: u32) -> bool {
        let status = self.text("proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        self.daemon.is_some() || effective.is_none_or(|set| set & (1 << number) != 0)
    }

    /// Returns true if a path exists, absolute or below the root.
    pub fn exists(&self, path: &Path) -> bool {
        self.place(path).exists()
    }

    /// Returns the number of 2 MiB hugepages that are neither in use nor reserved, and of those that the running daemon
    /// holds.
    pub fn hugepages_free(&self) -> u64 {
        let count = |name: &str| {
            let text = self.text(&format!("sys/kernel/mm/hugepages/hugepages-2048kB/{name}"));
            text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        };
        let free = count("free_hugepages").saturating_sub(count("resv_hugepages"));
        free.saturating_add(self.daemon.map_or(0, |daemon| self.hugepages_of(daemon)))
    }

    /// Returns the number of 2 MiB hugepages that a process has mapped.
    fn hugepages_of(&self, process: u32) -> u64 {
        let text = self.text(&format!("proc/{process}/smaps_rollup")).unwrap_or_default();
        let kib = |line: &str| {
            let (name, value) = line.split_once(':')?;
            let huge = name == "Private_Hugetlb" || name == "Shared_Hugetlb";
            value.trim().strip_suffix(" kB").filter(|_| huge)?.parse::<u64>().ok()
        };
        text.lines().filter_map(kib).fold(0, u64::saturating_add) / 2048
    }

    /// Returns the number of 2 MiB hugepages in the pool, free or not.
    pub fn hugepages_total(&self) -> u64 {
        let text = self.text("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Sets the number of 2 MiB hugepages in the pool. The kernel may give less.
    ///
    /// # Errors
    /// The process may not, or the machine has no such pages.
    pub fn set_hugepages_total(&self, pages: u64) -> std::io::Result<()> {
        let file = self.root.join("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        fs::File::options().write(true).truncate(true).open(file)?.write_all(format!("{pages}\n").as_bytes())
    }

    /// Returns the names in a folder, sorted; none if it cannot be read.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let mut names = names(&self.root.join(folder));
        names.sort();
        names
    }

    fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the text of a file below the root, without the white space at its end.
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim_end().to_owned())
    }
}

/// Parses the kernel's format of a list of CPUs: `0-3,8`.
fn cpu_list(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Returns the names in a folder; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns true if a descriptor of `/dev/net/tun` is attached to an interface, according to its `fdinfo`.
fn names_interface(fdinfo: &str, interface: &str) -> bool {
    fdinfo.lines().any(|line| line.strip_prefix("iff:").is_some_and(|name| name.trim() == interface))
}
