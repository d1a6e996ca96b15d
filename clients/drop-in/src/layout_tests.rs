//! The structures have the layout that a C compiler gives those of the headers.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use crate::objects::Cq;
use crate::qp::Qp;
use crate::{abi, abi_cm, abi_ex};

/// Fields: C structure, field, and their place here.
macro_rules! layout {
    ($($c:literal $rust:ty { $($field:literal $($at:ident).+),* $(,)? })*) => {{
        let mut all: Vec<(&str, &str, usize)> = Vec::new();
        $($(all.push(($c, $field, offset_of!($rust, $($at).+)));)*)*
        all
    }};
}

/// Lengths of the structures that programs or the library copy as a whole.
fn sizes() -> Vec<(&'static str, usize)> {
    vec![
        ("struct ibv_context", size_of::<abi::Context>()),
        ("struct ibv_context_ops", size_of::<abi::ContextOps>()),
        ("struct ibv_wc", size_of::<abi::Wc>()),
        ("struct ibv_send_wr", size_of::<abi::SendWr>()),
        ("struct ibv_recv_wr", size_of::<abi::RecvWr>()),
        ("struct ibv_sge", size_of::<abi::Sge>()),
        ("struct ibv_qp_attr", size_of::<abi::QpAttr>()),
        ("struct ibv_ah_attr", size_of::<abi::AhAttr>()),
        ("struct ibv_qp_init_attr", size_of::<abi::QpInitAttr>()),
        ("struct ibv_device_attr", size_of::<abi::DeviceAttr>()),
        ("struct ibv_device", size_of::<abi::Device>()),
        ("struct ibv_gid_entry", size_of::<abi::GidEntry>()),
        ("struct ibv_async_event", size_of::<abi::AsyncEvent>()),
        ("struct ibv_srq_attr", size_of::<abi::SrqAttr>()),
        ("struct ibv_cq_init_attr_ex", size_of::<abi_ex::CqInitAttrEx>()),
        ("struct ibv_qp_init_attr_ex", size_of::<abi_ex::QpInitAttrEx>()),
        ("struct ibv_srq_init_attr_ex", size_of::<abi_ex::SrqInitAttrEx>()),
        ("struct ibv_device_attr_ex", size_of::<abi_ex::DeviceAttrEx>()),
        ("struct ibv_mw_bind_info", size_of::<abi_ex::BindInfo>()),
        ("struct ibv_data_buf", size_of::<abi_ex::DataBuf>()),
        ("struct verbs_context", size_of::<abi_ex::Extended>() + size_of::<abi::Context>()),
        ("struct ibv_cq_ex", size_of::<abi::CqHead>() + size_of::<abi_ex::CqTail>()),
        ("struct rdma_conn_param", size_of::<abi_cm::ConnParam>()),
        ("struct rdma_cm_event", size_of::<abi_cm::EventHead>()),
        ("struct rdma_addrinfo", size_of::<abi_cm::AddrInfoHead>()),
        ("struct rdma_cm_id", size_of::<abi_cm::IdHead>()),
        ("struct sockaddr_storage", size_of::<abi_cm::Address>()),
    ]
}

fn verbs_fields() -> Vec<(&'static str, &'static str, usize)> {
    layout! {
        "struct ibv_device" abi::Device { "node_type" node_type, "transport_type" transport_type, "name" name,
            "dev_name" dev_name, "dev_path" dev_path, "ibdev_path" ibdev_path }
        "struct ibv_context" abi::Context { "device" device, "ops" ops, "cmd_fd" cmd_fd, "async_fd" async_fd,
            "num_comp_vectors" num_comp_vectors, "mutex" mutex, "abi_compat" abi_compat }
        "struct ibv_context_ops" abi::ContextOps { "alloc_mw" alloc_mw, "bind_mw" bind_mw, "dealloc_mw" dealloc_mw,
            "poll_cq" poll_cq, "req_notify_cq" req_notify_cq, "post_srq_recv" post_srq_recv,
            "post_send" post_send, "post_recv" post_recv }
        "struct ibv_pd" abi::PdHead { "context" context, "handle" handle }
        "struct ibv_mr" abi::MrHead { "context" context, "pd" pd, "addr" addr, "length" length, "handle" handle,
            "lkey" lkey, "rkey" rkey }
        "struct ibv_mw" abi::MwHead { "context" context, "pd" pd, "rkey" rkey, "handle" handle, "type" kind }
        "struct ibv_comp_channel" abi::ChannelHead { "context" context, "fd" fd, "refcnt" refcnt }
        "struct ibv_cq" abi::CqHead { "context" context, "channel" channel, "cq_context" cq_context,
            "handle" handle, "cqe" cqe, "mutex" mutex, "cond" cond,
            "comp_events_completed" comp_events_completed }
        "struct ibv_srq" abi::SrqHead { "context" context, "srq_context" srq_context, "pd" pd, "handle" handle,
            "mutex" mutex, "events_completed" events_completed }
        "struct ibv_qp" abi::QpHead { "context" context, "qp_context" qp_context, "pd" pd, "send_cq" send_cq,
            "recv_cq" recv_cq, "srq" srq, "handle" handle, "qp_num" qp_num, "state" state, "qp_type" qp_type,
            "mutex" mutex, "events_completed" events_completed }
        "struct ibv_qp_init_attr" abi::QpInitAttr { "qp_context" qp_context, "send_cq" send_cq, "recv_cq" recv_cq,
            "srq" srq, "cap" cap, "qp_type" qp_type, "sq_sig_all" sq_sig_all }
        "struct ibv_qp_attr" abi::QpAttr { "qp_state" qp_state, "qp_access_flags" qp_access_flags, "cap" cap,
            "ah_attr" ah_attr, "alt_ah_attr" alt_ah_attr, "pkey_index" pkey_index, "port_num" port_num,
            "rate_limit" rate_limit }
        "struct ibv_ah_attr" abi::AhAttr { "grh.dgid" dgid, "grh.flow_label" flow_label,
            "grh.sgid_index" sgid_index, "grh.hop_limit" hop_limit, "grh.traffic_class" traffic_class,
            "dlid" dlid, "sl" sl, "src_path_bits" src_path_bits, "static_rate" static_rate,
            "is_global" is_global, "port_num" port_num }
        "struct ibv_srq_init_attr" abi::SrqInitAttr { "srq_context" srq_context, "attr" attr }
        "struct ibv_send_wr" abi::SendWr { "wr_id" wr_id, "next" next, "sg_list" sg_list, "num_sge" num_sge,
            "opcode" opcode, "send_flags" send_flags, "imm_data" imm_data, "wr.rdma.remote_addr" wr,
            "wr.atomic.remote_addr" wr, "bind_mw.mw" bind.mw, "bind_mw.rkey" bind.rkey,
            "bind_mw.bind_info" bind.info }
        "struct ibv_wc" abi::Wc { "status" status, "opcode" opcode, "vendor_err" vendor_err, "byte_len" byte_len,
            "imm_data" imm_data, "qp_num" qp_num, "src_qp" src_qp, "wc_flags" wc_flags, "slid" slid }
        "struct ibv_async_event" abi::AsyncEvent { "element" element, "event_type" event_type }
        "struct ibv_device_attr" abi::DeviceAttr { "node_guid" node_guid, "max_mr_size" max_mr_size,
            "max_qp" max_qp, "device_cap_flags" device_cap_flags, "atomic_cap" atomic_cap, "max_mw" max_mw,
            "max_srq" max_srq, "max_pkeys" max_pkeys, "phys_port_cnt" phys_port_cnt }
        "struct ibv_port_attr" abi::PortAttr { "gid_tbl_len" gid_tbl_len, "max_msg_sz" max_msg_sz,
            "pkey_tbl_len" pkey_tbl_len, "lmc" lmc, "phys_state" phys_state, "link_layer" link_layer,
            "flags" flags }
        "struct ibv_gid_entry" abi::GidEntry { "gid_index" gid_index, "port_num" port_num, "gid_type" gid_type }
    }
}

fn extended_fields() -> Vec<(&'static str, &'static str, usize)> {
    layout! {
        "struct verbs_context" abi_ex::Extended { "create_cq_ex" create_cq_ex, "query_device_ex" query_device_ex,
            "create_qp_ex" create_qp_ex, "sz" size }
        "struct ibv_cq_init_attr_ex" abi_ex::CqInitAttrEx { "cqe" cqe, "cq_context" cq_context,
            "channel" channel, "comp_vector" comp_vector, "wc_flags" wc_flags, "comp_mask" comp_mask,
            "flags" flags, "parent_domain" parent_domain }
        "struct ibv_cq_ex" Cq { "cq_context" head.cq_context, "comp_mask" tail.comp_mask, "status" tail.status,
            "wr_id" tail.wr_id, "start_poll" tail.calls.start_poll, "next_poll" tail.calls.next_poll,
            "end_poll" tail.calls.end_poll, "read_opcode" tail.calls.read_opcode,
            "read_vendor_err" tail.calls.read_vendor_err, "read_byte_len" tail.calls.read_byte_len,
            "read_imm_data" tail.calls.read_imm_data, "read_qp_num" tail.calls.read_qp_num,
            "read_src_qp" tail.calls.read_src_qp, "read_wc_flags" tail.calls.read_wc_flags,
            "read_slid" tail.calls.read_slid, "read_sl" tail.calls.read_sl,
            "read_dlid_path_bits" tail.calls.read_dlid_path_bits, "read_completion_ts" tail.calls.absent }
        "struct ibv_qp_init_attr_ex" abi_ex::QpInitAttrEx { "qp_context" qp_context, "send_cq" send_cq,
            "recv_cq" recv_cq, "srq" srq, "cap" cap, "qp_type" qp_type, "sq_sig_all" sq_sig_all,
            "comp_mask" comp_mask, "pd" pd, "xrcd" xrcd, "create_flags" create_flags,
            "max_tso_header" max_tso_header, "rwq_ind_tbl" rwq_ind_tbl, "rx_hash_conf" rx_hash_conf,
            "source_qpn" source_qpn, "send_ops_flags" send_ops_flags }
        "struct ibv_qp_ex" Qp { "qp_base.qp_num" head.qp_num, "comp_mask" tail.comp_mask, "wr_id" tail.wr_id,
            "wr_flags" tail.wr_flags, "wr_atomic_cmp_swp" tail.calls.atomic_cmp_swp,
            "wr_atomic_fetch_add" tail.calls.atomic_fetch_add, "wr_bind_mw" tail.calls.bind_mw,
            "wr_local_inv" tail.calls.local_inv, "wr_rdma_read" tail.calls.rdma_read,
            "wr_rdma_write" tail.calls.rdma_write, "wr_rdma_write_imm" tail.calls.rdma_write_imm,
            "wr_send" tail.calls.send, "wr_send_imm" tail.calls.send_imm, "wr_send_inv" tail.calls.send_inv,
            "wr_send_tso" tail.calls.send_tso, "wr_set_inline_data" tail.calls.set_inline_data,
            "wr_set_inline_data_list" tail.calls.set_inline_data_list, "wr_set_sge" tail.calls.set_sge,
            "wr_set_sge_list" tail.calls.set_sge_list, "wr_start" tail.calls.start,
            "wr_complete" tail.calls.complete, "wr_abort" tail.calls.abort,
            "wr_atomic_write" tail.calls.atomic_write }
        "struct ibv_mw_bind_info" abi_ex::BindInfo { "mr" mr, "addr" addr, "length" length,
            "mw_access_flags" access }
        "struct ibv_data_buf" abi_ex::DataBuf { "addr" addr, "length" length }
        "struct ibv_srq_init_attr_ex" abi_ex::SrqInitAttrEx { "srq_context" srq_context, "attr" attr,
            "comp_mask" comp_mask, "srq_type" srq_type, "pd" pd, "xrcd" xrcd, "cq" cq }
        "struct ibv_device_attr_ex" abi_ex::DeviceAttrEx { "orig_attr" plain, "comp_mask" comp_mask,
            "device_cap_flags_ex" device_cap_flags, "tso_caps" absent_last, "xrc_odp_caps" xrc_odp_caps,
            "phys_port_cnt_ex" phys_port_cnt }
    }
}

fn cm_fields() -> Vec<(&'static str, &'static str, usize)> {
    layout! {
        "struct rdma_cm_id" abi_cm::IdHead { "verbs" verbs, "channel" channel, "context" context, "qp" qp,
            "route.addr.src_addr" src, "route.addr.dst_addr" dst, "route.addr.addr.ibaddr" ibaddr,
            "route.path_rec" path_rec, "route.num_paths" num_paths, "ps" ps, "port_num" port_num,
            "event" event, "send_cq_channel" send_cq_channel, "send_cq" send_cq,
            "recv_cq_channel" recv_cq_channel, "recv_cq" recv_cq, "srq" srq, "pd" pd, "qp_type" qp_type }
        "struct rdma_conn_param" abi_cm::ConnParam { "private_data_len" private_data_len,
            "responder_resources" responder_resources, "initiator_depth" initiator_depth, "qp_num" qp_num }
        "struct rdma_cm_event" abi_cm::EventHead { "id" id, "listen_id" listen_id, "event" event,
            "status" status, "param.conn" conn }
        "struct rdma_event_channel" crate::event_channel::EventChannel { "fd" fd }
        "struct rdma_addrinfo" abi_cm::AddrInfoHead { "ai_flags" flags, "ai_family" family,
            "ai_qp_type" qp_type, "ai_port_space" port_space, "ai_src_len" src_len, "ai_dst_len" dst_len,
            "ai_src_addr" src_addr, "ai_dst_addr" dst_addr, "ai_route_len" route_len,
            "ai_connect" connect, "ai_next" next }
    }
}

#[test]
fn structures_have_the_layout_of_the_headers() {
    let qp_ex = size_of::<abi::QpHead>() + size_of::<abi_ex::QpTail>();
    let mut program =
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n".to_owned();
    let mut check = |of: String, here: usize| {
        writeln!(program, "_Static_assert({of} == {here}, \"{here}\");").unwrap();
    };
    for (structure, field, here) in [verbs_fields(), extended_fields(), cm_fields()].concat() {
        check(format!("offsetof({structure}, {field})"), here);
    }
    for (structure, here) in sizes() {
        check(format!("sizeof({structure})"), here);
    }
    // Later headers add functions at the end: programs must find room, and no function, where their headers have one.
    writeln!(program, "_Static_assert(sizeof(struct ibv_qp_ex) <= {qp_ex}, \"{qp_ex}\");").unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join(format!("layout-{}.c", std::process::id()));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&source).output().unwrap();
    std::fs::remove_file(&source).unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
