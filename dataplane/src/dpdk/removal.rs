//! The kernel's requests to release a device, for a card that is to be unplugged or bound to another driver.
#![allow(unsafe_code, reason = "hands DPDK a function and a flag")]

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{DpdkError, Errno, check_for};

/// A flag that DPDK's interrupt thread sets when the kernel requests the device's release. vfio-pci sends a request
/// and waits until the device is released; UIO sends none.
#[derive(Debug)]
pub(super) struct RemovalRequest {
    name: CString,
    asked: Arc<AtomicBool>,
}

impl RemovalRequest {
    /// Registers the flag for the device of this name.
    pub(super) fn watch(name: &str) -> Result<Self, DpdkError> {
        let operation = || format!("device {name}: requests to remove it");
        let name_c = CString::new(name).map_err(|_| DpdkError::new(operation(), Errno::INVALID))?;
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::into_raw(Arc::clone(&asked)).cast_mut().cast::<c_void>();
        // SAFETY: a C string, copied by the call; the function has the signature that C calls; the flag's reference
        // is DPDK's from here on, until `drop` has taken both back.
        let returned =
            unsafe { dpdk_sys::rte_dev_event_callback_register(name_c.as_ptr(), Some(note), flag) };
        if returned < 0 {
            // SAFETY: DPDK did not take the reference that was made above.
            drop(unsafe { Arc::from_raw(flag.cast::<AtomicBool>()) });
        }
        check_for(returned, operation)?;
        Ok(Self { name: name_c, asked })
    }

    /// Returns true after the kernel has requested the device's release.
    pub(super) fn is_made(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl Drop for RemovalRequest {
    fn drop(&mut self) {
        let flag = Arc::as_ptr(&self.asked).cast_mut().cast::<c_void>();
        // SAFETY: the name, the function and the flag that `watch` registered.
        let removed =
            unsafe { dpdk_sys::rte_dev_event_callback_unregister(self.name.as_ptr(), Some(note), flag) };
        if removed > 0 {
            // SAFETY: DPDK has dropped the reference that `watch` passed to it. If it has not, the flag is leaked.
            drop(unsafe { Arc::from_raw(flag.cast::<AtomicBool>()) });
        }
    }
}

/// Called by DPDK, on its interrupt thread.
unsafe extern "C" fn note(
    _name: *const c_char,
    event: dpdk_sys::rte_dev_event_type::Type,
    flag: *mut c_void,
) {
    if event == dpdk_sys::rte_dev_event_type::RTE_DEV_EVENT_REMOVE {
        // SAFETY: the flag that `watch` registered; DPDK has a reference to it while it can call.
        unsafe { &*flag.cast::<AtomicBool>() }.store(true, Ordering::Release);
    }
}
