//! Error numbers of DPDK.
#![allow(unsafe_code, reason = "reads DPDK's thread-local error number")]

use std::ffi::c_int;
use std::fmt;

/// An error number of the C library or of DPDK, always positive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// "Operation not supported": how a driver says that it lacks a feature.
    pub const NOT_SUPPORTED: Self = Self(libc::ENOTSUP);
    /// The number for "Invalid argument".
    pub const INVALID: Self = Self(libc::EINVAL);

    /// The calling thread's `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local integer; no precondition.
        Self(unsafe { dpdk_sys::dpdk_errno() })
    }

    /// Returns the error number.
    pub fn code(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1001 => f.write_str("not allowed in a secondary process (E_RTE_SECONDARY)"),
            1002 => f.write_str("missing EAL configuration (E_RTE_NO_CONFIG)"),
            code => std::io::Error::from_raw_os_error(code).fmt(f),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

/// A DPDK call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {errno}{}", said.as_ref().map(|said| format!("; DPDK: {said}")).unwrap_or_default())]
pub struct DpdkError {
    /// The operation that failed, and its object.
    pub operation: String,
    /// Why it was not.
    pub errno: Errno,
    /// DPDK's own words, which say more than the number; `None` if it said nothing.
    pub said: Option<String>,
}

impl DpdkError {
    /// The failure of `operation` with the calling thread's `rte_errno`.
    pub(crate) fn last(operation: impl Into<String>) -> Self {
        Self { operation: operation.into(), errno: Errno::last(), said: None }
    }

    /// The failure of `operation` with an error number of our own.
    pub(crate) fn new(operation: impl Into<String>, errno: Errno) -> Self {
        Self { operation: operation.into(), errno, said: None }
    }
}

/// Turns DPDK's return convention (`-errno`, or -1 with `rte_errno`) into a result.
pub(crate) fn check(returned: c_int) -> Result<c_int, Errno> {
    match returned {
        -1 => Err(match Errno::last() {
            Errno(code) if code > 0 => Errno(code),
            _ => Errno(libc::EPERM),
        }),
        i32::MIN..-1 => Err(Errno(returned.saturating_neg())),
        _ => Ok(returned),
    }
}

/// As [`check`], naming the operation.
pub(crate) fn check_for(returned: c_int, operation: impl FnOnce() -> String) -> Result<c_int, DpdkError> {
    check(returned).map_err(|errno| DpdkError { operation: operation(), errno, said: None })
}

/// As [`check_for`], a feature that the driver lacks being no error.
pub(crate) fn check_optional(returned: c_int, operation: impl FnOnce() -> String) -> Result<bool, DpdkError> {
    match check(returned) {
        Ok(_) => Ok(true),
        Err(Errno(libc::ENOTSUP | libc::ENOSYS)) => Ok(false),
        Err(errno) => Err(DpdkError { operation: operation(), errno, said: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_codes_map_to_error_numbers() {
        assert_eq!(check(0), Ok(0));
        assert_eq!(check(7), Ok(7));
        assert_eq!(check(-libc::ENOTSUP), Err(Errno::NOT_SUPPORTED));
        assert_eq!(check(i32::MIN), Err(Errno(i32::MAX)));
        assert!(matches!(check_optional(-libc::ENOTSUP, String::new), Ok(false)));
        assert!(check_optional(-libc::EINVAL, String::new).is_err());
    }

    #[test]
    fn the_words_of_dpdk_follow_the_number() {
        let error = DpdkError::new("device net_tap0", Errno::INVALID);
        assert_eq!(error.to_string(), "device net_tap0: Invalid argument (os error 22)");
        let error = DpdkError { said: Some("TAP: no permission".into()), ..error };
        assert_eq!(
            error.to_string(),
            "device net_tap0: Invalid argument (os error 22); DPDK: TAP: no permission"
        );
    }

    #[test]
    fn error_numbers_read_as_text() {
        assert!(Errno::INVALID.to_string().contains("Invalid argument"));
        assert!(Errno(1001).to_string().contains("E_RTE_SECONDARY"));
    }
}
