//! Threads that DPDK knows. Workers and the threads that own a [`Node`](crate::verbs::Node) register here.
#![allow(unsafe_code, reason = "DPDK's per-thread registration")]

use std::marker::PhantomData;

use super::eal::Eal;
use super::error::{DpdkError, check_for};

/// Makes the calling thread one that DPDK knows, until dropped on that thread.
///
/// Without it a thread has no buffer cache of its own, and each allocation and release costs six times as
/// much. The thread that started the [`Eal`] is known already.
#[derive(Debug)]
pub struct RegisteredThread {
    _eal: Eal,
    /// Bound to the thread: neither `Send` nor `Sync`.
    _thread: PhantomData<*const ()>,
}

impl RegisteredThread {
    /// Registers the calling thread.
    ///
    /// # Errors
    /// The thread is registered already, or DPDK has no place for another (128 in all).
    pub fn new(eal: &Eal) -> Result<Self, DpdkError> {
        if lcore_id().is_some() {
            return Err(DpdkError::new("this thread is registered with DPDK", super::Errno::INVALID));
        }
        // SAFETY: the EAL is up, as `eal` proves.
        let returned = unsafe { dpdk_sys::rte_thread_register() };
        check_for(returned, || "rte_thread_register".into())?;
        Ok(Self { _eal: eal.clone(), _thread: PhantomData })
    }

    /// DPDK's number of this thread.
    pub fn lcore(&self) -> Option<u32> {
        lcore_id()
    }
}

impl Drop for RegisteredThread {
    fn drop(&mut self) {
        // SAFETY: registered in `new` on this very thread, since the guard cannot change threads.
        unsafe { dpdk_sys::rte_thread_unregister() };
    }
}

/// Returns true if DPDK knows the calling thread.
pub fn is_registered() -> bool {
    lcore_id().is_some()
}

/// DPDK's number of the calling thread; `None` for one that it does not know.
pub(crate) fn lcore_id() -> Option<u32> {
    // SAFETY: reads a thread-local integer; no precondition.
    let id = unsafe { dpdk_sys::rte_lcore_id() };
    (id != dpdk_sys::DPDK_LCORE_ID_ANY).then_some(id)
}
