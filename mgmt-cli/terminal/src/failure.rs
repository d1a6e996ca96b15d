//! A command that failed: the message, the help and the exit code.

use iwarp_control::{ClientError, Exit};
use serde_json::{Value, json};

/// The error of a command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the program.
    pub exit: Exit,
    /// A stable identifier of the kind of failure, for programs.
    pub kind: &'static str,
    /// One sentence: the object, and the operation that failed.
    pub message: String,
    /// The action that helps, if one is known.
    pub help: Option<String>,
    /// A longer report that some failures carry.
    pub report: Option<Box<Report>>,
}

/// A report of several lines, such as the mistakes of a configuration file.
#[derive(Debug)]
pub struct Report {
    /// A member that the failure has in JSON: its name and its value.
    pub member: (&'static str, Value),
    /// The text that replaces the message on a terminal, with its own layout.
    pub text: String,
}

impl Failure {
    /// Creates a failure without help.
    #[must_use]
    pub fn new(exit: Exit, kind: &'static str, message: impl Into<String>) -> Self {
        Self { exit, kind, message: message.into(), help: None, report: None }
    }

    /// Creates the failure of a wrong command line.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// Creates the failure of an operation on a file; `what` is the verb, such as `read`.
    #[must_use]
    pub fn file(path: &std::path::Path, what: &str, error: &std::io::Error) -> Self {
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::Permission,
            _ => Exit::Failed,
        };
        Self::new(exit, "file", format!("cannot {what} {}: {error}", path.display()))
    }

    /// Adds the action that helps.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Encodes the failure as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut error = json!({"kind": self.kind, "message": self.message, "exit_code": self.exit.code()});
        if let Some(members) = error.as_object_mut() {
            if let Some(help) = &self.help {
                members.insert("help".to_owned(), Value::from(help.as_str()));
            }
            if let Some(report) = &self.report {
                let (name, value) = &report.member;
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
