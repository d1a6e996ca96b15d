//! Structures of `<rdma/rdma_cma.h>` (rdma-core 44), as [`abi`](crate::abi) has those of verbs.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use crate::cm::Id;
use crate::context::OpenContext;
use crate::event_channel::EventChannel;
use crate::objects::{Channel, Cq, Pd, Srq};
use crate::qp::Qp;

/// `struct rdma_cm_id`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct IdHead {
    pub(crate) verbs: AtomicPtr<OpenContext>,
    pub(crate) channel: AtomicPtr<EventChannel>,
    pub(crate) context: AtomicPtr<c_void>,
    pub(crate) qp: AtomicPtr<Qp>,
    pub(crate) src: Address,
    pub(crate) dst: Address,
    pub(crate) ibaddr: [u64; 5],
    pub(crate) path_rec: usize,
    pub(crate) num_paths: u64,
    pub(crate) ps: c_int,
    pub(crate) port_num: AtomicU8,
    pub(crate) event: AtomicPtr<crate::cm::CmEvent>,
    pub(crate) send_cq_channel: AtomicPtr<Channel>,
    pub(crate) send_cq: AtomicPtr<Cq>,
    pub(crate) recv_cq_channel: AtomicPtr<Channel>,
    pub(crate) recv_cq: AtomicPtr<Cq>,
    pub(crate) srq: AtomicPtr<Srq>,
    pub(crate) pd: AtomicPtr<Pd>,
    pub(crate) qp_type: AtomicI32,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const u8,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: ptr::null(),
            private_data_len: 0,
            responder_resources: 0xff,
            initiator_depth: 0xff,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// `struct rdma_cm_event`. The union of parameters has room for those of datagrams.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EventHead {
    pub(crate) id: *const Id,
    pub(crate) listen_id: *const Id,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) conn: ConnParam,
    pub(crate) rest: [u64; 4],
}

/// `struct rdma_addrinfo`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AddrInfoHead {
    pub(crate) flags: c_int,
    pub(crate) family: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) port_space: c_int,
    pub(crate) src_len: u32,
    pub(crate) dst_len: u32,
    pub(crate) src_addr: *const Address,
    pub(crate) dst_addr: *const Address,
    pub(crate) src_canonname: *const c_char,
    pub(crate) dst_canonname: *const c_char,
    pub(crate) route_len: usize,
    pub(crate) route: *const c_void,
    pub(crate) connect_len: usize,
    pub(crate) connect: *const c_void,
    pub(crate) next: *const c_void,
}

/// `struct sockaddr_storage`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Address([AtomicU64; 16]);

/// Bytes of the longest address that the library knows, `struct sockaddr_in6`.
pub(crate) const ADDRESS_BYTES: usize = 28;

impl Address {
    pub(crate) fn set(&self, address: SocketAddr) {
        let (bytes, _) = encode(address);
        let mut padded = [0; 32];
        for (to, from) in padded.iter_mut().zip(bytes) {
            *to = from;
        }
        for (word, bytes) in self.0.iter().zip(padded.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
        }
    }

    pub(crate) fn get(&self) -> Option<SocketAddr> {
        let mut bytes = [0; ADDRESS_BYTES];
        let words = self.0.iter().flat_map(|word| word.load(Ordering::Acquire).to_ne_bytes());
        for (to, from) in bytes.iter_mut().zip(words) {
            *to = from;
        }
        decode(&bytes)
    }
}

/// Returns an address as `struct sockaddr_in` or `sockaddr_in6`, and its length.
pub(crate) fn encode(address: SocketAddr) -> ([u8; ADDRESS_BYTES], u32) {
    let mut bytes = [0; ADDRESS_BYTES];
    let mut put = |at: usize, from: &[u8]| {
        bytes.iter_mut().skip(at).zip(from).for_each(|(to, from)| *to = *from);
    };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(0, &u16::try_from(family).unwrap_or(0).to_ne_bytes());
    put(2, &address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            put(4, &address.ip().octets());
            (bytes, 16)
        }
        SocketAddr::V6(address) => {
            put(8, &address.ip().octets());
            put(24, &address.scope_id().to_ne_bytes());
            (bytes, 28)
        }
    }
}

/// Returns the address of a `struct sockaddr_in` or `sockaddr_in6`; `None` for another family.
pub(crate) fn decode(bytes: &[u8; ADDRESS_BYTES]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let (word, rest) = rest.split_first_chunk::<4>()?;
    let port = u16::from_be_bytes(*port);
    match u16::from_ne_bytes(*family).into() {
        libc::AF_INET => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*word)), port)),
        libc::AF_INET6 => {
            let (ip, rest) = rest.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*rest.first_chunk()?);
            let ip = Ipv6Addr::from(*ip);
            // Programs receive mapped addresses from getaddrinfo(3) on machines whose own network has no IPv4.
            Some(match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddr::new(ip.into(), port),
                None => SocketAddrV6::new(ip, port, 0, scope).into(),
            })
        }
        _ => None,
    }
}
