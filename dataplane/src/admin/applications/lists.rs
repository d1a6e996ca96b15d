//! Lists of applications and of their objects, for the control socket.
//!
//! The registry knows the objects. States and counters come from the workers, for at most [`PAGE`] objects per command.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;

use iwarp_control::bounds::OBJECTS_LISTED_MAX;
use iwarp_control::{AppInfo, AppObjects, CqInfo, ErrorKind, ErrorObject, MrInfo, MrKind, QpInfo, UserInfo};
use iwarp_shared_verbs::worker::{ContextId, ContextStats};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{CmId, CqId, QpAttr, QpNum, QpState};

use super::Applications;
use super::registry::{App, AppMemory, ContextPlace};
use super::usage::Usage;
use crate::worker::ContextCommand;

/// Objects that a worker reports per command, between two poll iterations.
const PAGE: usize = 64;

impl Applications {
    /// Returns all applications, by number.
    ///
    /// # Errors
    /// A worker does not answer.
    pub(in crate::admin) async fn apps(&self) -> Result<Vec<AppInfo>, ErrorObject> {
        let mut all = Vec::new();
        for app in self.registry.all() {
            all.push(self.info(&app).await?);
        }
        Ok(all)
    }

    /// Returns one application.
    ///
    /// # Errors
    /// There is no such application, or its worker does not answer.
    pub(in crate::admin) async fn app(&self, number: u32) -> Result<AppInfo, ErrorObject> {
        let app = self.registry.find(number).ok_or_else(|| no_such_app(number))?;
        self.info(&app).await
    }

    /// Returns the users that have applications, by number, with what they have of each limit.
    pub(in crate::admin) fn users(&self) -> Vec<UserInfo> {
        let limits = self.limits();
        let mut places: BTreeMap<u32, BTreeSet<(usize, usize)>> = BTreeMap::new();
        for app in self.registry.all() {
            let app = app.borrow();
            let of_user = places.entry(app.peer.uid).or_default();
            of_user.extend(app.context.map(|place| (place.worker, place.port)));
        }
        let user = |(uid, places): (u32, BTreeSet<(usize, usize)>)| {
            let [all, _] = self.registry.used(uid, None);
            let of_devices: Vec<Usage> =
                places.into_iter().map(|place| self.registry.used(uid, Some(place))[1]).collect();
            UserInfo { uid, usage: limits.report(all, &of_devices) }
        };
        places.into_iter().map(user).collect()
    }

    /// Returns the number of each open application, by worker, port and context.
    pub(in crate::admin) fn owners(&self) -> HashMap<(usize, usize, ContextId), u32> {
        let all = self.registry.all();
        let owner = |app: &Rc<RefCell<App>>| {
            let app = app.borrow();
            app.context.map(|ContextPlace { worker, port, id }| ((worker, port, id), app.number))
        };
        all.iter().filter_map(owner).collect()
    }

    /// Returns the queue pairs of one application or of all, at most [`OBJECTS_LISTED_MAX`].
    ///
    /// # Errors
    /// There is no such application, or its worker does not answer.
    pub(in crate::admin) async fn queue_pairs(&self, asked: AppObjects) -> Result<Vec<QpInfo>, ErrorObject> {
        let mut rows = Vec::new();
        for app in self.chosen(asked)? {
            let (number, Some(place)) = of(&app) else { continue };
            let room = OBJECTS_LISTED_MAX.saturating_sub(rows.len());
            let qps: Vec<QpNum> = app.borrow().qps.keys().take(room).copied().collect();
            for page in qps.chunks(PAGE) {
                rows.extend(self.queue_pair_page(number, place, page).await?);
            }
        }
        Ok(rows)
    }

    async fn queue_pair_page(
        &self,
        app: u32,
        place: ContextPlace,
        page: &[QpNum],
    ) -> Result<Vec<QpInfo>, ErrorObject> {
        let queries = page.iter().map(|qp| Request::QueryQp(*qp)).collect();
        // A queue pair that was destroyed meanwhile has no row.
        let found: Vec<(QpNum, QpAttr)> = page
            .iter()
            .zip(self.query(place, queries).await?)
            .filter_map(|(qp, response)| match response {
                Some(Response::QpAttr(attr)) => Some((*qp, attr)),
                _ => None,
            })
            .collect();
        let ids: Vec<CmId> = found.iter().filter_map(|(_, attr)| attr.id).collect();
        let queries = ids.iter().map(|id| Request::Addresses(*id)).collect();
        let peers =
            ids.iter().zip(self.query(place, queries).await?).filter_map(|(id, response)| match response {
                Some(Response::Addresses(_, Some(peer))) => Some((*id, peer)),
                _ => None,
            });
        let peers: HashMap<CmId, SocketAddr> = peers.collect();
        let row = |(qp, attr): (QpNum, QpAttr)| {
            let peer = attr.id.and_then(|id| peers.get(&id).copied());
            queue_pair(app, qp, &attr, peer)
        };
        Ok(found.into_iter().map(row).collect())
    }

    /// Has a worker answer requests that change nothing; `None` for each that fails.
    async fn query(
        &self,
        place: ContextPlace,
        requests: Vec<Request>,
    ) -> Result<Vec<Option<Response>>, ErrorObject> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let ContextPlace { worker, port, id: context } = place;
        let executed =
            self.ask(worker, port, |reply| ContextCommand::Execute { context, requests, reply }).await?;
        Ok(executed.results.into_iter().map(Result::ok).collect())
    }

    /// Returns the completion queues of one application or of all, at most [`OBJECTS_LISTED_MAX`].
    ///
    /// # Errors
    /// There is no such application, or its worker does not answer.
    pub(in crate::admin) async fn completion_queues(
        &self,
        asked: AppObjects,
    ) -> Result<Vec<CqInfo>, ErrorObject> {
        let mut rows = Vec::new();
        for app in self.chosen(asked)? {
            let (number, Some(place)) = of(&app) else { continue };
            let ContextPlace { worker, port, id: context } = place;
            let room = OBJECTS_LISTED_MAX.saturating_sub(rows.len());
            let cqs: Vec<(CqId, u32)> =
                app.borrow().cqs.iter().take(room).map(|(cq, entries)| (*cq, *entries)).collect();
            for page in cqs.chunks(PAGE) {
                let cqs = page.iter().map(|(cq, _)| *cq).collect();
                let stats =
                    self.ask(worker, port, |reply| ContextCommand::CqStats { context, cqs, reply }).await?;
                // A queue that was destroyed meanwhile has no row.
                rows.extend(page.iter().zip(stats).filter_map(|((cq, entries), stats)| {
                    stats.map(|stats| CqInfo {
                        app: number,
                        number: cq.0,
                        entries: *entries,
                        events: stats.events,
                        completions: stats.completions,
                        errors: stats.errors,
                    })
                }));
            }
        }
        Ok(rows)
    }

    /// Returns the memory regions of one application or of all, at most [`OBJECTS_LISTED_MAX`].
    ///
    /// # Errors
    /// There is no such application.
    pub(in crate::admin) fn memory_regions(&self, asked: AppObjects) -> Result<Vec<MrInfo>, ErrorObject> {
        let mut rows = Vec::new();
        for app in self.chosen(asked)? {
            let app = app.borrow();
            rows.extend(app.memories.values().filter_map(|memory| memory_region(app.number, memory)));
        }
        rows.truncate(OBJECTS_LISTED_MAX);
        Ok(rows)
    }

    /// Returns the applications whose objects are asked for.
    fn chosen(&self, asked: AppObjects) -> Result<Vec<Rc<RefCell<App>>>, ErrorObject> {
        let Some(number) = asked.app else { return Ok(self.registry.all()) };
        self.registry.find(number).map(|app| vec![app]).ok_or_else(|| no_such_app(number))
    }

    async fn info(&self, app: &RefCell<App>) -> Result<AppInfo, ErrorObject> {
        let (_, place) = of(app);
        let stats = match place {
            Some(ContextPlace { worker, port, id: context }) => {
                self.ask(worker, port, |reply| ContextCommand::Stats { context, reply }).await?
            }
            None => None,
        };
        let ContextStats { work_requests, completions, errors } = stats.unwrap_or_default();
        let watches = self.watch_infos(app).await?;
        let app = app.borrow();
        let mrs = || app.memories.values().filter_map(|memory| memory.mr.as_ref());
        Ok(AppInfo {
            app: app.number,
            pid: app.peer.pid,
            uid: app.peer.uid,
            command: app.command.clone(),
            device: place.and_then(|place| self.devices.get(place.port)).map(|device| device.name.clone()),
            worker: place.map(|place| u32::try_from(place.worker).unwrap_or(u32::MAX)),
            age_ms: u64::try_from(app.opened.elapsed().as_millis()).unwrap_or(u64::MAX),
            queue_pairs: app.qps.len() as u64,
            completion_queues: app.cqs.len() as u64,
            shared_receive_queues: app.srqs.len() as u64,
            memory_regions: mrs().count() as u64,
            registered_bytes: mrs().map(|(mr, _)| mr.length).sum(),
            queue_bytes: app.queue_bytes,
            work_requests,
            completions,
            errors,
            watches,
        })
    }
}

fn of(app: &RefCell<App>) -> (u32, Option<ContextPlace>) {
    let app = app.borrow();
    (app.number, app.context)
}

fn queue_pair(app: u32, qp: QpNum, attr: &QpAttr, peer: Option<SocketAddr>) -> QpInfo {
    let used = |slots: usize| u32::try_from(slots).unwrap_or(u32::MAX);
    let QpAttr { state, init, send_used, recv_used, .. } = attr;
    let state = match state {
        QpState::Idle => "idle",
        QpState::Rts => "rts",
        QpState::Closing => "closing",
        QpState::Terminate => "terminate",
        QpState::Error => "error",
    };
    QpInfo {
        app,
        number: qp.0,
        state: state.to_owned(),
        peer,
        send_slots: init.cap.max_send_wr.into(),
        send_slots_used: used(*send_used),
        recv_slots: init.cap.max_recv_wr.into(),
        recv_slots_used: used(*recv_used),
        shared_receive_queue: init.srq.map(|srq| srq.0),
    }
}

/// Returns the row of memory that is registered.
fn memory_region(app: u32, memory: &AppMemory) -> Option<MrInfo> {
    let (mr, access) = memory.mr.as_ref()?;
    let kind = match (&memory.region, &memory.own) {
        (Some(_), _) => MrKind::Region,
        (None, Some(own)) if own.is_huge => MrKind::Hugepages,
        (None, Some(own)) if own.kernel_bytes == 0 => MrKind::Shared,
        (None, Some(own)) if own.exchanged.is_empty() => MrKind::Kernel,
        (None, Some(_)) => MrKind::SharedAndKernel,
        (None, None) if memory.memory.as_ref().is_some_and(|memory| memory.is_huge()) => MrKind::Hugepages,
        (None, None) => MrKind::Pages,
    };
    Some(MrInfo {
        app,
        number: mr.id.0,
        bytes: mr.length,
        access: access.names().map(str::to_owned).collect(),
        kind,
        region: memory.region.clone(),
        kernel_bytes: memory.own.as_ref().map_or(0, |own| own.kernel_bytes),
    })
}

pub(in crate::admin) fn no_such_app(number: u32) -> ErrorObject {
    ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no application {number}"))
        .with_help("`iwarpctl app list` shows those there are")
}
