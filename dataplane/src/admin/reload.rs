//! Handles `reload` and SIGHUP: reads the configuration again and applies its changes, all or none.
//!
//! ```text
//! file ──▶ Config ──▶ plan ──▶ begin: what can fail ──▶ finish: what cannot
//!   │        │         │         │ undone if a step fails
//!   └────────┴─────────┴─────────┴──▶ refused, with the reason; nothing has changed
//! ```
//! `begin` allocates the memory of regions, sets up sockets, and adds listeners and regions. `finish` changes what is
//! there, and removes what the file no longer has.

use iwarp_config::{Config, Listener, Plan, Region as RegionConfig, Service, Step};
use iwarp_control::{ConfigChange, ErrorKind, ErrorObject, Origin, ReloadMethod, Reloaded, params};
use serde_json::Value;
use tokio::sync::{Mutex, Notify, oneshot};

use super::regions::{RegionSpec, Regions};
use super::{Applications, ControlHandler};
use crate::control::{Peer, Reply, ServerConfig, SharedSettings};
use crate::events::Event;
use crate::service_manager;
use crate::setup;
use crate::worker::{Command, CommandError, SettingsCommand};

/// Configuration of the running daemon, and the parts that a reload reaches beside the workers.
#[derive(Debug)]
pub(crate) struct Running {
    /// Configuration of the start, for which tables were allocated.
    started: Config,
    /// Configuration that holds now. Locked for the time of a reload.
    current: Mutex<Config>,
    control: SharedSettings,
    applications: Option<SharedSettings>,
    /// A signal asks for a reload.
    asked: Notify,
}

impl Running {
    /// Creates the state of a daemon that starts with `config` and has these sockets.
    pub(crate) fn new(
        config: &Config,
        control: SharedSettings,
        applications: Option<SharedSettings>,
    ) -> Self {
        let current = Mutex::new(config.clone());
        Self { started: config.clone(), current, control, applications, asked: Notify::new() }
    }
}

impl ControlHandler {
    /// Asks for a reload, which [`Self::serve_reloads`] carries out.
    pub(crate) fn ask_reload(&self) {
        self.running.asked.notify_one();
    }

    /// Carries out the reloads that signals ask for. Never returns.
    pub(crate) async fn serve_reloads(&self) {
        loop {
            self.running.asked.notified().await;
            // The result is reported as an event.
            let _ = self.reload(None).await;
        }
    }

    /// Returns the time that SIGTERM gives connections to end, ms.
    pub(crate) fn drain_timeout_ms(&self) -> u64 {
        // A reload holds the lock; the value of the start is no worse then.
        let started = self.running.started.drain.timeout_ms;
        self.running.current.try_lock().map_or(started, |config| config.drain.timeout_ms).into()
    }

    /// Answers `reload` with what has changed.
    pub(super) async fn reload_method(&self, peer: &Peer, given: Value) -> Result<Reply, ErrorObject> {
        params::<ReloadMethod>(given)?;
        Ok(Reply::new(self.reload(Some(peer)).await?))
    }

    /// Reads the configuration file and applies its changes. `by` is the client that asks, if one does.
    ///
    /// # Errors
    /// The file has mistakes, a change needs a restart, or a step fails. Nothing has changed then.
    async fn reload(&self, by: Option<&Peer>) -> Result<Reloaded, ErrorObject> {
        service_manager::reloading();
        let done = self.try_reload().await;
        let (uid, pid) = (by.map(|peer| peer.uid), by.map(|peer| peer.pid));
        match &done {
            Ok(Reloaded { changes, grants_revoked, .. }) => {
                for ConfigChange { object, change } in changes {
                    tracing::info!("reload: {object}: {change}");
                }
                let (changes, grants_revoked) = (changes.len() as u64, *grants_revoked);
                self.report(&Event::ConfigReloaded { changes, grants_revoked, uid, pid });
                service_manager::ready(&format!("configuration reloaded: {changes} changes"));
            }
            Err(refused) => {
                let reason = refused.to_string();
                service_manager::ready(&format!("configuration not reloaded: {reason}"));
                self.report(&Event::ConfigRefused { reason, uid, pid });
            }
        }
        done
    }

    async fn try_reload(&self) -> Result<Reloaded, ErrorObject> {
        let path = &self.info.config_path;
        let mut current = self.running.current.lock().await;
        let mut regions = self.regions.lock().await;
        if self.draining.is_on() {
            return Err(ErrorObject::new(ErrorKind::InUse, "the daemon drains and is about to stop"));
        }
        let new = Config::load(path).map_err(|errors| {
            let help = format!("`iwarpctl config check {}` explains it", path.display());
            ErrorObject::new(ErrorKind::InvalidConfig, errors.short().trim_end().replace('\n', "; "))
                .with_help(help)
        })?;
        let plan = iwarp_config::plan(&self.running.started, &current, &new).map_err(|refusals| {
            ErrorObject::new(ErrorKind::NeedsRestart, refusals.to_string())
                .with_help("take these changes back, or restart the daemon")
        })?;
        let grants_revoked = self.apply(&plan, &current, &new, &mut regions).await?;
        *current = new;
        let changes = plan.lines.into_iter();
        let changes = changes.map(|line| ConfigChange { object: line.object, change: line.change }).collect();
        Ok(Reloaded { config_path: path.clone(), changes, grants_revoked })
    }

    /// Applies a plan. Returns the number of grants revoked.
    async fn apply(
        &self,
        plan: &Plan,
        old: &Config,
        new: &Config,
        regions: &mut Regions,
    ) -> Result<u64, ErrorObject> {
        let mut made = Vec::new();
        // Until the end both configurations must have room.
        regions.set_max(old.limits.regions_max.max(new.limits.regions_max));
        if let Err(refused) = self.begin(plan, new, regions, &mut made).await {
            self.undo(plan, old, regions, &made).await;
            regions.set_max(old.limits.regions_max);
            return Err(refused);
        }
        for name in &made {
            self.report_region(&regions.find(name)?.info(&self.workers).await?, None);
        }
        let mut revoked = 0_u64;
        for step in &plan.steps {
            let by_step = self.finish(step, new, regions, &made).await?;
            revoked = revoked.saturating_add(by_step);
        }
        Ok(revoked)
    }

    /// Carries out everything that can fail. `made` receives the names of the regions that are new.
    async fn begin(
        &self,
        plan: &Plan,
        new: &Config,
        regions: &mut Regions,
        made: &mut Vec<String>,
    ) -> Result<(), ErrorObject> {
        for step in &plan.steps {
            match step {
                Step::RegionAdd(region) => make(region, regions, made)?,
                // Deregistered by hand: it is there again with what the file says now.
                Step::RegionChange(region, _) if regions.find(region.name.as_str()).is_err() => {
                    make(region, regions, made)?;
                }
                Step::RegionChange(region, _) if !is_of_the_file(region, regions) => {
                    let what = format!("region `{}` was registered by a client", region.name);
                    return Err(ErrorObject::new(ErrorKind::Exists, what)
                        .with_help(format!("first `iwarpctl region deregister {}`", region.name)));
                }
                _ => {}
            }
        }
        for step in &plan.steps {
            match step {
                Step::Control(table) => {
                    self.set_up(Some(&self.running.control), &ServerConfig::from(table))?
                }
                Step::Applications(table) => {
                    self.set_up(self.running.applications.as_ref(), &ServerConfig::from(table))?;
                }
                _ => {}
            }
        }
        for step in &plan.steps {
            match step {
                Step::ListenerAdd(listener) => {
                    let setup = setup::listener_setup(new, listener);
                    self.on_workers(|reply| SettingsCommand::Listen {
                        setup: Box::new(setup.clone()),
                        reply,
                    })
                    .await?
                    .map_err(|error| refused_listener(listener, &error))?;
                }
                Step::ListenerReplace(listener) if needs_room(listener) => {
                    self.change_listener(new, listener).await?;
                }
                _ => {}
            }
        }
        for name in made.iter() {
            regions.find(name)?.offer(&self.workers).await?;
        }
        Ok(())
    }

    /// Takes back what [`Self::begin`] has done until a step failed.
    async fn undo(&self, plan: &Plan, old: &Config, regions: &mut Regions, made: &[String]) {
        for name in made {
            // Fails only if a worker has ended: the daemon ends, too.
            if let Ok(region) = regions.find(name) {
                let _ = region.revoke(&self.workers).await;
            }
            regions.forget(name);
        }
        for step in &plan.steps {
            let undone = match step {
                Step::ListenerAdd(listener) => self.unlisten(listener.port).await,
                Step::ListenerReplace(listener) if needs_room(listener) => {
                    match old.listeners.iter().find(|before| before.port == listener.port) {
                        Some(before) => self.change_listener(old, before).await,
                        None => Ok(()),
                    }
                }
                Step::Control(_) => {
                    self.set_up(Some(&self.running.control), &ServerConfig::from(&old.control))
                }
                Step::Applications(_) => old.applications.as_ref().map_or(Ok(()), |table| {
                    self.set_up(self.running.applications.as_ref(), &ServerConfig::from(table))
                }),
                _ => Ok(()),
            };
            if let Err(error) = undone {
                tracing::error!("reload: a step cannot be taken back: {error}");
            }
        }
    }

    /// Carries out a step that needs nothing new. Returns the number of grants revoked.
    async fn finish(
        &self,
        step: &Step,
        new: &Config,
        regions: &mut Regions,
        made: &[String],
    ) -> Result<u64, ErrorObject> {
        match step {
            Step::RegionAdd(_) | Step::ListenerAdd(_) | Step::Control(_) | Step::Noted => {}
            Step::RegionChange(region, _) if made.iter().any(|name| name == region.name.as_str()) => {}
            Step::RegionChange(region, diff) => {
                let all = diff.token && region.token.is_some();
                return regions.change(RegionSpec::from(region), all, &self.workers).await;
            }
            Step::RegionRemove(region) => return self.remove(region, regions).await,
            Step::ListenerReplace(listener) if needs_room(listener) => {}
            Step::ListenerChange(listener) | Step::ListenerReplace(listener) => {
                self.change_listener(new, listener).await?;
            }
            Step::ListenerRemove(port) => self.unlisten(*port).await?,
            Step::LogLevel(level) => self.reporting.log.set("reload", *level),
            Step::Events(log) => self.reporting.set_limits(log),
            Step::Limits(limits) => {
                regions.set_max(limits.regions_max);
                self.set_limits(new).await?;
            }
            Step::ConnectionsPerSource(_) => self.set_limits(new).await?,
            Step::Applications(table) => {
                self.applications
                    .as_deref()
                    .into_iter()
                    .for_each(|applications: &Applications| applications.change(table));
            }
        }
        Ok(0)
    }

    /// Removes a region of the file, unless somebody has removed or replaced it. Returns the number of grants revoked.
    async fn remove(&self, region: &RegionConfig, regions: &mut Regions) -> Result<u64, ErrorObject> {
        if !is_of_the_file(region, regions) {
            return Ok(0);
        }
        let name = region.name.as_str();
        let grants_revoked = regions.find(name)?.withdraw(&self.workers, true).await?.grants_revoked;
        regions.forget(name);
        let region = name.to_owned();
        self.report(&Event::RegionRemoved { region, grants_revoked, uid: None, pid: None });
        Ok(grants_revoked)
    }

    async fn change_listener(&self, config: &Config, listener: &Listener) -> Result<(), ErrorObject> {
        let setup = setup::listener_setup(config, listener);
        let change = |reply| SettingsCommand::ChangeListener { setup: Box::new(setup.clone()), reply };
        self.on_workers(change).await?.map_err(|error| refused_listener(listener, &error))
    }

    async fn unlisten(&self, port: u16) -> Result<(), ErrorObject> {
        for handle in self.workers.iter() {
            handle.ask(|reply| Command::Settings(SettingsCommand::Unlisten { port, reply })).await?;
        }
        Ok(())
    }

    async fn set_limits(&self, new: &Config) -> Result<(), ErrorObject> {
        let (stags_max, per_source) = (setup::stags_max(new), new.tcp.connections_per_source_max);
        for handle in self.workers.iter() {
            let limits =
                |reply| SettingsCommand::Limits { stags_max, connections_per_source_max: per_source, reply };
            handle.ask(|reply| Command::Settings(limits(reply))).await?;
        }
        Ok(())
    }

    /// Changes mode and group of a socket that programs connect to.
    fn set_up(&self, socket: Option<&SharedSettings>, config: &ServerConfig) -> Result<(), ErrorObject> {
        let changed = socket.map_or(Ok(()), |socket| socket.change(config));
        changed.map_err(|error| ErrorObject::new(ErrorKind::NotPermitted, error.to_string()))
    }

    /// Has every worker carry out a command, until one refuses.
    async fn on_workers(
        &self,
        command: impl Fn(oneshot::Sender<Result<(), CommandError>>) -> SettingsCommand,
    ) -> Result<Result<(), CommandError>, ErrorObject> {
        for handle in self.workers.iter() {
            let done = handle.ask(|reply| Command::Settings(command(reply))).await?;
            if done.is_err() {
                return Ok(done);
            }
        }
        Ok(Ok(()))
    }
}

/// Allocates a region's memory and reserves its name.
fn make(region: &RegionConfig, regions: &mut Regions, made: &mut Vec<String>) -> Result<(), ErrorObject> {
    regions.make(RegionSpec::from(region))?;
    made.push(region.name.to_string());
    Ok(())
}

/// Returns true if a region is there and comes from the configuration file.
fn is_of_the_file(region: &RegionConfig, regions: &Regions) -> bool {
    regions.find(region.name.as_str()).is_ok_and(|region| region.origin() == Origin::Config)
}

/// Returns true if another service on a listener's port needs an identifier of the device: that can fail.
fn needs_room(listener: &Listener) -> bool {
    listener.service == Service::Region
}

fn refused_listener(listener: &Listener, error: &CommandError) -> ErrorObject {
    ErrorObject::new(ErrorKind::InUse, format!("listener {}: {error}", listener.port)).with_help(
        "a program listens on this port, or there are too many listeners: choose another, or remove one",
    )
}
