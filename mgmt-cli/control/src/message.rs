//! The JSON-RPC 2.0 envelope.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ErrorKind, ErrorObject};

/// The member `"jsonrpc":"2.0"`; nothing else is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// JSON-RPC 2.0.
    #[default]
    #[serde(rename = "2.0")]
    V2,
}

/// What ties a response to its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// A number, as [`crate::Client`] sends.
    Number(i64),
    /// A text, as other clients may send.
    Text(String),
}

/// One request line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Always 2.0.
    pub jsonrpc: Version,
    /// `None` (absent or null) asks for no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// The method's name.
    pub method: String,
    /// The method's parameters; absent, null and `{}` mean the same.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

/// One response line. Exactly one of `result` and `error` is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Response<T> {
    /// Always 2.0.
    pub jsonrpc: Version,
    /// The request's; null if the request could not be read so far.
    #[serde(default)]
    pub id: Option<Id>,
    /// What the method returned.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub result: Option<T>,
    /// Why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorObject>,
}

impl<T> Response<T> {
    /// The answer to a request that was done.
    pub const fn success(id: Option<Id>, result: T) -> Self {
        Self { jsonrpc: Version::V2, id, result: Some(result), error: None }
    }

    /// The answer to a request that was refused.
    pub const fn failure(id: Option<Id>, error: ErrorObject) -> Self {
        Self { jsonrpc: Version::V2, id, result: None, error: Some(error) }
    }
}

impl<T: Serialize> Response<T> {
    /// The response as one line, its newline included.
    ///
    /// # Errors
    /// The result cannot be written as JSON.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        line(self)
    }
}

/// The reason why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadLine {
    /// It is not JSON.
    NotJson(ErrorObject),
    /// It is JSON, but not a JSON-RPC 2.0 request; its id as far as it could be read.
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

    /// The request as one line, its newline included.
    ///
    /// # Errors
    /// The parameters cannot be written as JSON.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        line(self)
    }
}

fn line(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
