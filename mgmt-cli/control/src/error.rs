//! Refusals of requests, and their codes.

use serde::{Deserialize, Serialize};

use crate::exit::Exit;

/// The kinds of refusal; each has one JSON-RPC code and one exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The line is not a JSON-RPC 2.0 request.
    InvalidRequest,
    /// The daemon has no such method.
    UnknownMethod,
    /// A parameter is missing, unknown or of the wrong type.
    InvalidParams,
    /// No region, connection or port has that name.
    NoSuchObject,
    /// The name is taken.
    Exists,
    /// The object is in use; some methods take `force`.
    InUse,
    /// The caller lacks the permission.
    NotPermitted,
    /// A configured limit is reached, or the memory is exhausted.
    NoResources,
    /// The request or the object is larger than its limit.
    TooLarge,
    /// The configuration file has mistakes, or cannot be read.
    InvalidConfig,
    /// A change of the configuration takes effect at a restart only.
    NeedsRestart,
    /// A defect of the daemon.
    Internal,
    /// A kind that this program does not know: the daemon is newer.
    #[serde(other)]
    Unknown,
}

impl ErrorKind {
    /// Returns the name of the kind, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::UnknownMethod => "unknown_method",
            Self::InvalidParams => "invalid_params",
            Self::NoSuchObject => "no_such_object",
            Self::Exists => "exists",
            Self::InUse => "in_use",
            Self::NotPermitted => "not_permitted",
            Self::NoResources => "no_resources",
            Self::TooLarge => "too_large",
            Self::InvalidConfig => "invalid_config",
            Self::NeedsRestart => "needs_restart",
            Self::Internal => "internal",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the JSON-RPC 2.0 error code: a reserved one where it fits, else one of the server's range.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::InvalidRequest => -32600,
            Self::UnknownMethod => -32601,
            Self::InvalidParams => -32602,
            Self::Internal | Self::Unknown => -32603,
            Self::NoSuchObject => -32004,
            Self::NotPermitted => -32005,
            Self::Exists => -32006,
            Self::InUse => -32007,
            Self::NoResources => -32008,
            Self::TooLarge => -32009,
            Self::InvalidConfig => -32010,
            Self::NeedsRestart => -32011,
        }
    }

    /// Returns the exit code of a command that met this refusal.
    #[must_use]
    pub const fn exit(self) -> Exit {
        match self {
            Self::NoSuchObject => Exit::NoSuchObject,
            Self::NotPermitted => Exit::Permission,
            Self::InvalidRequest
            | Self::UnknownMethod
            | Self::InvalidParams
            | Self::Exists
            | Self::InUse
            | Self::NoResources
            | Self::TooLarge
            | Self::InvalidConfig
            | Self::NeedsRestart
            | Self::Internal
            | Self::Unknown => Exit::Failed,
        }
    }
}

/// The `error` member of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ErrorObject {
    /// The JSON-RPC error code.
    pub code: i32,
    /// The refused request and the reason, for people.
    pub message: String,
    /// The part that programs act on.
    #[serde(default)]
    pub data: ErrorData,
}

/// The `data` member of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// The kind of refusal.
    pub kind: ErrorKind,
    /// The action that helps, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Default for ErrorData {
    fn default() -> Self {
        Self { kind: ErrorKind::Unknown, help: None }
    }
}

/// JSON-RPC 2.0 §5.1: "Invalid JSON was received by the server."
const PARSE_ERROR: i32 = -32700;

impl ErrorObject {
    /// Creates a refusal of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { code: kind.code(), message: message.into(), data: ErrorData { kind, help: None } }
    }

    /// Creates the refusal of a line that is not JSON.
    pub fn not_json(message: impl Into<String>) -> Self {
        Self { code: PARSE_ERROR, ..Self::new(ErrorKind::InvalidRequest, message) }
    }

    /// Adds the action that helps.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.data.help = Some(help.into());
        self
    }
}
