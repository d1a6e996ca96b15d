//! Runs the daemon: builds it from its configuration, serves until a signal or a loss, and shuts it down in order.
//! `main` calls [`run`].

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use iwarp_config::{Config, Idle};
use iwarp_control::Origin;
use tokio::time::MissedTickBehavior;

use crate::admin::{ControlHandler, DaemonInfo, RegionSpec};
use crate::control::{Server, ServerConfig};
use crate::dpdk::{Eal, RegisteredThread};
use crate::log::Log;
use crate::port::Claims;
use crate::setup::{self, Runtime};
use crate::signals::Signals;
use crate::worker::{Clock, Worker};

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// The daemon cannot start, and the message says why and what to do; or a worker ended by itself.
pub fn run(config_path: &Path, config: &Config) -> Result<()> {
    let log = Log::to_stderr(config.log.level);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("no control thread")?;
    runtime.block_on(serve(config_path, config, log))
}

async fn serve(config_path: &Path, config: &Config, mut log: Log) -> Result<()> {
    // Caught before anything is built, so that no signal is lost and a second daemon stops here.
    let mut signals = Signals::catch()?;
    let server = Server::bind(&ServerConfig::from(&config.control))?;
    // Held until the end: otherwise DPDK would let a second daemon open the same TAP, and take the link down when it
    // exits.
    let _claims = Claims::take(&config.ports)?;
    let clock = Clock::start();
    let Runtime { eal, regions, degraded, ports, workers, worker_handles } = setup::build(config, &clock)?;
    for entry in &ports {
        tracing::info!(port = entry.port.name(), addresses = setup::addresses(entry), "port is up");
    }
    let info = daemon_info(config_path, config, degraded, workers.len());
    let handler = Rc::new(ControlHandler::new(info, clock, worker_handles, ports, regions, server.stats()));
    let threads = workers.into_iter().map(|worker| spawn(worker, eal.clone())).collect::<Result<Vec<_>>>()?;
    let lost = Cell::new(None);
    let served = match offer(config, &handler).await {
        Ok(()) => {
            tracing::info!(socket = %config.control.socket.display(), "ready");
            let stop = async {
                tokio::select! {
                    name = signals.end(&mut log) => tracing::info!("{name}: going down"),
                    watched = watch(&handler, &eal) => {
                        tracing::error!("going down");
                        lost.set(watched.err());
                    }
                }
            };
            let served = server.run(Rc::clone(&handler), stop).await.context("the control socket failed");
            lost.take().map_or(served, Err)
        }
        Err(error) => Err(error),
    };
    handler.stop();
    let ended = threads.into_iter().map(join).collect::<Result<Vec<()>>>();
    // The error of a worker that ended is more specific than the failed request to it.
    ended.and(served)
}

/// Registers the regions of the configuration.
async fn offer(config: &Config, handler: &ControlHandler) -> Result<()> {
    for region in &config.regions {
        let spec = RegionSpec {
            name: region.name.clone(),
            bytes: region.bytes,
            access: region.access,
            token: region.token.clone(),
            allow: region.allow.clone(),
            origin: Origin::Config,
        };
        handler.region_add(spec).await.with_context(|| format!("region {}", region.name))?;
    }
    Ok(())
}

/// Samples worker loads and port states once per second. Returns when the daemon cannot continue.
async fn watch(handler: &ControlHandler, eal: &Eal) -> Result<()> {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        second.tick().await;
        anyhow::ensure!(!handler.has_lost_a_worker(), "a worker has ended");
        handler.sample_loads();
        handler.watch_ports(eal).await?;
    }
}

fn spawn(worker: Worker, eal: Eal) -> Result<JoinHandle<Result<()>>> {
    let name = format!("worker-{}", worker.index);
    let run = move || {
        let core = worker.core;
        let pinned = core_affinity::set_for_current(core_affinity::CoreId { id: usize::from(core) });
        anyhow::ensure!(pinned, "cannot pin a worker to CPU {core}");
        let registered = RegisteredThread::new(&eal).context("DPDK does not take a worker thread")?;
        worker.run(&registered);
        Ok(())
    };
    std::thread::Builder::new().name(name).spawn(run).context("no thread for a worker")
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
