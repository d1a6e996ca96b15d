//! Events of the control thread's own: it reads those of the workers, and samples once per second what became degraded,
//! which drops are bursts and whether packet buffers are short. It also answers `monitor` and `log.level`.

use std::cell::RefCell;
use std::rc::Rc;

use iwarp_config::LogFormat;
use iwarp_control::{
    ErrorKind, ErrorObject, LogLevel, LogLevelMethod, LogStatus, Method, MonitorMethod, Monitoring,
    RegionInfo, params,
};
use iwarp_engine::{Notice, NoticeReader};
use serde_json::Value;

use super::metrics::LOCK_WAIT;
use super::{ControlHandler, report};
use crate::control::{Peer, Reply};
use crate::events::{DropBursts, Event, EventLog};
use crate::log::Log;

/// Methods that [`ControlHandler::log_method`] answers.
pub(super) const METHODS: [&str; 2] = [MonitorMethod::NAME, LogLevelMethod::NAME];

/// The log, the events, and the state from which some of them are derived.
#[derive(Debug)]
pub(crate) struct Reporting {
    pub(super) log: Rc<Log>,
    pub(super) events: Rc<EventLog>,
    notices: RefCell<Vec<NoticeReader>>,
    bursts: RefCell<DropBursts>,
    /// Reasons for being degraded at the last check.
    degraded: RefCell<Vec<String>>,
    /// Events that each worker has dropped, at the last check.
    lost: RefCell<Vec<u64>>,
}

impl Reporting {
    /// Creates the state before the first check.
    pub(crate) fn new(
        config: &iwarp_config::Log,
        log: &Rc<Log>,
        events: &Rc<EventLog>,
        notices: Vec<NoticeReader>,
    ) -> Self {
        Self {
            log: Rc::clone(log),
            events: Rc::clone(events),
            notices: RefCell::new(notices),
            bursts: RefCell::new(DropBursts::new(config.drop_burst_per_s)),
            degraded: RefCell::default(),
            lost: RefCell::default(),
        }
    }

    /// Sets the limits of events.
    pub(crate) fn set_limits(&self, config: &iwarp_config::Log) {
        self.events.set_per_s_max(config.events_per_s_max);
        self.bursts.borrow_mut().set_limit(config.drop_burst_per_s);
    }
}

impl ControlHandler {
    /// Reports an event to the log and to the monitors.
    pub(crate) fn report(&self, event: &Event) {
        self.reporting.events.record(event);
    }

    /// Reports the events that the workers have recorded since the last call. Called ten times per second.
    pub(crate) fn read_notices(&self) {
        let ports = self.ports.borrow();
        for reader in self.reporting.notices.borrow_mut().iter_mut() {
            let (worker, port) = (reader.worker, reader.port);
            let name = ports.get(port).map(|entry| entry.spec.name.clone()).unwrap_or_default();
            for notice in reader.batch() {
                self.report(&event_of(notice, (worker, port), &name));
            }
        }
    }

    /// Reports what has changed since the last call. Called once per second, after [`Self::sample_loads`].
    pub(crate) async fn watch_events(&self) {
        self.watch_degradation().await;
        let rows = report::drops(&self.workers, self.own_groups());
        let sample = rows.iter().map(|row| (row.layer.as_str(), row.reason.as_str(), row.count));
        let bursts = self.reporting.bursts.borrow_mut().sample(sample);
        bursts.iter().for_each(|event| self.report(event));
        for (load, worker) in self.loads().iter().zip(0..) {
            for (what, refused) in load.shortages() {
                self.report(&Event::MemoryPressure { worker, what, refused });
            }
        }
        self.watch_losses();
        self.reporting.events.report_suppressed();
    }

    /// Reports the reasons for being degraded that have appeared and ended. While a worker does not answer a request
    /// about a region, the list of regions is locked, and nothing is reported.
    async fn watch_degradation(&self) {
        let Ok(regions) = tokio::time::timeout(LOCK_WAIT, self.regions.lock()).await else { return };
        let Ok((_, reasons)) = self.degraded(&regions) else { return };
        let now: Vec<String> = reasons.into_iter().map(|reason| reason.what).collect();
        let before = self.reporting.degraded.replace(now.clone());
        for reason in now.iter().filter(|reason| !before.contains(reason)) {
            self.report(&Event::Degraded { reason: reason.clone() });
        }
        for reason in before.into_iter().filter(|reason| !now.contains(reason)) {
            self.report(&Event::Recovered { reason });
        }
    }

    /// Reports how many events the workers have dropped.
    fn watch_losses(&self) {
        let mut lost = self.reporting.lost.borrow_mut();
        lost.resize(self.workers.len(), 0);
        for ((handle, before), worker) in self.workers.iter().zip(lost.iter_mut()).zip(0..) {
            let now = handle.published.notices().drop_ring_full;
            let count = now.saturating_sub(std::mem::replace(before, now));
            if count > 0 {
                self.report(&Event::NoticesLost { worker, count });
            }
        }
    }

    /// Reports that a region is offered to peers; `by` is the client that registered it, if one did.
    pub(super) fn report_region(&self, region: &RegionInfo, by: Option<&Peer>) {
        self.report(&Event::RegionRegistered {
            region: region.name.clone(),
            bytes: region.bytes,
            access: region.access.to_string(),
            uid: by.map(|peer| peer.uid),
            pid: by.map(|peer| peer.pid),
        });
    }

    /// Answers one of [`METHODS`].
    pub(super) fn log_method(&self, peer: &Peer, method: &str, given: Value) -> Result<Reply, ErrorObject> {
        if method == MonitorMethod::NAME {
            params::<MonitorMethod>(given)?;
            let (recent, lines) = self.reporting.events.subscribe();
            return Ok(Reply::new(Monitoring { recent }).with_stream(lines));
        }
        let log = &self.reporting.log;
        if let Some(level) = params::<LogLevelMethod>(given)?.level {
            log.set(&format!("user {}, process {}", peer.uid, peer.pid), config_level(level));
        }
        let level = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug]
            .into_iter()
            .find(|level| config_level(*level) == log.level());
        let level = level.ok_or_else(|| ErrorObject::new(ErrorKind::Internal, "the log has no level"))?;
        let format = match log.format() {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
            LogFormat::Journald => "journald",
        };
        Ok(Reply::new(LogStatus { level, format: format.to_owned() }))
    }
}

const fn config_level(level: LogLevel) -> iwarp_config::LogLevel {
    match level {
        LogLevel::Error => iwarp_config::LogLevel::Error,
        LogLevel::Warn => iwarp_config::LogLevel::Warn,
        LogLevel::Info => iwarp_config::LogLevel::Info,
        LogLevel::Debug => iwarp_config::LogLevel::Debug,
    }
}

/// Returns the event that a worker has recorded on a port.
fn event_of(notice: Notice, (worker, port): (usize, usize), name: &str) -> Event {
    let number = u32::try_from(worker).unwrap_or(u32::MAX);
    match notice {
        Notice::GrantRefused { peer, refusal, region } => Event::GrantRefused {
            peer,
            reason: refusal.to_string(),
            region: region.map(|name| name.to_string()),
            port: name.to_owned(),
            worker: number,
        },
        Notice::Terminated { peer, local, conn, code, sent } => {
            let conn = report::pack(worker, port, conn.index(), conn.generation());
            let (meaning, port, worker) = (code.name(), name.to_owned(), number);
            let code = format!("{:x}/{:x}/{:02x}", code.layer, code.etype, code.code);
            if sent {
                Event::TerminateSent { peer, local, code, meaning, port, worker, conn }
            } else {
                Event::TerminateReceived { peer, local, code, meaning, port, worker, conn }
            }
        }
    }
}
