//! The daemon as the source of regions: its control socket lists them, and its verbs socket registers their memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use iwarp_control::{Client, ClientError, MonitorMethod, NoParams, RegionInfo, RegionListMethod};
use iwarp_verbs::{Access, ProtectionDomain};

use super::{Listed, Memory, RegionTable, Source};

/// Time between two lists at most: a change of a region's rights has no event.
const INTERVAL: Duration = Duration::from_secs(2);

/// The regions of a daemon.
#[derive(Debug)]
pub struct DaemonRegions {
    control: PathBuf,
    pd: ProtectionDomain,
    thread: &'static str,
    table: Mutex<Weak<RegionTable>>,
}

impl DaemonRegions {
    /// Returns the regions of the daemon with this control socket, to be registered in a domain of its verbs socket. A
    /// thread of the name `thread` follows the daemon.
    #[must_use]
    pub fn new(control: &Path, pd: ProtectionDomain, thread: &'static str) -> Self {
        Self { control: control.to_owned(), pd, thread, table: Mutex::default() }
    }

    /// Returns the table of regions, which follows the daemon as long as it is used.
    ///
    /// # Errors
    /// The daemon does not answer, or the thread that follows it cannot be started.
    pub fn table(&self) -> anyhow::Result<Arc<RegionTable>> {
        let mut known = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = known.upgrade() {
            return Ok(table);
        }
        let control = Client::connect(&self.control)?;
        let source = Daemon { path: self.control.clone(), control: Some(control), pd: self.pd.clone() };
        let table = Arc::new(RegionTable::new(Box::new(source)).map_err(anyhow::Error::msg)?);
        *known = Arc::downgrade(&table);
        follow(self.thread, self.control.clone(), Arc::downgrade(&table))?;
        Ok(table)
    }
}

#[derive(Debug)]
struct Daemon {
    path: PathBuf,
    /// Connection to the control socket; `None` after a failure.
    control: Option<Client>,
    pd: ProtectionDomain,
}

impl Source for Daemon {
    fn list(&mut self) -> Result<Vec<Listed>, String> {
        let mut control = match self.control.take() {
            Some(control) => control,
            None => Client::connect(&self.path).map_err(|error| error.to_string())?,
        };
        let regions = control.call::<RegionListMethod>(&NoParams {}).map_err(|error| error.to_string())?;
        self.control = Some(control);
        regions.into_iter().map(listed).collect()
    }

    fn open(&mut self, name: &str) -> Result<Arc<dyn Memory>, String> {
        // Rights of clients change, those of a registration do not: each access checks them.
        let opened = self.pd.reg_region(name, Access::LOCAL_READ | Access::LOCAL_WRITE);
        Ok(Arc::new(opened.map_err(|error| error.to_string())?))
    }
}

fn listed(region: RegionInfo) -> Result<Listed, String> {
    let RegionInfo { name, bytes, access, token_required, allow, instance, .. } = region;
    if instance == 0 {
        return Err("iwarpd is older than this program: it gives regions no instance".to_owned());
    }
    Ok(Listed { instance, name, bytes, access, is_public: !token_required && allow.is_empty() })
}

/// Lists the regions again after each event of the daemon that names one, and after [`INTERVAL`].
#[allow(clippy::disallowed_methods, reason = "the thread waits before it connects again")]
fn follow(thread: &str, control: PathBuf, table: Weak<RegionTable>) -> io::Result<()> {
    let run = move || {
        while table.strong_count() > 0 {
            if monitor(&control, &table).is_err() {
                // The daemon ends, or its clients are too many.
                std::thread::sleep(INTERVAL);
                if let Some(table) = table.upgrade() {
                    table.refresh();
                }
            }
        }
    };
    std::thread::Builder::new().name(thread.to_owned()).spawn(run).map(|_| ())
}

/// Follows the events until nobody uses the table, or the connection ends.
#[allow(clippy::disallowed_methods, reason = "the thread waits for events, for a limited time")]
fn monitor(control: &Path, table: &Weak<RegionTable>) -> Result<(), ClientError> {
    let mut client = Client::connect(control)?;
    client.call::<MonitorMethod>(&NoParams {})?;
    while let Some(table) = table.upgrade() {
        table.refresh();
        drop(table);
        let listed = Instant::now();
        while listed.elapsed() < INTERVAL {
            match client.next_event(Some(INTERVAL)) {
                Ok(event) if event.event.starts_with("region_") => break,
                Ok(_) => {}
                Err(ClientError::Timeout { .. }) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
