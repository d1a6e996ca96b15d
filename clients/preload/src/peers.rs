//! Peers with which sockets become rsockets: with a daemon, which has addresses of its own, all that a device reaches.
//! A device inside the program has the kernel's addresses, and `iwarp-run` names the peers.
//!
//! JUSTIFICATION: reads addresses at pointers of C programs.
#![allow(unsafe_code, reason = "reads addresses of the program; listed in UNSAFE.md")]

use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use errno::{errno, set_errno};
use ipnet::IpNet;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::calls::system;
use crate::overlay::{route, rsocket_of, uncover};

/// Variable with the prefixes of the peers, separated by commas: `iwarp-run --peers`.
const VARIABLE: &str = "IWARP_PRELOAD_PEERS";

/// Peers that are spoken to by rsockets.
#[derive(Debug)]
pub(crate) enum Peers {
    /// Those that are not this machine's loopback addresses.
    NotLoopback,
    /// Those whose addresses have one of these prefixes.
    Of(Vec<IpNet>),
}

impl Peers {
    /// Reads prefixes, as `iwarp-run` writes them.
    fn parse(variable: Option<&str>) -> Self {
        let prefixes = |text: &str| text.split(',').filter_map(|prefix| prefix.parse().ok()).collect();
        variable.map_or(Self::NotLoopback, |text| Self::Of(prefixes(text)))
    }

    /// Returns true if there can be no peer: all sockets stay the kernel's.
    pub(crate) fn are_none(&self) -> bool {
        matches!(self, Self::Of(prefixes) if prefixes.is_empty())
    }

    fn contain(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        match self {
            Self::NotLoopback => !ip.is_loopback(),
            Self::Of(prefixes) => prefixes.iter().any(|prefix| prefix.contains(&ip)),
        }
    }
}

/// Returns the peers, as of the program's first socket: it may change its environment later.
pub(crate) fn peers() -> &'static Peers {
    static PEERS: OnceLock<Peers> = OnceLock::new();
    PEERS.get_or_init(|| Peers::parse(std::env::var(VARIABLE).ok().as_deref()))
}

/// Reads an address of IPv4 or IPv6.
///
/// # Safety
/// `address` is null, or an address of `size` bytes.
unsafe fn ip_of(address: *const sockaddr, size: socklen_t) -> Option<IpAddr> {
    let size = usize::try_from(size).unwrap_or(0);
    if address.is_null() || size < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: the caller's address begins with its family.
    let family = unsafe { (*address).sa_family };
    match family.into() {
        libc::AF_INET => {
            // SAFETY: an address of this family, which is long enough.
            let found = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(found.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 if size >= size_of::<sockaddr_in6>() => {
            // SAFETY: an address of this family, which is long enough.
            let found = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Closes the rsocket over a socket that is bound to an address, if peers do not reach it there. With a daemon,
/// programs of one machine that are not run with this library use loopback addresses.
///
/// # Safety
/// As for `bind`.
pub(crate) unsafe fn leave_at_bind(fd: c_int, address: *const sockaddr, size: socklen_t) {
    // With prefixes, an address that stands for any is looked at again when the socket listens or connects.
    if rsocket_of(fd).is_some()
        // SAFETY: the caller's arguments.
        && let Some(ip) = unsafe { ip_of(address, size) }
        && !ip.is_unspecified()
        && !peers().contain(ip)
    {
        uncover(fd);
    }
}

/// Closes the rsocket over a socket that connects to another peer. The socket keeps its address and port.
/// Returns false, with `errno`, if it cannot.
///
/// # Safety
/// As for `connect`.
pub(crate) unsafe fn leave_at_connect(fd: c_int, peer: *const sockaddr, size: socklen_t) -> bool {
    if rsocket_of(fd).is_some()
        // SAFETY: the caller's arguments.
        && let Some(ip) = unsafe { ip_of(peer, size) }
        && !peers().contain(ip)
    {
        return leave(fd);
    }
    true
}

/// Closes the rsocket over a socket that listens, if there are prefixes, and none has its address: the kernel's peers
/// are to reach it. One that stands for any is in `0.0.0.0/0` or `::/0` alone. Returns false, with `errno`, if the
/// socket cannot have the address.
pub(crate) fn leave_at_listen(fd: c_int) -> bool {
    if rsocket_of(fd).is_some()
        && matches!(peers(), Peers::Of(_))
        && !bound(fd).is_some_and(|(ip, ..)| peers().contain(ip))
    {
        return leave(fd);
    }
    true
}

/// Returns the address of a socket, and as `bind` takes it.
fn bound(fd: c_int) -> Option<(IpAddr, sockaddr_storage, socklen_t)> {
    // SAFETY: `sockaddr_storage` is plain data, for which zeros are valid.
    let mut own: sockaddr_storage = unsafe { zeroed() };
    let mut size = socklen_t::try_from(size_of::<sockaddr_storage>()).ok()?;
    let (calls, number) = route(fd);
    // SAFETY: an address, and its size.
    let got = unsafe { (calls.getsockname)(number, (&raw mut own).cast(), &raw mut size) };
    // SAFETY: the address that the call has written.
    let ip = unsafe { ip_of((&raw const own).cast(), size) }.filter(|_| got == 0)?;
    Some((ip, own, size))
}

/// Closes the rsocket over a socket, which gets the rsocket's address if the program has bound it. Returns false, with
/// `errno`, if it cannot.
fn leave(fd: c_int) -> bool {
    let before = errno();
    let bound = bound(fd).filter(|(ip, own, _)| !ip.is_unspecified() || port_of(own) != 0);
    uncover(fd);
    set_errno(before);
    let Some((_, own, size)) = bound else { return true };
    // SAFETY: an address, and its size.
    unsafe { (system().bind)(fd, (&raw const own).cast(), size) == 0 }
}

/// Returns the port of an address of IPv4 or IPv6: both have it at the same place.
fn port_of(address: &sockaddr_storage) -> u16 {
    // SAFETY: the storage is longer than this, aligned for it, and plain data.
    let address = unsafe { &*(&raw const *address).cast::<sockaddr_in>() };
    u16::from_be(address.sin_port)
}
