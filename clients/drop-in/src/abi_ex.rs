//! Structures of the extended verbs of `<infiniband/verbs.h>`, as [`abi`](crate::abi) has the others.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::abi::{DeviceAttr, QpCap, Sge, SrqAttr};
use crate::context::OpenContext;
use crate::datagrams::Ah;
use crate::objects::{Channel, Cq, Mr, Mw, Pd, Srq};
use crate::qp::Qp;

/// `struct verbs_context` without its last field: extended functions. The header's functions fail with `EOPNOTSUPP`
/// where there is none.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Extended {
    pub(crate) first: [usize; 25],
    pub(crate) create_cq_ex: extern "C" fn(Option<&OpenContext>, Option<&CqInitAttrEx>) -> Option<Box<Cq>>,
    pub(crate) private: usize,
    pub(crate) query_device_ex:
        extern "C" fn(Option<&OpenContext>, Option<&u32>, *mut DeviceAttrEx, usize) -> c_int,
    pub(crate) flows: [usize; 5],
    pub(crate) create_qp_ex:
        extern "C" fn(Option<&OpenContext>, Option<&mut QpInitAttrEx>) -> Option<Box<Qp>>,
    pub(crate) rest: [usize; 5],
    /// Size of the whole structure, bytes.
    pub(crate) size: usize,
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *const Channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *const Pd,
}

/// `struct ibv_cq_ex`, from the fields on that `struct ibv_cq` does not have.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct CqTail {
    pub(crate) comp_mask: u32,
    pub(crate) status: AtomicI32,
    pub(crate) wr_id: AtomicU64,
    pub(crate) calls: CqCalls,
}

/// Functions of a completion queue. Programs call those of the fields that they have asked for.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct CqCalls {
    pub(crate) start_poll: Option<extern "C" fn(Option<&Cq>, Option<&u32>) -> c_int>,
    pub(crate) next_poll: Option<extern "C" fn(Option<&Cq>) -> c_int>,
    pub(crate) end_poll: Option<extern "C" fn(Option<&Cq>)>,
    pub(crate) read_opcode: Option<extern "C" fn(Option<&Cq>) -> c_int>,
    pub(crate) read_vendor_err: Option<extern "C" fn(Option<&Cq>) -> u32>,
    pub(crate) read_byte_len: Option<extern "C" fn(Option<&Cq>) -> u32>,
    pub(crate) read_imm_data: Option<extern "C" fn(Option<&Cq>) -> u32>,
    pub(crate) read_qp_num: Option<extern "C" fn(Option<&Cq>) -> u32>,
    pub(crate) read_src_qp: Option<extern "C" fn(Option<&Cq>) -> u32>,
    pub(crate) read_wc_flags: Option<extern "C" fn(Option<&Cq>) -> u32>,
    pub(crate) read_slid: Option<extern "C" fn(Option<&Cq>) -> u32>,
    pub(crate) read_sl: Option<extern "C" fn(Option<&Cq>) -> u8>,
    pub(crate) read_dlid_path_bits: Option<extern "C" fn(Option<&Cq>) -> u8>,
    /// Time stamps, VLANs, flow tags, tag matching.
    pub(crate) absent: [usize; 5],
}

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct QpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *const Cq,
    pub(crate) recv_cq: *const Cq,
    pub(crate) srq: *const Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *const Pd,
    pub(crate) xrcd: *const c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *const c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// `struct ibv_qp_ex`, from the fields on that `struct ibv_qp` does not have.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct QpTail {
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: AtomicU64,
    pub(crate) wr_flags: AtomicU32,
    pub(crate) calls: WrCalls,
}

/// Functions that post work. Programs call those of the operations that they have asked for.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct WrCalls {
    pub(crate) atomic_cmp_swp: Option<extern "C" fn(Option<&Qp>, u32, u64, u64, u64)>,
    pub(crate) atomic_fetch_add: Option<extern "C" fn(Option<&Qp>, u32, u64, u64)>,
    pub(crate) bind_mw: Option<extern "C" fn(Option<&Qp>, Option<&Mw>, u32, Option<&BindInfo>)>,
    pub(crate) local_inv: Option<extern "C" fn(Option<&Qp>, u32)>,
    pub(crate) rdma_read: Option<extern "C" fn(Option<&Qp>, u32, u64)>,
    pub(crate) rdma_write: Option<extern "C" fn(Option<&Qp>, u32, u64)>,
    pub(crate) rdma_write_imm: Option<extern "C" fn(Option<&Qp>, u32, u64, u32)>,
    pub(crate) send: Option<extern "C" fn(Option<&Qp>)>,
    pub(crate) send_imm: Option<extern "C" fn(Option<&Qp>, u32)>,
    pub(crate) send_inv: Option<extern "C" fn(Option<&Qp>, u32)>,
    pub(crate) send_tso: usize,
    pub(crate) set_ud_addr: Option<extern "C" fn(Option<&Qp>, Option<&Ah>, u32, u32)>,
    pub(crate) set_xrc_srqn: usize,
    pub(crate) set_inline_data: Option<extern "C" fn(Option<&Qp>, *const c_void, usize)>,
    pub(crate) set_inline_data_list: Option<extern "C" fn(Option<&Qp>, usize, *const DataBuf)>,
    pub(crate) set_sge: Option<extern "C" fn(Option<&Qp>, u32, u64, u32)>,
    pub(crate) set_sge_list: Option<extern "C" fn(Option<&Qp>, usize, *const Sge)>,
    pub(crate) start: Option<extern "C" fn(Option<&Qp>)>,
    pub(crate) complete: Option<extern "C" fn(Option<&Qp>) -> c_int>,
    pub(crate) abort: Option<extern "C" fn(Option<&Qp>)>,
    pub(crate) atomic_write: usize,
    /// `wr_flush`, which headers later than Debian 12's have.
    pub(crate) flush: usize,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindInfo {
    pub(crate) mr: *const Mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataBuf {
    pub(crate) addr: *const c_void,
    pub(crate) length: usize,
}

/// `struct ibv_srq_init_attr_ex`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SrqInitAttrEx {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_int,
    pub(crate) pd: *const Pd,
    pub(crate) xrcd: *const c_void,
    pub(crate) cq: *const Cq,
    pub(crate) tm_cap: [u32; 2],
}

/// `struct ibv_device_attr_ex`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DeviceAttrEx {
    pub(crate) plain: DeviceAttr,
    pub(crate) comp_mask: u32,
    /// On-demand paging, time stamps.
    pub(crate) absent_first: [u64; 5],
    pub(crate) device_cap_flags: u64,
    /// Segmentation, hashes, pacing, tag matching, moderation, device memory.
    pub(crate) absent_last: [u64; 13],
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt: u32,
}
