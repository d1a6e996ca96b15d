//! `rdma_getaddrinfo`: names and services of peers.

use std::ffi::{c_char, c_int};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ptr;

use crate::abi_cm::{AddrInfoHead, Address, encode};
use crate::cm::{PORT_SPACE_IB, PORT_SPACE_TCP};
use crate::cm_calls::answer;
use crate::qp::QPT_RC;
use crate::raw::{address, export, service_port, text};

// Bits of `ai_flags`.
pub(crate) const PASSIVE: c_int = 1;
const NUMERICHOST: c_int = 2;
const FAMILY: c_int = 8;

/// `struct rdma_addrinfo`, with its addresses.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AddrInfo {
    pub(crate) head: AddrInfoHead,
    src: Address,
    dst: Address,
}

/// Returns the port of a service, which is a number or a name of `/etc/services`; 0 without one.
fn port_of(service: *const c_char) -> Result<u16, c_int> {
    if service.is_null() {
        return Ok(0);
    }
    match text(service).ok_or(libc::EINVAL)? {
        "" => Ok(0),
        number if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            number.parse().map_err(|_| libc::EINVAL)
        }
        _ => service_port(service).ok_or(libc::EINVAL),
    }
}

/// Looks a name up. Without a name it is any address, for a listener.
fn look_up(node: Option<&str>, port: u16, flags: c_int, family: c_int) -> Result<SocketAddr, c_int> {
    let Some(node) = node else {
        let any = if flags & FAMILY != 0 && family == libc::AF_INET6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        return Ok(SocketAddr::new(any, port));
    };
    let fits = |found: &SocketAddr| flags & FAMILY == 0 || found.is_ipv4() == (family == libc::AF_INET);
    if let Ok(ip) = node.parse() {
        return Some(SocketAddr::new(ip, port)).filter(fits).ok_or(libc::ENODEV);
    }
    if flags & NUMERICHOST != 0 {
        return Err(libc::EINVAL);
    }
    let found = (node, port).to_socket_addrs().map_err(|_| libc::ENODEV)?;
    found.into_iter().find(fits).ok_or(libc::ENODEV)
}

fn build(src: Option<SocketAddr>, dst: Option<SocketAddr>, flags: c_int) -> Box<AddrInfo> {
    let length = |address: Option<SocketAddr>| address.map_or(0, |address| encode(address).1);
    let head = AddrInfoHead {
        flags,
        family: if src.or(dst).is_none_or(|any| any.is_ipv4()) { libc::AF_INET } else { libc::AF_INET6 },
        qp_type: QPT_RC,
        port_space: PORT_SPACE_TCP,
        src_len: length(src),
        dst_len: length(dst),
        src_addr: ptr::null(),
        dst_addr: ptr::null(),
        src_canonname: ptr::null(),
        dst_canonname: ptr::null(),
        route_len: 0,
        route: ptr::null(),
        connect_len: 0,
        connect: ptr::null(),
        next: ptr::null(),
    };
    let mut info = Box::new(AddrInfo { head, src: Address::default(), dst: Address::default() });
    if let Some(src) = src {
        info.src.set(src);
        info.head.src_addr = &raw const info.src;
    }
    if let Some(dst) = dst {
        info.dst.set(dst);
        info.head.dst_addr = &raw const info.dst;
    }
    info
}

export! {
    fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: Option<&AddrInfoHead>,
        out: Option<&mut *const AddrInfo>,
    ) -> c_int {
        let is_named = !(node.is_null() && service.is_null());
        let Some(out) = out.filter(|_| is_named || hints.is_some()) else {
            return answer(Err(libc::EINVAL));
        };
        let kind = hints.map_or((0, 0), |hints| (hints.qp_type, hints.port_space));
        if !matches!(kind, (0 | QPT_RC, 0 | PORT_SPACE_TCP | PORT_SPACE_IB)) {
            return answer(Err(libc::EOPNOTSUPP));
        }
        let (flags, family) = hints.map_or((0, 0), |hints| (hints.flags, hints.family));
        let source = hints.and_then(|hints| address(hints.src_addr.cast()));
        let addresses = if is_named {
            let found = port_of(service).and_then(|port| look_up(text(node), port, flags, family));
            found.map(|found| if flags & PASSIVE != 0 { (Some(found), None) } else { (source, Some(found)) })
        } else {
            // Without a name the addresses are those of the hints.
            Ok((source, hints.and_then(|hints| address(hints.dst_addr.cast()))))
        };
        answer(addresses.map(|(src, dst)| *out = Box::into_raw(build(src, dst, flags))))
    }

    fn rdma_freeaddrinfo(info: Option<Box<AddrInfo>>) {
        drop(info);
    }
}
