//! Why a command failed: what, why, what to do, and the exit code.

use iwarp_control::{ClientError, Exit};
use serde_json::{Value, json};

/// The end of a command that did not do what it was asked for.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// A short word for the sort of failure; stable, for programs.
    pub kind: &'static str,
    /// What, in words.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// What only few failures have.
    pub(crate) more: Option<Box<More>>,
}

/// More about a failure.
#[derive(Debug)]
pub(crate) struct More {
    /// For programs: a member's name and its value.
    pub(crate) member: (&'static str, Value),
    /// For people: replaces the message, with its own layout.
    pub(crate) report: String,
}

impl Failure {
    /// Without help.
    pub fn new(exit: Exit, kind: &'static str, message: impl Into<String>) -> Self {
        Self { exit, kind, message: message.into(), help: None, more: None }
    }

    /// The command line is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// A file could not be read or written.
    pub fn file(path: &std::path::Path, what: &str, error: &std::io::Error) -> Self {
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::Permission,
            _ => Exit::Failed,
        };
        Self::new(exit, "file", format!("cannot {what} {}: {error}", path.display()))
    }

    /// With a word on what to do.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The failure as programs read it.
    pub fn to_json(&self) -> Value {
        let mut error = json!({"kind": self.kind, "message": self.message, "exit_code": self.exit.code()});
        if let Some(members) = error.as_object_mut() {
            if let Some(help) = &self.help {
                members.insert("help".to_owned(), Value::from(help.as_str()));
            }
            if let Some(more) = &self.more {
                let (name, value) = &more.member;
                members.insert((*name).to_owned(), value.clone());
            }
        }
        json!({ "error": error })
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let mut failure = Self::new(error.exit(), error.kind(), error.to_string());
        failure.help = error.help();
        failure
    }
}
