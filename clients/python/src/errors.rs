//! Errors as exceptions: each has a number of the operating system (`errno`), and a text that names the object and the
//! action that helps.

use std::io::{self, ErrorKind};

use iwarp_verbs::{ClientError, Error, PollError, PostError, RemoteError, ServiceError, Status, VerbsError};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

/// Exception classes of the package that the library raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Error,
    ConnectionLost,
    ConnectionRefused,
    PermissionDenied,
    QueueFull,
    RegionDenied,
    RegionError,
    RegionNotFound,
    Timeout,
}

impl Class {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "Error",
            Self::ConnectionLost => "ConnectionLost",
            Self::ConnectionRefused => "ConnectionRefused",
            Self::PermissionDenied => "PermissionDenied",
            Self::QueueFull => "QueueFull",
            Self::RegionDenied => "RegionDenied",
            Self::RegionError => "RegionError",
            Self::RegionNotFound => "RegionNotFound",
            Self::Timeout => "Timeout",
        }
    }

    /// Returns the class for an error number, for errors of which the number says all.
    const fn of(errno: i32) -> Self {
        match errno {
            libc::ECONNREFUSED => Self::ConnectionRefused,
            libc::ETIMEDOUT => Self::Timeout,
            libc::EACCES | libc::EPERM => Self::PermissionDenied,
            libc::ECONNRESET => Self::ConnectionLost,
            _ => Self::Error,
        }
    }
}

/// Failure of a call, which becomes an exception once the thread is attached to the interpreter.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An exception of the package, with its error number.
    Os(Class, i32, String),
    /// An argument outside its range.
    Value(String),
    /// Memory that views of the program still use, or a buffer that does not fit.
    Buffer(String),
    /// An exception of the interpreter.
    Python(PyErr),
}

impl Failure {
    /// Returns the failure of an object that the program has closed.
    pub(crate) fn closed(what: &str) -> Self {
        Self::Os(Class::Error, libc::EBADF, format!("the {what} is closed; create another one"))
    }

    /// Returns the failure of a call in a child of the process that has opened the device.
    pub(crate) fn child() -> Self {
        let message =
            "the device belongs to the parent of this process (fork): open a device in this process";
        Self::Os(Class::Error, libc::ENODEV, message.to_owned())
    }

    pub(crate) fn timed_out(what: &str) -> Self {
        Self::Os(Class::Timeout, libc::ETIMEDOUT, format!("{what} in time; a longer timeout waits longer"))
    }

    fn os(errno: i32, message: String) -> Self {
        Self::Os(Class::of(errno), errno, message)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let (class, errno, message) = match failure {
            Failure::Os(class, errno, message) => (class, errno, message),
            Failure::Value(message) => return PyValueError::new_err(message),
            Failure::Buffer(message) => return PyBufferError::new_err(message),
            Failure::Python(error) => return error,
        };
        Python::attach(|py| {
            let class = py.import("ironwarp._errors").and_then(|errors| errors.getattr(class.name()));
            match class.and_then(|class| class.call1((errno, message))) {
                Ok(error) => Self::from_value(error),
                Err(error) => error,
            }
        })
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// Returns the number of an I/O error, also of one that the standard library has made itself.
fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    })
}

const fn errno_of_refusal(cause: VerbsError) -> i32 {
    match cause {
        VerbsError::NoSuchObject | VerbsError::Invalid | VerbsError::State => libc::EINVAL,
        VerbsError::Busy => libc::EBUSY,
        VerbsError::NoResources => libc::ENOMEM,
        VerbsError::NotPermitted => libc::EACCES,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::Daemon(error) => match error {
                ClientError::Unreachable { cause, .. } | ClientError::Lost { cause, .. } => errno_of(cause),
                ClientError::Denied { .. } => libc::EACCES,
                ClientError::Timeout { .. } => libc::ETIMEDOUT,
                ClientError::RequestTooLong { .. } => libc::EMSGSIZE,
                ClientError::Malformed { .. } | ClientError::Refused(_) => libc::EPROTO,
            },
            Error::Refused { cause, .. } => errno_of_refusal(*cause),
            Error::Protocol(_) => libc::EPROTO,
            Error::Memory { .. } => libc::EFAULT,
            Error::Map(cause) | Error::Listen { cause, .. } | Error::System { cause, .. } => errno_of(cause),
            Error::File { .. } => libc::EINVAL,
            Error::RegionGone(_) => libc::ENOENT,
            Error::Lost => libc::ENODEV,
        };
        let help = match &error {
            Error::Daemon(error) => error.help().map(|help| format!("; {help}")).unwrap_or_default(),
            _ => String::new(),
        };
        Self::os(errno, format!("{error}{help}"))
    }
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        let (class, errno) = match error {
            RemoteError::Device(error) => return error.into(),
            RemoteError::Bounds(bounds) => return Self::Value(bounds.to_string()),
            RemoteError::Target { .. } => (Class::RegionError, libc::EINVAL),
            RemoteError::Unreachable { ref cause, .. } => {
                let errno = errno_of(cause);
                // Names that are not resolved have no number.
                let errno = if errno == libc::EIO { libc::EHOSTUNREACH } else { errno };
                (Class::of(errno), errno)
            }
            RemoteError::Refused { cause, .. } => of_service(cause),
            RemoteError::Right { .. } => (Class::RegionDenied, libc::EACCES),
            RemoteError::TimedOut { .. } => (Class::Timeout, libc::ETIMEDOUT),
            RemoteError::Interrupted { .. } => (Class::Error, libc::EINTR),
            RemoteError::Closed { .. } => (Class::ConnectionLost, libc::ECONNRESET),
        };
        Self::Os(class, errno, error.to_string())
    }
}

/// Returns class and number for the answer of a peer that grants nothing.
pub(crate) const fn of_service(cause: ServiceError) -> (Class, i32) {
    match cause {
        ServiceError::Refused(Status::NoSuchRegion) => (Class::RegionNotFound, libc::ENOENT),
        ServiceError::Refused(Status::NotPermitted) => (Class::RegionDenied, libc::EACCES),
        ServiceError::Refused(Status::NoResources) => (Class::RegionError, libc::ENOMEM),
        ServiceError::Refused(_) | ServiceError::NotAnAnswer | ServiceError::UnknownStatus(_) => {
            (Class::RegionError, libc::EPROTO)
        }
    }
}

/// Returns the failure of a work request that was not posted.
pub(crate) fn not_posted(call: &str, error: PostError) -> Failure {
    match error {
        PostError::QueueFull => {
            let message =
                format!("{call}: {error}: poll completions, or create the queue pair with more slots");
            Failure::Os(Class::QueueFull, libc::ENOMEM, message)
        }
        PostError::State => {
            let message = format!("{call}: {error}: connect the queue pair first");
            Failure::os(libc::EINVAL, message)
        }
        _ => Failure::os(libc::EINVAL, format!("{call}: {error}")),
    }
}

impl From<PollError> for Failure {
    fn from(error: PollError) -> Self {
        match error {
            PollError::NoSuchObject => Self::child(),
            PollError::Overrun => {
                let message = format!("{error}: create the queue with more entries, and poll it more often");
                Self::os(libc::EOVERFLOW, message)
            }
        }
    }
}
