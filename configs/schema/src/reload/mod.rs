//! Compares the configuration of a running daemon with a new file: the steps that apply the difference, or what needs a
//! restart. A daemon applies all steps of a [`Plan`] or none.
//!
//! ```text
//! old, new ──fixed──▶ Refusals  keys that are read at the start only
//!          └─plan───▶ Plan      steps, each with the lines that tell people what it changes
//! ```

mod fixed;

use std::fmt::{self, Display};

use crate::keys::{Keys as _, Row, differing};
use crate::{Applications, Config, Control, Limits, Listener, Log, LogLevel, Region};

/// A change in words: the object or key, and its old and new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Key or object that changes, such as `log.level` or `region lab`.
    pub object: String,
    /// The change, such as `info -> debug`. Never contains a token.
    pub change: String,
}

impl Line {
    fn new(object: impl Into<String>, change: impl Into<String>) -> Self {
        Self { object: object.into(), change: change.into() }
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.change)
    }
}

/// Everything in a new file that takes effect at a restart only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusals(pub Vec<Line>);

impl Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, line) in self.0.iter().enumerate() {
            write!(f, "{}{line}", if at > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusals {}

/// Properties of a region that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDiff {
    /// Rights that peers can be granted.
    pub access: bool,
    /// Token: another one, a first one, or none any more.
    pub token: bool,
    /// Source prefixes of peers that are admitted.
    pub allow: bool,
}

/// One step of a reload.
#[derive(Clone, Debug)]
pub enum Step {
    /// Registers a region of the file.
    RegionAdd(Region),
    /// Changes rights, token or prefixes of a region.
    RegionChange(Region, RegionDiff),
    /// Removes a region and revokes its grants.
    RegionRemove(Region),
    /// Listens on a TCP port.
    ListenerAdd(Listener),
    /// Changes limits and options of a listener. Connections stay as they are.
    ListenerChange(Listener),
    /// Offers another service on a TCP port. Connections keep theirs.
    ListenerReplace(Listener),
    /// Stops listening on a TCP port. Connections stay.
    ListenerRemove(u16),
    /// Sets the log level.
    LogLevel(LogLevel),
    /// Sets the limits of events.
    Events(Log),
    /// Sets the maximum number of regions, and of STags.
    Limits(Limits),
    /// Sets the maximum number of connections from one source, per worker and port.
    ConnectionsPerSource(u32),
    /// Sets mode, group and limits of the control socket.
    Control(Control),
    /// Sets mode, group and limits of the verbs socket, and what one user may have.
    Applications(Applications),
    /// Sets nothing in the daemon's parts: the value is read from the configuration when it is needed.
    Noted,
}

/// Steps that lead from the old configuration to the new one.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Steps, in the order of the file's tables.
    pub steps: Vec<Step>,
    /// All changes in words.
    pub lines: Vec<Line>,
}

impl Plan {
    /// Adds a step with its lines, unless there are none: then nothing differs.
    fn add(&mut self, step: impl FnOnce() -> Step, lines: Vec<Line>) {
        if !lines.is_empty() {
            self.steps.push(step());
            self.lines.extend(lines);
        }
    }
}

/// Returns the steps that lead from the configuration `old` to `new`. `started` is the configuration of the start, for
/// which tables were allocated.
///
/// # Errors
/// Every difference that needs a restart, in the order of the file's tables.
pub fn plan(started: &Config, old: &Config, new: &Config) -> Result<Plan, Refusals> {
    let refused = fixed::refusals(started, old, new);
    if !refused.is_empty() {
        return Err(Refusals(refused));
    }
    let mut plan = Plan::default();
    plan_limits(&mut plan, old, new);
    plan_listeners(&mut plan, old, new);
    plan_regions(&mut plan, old, new);
    plan_sockets(&mut plan, old, new);
    plan_log(&mut plan, old, new);
    Ok(plan)
}

/// Returns the lines of the keys that a running daemon can change, and whose values differ.
fn live(old: Vec<Row>, new: Vec<Row>) -> Vec<Line> {
    let differing = differing(old, new).filter(|(old, _)| old.class.is_live());
    differing.map(|(old, new)| Line::new(old.path, format!("{} -> {}", old.shown, new.shown))).collect()
}

/// As [`live`], for one table of an array. `object` names the table.
fn live_of(object: &str, old: Vec<Row>, new: Vec<Row>) -> Vec<Line> {
    let differing = differing(old, new).filter(|(old, _)| old.class.is_live());
    let object = |row: &Row| format!("{object}.{}", row.key());
    differing.map(|(old, new)| Line::new(object(&old), format!("{} -> {}", old.shown, new.shown))).collect()
}

fn plan_limits(plan: &mut Plan, old: &Config, new: &Config) {
    let (before, after) = (&old.limits, &new.limits);
    plan.add(|| Step::Limits(after.clone()), live(before.rows(), after.rows()));
    let per_source = new.tcp.connections_per_source_max;
    plan.add(|| Step::ConnectionsPerSource(per_source), live(old.tcp.rows(), new.tcp.rows()));
}

fn plan_listeners(plan: &mut Plan, old: &Config, new: &Config) {
    let find =
        |config: &Config, port| config.listeners.iter().find(|listener| listener.port == port).cloned();
    for before in old.listeners.iter().filter(|listener| find(new, listener.port).is_none()) {
        let line = Line::new(format!("listener {}", before.port), "removed; its connections stay");
        plan.add(|| Step::ListenerRemove(before.port), vec![line]);
    }
    for after in &new.listeners {
        let object = format!("listener {}", after.port);
        let step = || after.clone();
        match find(old, after.port) {
            None => {
                let line = Line::new(object, format!("added, service {}", after.service.name()));
                plan.add(|| Step::ListenerAdd(step()), vec![line]);
            }
            Some(before) if before.service != after.service => {
                let lines = listener_lines(&object, &before, after);
                plan.add(|| Step::ListenerReplace(step()), lines);
            }
            Some(before) => {
                plan.add(|| Step::ListenerChange(step()), listener_lines(&object, &before, after));
            }
        }
    }
}

fn listener_lines(object: &str, before: &Listener, after: &Listener) -> Vec<Line> {
    let mut lines = live_of(object, before.all_rows(), after.all_rows());
    if lines.is_empty() && before != after {
        lines.push(Line::new(object, "other options"));
    }
    lines
}

fn plan_regions(plan: &mut Plan, old: &Config, new: &Config) {
    let find = |config: &Config, region: &Region| {
        config.regions.iter().find(|other| other.name == region.name).cloned()
    };
    for before in old.regions.iter().filter(|other| find(new, other).is_none()) {
        let line = Line::new(format!("region {}", before.name), "removed");
        plan.add(|| Step::RegionRemove(before.clone()), vec![line]);
    }
    for after in &new.regions {
        let object = format!("region {}", after.name);
        let Some(before) = find(old, after) else {
            let line = Line::new(object, format!("added, {} bytes, {}", after.bytes, after.access));
            plan.add(|| Step::RegionAdd(after.clone()), vec![line]);
            continue;
        };
        let diff = RegionDiff {
            access: before.access != after.access,
            token: before.token != after.token,
            allow: before.allow != after.allow,
        };
        let token = match (&before.token, &after.token) {
            (None, Some(_)) => "required now",
            (Some(_), None) => "no longer required",
            _ => "another one",
        };
        let mut lines = live_of(&object, before.all_rows(), after.all_rows());
        lines.extend(diff.token.then(|| Line::new(format!("{object}.token"), token)));
        plan.add(|| Step::RegionChange(after.clone(), diff), lines);
    }
}

fn plan_sockets(plan: &mut Plan, old: &Config, new: &Config) {
    let (before, after) = (&old.control, &new.control);
    plan.add(|| Step::Control(after.clone()), live(before.rows(), after.rows()));
    plan.add(|| Step::Noted, live(old.drain.rows(), new.drain.rows()));
    let (Some(before), Some(after)) = (&old.applications, &new.applications) else { return };
    plan.add(|| Step::Applications(after.clone()), live(before.all_rows(), after.all_rows()));
}

fn plan_log(plan: &mut Plan, old: &Config, new: &Config) {
    let (before, after) = (&old.log, &new.log);
    let (level, events) =
        live(before.rows(), after.rows()).into_iter().partition(|line| line.object == "log.level");
    plan.add(|| Step::LogLevel(after.level), level);
    plan.add(|| Step::Events(after.clone()), events);
}
