//! Exit codes of the command-line programs.

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did what it was asked for.
    Ok = 0,
    /// The daemon or the peer refused, or the operation failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The daemon or the peer is unreachable.
    Unreachable = 3,
    /// No object has that name.
    NoSuchObject = 4,
    /// The caller lacks the permission.
    Permission = 5,
    /// The daemon is degraded.
    Degraded = 6,
}

impl Exit {
    /// Returns the code that the process ends with.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}
