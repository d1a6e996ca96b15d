//! Texts of statuses, states and events.

use std::ffi::{CStr, c_char, c_int};

use crate::raw::export;

/// Returns the text of a value, in an array that begins at 0.
fn text(all: &[&'static CStr], value: c_int) -> &'static CStr {
    usize::try_from(value).ok().and_then(|value| all.get(value).copied()).unwrap_or(c"unknown")
}

/// Returns the name of an event (`enum rdma_cm_event_type`).
pub(crate) fn cm_event(event: c_int) -> &'static CStr {
    let names = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    usize::try_from(event).ok().and_then(|event| names.get(event).copied()).unwrap_or(c"UNKNOWN EVENT")
}

export! {
    fn ibv_wc_status_str(status: c_int) -> *const c_char {
        let texts = [
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"work request flushed error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
        ];
        text(&texts, status).as_ptr()
    }

    fn ibv_event_type_str(event: c_int) -> *const c_char {
        let texts = [
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
        ];
        text(&texts, event).as_ptr()
    }

    fn ibv_node_type_str(kind: c_int) -> *const c_char {
        let texts = [
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
        ];
        text(&texts, kind).as_ptr()
    }

    fn ibv_port_state_str(state: c_int) -> *const c_char {
        let texts = [
            c"no state change (NOP)",
            c"down",
            c"init",
            c"armed",
            c"active",
            c"active defer",
        ];
        text(&texts, state).as_ptr()
    }
}
