//! The structures have the layout that a C compiler gives those of the headers.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use crate::{abi, abi_cm};

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
        ("struct ibv_qp_init_attr", size_of::<abi::QpInitAttr>()),
        ("struct ibv_device_attr", size_of::<abi::DeviceAttr>()),
        ("struct ibv_device", size_of::<abi::Device>()),
        ("struct ibv_gid_entry", size_of::<abi::GidEntry>()),
        ("struct ibv_async_event", size_of::<abi::AsyncEvent>()),
        ("struct ibv_srq_attr", size_of::<abi::SrqAttr>()),
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
        "struct verbs_context" abi::Extended { "sz" size }
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
        "struct ibv_qp_init_attr_ex" abi::QpInitAttrEx { "sq_sig_all" sq_sig_all, "comp_mask" comp_mask,
            "pd" pd, "xrcd" xrcd, "create_flags" create_flags }
        "struct ibv_qp_attr" abi::QpAttr { "qp_state" qp_state, "qp_access_flags" qp_access_flags, "cap" cap,
            "ah_attr" ah_attr, "alt_ah_attr" alt_ah_attr, "pkey_index" pkey_index, "port_num" port_num,
            "rate_limit" rate_limit }
        "struct ibv_srq_init_attr" abi::SrqInitAttr { "srq_context" srq_context, "attr" attr }
        "struct ibv_send_wr" abi::SendWr { "wr_id" wr_id, "next" next, "sg_list" sg_list, "num_sge" num_sge,
            "opcode" opcode, "send_flags" send_flags, "imm_data" imm_data, "wr.rdma.remote_addr" wr,
            "wr.atomic.remote_addr" wr, "bind_mw.mw" bind.mw, "bind_mw.rkey" bind.rkey,
            "bind_mw.bind_info.mr" bind.mr, "bind_mw.bind_info.addr" bind.addr,
            "bind_mw.bind_info.length" bind.length, "bind_mw.bind_info.mw_access_flags" bind.access }
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
        "struct rdma_event_channel" crate::cm::EventChannel { "fd" fd }
        "struct rdma_addrinfo" abi_cm::AddrInfoHead { "ai_flags" flags, "ai_family" family,
            "ai_qp_type" qp_type, "ai_port_space" port_space, "ai_src_len" src_len, "ai_dst_len" dst_len,
            "ai_src_addr" src_addr, "ai_dst_addr" dst_addr, "ai_route_len" route_len,
            "ai_connect" connect, "ai_next" next }
    }
}

#[test]
fn structures_have_the_layout_of_the_headers() {
    let mut program =
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n".to_owned();
    let mut check = |of: String, here: usize| {
        writeln!(program, "_Static_assert({of} == {here}, \"{here}\");").unwrap();
    };
    for (structure, field, here) in verbs_fields().into_iter().chain(cm_fields()) {
        check(format!("offsetof({structure}, {field})"), here);
    }
    for (structure, here) in sizes() {
        check(format!("sizeof({structure})"), here);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join(format!("layout-{}.c", std::process::id()));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&source).output().unwrap();
    std::fs::remove_file(&source).unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
