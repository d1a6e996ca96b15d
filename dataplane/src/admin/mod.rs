//! Handler of the control socket's requests. `control` parses a request and calls [`ControlHandler`], which asks the
//! workers and ports and composes the reply.

mod applications;
mod capture;
mod close;
mod details;
mod drain;
mod events;
mod link_history;
mod metrics;
mod objects;
mod regions;
mod reload;
mod report;
mod watch;
mod worker_handle;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use iwarp_config::{RegionName, token_from_text};
use iwarp_control::bounds::{self, API};
use iwarp_control::{
    CaptureMethod, ConnCloseMethod, ConnListMethod, ConnShowMethod, CounterGroup, CounterRow, DrainMethod,
    DropsMethod, ErrorKind, ErrorObject, Hugepages, Idle, Link, Method, Origin, PortInfo, PortListMethod,
    PortShowMethod, PortStatsMethod, RegionAttachMethod, RegionAttached, RegionDeregister,
    RegionDeregisterMethod, RegionInfo, RegionListMethod, RegionRegister, RegionRegisterMethod,
    RegionShowMethod, RegionTotals, ReloadMethod, Request, State, StatsMethod, Status, StatusMethod, params,
};
use iwarp_engine::Clock;
use serde_json::Value;
use tokio::sync::Mutex;

pub(crate) use applications::object_limits;
pub use applications::{Applications, Session};
pub(crate) use events::Reporting;
pub use regions::{Region, RegionSpec, Regions};
pub(crate) use reload::Running;
use report::{Load, Names, Reason};
pub use watch::{PortEntry, Watched};
pub use worker_handle::WorkerHandle;

use crate::control::{Handler, Peer, Reply, SharedStats};
use crate::events::Event;
use crate::metrics::SharedMetricsStats;
use crate::worker::{Command, SettingsCommand};

/// Longest wait for the workers to publish their counters before a report.
const PUBLISH_WAIT: Duration = Duration::from_millis(100);
/// Longest wait for a worker to reset its connections.
const RESET_WAIT: Duration = Duration::from_secs(1);

/// Facts about the daemon that do not change while it runs.
#[derive(Clone, Debug)]
pub struct DaemonInfo {
    /// Path of the configuration file.
    pub config_path: PathBuf,
    /// Messages about settings that the daemon could not meet, such as missing hugepages.
    pub degraded: Vec<String>,
    /// True if the configuration requires hugepages.
    pub hugepages_required: bool,
    /// Version of the DPDK library.
    pub dpdk_version: String,
    /// Idle policy of the workers.
    pub idle: Idle,
    /// Most connections of all workers together.
    pub connections_max: u64,
}

/// Handles control requests on the control thread.
#[derive(Debug)]
pub struct ControlHandler {
    info: DaemonInfo,
    clock: Clock,
    workers: Rc<Vec<WorkerHandle>>,
    /// Ports by index. Never borrowed across an await.
    ports: RefCell<Vec<PortEntry>>,
    regions: Rc<Mutex<Regions>>,
    /// Handler of the verbs socket, if there is one.
    applications: Option<Rc<Applications>>,
    loads: std::sync::Mutex<Vec<Load>>,
    control: SharedStats,
    exporter: SharedMetricsStats,
    reporting: Reporting,
    running: Running,
    draining: drain::DrainState,
    /// True while a client captures frames.
    capturing: Rc<Cell<bool>>,
}

impl ControlHandler {
    /// Creates a handler for running workers and open ports.
    pub(crate) fn new(
        (info, clock): (DaemonInfo, Clock),
        workers: Rc<Vec<WorkerHandle>>,
        ports: Vec<PortEntry>,
        regions: Rc<Mutex<Regions>>,
        control: SharedStats,
        reporting: Reporting,
        running: Running,
    ) -> Self {
        let loads = std::sync::Mutex::new(vec![Load::default(); workers.len()]);
        let ports = RefCell::new(ports);
        Self {
            info,
            clock,
            workers,
            ports,
            regions,
            applications: None,
            loads,
            control,
            exporter: SharedMetricsStats::default(),
            reporting,
            running,
            draining: drain::DrainState::default(),
            capturing: Rc::default(),
        }
    }

    /// Has reports name the applications of the verbs socket.
    #[must_use]
    pub fn with_applications(self, applications: Option<Rc<Applications>>) -> Self {
        Self { applications, ..self }
    }

    /// Has reports contain the counters of the exporter.
    #[must_use]
    pub fn with_exporter(self, exporter: SharedMetricsStats) -> Self {
        Self { exporter, ..self }
    }

    /// Returns what reports need to name the owners of connections.
    async fn names(&self) -> Names<'_> {
        let owners = self.applications.as_ref().map(|applications| applications.owners());
        Names { regions: self.regions.lock().await, owners: owners.unwrap_or_default() }
    }

    /// Samples the load of each worker. `daemon` calls it once per second.
    pub fn sample_loads(&self) {
        let mut loads = self.loads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (load, handle) in loads.iter_mut().zip(self.workers.iter()) {
            load.sample(handle);
        }
    }

    /// Returns true if a worker has ended without a stop command.
    pub fn has_lost_a_worker(&self) -> bool {
        self.workers.iter().any(WorkerHandle::has_ended)
    }

    /// Has every worker reset its connections, then sends every worker the stop command. A worker without a transmit
    /// queue passes its RSTs to another one, which must not have ended by then.
    pub async fn stop(&self) {
        for handle in self.workers.iter() {
            // A worker that takes no commands has ended already.
            let reset = handle.ask(|reply| Command::Settings(SettingsCommand::Reset { reply }));
            let _ = tokio::time::timeout(RESET_WAIT, reset).await;
        }
        for handle in self.workers.iter() {
            let _ = handle.send(Command::Stop);
        }
    }

    fn loads(&self) -> Vec<Load> {
        self.loads.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Allocates a region and offers it on every worker.
    ///
    /// # Errors
    /// As [`Regions::make`]; or a worker refuses.
    pub async fn region_add(&self, spec: RegionSpec) -> Result<RegionInfo, ErrorObject> {
        let mut regions = self.regions.lock().await;
        let name = spec.name.to_string();
        let offered = match regions.make(spec)?.offer(&self.workers).await {
            Ok(()) => regions.find(&name)?.info(&self.workers).await,
            Err(error) => Err(error),
        };
        match &offered {
            Ok(region) if region.origin == Origin::Config => self.report_region(region, None),
            Ok(_) => {}
            Err(_) => regions.forget(&name),
        }
        offered
    }

    async fn region_remove(&self, peer: &Peer, given: Value) -> Result<Reply, ErrorObject> {
        let RegionDeregister { name, force } = params::<RegionDeregisterMethod>(given)?;
        let mut regions = self.regions.lock().await;
        let done = regions.find(&name)?.withdraw(&self.workers, force).await?;
        regions.forget(&name);
        let (region, grants_revoked) = (name, done.grants_revoked);
        let (uid, pid) = (Some(peer.uid), Some(peer.pid));
        self.report(&Event::RegionRemoved { region, grants_revoked, uid, pid });
        Ok(Reply::new(done))
    }

    /// Has every worker publish its counters, so that a reply counts all that happened before its request. A worker
    /// that does not answer within [`PUBLISH_WAIT`] keeps its last published values.
    async fn refresh_counters(&self) {
        let publish_all = async {
            for handle in self.workers.iter() {
                // A worker that has ended has published its last values.
                let _ = handle.ask(|reply| Command::Publish { reply }).await;
            }
        };
        let _ = tokio::time::timeout(PUBLISH_WAIT, publish_all).await;
    }

    /// Returns the ports, and a message for each reason for which the daemon is degraded.
    fn degraded(&self, regions: &Regions) -> Result<(Vec<PortInfo>, Vec<Reason>), ErrorObject> {
        let mut degraded: Vec<Reason> =
            self.info.degraded.iter().map(|reason| Reason::new(reason.as_str())).collect();
        degraded.extend(
            regions.on_ordinary_pages().map(|name| Reason::new(format!("region {name}: ordinary pages"))),
        );
        let ports = self.ports.borrow().iter().map(report::port).collect::<Result<Vec<_>, _>>()?;
        degraded.extend(ports.iter().filter_map(|port| match port.link {
            Link::Up => None,
            Link::Down => Some(Reason::new(format!("port {}: no link", port.name))),
            Link::Gone if port.driver == "pci" => {
                Some(Reason::new(format!("port {}: its card is gone", port.name)))
            }
            Link::Gone => Some(Reason::new(format!("port {}: its interface is gone", port.name))),
        }));
        degraded.extend(ports.iter().filter_map(|port| {
            let interface = port.interface.as_ref()?;
            Some(Reason::new(format!("port {}: its interface is now {interface}", port.name)))
        }));
        degraded.extend(match crate::log::lost_in_a_row() {
            0 => None,
            lost => Some(
                Reason::new("log: stderr takes no lines (full disk, closed pipe)")
                    .with_detail(format!(", {lost} lost")),
            ),
        });
        degraded.extend(report::refusals(&self.workers, &self.loads()));
        Ok((ports, degraded))
    }

    async fn status(&self) -> Result<Status, ErrorObject> {
        self.refresh_counters().await;
        let huge = iwarp_engine::memory::hugepages();
        let ((count, max, bytes), (ports, degraded)) = {
            let regions = self.regions.lock().await;
            (regions.totals(), self.degraded(&regions)?)
        };
        let loads = self.loads();
        Ok(Status {
            api: API,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: self.clock.now().as_nanos() / 1_000_000,
            state: if degraded.is_empty() { State::Ok } else { State::Degraded },
            degraded: degraded.iter().map(Reason::to_string).collect(),
            draining: self.draining.status(),
            dpdk_version: self.info.dpdk_version.clone(),
            config_path: self.info.config_path.clone(),
            hugepages: Hugepages {
                required: self.info.hugepages_required,
                page_bytes: huge.page_bytes,
                total: huge.total,
                free: huge.free,
            },
            workers: report::worker_status(&self.workers, &loads, self.info.idle),
            connections: report::conn_counts(&self.workers, self.info.connections_max),
            regions: RegionTotals { count: count as u64, bytes, max: max as u64 },
            pools: report::pools(&self.ports.borrow()),
            ports,
            rss_bytes: resident_bytes(),
        })
    }
}

impl ControlHandler {
    async fn conns_close(
        &self,
        peer: &Peer,
        which: &close::CloseTarget,
    ) -> Result<iwarp_control::ConnsClosed, ErrorObject> {
        let done = close::conns(&self.workers, which).await?;
        self.report(&Event::ConnsClosed { count: done.count, uid: peer.uid, pid: peer.pid });
        Ok(done)
    }

    async fn region_attach(&self, name: &str) -> Result<Reply, ErrorObject> {
        let regions = self.regions.lock().await;
        let region = regions.find(name)?;
        let info = region.info(&self.workers).await?;
        let fd = region.memory.descriptor().map_err(|error| {
            ErrorObject::new(
                ErrorKind::NoResources,
                format!("region `{name}`: its descriptor cannot be shared: {error}"),
            )
        })?;
        let RegionInfo { name, bytes, page_bytes, access, .. } = info;
        Ok(Reply::new(RegionAttached { name, bytes, page_bytes, access }).with_fds(vec![fd]))
    }

    async fn region_list(&self) -> Result<Vec<RegionInfo>, ErrorObject> {
        let regions = self.regions.lock().await;
        let mut infos = Vec::new();
        for name in regions.names() {
            infos.push(regions.find(&name)?.info(&self.workers).await?);
        }
        Ok(infos)
    }

    /// Returns the counters of the control thread: of the control socket, the log, the events and the exporter.
    fn own_blocks(&self) -> [(&'static str, Block); 4] {
        let (control, log, exporter) = (self.control.read(), crate::log::stats(), self.exporter.read());
        let events = self.reporting.events.stats();
        [
            ("events", Box::new(move |f| events.visit(f))),
            ("control", Box::new(move |f| control.visit(f))),
            ("log", Box::new(move |f| log.visit(f))),
            ("metrics", Box::new(move |f| exporter.visit(f))),
        ]
    }

    /// Returns the counters of the control thread in groups like those of the workers.
    fn own_groups(&self) -> Vec<CounterGroup> {
        let group = |(group, visit): (&str, Block)| {
            let mut counters = Vec::new();
            visit(&mut |name, help, value| counters.push(counter(name, help, value)));
            CounterGroup { group: group.to_owned(), counters }
        };
        self.own_blocks().map(group).into()
    }
}

/// Visitor of one block of counters.
type Block = Box<dyn FnOnce(&mut dyn FnMut(&'static str, &'static str, u64))>;

impl Handler for ControlHandler {
    type Session = Peer;
    type Descriptors = ();

    /// No method takes descriptors.
    fn check(_: &str, _: Vec<OwnedFd>) {}

    fn open(&self, peer: &Peer) -> Result<Peer, ErrorObject> {
        Ok(peer.clone())
    }

    async fn close(&self, _: Peer) {}

    async fn handle(&self, peer: &mut Peer, request: Request, (): ()) -> Result<Reply, ErrorObject> {
        let (method, given) = (request.method.as_str(), request.params);
        tracing::debug!(method, pid = peer.pid, uid = peer.uid, "request");
        match method {
            StatusMethod::NAME => {
                params::<StatusMethod>(given)?;
                Ok(Reply::new(self.status().await?))
            }
            RegionRegisterMethod::NAME => {
                let region = self.region_add(spec(params::<RegionRegisterMethod>(given)?)?).await?;
                self.report_region(&region, Some(peer));
                Ok(Reply::new(region))
            }
            RegionListMethod::NAME => {
                params::<RegionListMethod>(given)?;
                Ok(Reply::new(self.region_list().await?))
            }
            RegionShowMethod::NAME => {
                let name = params::<RegionShowMethod>(given)?.name;
                Ok(Reply::new(self.regions.lock().await.find(&name)?.info(&self.workers).await?))
            }
            RegionDeregisterMethod::NAME => self.region_remove(peer, given).await,
            RegionAttachMethod::NAME => self.region_attach(&params::<RegionAttachMethod>(given)?.name).await,
            ConnListMethod::NAME => {
                params::<ConnListMethod>(given)?;
                Ok(Reply::new(report::conns(&self.workers, &self.names().await, self.clock.now()).await?))
            }
            ConnShowMethod::NAME => {
                let id = params::<ConnShowMethod>(given)?.id;
                Ok(Reply::new(report::conn(&self.workers, &self.names().await, self.clock.now(), id).await?))
            }
            ConnCloseMethod::NAME => {
                let which = close::CloseTarget::new(&params::<ConnCloseMethod>(given)?)?;
                Ok(Reply::new(self.conns_close(peer, &which).await?))
            }
            PortListMethod::NAME => {
                params::<PortListMethod>(given)?;
                Ok(Reply::new(self.ports.borrow().iter().map(report::port).collect::<Result<Vec<_>, _>>()?))
            }
            PortShowMethod::NAME => {
                let name = params::<PortShowMethod>(given)?.name;
                Ok(Reply::new(details::port_show(&self.ports.borrow(), &name, self.clock.now())?))
            }
            PortStatsMethod::NAME => {
                let name = params::<PortStatsMethod>(given)?.name;
                Ok(Reply::new(report::port_stats(&self.ports.borrow(), name.as_deref())?))
            }
            StatsMethod::NAME => {
                params::<StatsMethod>(given)?;
                self.refresh_counters().await;
                Ok(Reply::new(report::stats(&self.workers, &self.loads(), self.info.idle, self.own_groups())))
            }
            DropsMethod::NAME => {
                params::<DropsMethod>(given)?;
                self.refresh_counters().await;
                Ok(Reply::new(report::drops(&self.workers, self.own_groups())))
            }
            method if objects::METHODS.contains(&method) => self.objects(method, given).await,
            ReloadMethod::NAME => self.reload_method(peer, given).await,
            DrainMethod::NAME => self.drain_method(peer, given).await,
            CaptureMethod::NAME => self.capture(peer, given).await,
            method if events::METHODS.contains(&method) => self.log_method(peer, method, given),
            unknown => {
                Err(ErrorObject::new(ErrorKind::UnknownMethod, format!("there is no method `{unknown}`"))
                    .with_help(format!("the methods are: {}", iwarp_control::METHODS.join(", "))))
            }
        }
    }
}

fn counter(name: &str, help: &str, value: u64) -> CounterRow {
    CounterRow { name: name.to_owned(), help: help.trim().to_owned(), value }
}

/// Checks a registration request and converts it to a [`RegionSpec`].
fn spec(request: RegionRegister) -> Result<RegionSpec, ErrorObject> {
    let invalid = |what: String| ErrorObject::new(ErrorKind::InvalidParams, what);
    let name = RegionName::new(&request.name).map_err(|error| invalid(format!("name: {error}")))?;
    let token = match &request.token_hex {
        Some(hex) => Some(
            token_from_text(&format!("hex:{hex}")).map_err(|error| invalid(format!("token_hex: {error}")))?,
        ),
        None => None,
    };
    if request.bytes == 0 {
        return Err(invalid("bytes: a region has at least one byte".to_owned()));
    }
    if request.allow.len() > bounds::ALLOW_PREFIXES_MAX {
        let (listed, max) = (request.allow.len(), bounds::ALLOW_PREFIXES_MAX);
        return Err(invalid(format!("allow: {listed} prefixes are listed; at most {max} are allowed")));
    }
    Ok(RegionSpec {
        name,
        bytes: request.bytes,
        access: request.access,
        token,
        allow: request.allow,
        origin: Origin::Control,
    })
}

/// Returns the resident memory of this process in bytes, without hugepages; 0 if `/proc` does not report it.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages =
        pages.and_then(|text| text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()));
    pages.unwrap_or(0).saturating_mul(4096)
}
