//! Reserves the hugepages of a configuration (`config reserve`).

use std::path::{Path, PathBuf};

use iwarp_config::{Config, Machine, memory_plan};
use iwarp_control::Exit;
use iwarp_terminal::Failure;
use serde::Serialize;

/// The pool of hugepages of 2 MiB, after it was raised.
#[derive(Debug, Serialize)]
pub(crate) struct Reserved {
    /// Configuration file that takes the pages.
    pub(crate) file: PathBuf,
    /// Pages that the configuration takes.
    pub(crate) needed: u64,
    /// Pages that are free, and those of the daemon that runs.
    pub(crate) free: u64,
    /// Pages of the pool before.
    pub(crate) pool_before: u64,
    /// Pages of the pool now.
    pub(crate) pool: u64,
}

/// Raises the pool of a machine to what the configuration takes. Never lowers it: others may have reserved pages for
/// themselves, which are free as long as they do not run.
pub(crate) fn reserve(file: &Path, machine: &Machine) -> Result<Reserved, Failure> {
    let config = Config::load(file).map_err(|errors| {
        let help = format!("`iwarpctl config check {}` shows them", file.display());
        Failure::new(Exit::Failed, "invalid_config", format!("nothing is reserved: {errors}")).with_help(help)
    })?;
    let needed = memory_plan(&config).hugepages();
    let (free, pool_before) = (machine.hugepages_free(), machine.hugepages_total());
    if free < needed {
        let pool = pool_before.saturating_add(needed).saturating_sub(free);
        machine.set_hugepages_total(pool).map_err(|error| {
            let message = format!("cannot raise the pool of hugepages from {pool_before} to {pool}: {error}");
            let help = format!("as root, on the machine itself: sysctl vm.nr_hugepages={pool}");
            let exit = match error.kind() {
                std::io::ErrorKind::PermissionDenied => Exit::Permission,
                _ => Exit::Failed,
            };
            Failure::new(exit, "hugepages", message).with_help(help)
        })?;
    }
    let (free, pool) = (machine.hugepages_free(), machine.hugepages_total());
    if free < needed {
        let message =
            format!("{needed} hugepages of 2 MiB are needed and {free} are free: the machine gives no more");
        let help = format!(
            "memory is fragmented, or in use: reserve them at boot, by hugepages={} on the kernel's command line",
            pool.saturating_add(needed).saturating_sub(free)
        );
        return Err(Failure::new(Exit::Failed, "hugepages", message).with_help(help));
    }
    Ok(Reserved { file: file.to_path_buf(), needed, free, pool_before, pool })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const POOL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";

    /// A machine whose pool has these pages, and a configuration.
    struct Bench(tempfile::TempDir);

    impl Bench {
        fn new(total: u64, free: u64, reserved: u64) -> Self {
            let bench = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(bench.0.path().join(POOL)).unwrap();
            for (name, count) in [("nr", total), ("free", free), ("resv", reserved)] {
                fs::write(bench.0.path().join(POOL).join(format!("{name}_hugepages")), format!("{count}\n"))
                    .unwrap();
            }
            let text =
                "[memory]\npacket_buffers = 16384\n[[port]]\ndriver = 'ring'\naddresses = ['10.0.0.2/24']\n";
            fs::write(bench.file(), text).unwrap();
            bench
        }

        fn file(&self) -> PathBuf {
            self.0.path().join("iwarpd.toml")
        }

        fn reserve(&self) -> Result<Reserved, Failure> {
            reserve(&self.file(), &Machine::at(self.0.path()))
        }

        fn pool(&self) -> u64 {
            fs::read_to_string(self.0.path().join(POOL).join("nr_hugepages")).unwrap().trim().parse().unwrap()
        }

        fn needed(&self) -> u64 {
            memory_plan(&Config::load(&self.file()).unwrap()).hugepages()
        }
    }

    #[test]
    fn the_pool_is_raised_by_what_is_missing() {
        let bench = Bench::new(100, 10, 4);
        let needed = bench.needed();
        assert!(needed > 10, "{needed}");
        // A pool of files does not grow: the kernel's would, or gives less than it was asked for.
        let failure = bench.reserve().unwrap_err();
        assert_eq!(bench.pool(), 100 + needed - 6);
        assert_eq!((failure.exit, failure.kind), (Exit::Failed, "hugepages"));
        assert!(failure.message.contains("6 are free: the machine gives no more"), "{}", failure.message);
    }

    #[test]
    fn the_pool_is_never_lowered() {
        let bench = Bench::new(4096, 4096, 0);
        let reserved = bench.reserve().unwrap();
        assert_eq!((reserved.pool_before, reserved.pool, bench.pool()), (4096, 4096, 4096));
    }

    #[test]
    fn a_file_with_mistakes_reserves_nothing() {
        let bench = Bench::new(0, 0, 0);
        fs::write(bench.file(), "[[port]]\nmtu = 1\n").unwrap();
        let failure = bench.reserve().unwrap_err();
        assert_eq!((failure.kind, bench.pool()), ("invalid_config", 0));
    }

    #[test]
    fn a_machine_without_a_pool_is_named() {
        let bench = Bench::new(0, 0, 0);
        fs::remove_dir_all(bench.0.path().join("sys")).unwrap();
        let failure = bench.reserve().unwrap_err();
        assert!(
            failure.message.starts_with("cannot raise the pool of hugepages from 0 to "),
            "{}",
            failure.message
        );
    }
}
