//! The log of events: limits each kind, writes to the log, keeps the latest events, and serves the monitors. It runs on
//! the control thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use iwarp_control::{EventMessage, EventRecord};
use iwarp_engine::Clock;
use serde_json::{Map, Value};
use tcp_stack::Instant;
use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};

use super::{Event, KINDS};

/// Events that are kept for monitors that begin later.
const RECENT: usize = 256;
/// Events that wait for one monitor. Further ones are lost to it.
const WAITING_MAX: usize = 1024;

iwarp_counters::counters! {
    /// Counters of the log of events.
    pub(crate) struct EventLogStats {
        /// Events reported to the log and to the monitors.
        reported,
        /// Events of a kind that happened too often, counted instead of reported.
        suppressed,
        /// Monitors that were connected.
        monitors,
        /// Events that monitors lost because they did not read.
        drop_monitor_slow,
    }
}

/// Receives events and distributes them.
#[derive(Debug)]
pub(crate) struct EventLog {
    clock: Clock,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    /// Most events of one kind per second.
    per_s_max: u32,
    limits: Vec<Limit>,
    seq: u64,
    recent: VecDeque<EventRecord>,
    monitors: Vec<Monitor>,
    stats: EventLogStats,
}

/// Rate limit of one kind: a bucket of tokens, full at the start.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Events that may be reported now.
    tokens: f64,
    refilled: Instant,
    /// Events not reported since the last report of their number.
    suppressed: u64,
}

impl Limit {
    /// Takes a token. Returns false, and counts the event, if there is none.
    fn admits(&mut self, per_s_max: u32, now: Instant) -> bool {
        let since = now.saturating_since(self.refilled).as_secs_f64();
        self.tokens = (self.tokens + since * f64::from(per_s_max)).min(f64::from(per_s_max));
        self.refilled = now;
        let admitted = self.tokens >= 1.0;
        if admitted {
            self.tokens -= 1.0;
        } else {
            self.suppressed = self.suppressed.saturating_add(1);
        }
        admitted
    }
}

/// A client that watches.
#[derive(Debug)]
struct Monitor {
    lines: Sender<Arc<[u8]>>,
    /// Events lost since the last one that the queue took.
    lost: u64,
}

impl EventLog {
    /// Creates a log of events that reports at most `per_s_max` events of one kind per second.
    pub(crate) fn new(per_s_max: u32, clock: &Clock) -> Self {
        let full = Limit { tokens: per_s_max.into(), refilled: clock.now(), suppressed: 0 };
        let state = RefCell::new(State {
            per_s_max,
            limits: vec![full; KINDS.len()],
            seq: 0,
            recent: VecDeque::with_capacity(RECENT),
            monitors: Vec::new(),
            stats: EventLogStats::default(),
        });
        Self { clock: clock.clone(), state }
    }

    /// Sets the most events of one kind per second.
    pub(crate) fn set_per_s_max(&self, per_s_max: u32) {
        self.state.borrow_mut().per_s_max = per_s_max;
    }

    /// Reports an event, unless there were too many of its kind in the last second.
    pub(crate) fn record(&self, event: &Event) {
        self.record_at(event, self.clock.now());
    }

    fn record_at(&self, event: &Event, now: Instant) {
        let state = &mut *self.state.borrow_mut();
        let per_s_max = state.per_s_max;
        if state.limits.get_mut(event.kind()).is_none_or(|limit| limit.admits(per_s_max, now)) {
            state.report(event, self.clock.wall());
        } else {
            state.stats.suppressed = state.stats.suppressed.wrapping_add(1);
        }
    }

    /// Reports how many events of each kind were suppressed since the last call. Called once per second.
    pub(crate) fn report_suppressed(&self) {
        let state = &mut *self.state.borrow_mut();
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            let suppressed = state.limits.get_mut(at).map(|limit| std::mem::take(&mut limit.suppressed));
            if let Some(count @ 1..) = suppressed {
                state.report(&Event::Suppressed { kind, count }, self.clock.wall());
            }
        }
    }

    /// Adds a monitor. Returns the latest events, and the lines that follow. The monitor ends when the receiver is
    /// dropped.
    pub(crate) fn subscribe(&self) -> (Vec<EventRecord>, Receiver<Arc<[u8]>>) {
        let state = &mut *self.state.borrow_mut();
        let (lines, receiver) = mpsc::channel(WAITING_MAX);
        state.monitors.push(Monitor { lines, lost: 0 });
        state.stats.monitors = state.stats.monitors.wrapping_add(1);
        (state.recent.iter().cloned().collect(), receiver)
    }

    /// Returns the counters since the daemon started.
    pub(crate) fn stats(&self) -> EventLogStats {
        self.state.borrow().stats
    }
}

impl State {
    /// Distributes an event of the time `wall` since 1970.
    fn report(&mut self, event: &Event, wall: Duration) {
        event.log();
        self.seq = self.seq.wrapping_add(1);
        self.stats.reported = self.stats.reported.wrapping_add(1);
        let record = rendered(event, self.seq, wall);
        let line = line_of(&record);
        let Self { monitors, stats, seq, .. } = self;
        monitors.retain_mut(|monitor| {
            let lost_before = monitor.lost;
            let keep = monitor.offer(&line, (*seq, wall));
            stats.drop_monitor_slow =
                stats.drop_monitor_slow.wrapping_add(monitor.lost.saturating_sub(lost_before));
            keep
        });
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(record);
    }
}

impl Monitor {
    /// Queues a line, after a notice of those that were lost. Returns false if the monitor has ended.
    fn offer(&mut self, line: &Arc<[u8]>, (seq, wall): (u64, Duration)) -> bool {
        if self.lost > 0 && self.lines.capacity() > 1 {
            let notice = line_of(&rendered(&Event::MonitorLost { count: self.lost }, seq, wall));
            if self.lines.try_send(notice).is_ok() {
                self.lost = 0;
            }
        }
        if self.lost > 0 {
            self.lost = self.lost.saturating_add(1);
            return !self.lines.is_closed();
        }
        match self.lines.try_send(Arc::clone(line)) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.lost = 1;
                true
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }
}

/// Renders an event as the record that monitors receive.
fn rendered(event: &Event, seq: u64, wall: Duration) -> EventRecord {
    let mut fields = match serde_json::to_value(event) {
        Ok(Value::Object(fields)) => fields,
        // An event has text keys and no serializer that fails.
        _ => Map::new(),
    };
    fields.remove("event");
    fields.retain(|_, value| !value.is_null());
    EventRecord {
        seq,
        time_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        level: event.level().to_string(),
        event: event.name().to_owned(),
        message: event.text(),
        fields,
    }
}

fn line_of(record: &EventRecord) -> Arc<[u8]> {
    // A record is an object of text, numbers and other objects: it can be written as JSON.
    EventMessage::new(record.clone()).to_line().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(per_s_max: u32) -> EventLog {
        EventLog::new(per_s_max, &Clock::start())
    }

    fn event(number: u64) -> Event {
        Event::RegionRemoved { region: "lab".into(), grants_revoked: number, uid: None, pid: Some(7) }
    }

    fn records(lines: &mut Receiver<Arc<[u8]>>) -> Vec<EventRecord> {
        let mut records = Vec::new();
        while let Ok(line) = lines.try_recv() {
            assert_eq!(line.last(), Some(&b'\n'));
            records.push(serde_json::from_slice::<EventMessage>(&line).unwrap().params);
        }
        records
    }

    #[test]
    fn a_monitor_receives_the_events_with_their_fields() {
        let log = log(10);
        log.record(&event(1));
        let (recent, mut lines) = log.subscribe();
        log.record(&event(2));
        let received = records(&mut lines);
        assert_eq!((recent.len(), received.len()), (1, 1));
        let record = &received[0];
        assert_eq!((record.seq, record.event.as_str(), record.level.as_str()), (2, "region_removed", "info"));
        assert_eq!(record.message, "region removed");
        assert_eq!(record.fields["grants_revoked"], 2);
        assert!(!record.fields.contains_key("uid"), "a field without a value is left out");
        assert!(record.time_ms > 1_700_000_000_000);
    }

    #[test]
    fn more_events_of_a_kind_than_allowed_are_counted() {
        let (log, begin) = (log(5), Instant::ZERO + Duration::from_secs(9));
        let (_, mut lines) = log.subscribe();
        for number in 0..100 {
            log.record_at(&event(number), begin);
        }
        log.record_at(&Event::LinkUp { port: "p0".into() }, begin);
        log.report_suppressed();
        log.report_suppressed();
        let names: Vec<_> =
            records(&mut lines).into_iter().map(|record| (record.event, record.fields)).collect();
        assert_eq!(names.len(), 5 + 1 + 1, "five, the link, and one report of the others");
        assert_eq!(names[6].0, "events_suppressed");
        assert_eq!((&names[6].1["kind"], &names[6].1["count"]), (&"region_removed".into(), &95.into()));
        assert_eq!((log.stats().reported, log.stats().suppressed), (7, 95));
        // Two more after 400 ms.
        for number in 0..100 {
            log.record_at(&event(number), begin + Duration::from_millis(401));
        }
        assert_eq!(records(&mut lines).len(), 2);
    }

    #[test]
    fn a_monitor_that_does_not_read_loses_events_and_is_told_their_number() {
        let log = log(10_000);
        let (_, mut slow) = log.subscribe();
        let (_, mut quick) = log.subscribe();
        let begin = Instant::ZERO + Duration::from_secs(9);
        for number in 0..WAITING_MAX as u64 + 50 {
            log.record_at(&event(number), begin);
            assert_eq!(records(&mut quick).len(), 1);
        }
        assert_eq!(log.stats().drop_monitor_slow, 50);
        let kept = records(&mut slow);
        assert_eq!(
            (kept.len(), kept[WAITING_MAX - 1].fields["grants_revoked"].as_u64()),
            (WAITING_MAX, Some(1023))
        );
        log.record_at(&event(5000), begin);
        let after = records(&mut slow);
        assert_eq!((after[0].event.as_str(), &after[0].fields["count"]), ("monitor_lost", &50.into()));
        assert_eq!(after[1].fields["grants_revoked"], 5000);
    }

    #[test]
    fn a_monitor_that_has_gone_is_forgotten_and_the_latest_events_are_bounded() {
        let log = log(10_000);
        drop(log.subscribe());
        for number in 0..RECENT as u64 + 10 {
            log.record(&event(number));
        }
        assert!(log.state.borrow().monitors.is_empty());
        let (recent, _) = log.subscribe();
        assert_eq!((recent.len(), recent[0].seq), (RECENT, 11));
    }
}
