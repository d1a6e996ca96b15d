//! Gives up what the daemon does not need, before DPDK starts: capabilities by the drivers in use, new privileges by
//! `execve`, and system calls. `daemon` calls [`Privileges::drop_of_daemon`] on the control thread, whose threads
//! inherit the rest, and [`Privileges::drop_of_worker`] on each worker.

mod system_calls;

use anyhow::{Context, Result};
use iwarp_config::{Config, Driver, Pcap};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Capabilities that the daemon and its workers keep, by the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Privileges {
    /// Capabilities of the control thread and of DPDK's threads; `None`: as the daemon was started.
    daemon: Option<CapabilitySet>,
    /// Capabilities of a worker; `None`: as the daemon was started.
    worker: Option<CapabilitySet>,
    /// The daemon filters its system calls.
    filter: bool,
}

impl Privileges {
    /// Returns what the daemon keeps.
    pub(crate) fn of(config: &Config) -> Self {
        let drivers = config.ports.iter().map(|port| of_driver(&port.driver));
        // Regions that are registered later are locked into memory.
        let daemon = drivers.fold(CapabilitySet::IPC_LOCK, CapabilitySet::union);
        let drop = config.privileges.drop_capabilities;
        Self {
            daemon: drop.then_some(daemon),
            worker: drop.then_some(CapabilitySet::empty()),
            filter: config.privileges.filter_system_calls,
        }
    }

    /// Gives up what neither the control thread nor a thread started from now on needs. Called before any other
    /// thread exists.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn drop_of_daemon(&self) -> Result<()> {
        set_no_new_privs(true).context("cannot set no_new_privs")?;
        if let Some(keep) = self.daemon {
            shrink_bounding_set(keep).context("cannot shrink the capability bounding set")?;
            let kept = keep_only(keep).context("cannot drop capabilities")?;
            tracing::info!("capabilities kept: {}", names(kept));
        }
        if self.filter { system_calls::filter_daemon() } else { Ok(()) }
    }

    /// Gives up what a worker does not need. Called on the worker's thread.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn drop_of_worker(&self) -> Result<()> {
        if let Some(keep) = self.worker {
            keep_only(keep).context("cannot drop a worker's capabilities")?;
        }
        if self.filter { system_calls::filter_worker() } else { Ok(()) }
    }
}

/// Returns the capabilities that a port needs to open, and to reopen after its interface was lost (capabilities(7)).
fn of_driver(driver: &Driver) -> CapabilitySet {
    match driver {
        // Physical addresses of packet buffers, interrupts and I/O ports; mlx5 opens raw queue pairs.
        Driver::Pci { .. } => {
            CapabilitySet::SYS_ADMIN
                | CapabilitySet::SYS_RAWIO
                | CapabilitySet::NET_ADMIN
                | CapabilitySet::NET_RAW
        }
        Driver::Tap { .. } | Driver::DpdkTap { .. } => CapabilitySet::NET_ADMIN,
        // Promiscuous mode is an option of the socket.
        Driver::AfPacket { .. } | Driver::DpdkAfPacket { .. } | Driver::Pcap(Pcap::Interface(_)) => {
            CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN
        }
        // Loads an XDP program; kernels before 5.11 account its memory as locked (RLIMIT_MEMLOCK).
        Driver::AfXdp { .. } => {
            CapabilitySet::NET_RAW
                | CapabilitySet::NET_ADMIN
                | CapabilitySet::BPF
                | CapabilitySet::PERFMON
                | CapabilitySet::SYS_ADMIN
                | CapabilitySet::SYS_RESOURCE
        }
        Driver::Pcap(Pcap::Files { .. }) | Driver::Ring | Driver::Memif(_) => CapabilitySet::empty(),
    }
}

/// Removes every capability except `keep` from the bounding set, if the thread may (CAP_SETPCAP).
fn shrink_bounding_set(keep: CapabilitySet) -> rustix::io::Result<()> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if keep.contains(capability) {
            continue;
        }
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // The kernel knows no capability of this number, and none above.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Drops every capability of the calling thread except `keep`; returns those that it still has.
fn keep_only(keep: CapabilitySet) -> rustix::io::Result<CapabilitySet> {
    let kept = capabilities(None)?.permitted & keep;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(kept)
}

/// Formats the names of capabilities, for the log.
fn names(set: CapabilitySet) -> String {
    let names: Vec<String> =
        set.iter_names().map(|(name, _)| format!("cap_{}", name.to_lowercase())).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(driver: &str) -> String {
        let text = format!("[[port]]\naddresses = [\"10.0.0.1/24\"]\n{driver}\n");
        let privileges = Privileges::of(&Config::parse("test.toml", &text).unwrap());
        assert_eq!(privileges.worker, Some(CapabilitySet::empty()), "a worker needs none");
        names(privileges.daemon.unwrap())
    }

    #[test]
    fn the_drivers_decide_which_capabilities_are_kept() {
        assert_eq!(kept("driver = 'ring'"), "cap_ipc_lock");
        assert_eq!(kept("driver = 'tap'\ninterface = 'iw0'"), "cap_net_admin cap_ipc_lock");
        let raw = kept("driver = 'af_packet'\ninterface = 'iw0'");
        assert_eq!(raw, "cap_net_admin cap_net_raw cap_ipc_lock");
        let card = kept("driver = 'pci'\naddress = '0000:3b:00.0'");
        assert_eq!(card, "cap_net_admin cap_net_raw cap_ipc_lock cap_sys_rawio cap_sys_admin");
        assert!(kept("driver = 'af_xdp'\ninterface = 'iw0'").contains("cap_bpf"));
        for driver in ["driver = 'ring'", "driver = 'tap'\ninterface = 'iw0'"] {
            for never in ["dac_override", "setuid", "sys_ptrace", "sys_module", "chown"] {
                assert!(!kept(driver).contains(never), "{driver}: {never}");
            }
        }
    }

    #[test]
    fn a_configuration_may_keep_everything() {
        let text = "[[port]]\ndriver = 'ring'\naddresses = ['10.0.0.1/24']\n[privileges]\n\
                    drop_capabilities = false\nfilter_system_calls = false\n";
        let privileges = Privileges::of(&Config::parse("test.toml", text).unwrap());
        assert_eq!((privileges.daemon, privileges.worker, privileges.filter), (None, None, false));
    }

    #[test]
    fn a_thread_keeps_what_it_has_of_what_is_asked() {
        let (before, after) = std::thread::spawn(|| {
            let before = capabilities(None).unwrap().permitted;
            keep_only(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW).unwrap();
            (before, capabilities(None).unwrap())
        })
        .join()
        .unwrap();
        let expected = before & (CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW);
        assert_eq!((after.effective, after.permitted), (expected, expected));
        assert_eq!(after.inheritable, CapabilitySet::empty());
    }
}
