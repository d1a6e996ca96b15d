//! Commands of DPDK's telemetry socket, which `dpdk-telemetry.py` and Telegraf read: `/iwarp/groups` and
//! `/iwarp/stats,GROUP`. DPDK calls them on a thread of its own; they read the copy that [`Telemetry::publish`] made.
#![allow(unsafe_code, reason = "DPDK's telemetry is called, and calls, in C")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::eal::Eal;
use super::error::{DpdkError, check_for};

/// Counters of one group: name and value of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryGroup {
    /// Name of the group: letters, digits and underscores.
    pub name: CString,
    /// Counters; DPDK replies with the first 256.
    pub counters: Vec<(CString, u64)>,
}

static LATEST: Mutex<Vec<TelemetryGroup>> = Mutex::new(Vec::new());

fn latest() -> MutexGuard<'static, Vec<TelemetryGroup>> {
    LATEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Commands that DPDK answers on its telemetry socket.
#[derive(Debug)]
pub struct Telemetry(());

impl Telemetry {
    /// Registers the commands. DPDK has no way to remove them; they are answered as long as DPDK runs.
    ///
    /// # Errors
    /// DPDK has no memory, or too many commands.
    pub fn register(_: &Eal) -> Result<Self, DpdkError> {
        let operation = || "telemetry: a command cannot be registered".to_owned();
        let help = c"Names of the groups of counters. Takes no parameters.";
        // SAFETY: C strings, copied by the call; the function has the signature that C calls.
        let returned = unsafe {
            dpdk_sys::rte_telemetry_register_cmd(c"/iwarp/groups".as_ptr(), Some(groups), help.as_ptr())
        };
        check_for(returned, operation)?;
        let help = c"Counters of a group, summed over workers and ports. Parameters: string group";
        // SAFETY: as above.
        let returned = unsafe {
            dpdk_sys::rte_telemetry_register_cmd(c"/iwarp/stats".as_ptr(), Some(stats), help.as_ptr())
        };
        check_for(returned, operation)?;
        Ok(Self(()))
    }

    /// Replaces the values that the commands reply with.
    pub fn publish(&self, groups: Vec<TelemetryGroup>) {
        *latest() = groups;
    }
}

/// Called by DPDK, on its telemetry thread.
unsafe extern "C" fn groups(_: *const c_char, _: *const c_char, reply: *mut dpdk_sys::rte_tel_data) -> c_int {
    let kind = dpdk_sys::rte_tel_value_type::RTE_TEL_STRING_VAL;
    // SAFETY: the reply that DPDK passes, which is ours until this function returns.
    let started = unsafe { dpdk_sys::rte_tel_data_start_array(reply, kind) };
    for group in latest().iter() {
        // SAFETY: as above; the name is a C string, which DPDK copies.
        let _ = unsafe { dpdk_sys::rte_tel_data_add_array_string(reply, group.name.as_ptr()) };
    }
    started
}

/// Called by DPDK, on its telemetry thread. An unknown group is refused.
unsafe extern "C" fn stats(
    _: *const c_char,
    parameters: *const c_char,
    reply: *mut dpdk_sys::rte_tel_data,
) -> c_int {
    if parameters.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: DPDK passes null or a C string that lives through the call.
    let asked = unsafe { CStr::from_ptr(parameters) };
    let latest = latest();
    let Some(group) = latest.iter().find(|group| group.name.as_c_str() == asked) else {
        return -libc::ENOENT;
    };
    // SAFETY: the reply that DPDK passes, which is ours until this function returns.
    let started = unsafe { dpdk_sys::rte_tel_data_start_dict(reply) };
    for (name, value) in &group.counters {
        // SAFETY: as above; the name is a C string, which DPDK copies.
        let _ = unsafe { dpdk_sys::dpdk_telemetry_add(reply, name.as_ptr(), *value) };
    }
    started
}
