//! Structures of `<infiniband/verbs.h>` (rdma-core 44), as far as programs or the header's inline functions access
//! them. `layout_tests.rs` compares them with the header.
//!
//! Enumerations are integers: a program may store any value. What the library changes while a program may read it is
//! atomic.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32};

use crate::abi_ex::BindInfo;
use crate::context::OpenContext;
use crate::objects::{Channel, Cq, Mw, Pd, Srq};
use crate::qp::Qp;

/// `struct ibv_device`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ops: [usize; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`: the functions that the header's inline functions call.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ContextOps {
    pub(crate) compat_first: [usize; 7],
    pub(crate) alloc_mw: extern "C" fn(Option<&Pd>, c_int) -> Option<Box<Mw>>,
    pub(crate) bind_mw: extern "C" fn(Option<&Qp>, Option<&Mw>, *const c_void) -> c_int,
    pub(crate) dealloc_mw: extern "C" fn(Option<Box<Mw>>) -> c_int,
    pub(crate) compat_create_cq: usize,
    pub(crate) poll_cq: extern "C" fn(Option<&Cq>, c_int, *mut Wc) -> c_int,
    pub(crate) req_notify_cq: extern "C" fn(Option<&Cq>, c_int) -> c_int,
    pub(crate) compat_cq: [usize; 7],
    pub(crate) post_srq_recv:
        extern "C" fn(Option<&Srq>, Option<&RecvWr>, Option<&mut *const RecvWr>) -> c_int,
    pub(crate) compat_qp: [usize; 4],
    pub(crate) post_send: extern "C" fn(Option<&Qp>, Option<&SendWr>, Option<&mut *const SendWr>) -> c_int,
    pub(crate) post_recv: extern "C" fn(Option<&Qp>, Option<&RecvWr>, Option<&mut *const RecvWr>) -> c_int,
    pub(crate) compat_last: [usize; 5],
}

/// `struct ibv_context`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: &'static crate::device_list::Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) abi_compat: usize,
}

/// `pthread_mutex_t`, which nobody locks.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Mutex([u64; 5]);

/// `pthread_cond_t`, on which nobody waits.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Cond([u64; 6]);

/// `struct ibv_ah`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AhHead {
    pub(crate) context: *const OpenContext,
    pub(crate) pd: *const Pd,
    pub(crate) handle: u32,
}

/// Length of `struct ibv_grh`, bytes.
pub(crate) const GRH_BYTES: usize = 40;

/// `struct ibv_grh`, in a receive buffer in front of a datagram. Numbers are big-endian.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Grh {
    pub(crate) version_tclass_flow: u32,
    pub(crate) paylen: u16,
    pub(crate) next_hdr: u8,
    pub(crate) hop_limit: u8,
    pub(crate) sgid: [u8; 16],
    pub(crate) dgid: [u8; 16],
}

/// `struct ibv_pd`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PdHead {
    pub(crate) context: *const OpenContext,
    pub(crate) handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MrHead {
    pub(crate) context: *const OpenContext,
    pub(crate) pd: *const Pd,
    pub(crate) addr: *const c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MwHead {
    pub(crate) context: *const OpenContext,
    pub(crate) pd: *const Pd,
    pub(crate) rkey: AtomicU32,
    pub(crate) handle: u32,
    pub(crate) kind: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ChannelHead {
    pub(crate) context: *const OpenContext,
    pub(crate) fd: c_int,
    pub(crate) refcnt: AtomicI32,
}

/// `struct ibv_cq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CqHead {
    pub(crate) context: *const OpenContext,
    pub(crate) channel: *const Channel,
    pub(crate) cq_context: AtomicPtr<c_void>,
    pub(crate) handle: u32,
    pub(crate) cqe: AtomicI32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SrqHead {
    pub(crate) context: *const OpenContext,
    pub(crate) srq_context: AtomicPtr<c_void>,
    pub(crate) pd: *const Pd,
    pub(crate) handle: u32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct QpHead {
    pub(crate) context: *const OpenContext,
    pub(crate) qp_context: AtomicPtr<c_void>,
    pub(crate) pd: *const Pd,
    pub(crate) send_cq: *const Cq,
    pub(crate) recv_cq: *const Cq,
    pub(crate) srq: *const Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: AtomicU32,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *const Cq,
    pub(crate) recv_cq: *const Cq,
    pub(crate) srq: *const Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AhAttr {
    // `struct ibv_global_route`
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *const Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: u32,
    /// Immediate Data in network byte order, or the key to invalidate.
    pub(crate) imm_data: u32,
    /// The union `wr`: `rdma`, `atomic` or `ud`, in halves of words.
    pub(crate) wr: [u32; 8],
    pub(crate) qp_type: u64,
    pub(crate) bind: BindWr,
}

/// `bind_mw` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct BindWr {
    pub(crate) mw: *const Mw,
    pub(crate) rkey: u32,
    pub(crate) info: BindInfo,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *const Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AsyncEvent {
    /// Address of the object, or number of the port.
    pub(crate) element: usize,
    pub(crate) event_type: c_int,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`, up to `flags`: what the exported `ibv_query_port` fills.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
}

/// `union ibv_gid`, aligned as in C.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}
