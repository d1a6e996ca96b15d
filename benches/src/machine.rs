//! Describes the machine and the build of a measurement, for reports.

use std::fs;
use std::time::SystemTime;

use serde::Serialize;

/// Hardware, software and date of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Number of CPUs available to the process.
    pub cpus: usize,
    /// Level-2 cache of one core, bytes; 0 if unknown.
    pub l2_bytes: u64,
    /// Last-level cache, bytes; 0 if unknown.
    pub llc_bytes: u64,
    /// Kernel name and release.
    pub kernel: String,
    /// Release of DPDK, such as `22.11.11`.
    pub dpdk: String,
    /// Commit of the build.
    pub commit: &'static str,
    /// `trained` for a profile-guided build (`make trained`), as installed; otherwise `plain`.
    pub build: &'static str,
    /// Date of the measurement, RFC 3339.
    pub date: String,
}

impl Machine {
    /// Describes this machine at this moment.
    #[must_use]
    pub fn here() -> Self {
        let system = rustix::system::uname();
        let kernel = [system.sysname(), system.release()].map(|part| part.to_string_lossy().into_owned());
        Self {
            cpu: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            l2_bytes: cache_bytes(2).unwrap_or(0),
            llc_bytes: cache_bytes(3).or_else(|| cache_bytes(2)).unwrap_or(0),
            kernel: kernel.join(" "),
            dpdk: dataplane::dpdk::Eal::version(),
            commit: env!("IRONWARP_COMMIT"),
            build: option_env!("IRONWARP_BUILD").unwrap_or("plain"),
            date: humantime::format_rfc3339_seconds(today()).to_string(),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a report is dated")]
fn today() -> SystemTime {
    SystemTime::now()
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the size of a level of the first CPU's data cache, bytes.
fn cache_bytes(level: u32) -> Option<u64> {
    let folder = "/sys/devices/system/cpu/cpu0/cache";
    let read = |index: u32, file: &str| fs::read_to_string(format!("{folder}/index{index}/{file}")).ok();
    let index = (0..8).find(|&index| {
        let kind = read(index, "type");
        read(index, "level").is_some_and(|text| text.trim() == level.to_string())
            && kind.is_some_and(|kind| kind.trim() != "Instruction")
    })?;
    iwarp_config::parse_size(read(index, "size")?.trim()).ok()
}
