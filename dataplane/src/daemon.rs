//! Runs the daemon: builds it from its configuration, serves until a signal or a loss, and shuts it down in order.
//! `main` calls [`run`].

use std::cell::Cell;
use std::num::NonZeroU64;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use iwarp_config::{Config, Idle};
use iwarp_engine::Clock;
use iwarp_engine::wake::{WakeThread, Wakes};
use tokio::sync::{Mutex, Notify};
use tokio::time::MissedTickBehavior;

use crate::admin::{Applications, ControlHandler, DaemonInfo, PortEntry, RegionSpec, Reporting, Running};
use crate::control::{Server, ServerConfig};
use crate::dpdk::{Eal, RegisteredThread, Telemetry};
use crate::events::EventLog;
use crate::log::Log;
use crate::metrics::{self, Exporter, Source as _};
use crate::port::Claims;
use crate::privileges::Privileges;
use crate::service_manager;
use crate::setup::{self, Runtime};
use crate::signals::{SignalRequest, Signals};
use crate::worker::Worker;

/// Interval at which the events of the workers are read.
const NOTICES_INTERVAL: Duration = Duration::from_millis(100);

/// End of the daemon on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A signal stopped it, or all connections had ended before the time of a drain was over.
    Stopped,
    /// A client of the control socket had it drained, and connections in use were cut off.
    CutOff,
}

/// Runs the daemon until a signal or a drain ends it.
///
/// # Errors
/// The daemon cannot start, and the message says why and what to do; or a worker ended by itself.
pub fn run(config_path: &Path, config: &Config) -> Result<Ended> {
    let log = Rc::new(Log::open(&config.log)?);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("no control thread")?;
    runtime.block_on(serve(config_path, config, log))
}

async fn serve(config_path: &Path, config: &Config, log: Rc<Log>) -> Result<Ended> {
    // Caught before anything is built, so that no signal is lost and a second daemon stops here.
    let mut signals = Signals::catch()?;
    let server = Server::bind(&ServerConfig::from(&config.control))?;
    let control_settings = server.settings();
    let applications_server =
        config.applications.as_ref().map(|table| Server::bind(&ServerConfig::from(table))).transpose()?;
    let exporter = config.metrics.as_ref().map(Exporter::bind).transpose()?;
    // Held until the end: otherwise DPDK would let a second daemon open the same TAP, and take the link down when it
    // exits.
    let _claims = Claims::take(&config.ports)?;
    let privileges = Privileges::of(config);
    privileges.drop_of_daemon()?;
    let starting = service_manager::Starting::begin();
    let clock = Clock::start();
    let Runtime { eal, regions, degraded, ports, workers, worker_handles, notices } =
        setup::build(config, &clock)?;
    ports.iter().for_each(log_port);
    let info = daemon_info(config_path, config, degraded, workers.len());
    let published = worker_handles.iter().map(|handle| Arc::clone(&handle.published)).collect();
    let events = Rc::new(EventLog::new(config.log.events_per_s_max, &clock));
    let reporting = Reporting::new(&config.log, &log, &events, notices);
    let (handles, regions) = (Rc::new(worker_handles), Rc::new(Mutex::new(regions)));
    let (wakes, _waker) = start_waker(&clock, privileges, waker_core(config, &workers))?;
    let verbs = applications_server.zip(config.applications.clone()).map(|(server, settings)| {
        let devices = ports.iter().map(setup::device_info).collect();
        let (handles, regions) = (Rc::clone(&handles), Rc::clone(&regions));
        let (control, first_memory) = (control_settings.clone(), config.limits.regions_max);
        let applications =
            Applications::new(settings, control, handles, devices, regions, first_memory, (&events, wakes));
        (server, Rc::new(applications))
    });
    let applications = verbs.as_ref().map(|(_, applications)| Rc::clone(applications));
    let running = Running::new(config, control_settings, verbs.as_ref().map(|(server, _)| server.settings()));
    let handler =
        ControlHandler::new((info, clock), handles, ports, regions, server.stats(), reporting, running);
    let exporter_stats = exporter.as_ref().map(Exporter::stats).unwrap_or_default();
    let handler = Rc::new(handler.with_applications(applications).with_exporter(exporter_stats));
    let threads = spawn_all(workers, &eal, privileges)?;
    let ended = Cell::new(Ok(Ended::Stopped));
    let served = match offer(config, &handler).await {
        Ok(()) => {
            drop(starting);
            tracing::info!(socket = %config.control.socket.display(), "ready");
            service_manager::ready(&format!("serving on {}", config.control.socket.display()));
            let stop = async {
                tokio::select! {
                    () = service_manager::watch_workers(published) => {}
                    how = until_asked(&handler, &mut signals, &log) => ended.set(how),
                    watched = watch(&handler, &eal) => {
                        tracing::error!("going down");
                        ended.set(watched.map(|()| Ended::Stopped));
                    }
                }
            };
            let served = tokio::select! {
                served = serve_sockets((server, Rc::clone(&handler)), verbs, stop) => served,
                failed = export(exporter, Rc::clone(&handler)) => Err(failed),
            };
            ended.into_inner().and_then(|ended| served.map(|()| ended))
        }
        Err(error) => Err(error),
    };
    service_manager::stopping();
    handler.stop().await;
    let joined = threads.into_iter().map(join).collect::<Result<Vec<()>>>();
    // The error of a worker that ended is more specific than the failed request to it.
    joined.and(served)
}

/// Reloads and drains as signals and clients ask, until the daemon is to stop.
async fn until_asked(handler: &ControlHandler, signals: &mut Signals, log: &Log) -> Result<Ended> {
    let (mut drained, mut reloads) = (pin!(handler.run_drain()), pin!(handler.serve_reloads()));
    let mut by_signal = false;
    loop {
        tokio::select! {
            request = signals.request(log) => match request {
                SignalRequest::Reload(name) => {
                    tracing::info!("{name}: reading the configuration again");
                    handler.ask_reload();
                }
                SignalRequest::Drain(name) if !by_signal => {
                    tracing::info!("{name}: going down when the connections have ended");
                    let time = Duration::from_millis(handler.drain_timeout_ms());
                    service_manager::draining(time);
                    by_signal = true;
                    handler.drain(time, None);
                }
                SignalRequest::Drain(name) | SignalRequest::End(name) => {
                    tracing::info!("{name}: going down");
                    return Ok(Ended::Stopped);
                }
            },
            () = &mut reloads => {}
            cut_off = &mut drained => {
                handler.drain_replied().await;
                let cut_off = cut_off?;
                return Ok(if cut_off > 0 && !by_signal { Ended::CutOff } else { Ended::Stopped });
            }
        }
    }
}

fn log_port(entry: &PortEntry) {
    tracing::info!(port = entry.port.name(), addresses = setup::addresses(entry), "port is up");
}

/// Serves the control socket and the verbs socket until `stop` completes.
async fn serve_sockets(
    (control, handler): (Server, Rc<ControlHandler>),
    verbs: Option<(Server, Rc<Applications>)>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let stopped = Notify::new();
    let control = async {
        let served = control.run(handler, stop).await.context("the control socket failed");
        stopped.notify_one();
        served
    };
    let verbs = async {
        match verbs {
            Some((server, applications)) => {
                server.run(applications, stopped.notified()).await.context("the verbs socket failed")
            }
            None => Ok(()),
        }
    };
    tokio::try_join!(control, verbs).map(|_| ())
}

/// Serves metrics, if they are configured. Returns only on failure.
async fn export(exporter: Option<Exporter>, handler: Rc<ControlHandler>) -> anyhow::Error {
    let Some(exporter) = exporter else { return std::future::pending().await };
    match exporter.run(handler).await {
        Ok(never) => match never {},
        Err(error) => anyhow::Error::new(error).context("the metrics socket failed"),
    }
}

/// Registers the regions of the configuration.
async fn offer(config: &Config, handler: &ControlHandler) -> Result<()> {
    for region in &config.regions {
        handler
            .region_add(RegionSpec::from(region))
            .await
            .with_context(|| format!("region {}", region.name))?;
    }
    Ok(())
}

/// Samples worker loads, port states and telemetry once per second. Returns when the daemon cannot continue.
async fn watch(handler: &ControlHandler, eal: &Eal) -> Result<()> {
    let telemetry = Telemetry::register(eal)?;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut notices = tokio::time::interval(NOTICES_INTERVAL);
    notices.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = second.tick() => {}
            _ = notices.tick() => {
                handler.read_notices();
                continue;
            }
        }
        anyhow::ensure!(!handler.has_lost_a_worker(), "a worker has ended");
        handler.sample_loads();
        handler.watch_ports(eal).await?;
        handler.watch_events().await;
        telemetry.publish(metrics::telemetry(&handler.families().await));
    }
}

/// Starts a thread for each worker.
fn spawn_all(workers: Vec<Worker>, eal: &Eal, privileges: Privileges) -> Result<Vec<JoinHandle<Result<()>>>> {
    workers.into_iter().map(|worker| spawn(worker, eal.clone(), privileges)).collect()
}

fn spawn(worker: Worker, eal: Eal, privileges: Privileges) -> Result<JoinHandle<Result<()>>> {
    let name = format!("worker-{}", worker.index);
    let run = move || {
        let core = worker.core;
        let pinned = core_affinity::set_for_current(core_affinity::CoreId { id: usize::from(core) });
        anyhow::ensure!(pinned, "cannot pin a worker to CPU {core}");
        let registered = RegisteredThread::new(&eal).context("DPDK does not take a worker thread")?;
        // A sleep ends when it is due, not up to 50 µs later.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        privileges.drop_of_worker()?;
        worker.run(&registered);
        Ok(())
    };
    std::thread::Builder::new().name(name).spawn(run).context("no thread for a worker")
}

/// Returns the CPU of the thread that wakes programs, `None` for any: that of the first worker if workers sleep, but
/// never one on which a worker spins.
fn waker_core(config: &Config, workers: &[Worker]) -> Option<u16> {
    let sleeps = matches!(config.workers.idle, Idle::Adaptive { .. });
    workers.first().filter(|_| sleeps).map(|worker| worker.core)
}

/// Starts the thread that wakes programs, on this CPU if one is given. It makes no other calls than a worker does.
fn start_waker(clock: &Clock, privileges: Privileges, core: Option<u16>) -> Result<(Wakes, WakeThread)> {
    let begin = move || {
        if let Some(core) = core {
            // The worker that runs there is pinned in the same way, and says so if that fails.
            core_affinity::set_for_current(core_affinity::CoreId { id: usize::from(core) });
        }
        if let Err(error) = privileges.drop_of_worker() {
            tracing::warn!("the thread that wakes programs keeps its privileges: {error:#}");
        }
    };
    Wakes::start(clock, begin).context("no thread to wake programs")
}

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
}

fn daemon_info(config_path: &Path, config: &Config, degraded: Vec<String>, workers: usize) -> DaemonInfo {
    let worker_ports = (workers * config.ports.len()) as u64;
    DaemonInfo {
        config_path: config_path.to_owned(),
        degraded,
        hugepages_required: matches!(config.memory.hugepages, iwarp_config::Hugepages::Require),
        dpdk_version: Eal::version(),
        idle: match config.workers.idle {
            Idle::Spin => iwarp_control::Idle::Spin,
            Idle::Adaptive { .. } => iwarp_control::Idle::Adaptive,
        },
        connections_max: u64::from(config.tcp.connections_max).saturating_mul(worker_ports),
    }
}
