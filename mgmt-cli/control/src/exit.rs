//! What a command's end means to a script.

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// The daemon or the peer refused, or the work failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Nothing answers at the control socket or at the peer's address.
    Unreachable = 3,
    /// There is no object of that name.
    NoSuchObject = 4,
    /// The caller may not do that.
    Permission = 5,
    /// The daemon works, but not as it should.
    Degraded = 6,
}

impl Exit {
    /// The code as the process returns it.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}
