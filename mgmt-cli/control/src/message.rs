//! The JSON-RPC 2.0 envelope of requests and responses.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ErrorKind, ErrorObject};

/// The member `"jsonrpc":"2.0"`; every other version is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// Version 2.0 of JSON-RPC.
    #[default]
    #[serde(rename = "2.0")]
    V2,
}

/// The identifier that a response repeats from its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// A number, as [`crate::Client`] sends it.
    Number(i64),
    /// A text, as other clients may send it.
    Text(String),
}

/// A request of one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The version, always 2.0.
    pub jsonrpc: Version,
    /// The identifier; `None` (absent or null) requests no response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// The name of the method.
    pub method: String,
    /// The parameters of the method; absent, null and `{}` mean the same.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

/// A response of one line; exactly one of `result` and `error` is present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Response<T> {
    /// The version, always 2.0.
    pub jsonrpc: Version,
    /// The identifier of the request; null if it was unreadable.
    #[serde(default)]
    pub id: Option<Id>,
    /// The result of the method.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub result: Option<T>,
    /// The refusal, if there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorObject>,
}

impl<T> Response<T> {
    /// Creates the response to a request that succeeded.
    pub const fn success(id: Option<Id>, result: T) -> Self {
        Self { jsonrpc: Version::V2, id, result: Some(result), error: None }
    }

    /// Creates the response to a request that was refused.
    pub const fn failure(id: Option<Id>, error: ErrorObject) -> Self {
        Self { jsonrpc: Version::V2, id, result: None, error: Some(error) }
    }
}

impl<T: Serialize> Response<T> {
    /// Encodes the response as one line with its newline.
    ///
    /// # Errors
    /// The result cannot be written as JSON.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        line(self)
    }
}

/// The error of a line that is not a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadLine {
    /// The line is not JSON.
    NotJson(ErrorObject),
    /// The line is JSON and not a JSON-RPC 2.0 request; its identifier, if readable.
    NotARequest(Option<Id>, ErrorObject),
}

impl Request {
    /// Reads one line, with or without its newline.
    ///
    /// # Errors
    /// The line is not JSON, or not a request; the object is the answer to it.
    pub fn from_line(line: &[u8]) -> Result<Self, BadLine> {
        let value: Value = serde_json::from_slice(line).map_err(|error| {
            BadLine::NotJson(ErrorObject::not_json(format!("the line is not JSON: {error}")))
        })?;
        if value.is_array() {
            let error = ErrorObject::new(ErrorKind::InvalidRequest, "batches are not served")
                .with_help("send one request object per line");
            return Err(BadLine::NotARequest(None, error));
        }
        let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
        serde_json::from_value(value).map_err(|error| {
            let message = format!("not a JSON-RPC 2.0 request: {error}");
            let help = r#"send {"jsonrpc":"2.0","id":1,"method":"status"}"#;
            BadLine::NotARequest(id, ErrorObject::new(ErrorKind::InvalidRequest, message).with_help(help))
        })
    }

    /// Encodes the request as one line with its newline.
    ///
    /// # Errors
    /// The parameters cannot be written as JSON.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        line(self)
    }
}

/// Encodes a message as one line with its newline.
pub(crate) fn line(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
