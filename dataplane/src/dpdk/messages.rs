//! Classification of DPDK's log messages, for `eal`, which passes them to the daemon's log. DPDK logs
//! conditions as errors that are harmless in this daemon.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Severity of a message in this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// An operation of DPDK failed.
    Error,
    /// Something may be wrong.
    Warning,
    /// A step of DPDK's work, or a condition that costs nothing here.
    Step,
    /// DPDK logs it as an error or a warning, and it is harmless here: the reason.
    Harmless(&'static str),
    /// Debug output of DPDK.
    Detail,
}

/// Harmless messages that DPDK logs as errors or warnings, each with the reason.
const HARMLESS: &[(&str, &str)] = &[
    ("rt-signals are in use", "provoked by RealtimeSignalsOccupied: the TAP is polled"),
    ("No Rx trigger signal", "the same"),
    ("No free 1048576 kB hugepages", "pages of 2 MiB are used"),
    ("No legacy callbacks, legacy socket not created", "nobody speaks that telemetry protocol any more"),
    ("tap_nl_dump_ext_ack(): ", "the kernel's word on the qdisc for flow rules, of which there are none"),
    ("qdisc_create_multiq(): ", "the same"),
    ("failed to create multiq qdisc", "the same"),
    ("Disabling rte flow support", "the same"),
    ("tap_mp_req_on_rxtx(): Failed to send start req", "there is no secondary process"),
    ("Failed to register mp action callback", "the same"),
    ("Failed to register IPC callback", "the same"),
    ("Failed to register multi-process IPC callback", "the same"),
    (
        "Error disabling MSI-X interrupts",
        "they were disabled before: a driver stops its queues' interrupts, then the card's",
    ),
    ("Rx Intr vector unset", "asked of a card without receive interrupts, which is polled"),
];

/// Number of attempts in progress that have an alternative.
static ATTEMPTS: AtomicU32 = AtomicU32::new(0);

/// Guard of an attempt that has an alternative: while it lives, DPDK's errors are harmless, and the caller logs the
/// outcome.
#[derive(Debug)]
pub(super) struct Attempt(());

impl Attempt {
    /// Starts an attempt, whose errors are expected.
    pub(super) fn begin() -> Self {
        ATTEMPTS.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        ATTEMPTS.fetch_sub(1, Ordering::AcqRel);
    }
}

thread_local! {
    /// First error or warning of the call that this thread makes; `None` outside of [`first_complaint`].
    static FIRST_COMPLAINT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes a call of DPDK. Returns its result, and the first error or warning that DPDK logged meanwhile on this thread:
/// the cause, of which the error number and what DPDK logs later say less.
pub(super) fn first_complaint<T>(call: impl FnOnce() -> T) -> (T, Option<String>) {
    FIRST_COMPLAINT.set(Some(String::new()));
    let returned = call();
    (returned, FIRST_COMPLAINT.take().filter(|text| !text.is_empty()))
}

/// Keeps an error or a warning that DPDK logs, if [`first_complaint`] waits for one.
pub(super) fn keep_complaint(text: &str) {
    FIRST_COMPLAINT.with_borrow_mut(|first| {
        if let Some(first) = first.as_mut().filter(|first| first.is_empty()) {
            text.clone_into(first);
        }
    });
}

/// Classifies a message of a DPDK level, 1 (emergency) to 8 (debug).
pub(super) fn weigh(level: u32, text: &str) -> Weight {
    if level > dpdk_sys::DPDK_LOG_INFO {
        return Weight::Detail;
    }
    if level > dpdk_sys::DPDK_LOG_WARNING {
        // DPDK announces every step of its start at these levels.
        return Weight::Step;
    }
    if let Some((_, why)) = HARMLESS.iter().find(|(part, _)| text.contains(part)) {
        return Weight::Harmless(why);
    }
    if ATTEMPTS.load(Ordering::Acquire) > 0 {
        return Weight::Harmless("an attempt that has an alternative");
    }
    if level <= dpdk_sys::DPDK_LOG_ERR { Weight::Error } else { Weight::Warning }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: u32 = dpdk_sys::DPDK_LOG_ERR;
    const WARNING: u32 = dpdk_sys::DPDK_LOG_WARNING;

    /// One test: attempts count for the process.
    #[test]
    fn a_message_weighs_what_it_means_here() {
        let stop = "EAL: Error disabling MSI-X interrupts for fd 19";
        assert!(matches!(weigh(ERROR, stop), Weight::Harmless(_)));
        let broken = "EAL: Cannot init memory";
        assert_eq!(weigh(ERROR, broken), Weight::Error);
        assert_eq!(weigh(1, broken), Weight::Error);
        assert_eq!(weigh(WARNING, broken), Weight::Warning);
        assert_eq!(weigh(dpdk_sys::DPDK_LOG_NOTICE, broken), Weight::Step);
        assert_eq!(weigh(dpdk_sys::DPDK_LOG_INFO, broken), Weight::Step);
        assert_eq!(weigh(dpdk_sys::DPDK_LOG_INFO + 1, stop), Weight::Detail);
        let vectors = "virtio_configure_intr(): Multiple intr vector not supported";
        assert_eq!(weigh(ERROR, vectors), Weight::Error);
        let attempt = Attempt::begin();
        assert!(matches!(weigh(ERROR, vectors), Weight::Harmless(_)));
        drop(attempt);
        assert_eq!(weigh(ERROR, vectors), Weight::Error);
    }

    #[test]
    fn the_first_complaint_of_a_call_is_its_cause() {
        keep_complaint("before any call");
        let (returned, said) = first_complaint(|| {
            keep_complaint("cannot open /dev/net/tun");
            keep_complaint("probing failed");
            7
        });
        assert_eq!((returned, said.as_deref()), (7, Some("cannot open /dev/net/tun")));
        assert_eq!(first_complaint(|| ()).1, None);
    }

    #[test]
    fn every_reason_is_one() {
        for (part, why) in HARMLESS {
            assert!(part.len() >= 10 && why.len() >= 8, "{part}: {why}");
        }
    }
}
