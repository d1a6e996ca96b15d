//! Watches of regions: a program receives the messages of peers to a region of the daemon.
//!
//! A connection to the region may be on any worker, so each worker and port has a ring of its own in the memory of the
//! watch. All of them wake the program through one descriptor.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use iwarp_control::{ErrorKind, ErrorObject, WatchInfo};
use iwarp_engine::memory::SharedWords;
use iwarp_shared_verbs::methods::Watching;
use iwarp_shared_verbs::worker::NotificationStats;
use iwarp_shared_verbs::{RingShape, notification_ring, notification_ring_words};
use rdma::RegionId;

use super::registry::App;
use super::usage::Usage;
use super::{Applications, Session, internal, no_resources, off_thread};
use crate::admin::Regions;
use crate::control::Reply;
use crate::worker::{Command, NewWatch, WatchCommand};

/// Watch of a region.
#[derive(Debug)]
pub(super) struct AppWatch {
    /// Name of the region.
    name: String,
    region: RegionId,
    /// Bytes of the rings, which count for the user.
    pub(super) bytes: u64,
    /// Rings, shared with the program and the workers. Held because the last handle unmaps them, which takes time.
    memory: SharedWords,
}

impl Applications {
    /// Begins a watch of a region.
    pub(super) async fn watch(&self, session: &Session, name: &str) -> Result<Reply, ErrorObject> {
        self.check_admitted(session)?;
        // Held until all workers have the watch: the region stays.
        let regions = self.regions.lock().await;
        let id = regions.find(name)?.id();
        let (max, entries) = {
            let settings = self.settings.borrow();
            (settings.region_watches_max, settings.watch_entries)
        };
        if self.watches_of(id) >= usize::from(max) {
            let message = format!("region `{name}` has {max} watches, as many as one region may have");
            return Err(ErrorObject::new(ErrorKind::NoResources, message)
                .with_help("end another program, or raise applications.region_watches_max and reload"));
        }
        let shape = notification_ring(entries).ok_or_else(|| internal("no ring"))?;
        let rings = self.workers.len().saturating_mul(self.devices.len());
        let words = notification_ring_words(shape).saturating_mul(rings);
        let memory_bytes = (words as u64).saturating_mul(8);
        self.reserve(&session.app, Usage { memory_bytes, watches: 1, ..Usage::default() })?;
        let user = session.app.borrow().peer.uid;
        let begun = self.begin(&regions, (user, name), (shape, words)).await;
        let mut app = session.app.borrow_mut();
        app.pending = Usage::default();
        let (number, watch, waker) = begun?;
        let region = regions.find(name)?;
        let descriptors = [region.memory.descriptor(), watch.memory.descriptor(), Ok(waker)];
        let descriptors = descriptors.into_iter().collect::<Result<Vec<_>, _>>();
        // Ends with the session, if there are no descriptors left for it.
        app.watches.insert(number, watch);
        let watching = Watching {
            watch: number,
            name: name.to_owned(),
            bytes: region.memory.bytes(),
            page_bytes: region.memory.page_bytes(),
            access: region.access(),
            rings: u32::try_from(rings).unwrap_or(u32::MAX),
            shape,
        };
        Ok(Reply::new(watching).with_fds(descriptors.map_err(|error| no_resources(&error))?))
    }

    /// Returns an error unless the program may open regions.
    pub(super) fn check_admitted(&self, session: &Session) -> Result<(), ErrorObject> {
        let app = session.app.borrow();
        if self.control.policy().admits(&app.peer) {
            return Ok(());
        }
        let message = format!("user {} may not open regions", app.peer.uid);
        Err(ErrorObject::new(ErrorKind::NotPermitted, message)
            .with_help("run as root, or join the group of the control socket"))
    }

    /// Returns the number of watches of a region.
    fn watches_of(&self, region: RegionId) -> usize {
        let of = |app: &App| app.watches.values().filter(|watch| watch.region == region).count();
        self.registry.all().iter().map(|app| of(&app.borrow())).sum()
    }

    /// Allocates the rings of a watch, and begins it on all workers.
    async fn begin(
        &self,
        regions: &Regions,
        (user, name): (u32, &str),
        (shape, words): (RingShape, usize),
    ) -> Result<(u64, AppWatch, OwnedFd), ErrorObject> {
        let region = regions.find(name)?.id();
        let memory = off_thread(move || SharedWords::new("watch", words)).await?;
        let memory = memory.map_err(|error| no_resources(&error))?;
        let (waker, descriptor) = self.wakes.waker(user).map_err(|error| no_resources(&error))?;
        let waker = Arc::new(waker);
        let number = self.registry.next_watch();
        let mut begun = Ok(true);
        for (worker, handle) in self.workers.iter().enumerate() {
            let first_ring = worker.saturating_mul(self.devices.len());
            let (memory, waker) = (memory.clone(), Arc::clone(&waker));
            let watch = Box::new(NewWatch { number, memory, shape, first_ring, waker });
            begun = handle.ask(|reply| Command::Watch(WatchCommand::Begin { region, watch, reply })).await;
            if !matches!(begun, Ok(true)) {
                break;
            }
        }
        let bytes = (words as u64).saturating_mul(8);
        let watch = AppWatch { name: name.to_owned(), region, bytes, memory };
        if matches!(begun, Ok(true)) {
            return Ok((number, watch, descriptor));
        }
        self.end(number, watch).await;
        begun.and_then(|_| Err(internal("a worker does not have the region")))
    }

    /// Ends a watch, and frees its rings.
    async fn end(&self, number: u64, watch: AppWatch) {
        let region = watch.region;
        for handle in self.workers.iter() {
            // Fails only if the worker has ended: the daemon ends, too.
            let _ = handle.ask(|reply| Command::Watch(WatchCommand::End { region, number, reply })).await;
        }
        // Unmapping takes time.
        let _ = off_thread(move || drop(watch.memory)).await;
    }

    /// Ends a watch of a program.
    pub(super) async fn unwatch(&self, session: &Session, number: u64) -> Result<(), ErrorObject> {
        let watch = session.app.borrow_mut().watches.remove(&number).ok_or_else(|| {
            ErrorObject::new(ErrorKind::NoSuchObject, format!("this program has no watch {number}"))
        })?;
        self.end(number, watch).await;
        Ok(())
    }

    /// Ends all watches of a program.
    pub(super) async fn end_watches(&self, session: &Session) {
        let watches = std::mem::take(&mut session.app.borrow_mut().watches);
        for (number, watch) in watches {
            self.end(number, watch).await;
        }
    }

    /// Returns the watches of an application, with their counters.
    pub(super) async fn watch_infos(
        &self,
        app: &std::cell::RefCell<App>,
    ) -> Result<Vec<WatchInfo>, ErrorObject> {
        let watched: Vec<(u64, RegionId, String)> = {
            let app = app.borrow();
            let row = |(number, watch): (&u64, &AppWatch)| (*number, watch.region, watch.name.clone());
            app.watches.iter().map(row).collect()
        };
        let mut rows = Vec::with_capacity(watched.len());
        for (number, region, name) in watched {
            let mut sum = NotificationStats::default();
            for handle in self.workers.iter() {
                let stats =
                    handle.ask(|reply| Command::Watch(WatchCommand::Stats { region, number, reply })).await?;
                sum.delivered = sum.delivered.wrapping_add(stats.delivered);
                sum.lost = sum.lost.wrapping_add(stats.lost);
            }
            rows.push(WatchInfo { region: name, notifications: sum.delivered, lost: sum.lost });
        }
        Ok(rows)
    }
}
