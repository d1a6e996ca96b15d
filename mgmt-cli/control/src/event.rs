//! Events of the daemon, and its log.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::{Version, line};

/// An event: what happened, when, and to which object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// The number of the event since the daemon started.
    pub seq: u64,
    /// The time of the event since 1970, in milliseconds.
    pub time_ms: u64,
    /// The severity: `error`, `warn` or `info`.
    pub level: String,
    /// The name of the event.
    pub event: String,
    /// The event in words.
    pub message: String,
    /// The objects and numbers of the event. They are members of the same JSON object.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The name of the notification that carries an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventNotification {
    /// `event`, the only one.
    #[serde(rename = "event")]
    Event,
}

/// A JSON-RPC 2.0 notification: what a monitor receives for each event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMessage {
    /// The version, always 2.0.
    pub jsonrpc: Version,
    /// The name of the notification.
    pub method: EventNotification,
    /// The event, as the parameters.
    pub params: EventRecord,
}

impl EventMessage {
    /// Creates the notification of an event.
    #[must_use]
    pub const fn new(params: EventRecord) -> Self {
        Self { jsonrpc: Version::V2, method: EventNotification::Event, params }
    }

    /// Encodes the notification as one line with its newline.
    ///
    /// # Errors
    /// None for a record whose fields are JSON.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        line(self)
    }
}

/// The reply to `monitor`. Notifications of events follow it until the client disconnects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Monitoring {
    /// The latest events before the request, the latest last.
    pub recent: Vec<EventRecord>,
}

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// A failure of an operation or of the daemon.
    Error,
    /// A condition that may lead to a failure.
    Warn,
    /// A normal event of interest.
    Info,
    /// Details for diagnosing a problem.
    Debug,
}

/// The parameters of `log.level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevelChange {
    /// The level to set; without it the level stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
}

/// The state of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// The least severe level that is written.
    pub level: LogLevel,
    /// The format of the log: `text`, `json` or `journald`.
    pub format: String,
}
