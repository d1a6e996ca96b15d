//! Device list, and queries of devices and ports.

use std::ffi::{c_char, c_int};
use std::net::IpAddr;

use iwarp_verbs::path_mtu;

use crate::abi::{DeviceAttr, Gid, GidEntry, PortAttr};
use crate::abi_ex::DeviceAttrEx;
use crate::context::{self, OpenContext, null};
use crate::device_list::{Device, devices};
use crate::raw::{bytes_mut, export, write};

/// Port number of every device.
pub(crate) const PORT: u8 = 1;
// `IBV_PORT_DOWN`, `IBV_PORT_ACTIVE`
const PORT_DOWN: c_int = 1;
const PORT_ACTIVE: c_int = 4;
// Physical states of InfiniBand's PortInfo: polling, and link up.
const PHYSICAL_POLLING: u8 = 2;
const PHYSICAL_LINK_UP: u8 = 5;
// `IBV_GID_TYPE_ROCE_V2`, and `IBV_GID_TYPE_SYSFS_ROCE_V2`
const GID_TYPE_ROCE_V2: u32 = 2;
const GID_TYPE_SYSFS_ROCE_V2: c_int = 1;
// `IBV_LINK_LAYER_ETHERNET`
const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_DEVICE_MEM_MGT_EXTENSIONS` and `_MEM_WINDOW_TYPE_2B`. `_MEM_WINDOW`, of windows of type 1, and `_SRQ_RESIZE`
/// are not offered.
const CAPABILITIES: u32 = 1 << 21 | 1 << 24;
// `IBV_ATOMIC_HCA`
const ATOMIC_HCA: c_int = 1;
/// OUI of the device, a locally administered one: "IW" after 02. Programs tune by those of vendors.
const VENDOR: u32 = 0x02_4957;
/// Entries of a completion queue, at most.
pub(crate) const CQE_MAX: u32 = 65_536;
/// Default P_Key, in network byte order.
const PKEY: u16 = 0xffff;

/// Returns the size of an IP packet as `enum ibv_mtu`: the largest InfiniBand MTU that fits.
pub(crate) const fn mtu(bytes: u16) -> c_int {
    // 256 is 1, and each further one is twice as large.
    path_mtu(bytes).ilog2().cast_signed() - 7
}

/// Returns an address as a GID, as programs have it.
pub(crate) const fn gid(address: IpAddr) -> Gid {
    Gid(iwarp_verbs::gid(address).octets())
}

/// Returns an entry of the table of GIDs. They are IP addresses, which is what RoCE v2 has.
fn gid_entry(gid: Gid, index: u32) -> GidEntry {
    let (port_num, gid_type) = (PORT.into(), GID_TYPE_ROCE_V2);
    GidEntry { gid, gid_index: index, port_num, gid_type, ..GidEntry::default() }
}

fn gid_at(context: Option<&OpenContext>, port: u32, index: u32) -> Option<Gid> {
    let context = context.filter(|_| port == u32::from(PORT))?;
    context.device.addresses().nth(usize::try_from(index).ok()?).map(gid)
}

export! {
    fn ibv_get_device_list(count: Option<&mut c_int>) -> *const Option<&'static Device> {
        let list = devices();
        if let Some(count) = count {
            *count = c_int::try_from(list.len().saturating_sub(1)).unwrap_or(0);
        }
        list.as_ptr()
    }

    fn ibv_free_device_list(_list: *const Option<&'static Device>) {}

    fn ibv_get_device_name(device: Option<&Device>) -> *const c_char {
        device.map_or(std::ptr::null(), |device| device.head.name.as_ptr())
    }

    fn ibv_get_device_guid(device: Option<&Device>) -> u64 {
        device.map_or(0, Device::guid)
    }

    fn ibv_get_device_index(device: Option<&Device>) -> c_int {
        device.and_then(|device| c_int::try_from(device.index).ok()).unwrap_or(-1)
    }

    fn ibv_open_device(device: Option<&'static Device>) -> Option<&'static OpenContext> {
        let Some(device) = device else { return null(libc::EINVAL) };
        context::open(device).map_or_else(null, Some)
    }

    fn ibv_close_device(context: *mut OpenContext) -> c_int {
        context::close(context).map_or_else(|error| null(error).unwrap_or(-1), |()| 0)
    }

    fn ibv_query_device(context: Option<&OpenContext>, out: *mut DeviceAttr) -> c_int {
        let Some(context) = context.filter(|_| !out.is_null()) else { return libc::EINVAL };
        write(out, 0, attributes(context.device));
        0
    }

    fn ibv_query_port(context: Option<&OpenContext>, port: u8, out: *mut PortAttr) -> c_int {
        let Some(context) = context.filter(|_| port == PORT && !out.is_null()) else { return libc::EINVAL };
        let info = context.device.info();
        // The events that have come, before the state.
        context.shared.context.progress();
        context.shared.dispatch();
        let (state, phys_state) = if context.shared.context.is_link_up() {
            (PORT_ACTIVE, PHYSICAL_LINK_UP)
        } else {
            (PORT_DOWN, PHYSICAL_POLLING)
        };
        let attributes = PortAttr {
            state,
            max_mtu: mtu(info.mtu),
            active_mtu: mtu(info.mtu),
            gid_tbl_len: c_int::try_from(info.addresses.len()).unwrap_or(0),
            max_msg_sz: u32::MAX,
            pkey_tbl_len: 1,
            max_vl_num: 1,
            active_width: 2,
            active_speed: 4,
            phys_state,
            link_layer: LINK_LAYER_ETHERNET,
            ..PortAttr::default()
        };
        write(out, 0, attributes);
        0
    }

    fn ibv_query_gid(context: Option<&OpenContext>, port: u8, index: c_int, out: *mut Gid) -> c_int {
        let found = u32::try_from(index).ok().and_then(|index| gid_at(context, port.into(), index));
        match found.filter(|_| !out.is_null()) {
            Some(gid) => {
                write(out, 0, gid);
                0
            }
            None => {
                errno::set_errno(errno::Errno(libc::EINVAL));
                -1
            }
        }
    }

    fn _ibv_query_gid_ex(
        context: Option<&OpenContext>,
        port: u32,
        index: u32,
        out: *mut GidEntry,
        flags: u32,
        size: usize,
    ) -> c_int {
        let found = gid_at(context, port, index).filter(|_| flags == 0 && !out.is_null());
        let Some(gid) = found.filter(|_| size >= size_of::<GidEntry>()) else { return libc::EINVAL };
        write(out, 0, gid_entry(gid, index));
        0
    }

    fn _ibv_query_gid_table(
        context: Option<&OpenContext>,
        out: *mut GidEntry,
        max: usize,
        flags: u32,
        size: usize,
    ) -> isize {
        let is_valid = flags == 0 && size == size_of::<GidEntry>() && max > 0 && !out.is_null();
        // The table is read as a whole, or not at all.
        let fits = |context: &&OpenContext| is_valid && context.device.info().addresses.len() <= max;
        let Some(context) = context.filter(fits) else { return -isize::try_from(libc::EINVAL).unwrap_or(1) };
        let mut written = 0_u32;
        for (at, address) in context.device.addresses().enumerate() {
            write(out, at, gid_entry(gid(address), written));
            written = written.saturating_add(1);
        }
        isize::try_from(written).unwrap_or(0)
    }

    fn ibv_query_gid_type(
        context: Option<&OpenContext>,
        port: u8,
        index: u32,
        out: Option<&mut c_int>,
    ) -> c_int {
        match (gid_at(context, port.into(), index), out) {
            (Some(_), Some(out)) => {
                *out = GID_TYPE_SYSFS_ROCE_V2;
                0
            }
            _ => {
                errno::set_errno(errno::Errno(libc::EINVAL));
                -1
            }
        }
    }

    fn ibv_query_pkey(_context: Option<&OpenContext>, port: u8, index: c_int, out: Option<&mut u16>) -> c_int {
        match out.filter(|_| port == PORT && index == 0) {
            Some(out) => {
                *out = PKEY;
                0
            }
            None => {
                errno::set_errno(errno::Errno(libc::EINVAL));
                -1
            }
        }
    }

    fn ibv_get_pkey_index(_context: Option<&OpenContext>, port: u8, pkey: u16) -> c_int {
        if port == PORT && pkey == PKEY { 0 } else { -1 }
    }

    fn ibv_fork_init() -> c_int {
        0
    }

    fn ibv_is_fork_initialized() -> c_int {
        // `IBV_FORK_UNNEEDED`: memory that is registered stays where it is in parent and child.
        2
    }

    fn ibv_dontfork_range(_base: usize, _size: usize) -> c_int {
        0
    }

    fn ibv_dofork_range(_base: usize, _size: usize) -> c_int {
        0
    }
}

/// Writes the properties of a device (`ibv_query_device_ex`). The program's structure has `size` bytes, and begins with
/// `struct ibv_device_attr`; iWARP has nothing of what later fields describe.
pub(crate) extern "C" fn query_device_ex(
    context: Option<&OpenContext>,
    input: Option<&u32>,
    out: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    // The input has a mask of further fields alone, which are not defined.
    let is_known = input.is_none_or(|mask| *mask == 0) && !out.is_null() && size >= size_of::<DeviceAttr>();
    let Some(context) = context.filter(|_| is_known) else {
        return libc::EINVAL;
    };
    bytes_mut(out.cast(), size).fill(0);
    let plain = attributes(context.device);
    if size < size_of::<DeviceAttrEx>() {
        write(out.cast(), 0, plain);
        return 0;
    }
    let (device_cap_flags, phys_port_cnt) = (plain.device_cap_flags.into(), plain.phys_port_cnt.into());
    let all = DeviceAttrEx {
        plain,
        comp_mask: 0,
        absent_first: [0; 5],
        device_cap_flags,
        absent_last: [0; 13],
        xrc_odp_caps: 0,
        phys_port_cnt,
    };
    write(out, 0, all);
    0
}

/// Returns the properties of a device. The configuration of the daemon may allow less.
fn attributes(device: &Device) -> DeviceAttr {
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    DeviceAttr {
        fw_ver,
        node_guid: device.guid(),
        sys_image_guid: device.guid(),
        max_mr_size: u64::MAX,
        page_size_cap: 4096,
        vendor_id: VENDOR,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: 1024,
        max_qp_wr: 4096,
        device_cap_flags: CAPABILITIES,
        max_sge: 16,
        max_sge_rd: 16,
        max_cq: 2048,
        max_cqe: CQE_MAX.cast_signed(),
        max_mr: 1024,
        max_pd: 1024,
        max_qp_rd_atom: 16,
        max_ee_rd_atom: 0,
        max_res_rd_atom: 16 * 1024,
        max_qp_init_rd_atom: 16,
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 1024,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: c_int::MAX,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: 1024,
        max_srq_wr: 16_384,
        max_srq_sge: 16,
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: 1,
    }
}
