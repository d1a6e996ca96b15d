//! Events: what operators ask about later. Workers and the control thread record them; [`EventLog`] writes each to the
//! log and to the monitors.
//!
//! ```text
//!  worker: Notice ──▶ ring of the port (bounded, drops counted) ─┐
//!  control thread: ports, regions, applications, loads ──────────┴▶ EventLog ─▶ limit per kind ─┬▶ tracing: the log
//!                                                                                               └▶ monitors, each a
//!                                                                                                  bounded queue
//! ```
//! The table of [`Event`] is the only place that names an event, its level, its text and its fields.

mod drops;
mod field;
mod hub;

use std::net::SocketAddr;

use iwarp_config::LogLevel;
use serde::Serialize;

pub(crate) use drops::DropBursts;
use field::Field;
pub(crate) use hub::EventLog;

/// Returns tracing's level for one of [`LogLevel`].
macro_rules! tracing_level {
    (Error) => {
        tracing::Level::ERROR
    };
    (Warn) => {
        tracing::Level::WARN
    };
    (Info) => {
        tracing::Level::INFO
    };
}
/// Declares the events: name, level, text and fields of each. A text may name fields in braces.
macro_rules! events {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal, $level:ident, $text:literal
       { $($field:ident: $type:ty,)* })+) => {
        /// An event with its fields.
        #[derive(Clone, Debug, Serialize)]
        #[serde(tag = "event")]
        pub(crate) enum Event {
            $($(#[doc = $help])+ #[serde(rename = $name)] $variant { $($field: $type,)* },)+
        }

        /// Names and descriptions of all events, in the order of declaration.
        pub(crate) const KINDS: &[(&str, &str)] = &[$(($name, concat!($($help),+))),+];

        impl Event {
            /// Returns the name of the event.
            pub(crate) const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name,)+ }
            }

            /// Returns the severity of the event.
            pub(crate) const fn level(&self) -> LogLevel {
                match self { $(Self::$variant { .. } => LogLevel::$level,)+ }
            }

            /// Returns the text of the event, without the fields that follow it.
            pub(crate) fn text(&self) -> String {
                match self {
                    $(Self::$variant { $($field,)* } => {
                        $(let _ = $field;)*
                        format_args!($text).to_string()
                    })+
                }
            }

            /// Writes the event to the log.
            fn log(&self) {
                let text = self.text();
                match self {
                    $(Self::$variant { $($field,)* } => tracing::event!(
                        target: "iwarpd::event",
                        tracing_level!($level),
                        event = $name,
                        $($field = Field::value($field),)*
                        "{text}"
                    ),)+
                }
            }
        }
    };
}

events! {
    /// A link came up.
    LinkUp = "link_up", Info, "link is up" { port: String, }
    /// A link went down.
    LinkDown = "link_down", Warn, "link is down" { port: String, }
    /// An interface or card disappeared.
    PortGone = "port_gone", Error, "the {what} is gone: waiting for it to return"
        { port: String, device: String, what: &'static str, }
    /// An interface or card returned, and the port is open again.
    PortReturned = "port_returned", Info, "the {what} has returned"
        { port: String, device: String, what: &'static str, }
    /// A reason for being degraded appeared.
    Degraded = "degraded", Warn, "degraded: {reason}" { reason: String, }
    /// A reason for being degraded ended.
    Recovered = "recovered", Info, "no longer degraded: {reason}" { reason: String, }
    /// A peer asked for a region and was refused.
    GrantRefused = "grant_refused", Warn, "refused a region to a peer: {reason}"
        { peer: SocketAddr, reason: String, region: Option<String>, port: String, worker: u32, }
    /// This side ended a stream with a Terminate.
    TerminateSent = "terminate_sent", Warn, "sent a Terminate: {meaning}"
        { peer: SocketAddr, local: SocketAddr, code: String, meaning: &'static str, port: String, worker: u32,
          conn: u64, }
    /// A peer ended a stream with a Terminate.
    TerminateReceived = "terminate_received", Warn, "received a Terminate: {meaning}"
        { peer: SocketAddr, local: SocketAddr, code: String, meaning: &'static str, port: String, worker: u32,
          conn: u64, }
    /// A region was registered. Regions of the configuration have neither user nor process.
    RegionRegistered = "region_registered", Info, "region registered"
        { region: String, bytes: u64, access: String, uid: Option<u32>, pid: Option<u32>, }
    /// A region was removed.
    RegionRemoved = "region_removed", Info, "region removed"
        { region: String, grants_revoked: u64, uid: Option<u32>, pid: Option<u32>, }
    /// An operator closed connections.
    ConnsClosed = "conns_closed", Info, "connections closed on request"
        { count: u64, uid: u32, pid: u32, }
    /// The configuration was read again and applied. A reload by signal has neither user nor process.
    ConfigReloaded = "config_reloaded", Info, "configuration reloaded: {changes} changes"
        { changes: u64, grants_revoked: u64, uid: Option<u32>, pid: Option<u32>, }
    /// The configuration was read again and refused: nothing has changed.
    ConfigRefused = "config_refused", Error, "configuration not reloaded, nothing has changed: {reason}"
        { reason: String, uid: Option<u32>, pid: Option<u32>, }
    /// The daemon began to drain: it accepts no connections, and closes those that are idle.
    DrainStarted = "drain_started", Info, "draining: connections end within {timeout_ms} ms"
        { timeout_ms: u64, uid: Option<u32>, pid: Option<u32>, }
    /// A drain ended, and the daemon stops. Connections that were cut off were in use.
    DrainEnded = "drain_ended", Info, "drained: {cut_off} connections are cut off" { cut_off: u64, }
    /// An application opened a context.
    AppConnected = "app_connected", Info, "application connected"
        { app: u32, pid: u32, uid: u32, command: String, device: String, worker: u32, }
    /// An application closed its context, or ended.
    AppLeft = "app_left", Info, "application left" { app: u32, pid: u32, uid: u32, command: String, }
    /// A worker began to refuse packet buffers: to received data, or to data to be sent.
    MemoryPressure = "memory_pressure", Warn, "packet buffers are short: refused to {what}"
        { worker: u32, what: &'static str, refused: u64, }
    /// Drops of one reason reached `log.drop_burst_per_s`.
    DropBurst = "drop_burst", Warn, "frames or requests are dropped: {layer} {reason}"
        { layer: String, reason: String, drops_per_s: u64, }
    /// A burst of drops ended: ten seconds without another drop of this reason at that rate.
    DropBurstEnded = "drop_burst_ended", Info, "a burst of drops has ended: {layer} {reason}"
        { layer: String, reason: String, drops: u64, seconds: u64, }
    /// More events of one kind than `log.events_per_s_max` happened; these were not reported.
    Suppressed = "events_suppressed", Warn, "{count} events {kind} were not reported"
        { kind: &'static str, count: u64, }
    /// A worker's ring was full; these events were not reported.
    NoticesLost = "notices_lost", Warn, "{count} events of a worker were not reported: its ring was full"
        { worker: u32, count: u64, }
    /// A monitor did not read; it lost these events.
    MonitorLost = "monitor_lost", Warn, "{count} events are missing here: this monitor did not read them"
        { count: u64, }
}

impl Event {
    /// Returns the index of the event in [`KINDS`].
    pub(crate) fn kind(&self) -> usize {
        KINDS.iter().position(|(name, _)| *name == self.name()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of a record beside the event's fields.
    const OTHERS: [&str; 4] = ["seq", "time_ms", "level", "message"];

    #[test]
    fn an_event_has_a_text_a_level_and_its_fields() {
        let event = Event::PortGone { port: "p0".into(), device: "iw0".into(), what: "interface" };
        assert_eq!(event.text(), "the interface is gone: waiting for it to return");
        assert_eq!((event.name(), event.level()), ("port_gone", LogLevel::Error));
        let fields = serde_json::to_value(&event).unwrap();
        assert_eq!(
            fields,
            serde_json::json!({"event": "port_gone", "port": "p0", "device": "iw0", "what": "interface"})
        );
        assert_eq!(KINDS[event.kind()].0, "port_gone");
    }

    #[test]
    fn no_field_has_the_name_of_another_member() {
        let table = include_str!("mod.rs").split("#[cfg(test)]").next().unwrap();
        assert!(OTHERS.iter().all(|other| !table.contains(&format!(" {other}: "))));
    }

    #[test]
    fn every_event_is_documented() {
        let text = include_str!("../../../docs/observing.md");
        for (name, help) in KINDS {
            assert!(text.contains(&format!("`{name}`")), "{name}: {help}");
        }
        let mut names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len(), "each name once");
    }
}
