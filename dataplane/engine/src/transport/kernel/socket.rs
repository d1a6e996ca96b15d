//! Sockets of the kernel: made, bound, asked and set.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tcp_stack::{ConnOptions, ListenOptions, ListenScope};

/// Longest segment: the kernel's loopback interface has an EMSS of 65,483 bytes, and longer FPDUs do not fit MPA's
/// length field.
const EMSS_MAX: usize = 64_774;
/// Segment assumed while the kernel tells none, bytes (RFC 9293 §3.7.1: MUST-15).
const EMSS_MIN: usize = 536;

/// Opens a descriptor that can be given up.
pub(super) fn spare() -> io::Result<OwnedFd> {
    Ok(open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Asks the kernel for the segment size of an open connection.
pub(super) fn emss_of(socket: &Socket) -> usize {
    let mss = socket.tcp_mss().ok().and_then(|mss| usize::try_from(mss).ok());
    mss.unwrap_or(EMSS_MIN).clamp(EMSS_MIN, EMSS_MAX)
}

/// Returns the error number of the kernel.
pub(super) fn number(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Creates a non-blocking socket of the address's family; by the system call, because `socket` of the C library may be
/// that of a library which makes rsockets of streams.
pub(super) fn stream(ip: IpAddr) -> io::Result<Socket> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?.into())
}

/// Creates a socket that listens.
pub(super) fn listening(scope: ListenScope, port: u16, options: &ListenOptions) -> io::Result<Socket> {
    let at = |ip: IpAddr, only: Option<bool>| {
        let socket = stream(ip)?;
        if let Some(only) = only {
            socket.set_only_v6(only)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(ip, port).into())?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(socket)
    };
    match scope {
        ListenScope::Address(ip) => at(ip, ip.is_ipv6().then_some(true)),
        ListenScope::Ipv4 => at(Ipv4Addr::UNSPECIFIED.into(), None),
        ListenScope::Ipv6 => at(Ipv6Addr::UNSPECIFIED.into(), Some(true)),
        // A kernel without IPv6 has the other family alone.
        ListenScope::Any => match at(Ipv6Addr::UNSPECIFIED.into(), Some(false)) {
            Err(error) if number(&error) == Errno::AFNOSUPPORT => at(Ipv4Addr::UNSPECIFIED.into(), None),
            socket => socket,
        },
    }
}

/// Sets what the options ask for. A kernel that refuses one keeps its own.
pub(super) fn set_options(socket: &Socket, options: &ConnOptions, ip: IpAddr) {
    let _ = socket.set_tcp_nodelay(!options.nagle);
    if let Some(keepalive) = options.keepalive {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        let keepalive = TcpKeepalive::new()
            .with_time(ms(keepalive.idle_ms))
            .with_interval(ms(keepalive.interval_ms))
            .with_retries(keepalive.probes.into());
        let _ = socket.set_tcp_keepalive(&keepalive);
    }
    if let Some(ms) = options.user_timeout_ms {
        let _ = socket.set_tcp_user_timeout(Some(Duration::from_millis(ms.into())));
    }
    if options.traffic_class != 0 {
        set_traffic_class(socket, ip, options.traffic_class);
    }
}

/// Sets the traffic class, without ECN's bits, which are TCP's.
pub(super) fn set_traffic_class(socket: &Socket, ip: IpAddr, class: u8) {
    let class = u32::from(class & !3);
    let _ = if ip.is_ipv4() { socket.set_tos_v4(class) } else { socket.set_tclass_v6(class) };
}

/// Returns an IPv4 address that came through a socket of both families as what it is.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Creates a UDP socket of the address's family, to ask the kernel about addresses.
fn datagrams(ip: IpAddr) -> io::Result<Socket> {
    let domain = if ip.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP))
}

/// Returns true if an address is one of this machine. Ports of TCP do not matter: all may be in use.
pub(super) fn is_local(address: IpAddr) -> bool {
    let bound = datagrams(address).and_then(|socket| socket.bind(&SocketAddr::new(address, 0).into()));
    // A process without descriptors learns of that later.
    bound.err().is_none_or(|error| {
        !matches!(number(&error), Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL)
    })
}

/// Returns the address that the kernel would send from.
pub(super) fn source(local: Option<IpAddr>, remote: SocketAddr) -> Option<IpAddr> {
    let socket = datagrams(remote.ip()).ok()?;
    if let Some(local) = local {
        socket.bind(&SocketAddr::new(local, 0).into()).ok()?;
    }
    socket.connect(&remote.into()).ok()?;
    Some(socket.local_addr().ok()?.as_socket()?.ip())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn addresses_of_this_machine_are_local_whatever_ports_are_in_use() {
        assert!(is_local([127, 0, 0, 1].into()) && is_local([127, 9, 9, 9].into()));
        // TEST-NET-1 (RFC 5737), and the prefix for documentation (RFC 3849).
        assert!(!is_local([192, 0, 2, 1].into()) && !is_local([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()));
    }
}
