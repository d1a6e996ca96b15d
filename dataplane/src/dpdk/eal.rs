//! DPDK's environment: started once per process, with a fixed argument list.
#![allow(unsafe_code, reason = "starts and stops DPDK")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::error::{DpdkError, Errno, check_for};
use super::messages::{self, Weight};

/// The configuration of DPDK's environment (EAL).
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// CPUs on which DPDK's own threads (interrupts, telemetry) may run: those without a worker. Empty: those
    /// that the calling thread may run on.
    pub control_cpus: Vec<u16>,
    /// Separates the files of several DPDK programs: letters, digits, `_`, `-`, `.`; 1 to 32 of them.
    pub file_prefix: String,
    /// The memory of the packet buffers.
    pub memory: EalMemory,
    /// The PCI devices that DPDK may use, each as `0000:3b:00.0`. Empty: none, and the bus is not scanned.
    pub pci: Vec<String>,
    /// The kind of addresses that devices use.
    pub iova: Iova,
    /// True to answer `dpdk-telemetry.py`.
    pub telemetry: bool,
}

/// The memory of the packet buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EalMemory {
    /// Hugepages, taken as pools are made; none is left behind, however the process ends.
    Hugepages,
    /// Ordinary pages, `mib` MiB, reserved at the start. No PCI device works with these.
    Ordinary {
        /// The amount in MiB.
        mib: u32,
    },
}

/// The kind of addresses that devices use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iova {
    /// As the devices' drivers require.
    #[default]
    Auto,
    /// Virtual addresses: an IOMMU, or no device that does DMA.
    Virtual,
    /// Physical addresses of memory.
    Physical,
}

impl EalConfig {
    /// DPDK's argument list, the program's name included.
    fn arguments(&self, cpus: &[u16]) -> Result<Vec<String>, DpdkError> {
        let invalid = |what: &str, value: &str| DpdkError::new(format!("{what} {value:?}"), Errno::INVALID);
        let prefix_ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if !(1..=32).contains(&self.file_prefix.len()) || !self.file_prefix.chars().all(prefix_ok) {
            return Err(invalid("file prefix", &self.file_prefix));
        }
        let cpus = cpus.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let mut arguments = vec![
            "iwarpd".to_owned(),
            format!("--file-prefix={}", self.file_prefix),
            // One logical core over the CPUs of the control threads: workers are threads of our own.
            format!("--lcores=0@({cpus})"),
        ];
        match self.memory {
            EalMemory::Hugepages => arguments.push("--in-memory".into()),
            EalMemory::Ordinary { mib } => {
                arguments.extend(["--no-huge".into(), "--no-shconf".into(), "-m".into(), mib.to_string()]);
            }
        }
        if self.pci.is_empty() {
            arguments.push("--no-pci".into());
        }
        for address in &self.pci {
            if !address.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.')) {
                return Err(invalid("PCI address", address));
            }
            arguments.extend(["-a".into(), address.clone()]);
        }
        match self.iova {
            Iova::Auto => {}
            Iova::Virtual => arguments.push("--iova-mode=va".into()),
            Iova::Physical => arguments.push("--iova-mode=pa".into()),
        }
        if !self.telemetry {
            arguments.push("--no-telemetry".into());
        }
        Ok(arguments)
    }
}

/// DPDK, running. Handles are cheap; when the last one goes, DPDK is shut down, for good.
#[derive(Clone, Debug)]
pub struct Eal(Arc<Running>);

#[derive(Debug)]
struct Running {
    memory: EalMemory,
}

/// DPDK cannot be started twice in a process, not even after it was shut down.
static STARTED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Starts DPDK. Its log goes to `tracing` (target `dpdk`); the calling thread keeps its CPU affinity.
    ///
    /// # Errors
    /// DPDK was started before, an argument is out of range, or DPDK refuses (its log says why).
    pub fn start(config: &EalConfig) -> Result<Self, DpdkError> {
        let affinity = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let cpus =
            if config.control_cpus.is_empty() { cpus_of(&affinity) } else { config.control_cpus.clone() };
        let arguments = config.arguments(&cpus)?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(DpdkError::new("DPDK starts once per process", Errno::INVALID));
        }
        take_log()?;
        let returned = initialize(arguments);
        // DPDK pins the thread that starts it, and every thread made later would inherit that.
        if let Err(error) = sched_setaffinity(None, &affinity) {
            tracing::warn!(%error, "cannot restore the CPU affinity after the start of DPDK");
        }
        if returned < 0 {
            return Err(DpdkError::last("DPDK did not start"));
        }
        Ok(Self(Arc::new(Running { memory: config.memory })))
    }

    /// Returns the memory of the packet buffers.
    pub fn memory(&self) -> EalMemory {
        self.0.memory
    }

    /// Has a bus probe a device, which messages call `device`.
    ///
    /// # Errors
    /// The driver refuses, with DPDK's own words.
    pub(super) fn plug(
        &self,
        bus: &CStr,
        name: &CStr,
        arguments: &CStr,
        device: &str,
    ) -> Result<(), DpdkError> {
        let (returned, said) = messages::first_complaint(|| {
            // SAFETY: three C strings, copied by the call; DPDK is up, as `self` proves.
            unsafe { dpdk_sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), arguments.as_ptr()) }
        });
        let plugged = check_for(returned, || format!("device {device}"));
        plugged.map(drop).map_err(|error| DpdkError { said, ..error })
    }

    /// DPDK's release, e.g. `22.11.11`.
    pub fn version() -> String {
        // SAFETY: answers a constant; no precondition.
        let version = unsafe { dpdk_sys::rte_version() };
        // SAFETY: NUL-terminated, and lives as long as the library.
        let version = unsafe { CStr::from_ptr(version) }.to_string_lossy();
        version.trim_start_matches("DPDK ").to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: DPDK is up, and the last handle is going: no device, pool, thread or region uses it.
        let returned = unsafe { dpdk_sys::rte_eal_cleanup() };
        if returned != 0 {
            tracing::warn!(returned, "DPDK did not shut down cleanly");
        }
    }
}

/// Hands the argument list to DPDK.
fn initialize(arguments: Vec<String>) -> c_int {
    // DPDK keeps pointers into the list for as long as the process lives, and may reorder it.
    let list: &'static mut [*mut c_char] = arguments
        .into_iter()
        .map(|argument| CString::new(argument).unwrap_or_default().into_raw())
        .chain([std::ptr::null_mut()])
        .collect::<Vec<_>>()
        .leak();
    let count = c_int::try_from(list.len()).unwrap_or(c_int::MAX).saturating_sub(1);
    // SAFETY: `list` holds `count` NUL-terminated strings and a null, all leaked, all writable.
    unsafe { dpdk_sys::rte_eal_init(count, list.as_mut_ptr()) }
}

/// The CPUs of a set, those that DPDK can number.
fn cpus_of(set: &CpuSet) -> Vec<u16> {
    (0..128u16).filter(|&cpu| set.is_set(usize::from(cpu))).collect()
}

/// Sends DPDK's log to `tracing`.
fn take_log() -> Result<(), DpdkError> {
    // SAFETY: `log_line` has the signature that C calls, and cannot unwind.
    let returned = unsafe { dpdk_sys::dpdk_log_to(Some(log_line)) };
    if returned == 0 { Ok(()) } else { Err(DpdkError::new("DPDK's log stream", Errno::INVALID)) }
}

/// Receives each message of DPDK, on any thread.
unsafe extern "C" fn log_line(level: u32, text: *const c_char, bytes: usize) {
    // Unwinding into C would be undefined; a subscriber that panics loses its line.
    let _ = catch_unwind(|| {
        // SAFETY: C hands over `bytes` readable bytes for the time of the call.
        let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), bytes) };
        let text = String::from_utf8_lossy(text);
        let text = text.trim_end();
        let weight = messages::weigh(level, text);
        if matches!(weight, Weight::Error | Weight::Warning) {
            messages::keep_complaint(text);
        }
        match weight {
            Weight::Error => tracing::error!(target: "dpdk", "{text}"),
            Weight::Warning => tracing::warn!(target: "dpdk", "{text}"),
            Weight::Step => tracing::debug!(target: "dpdk", "{text}"),
            Weight::Harmless(why) => tracing::debug!(target: "dpdk", why, "{text}"),
            Weight::Detail => tracing::trace!(target: "dpdk", "{text}"),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EalConfig {
        EalConfig {
            control_cpus: vec![],
            file_prefix: "iwarpd".into(),
            memory: EalMemory::Hugepages,
            pci: vec![],
            iova: Iova::Auto,
            telemetry: true,
        }
    }

    #[test]
    fn arguments_say_what_the_configuration_says() {
        let arguments = config().arguments(&[0, 3]).unwrap();
        assert_eq!(
            arguments,
            ["iwarpd", "--file-prefix=iwarpd", "--lcores=0@(0,3)", "--in-memory", "--no-pci"]
        );
        let ordinary = EalConfig {
            memory: EalMemory::Ordinary { mib: 64 },
            pci: vec!["0000:3b:00.0".into()],
            iova: Iova::Virtual,
            telemetry: false,
            ..config()
        };
        assert_eq!(
            ordinary.arguments(&[1]).unwrap()[3..],
            [
                "--no-huge",
                "--no-shconf",
                "-m",
                "64",
                "-a",
                "0000:3b:00.0",
                "--iova-mode=va",
                "--no-telemetry"
            ]
        );
    }

    #[test]
    fn what_is_not_an_argument_is_refused() {
        for prefix in ["", "a b", "../x", &"x".repeat(33)] {
            let config = EalConfig { file_prefix: prefix.to_owned(), ..config() };
            assert!(config.arguments(&[0]).is_err(), "{prefix:?}");
        }
        let config = EalConfig { pci: vec!["0000:3b:00.0,x=1".into()], ..config() };
        assert!(config.arguments(&[0]).is_err());
    }
}
